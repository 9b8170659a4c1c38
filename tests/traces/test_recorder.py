"""A server's own traffic as a trace: what is written, what is not, and that it plays again."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.core.config import AllocatorConfig, Config
from mainspring.core.errors import ConfigError
from mainspring.core.messages import Cancel
from mainspring.plugins.settings import Config as Settings
from mainspring.plugins.settings import JournalConfig
from mainspring.plugins.simulation import play
from mainspring.plugins.simulation.play import configure
from mainspring.plugins.simulator import LinearStepTime, Simulator
from mainspring.plugins.step_time.forms import StepForm
from mainspring.plugins.testing.fake_executor import FakeExecutor
from mainspring.plugins.testing.scenarios import prompt, submit
from mainspring.plugins.traces.formats import read
from mainspring.plugins.traces.recorder import TraceRecorder
from mainspring.plugins.workloads.scenario import from_trace


def record(folder: Path, salt: bytes | None = b"salt") -> Path:
    """Four requests: two share a prompt's beginning, one is cancelled half way, one is refused."""
    recorder = TraceRecorder(folder, salt)
    simulator = Simulator(
        Config(allocator=AllocatorConfig(block_size=16)), FakeExecutor(64, 16), LinearStepTime(), taps=[recorder.record]
    )
    head = prompt(40, 1)
    first, second = (submit(rid, 1, 5, tenant="ada") for rid in ("a", "b"))
    shared = [
        type(one)(one.rid, head + prompt(8, seed), one.sampling, tenant=one.tenant, priority=seed)
        for seed, one in enumerate((first, second))
    ]
    simulator.at(10.0, shared[0])
    simulator.at(10.5, shared[1], submit("c", 20, 50), submit("d", 0, 5))
    simulator.at(10.6, Cancel("c"))
    simulator.run()
    recorder.close()
    assert recorder.num_lost == 0
    return recorder.file


def test_what_is_recorded_and_what_is_not(tmp_path: Path) -> None:
    trace = read("canonical", record(tmp_path))
    assert [(row.arrival_s, row.input_tokens, row.priority) for row in trace.rows] == [
        (0.0, 48, 0),
        (0.5, 48, 1),
        (0.5, 20, 0),
    ]
    a, b, c = trace.rows
    assert (a.output_tokens, b.output_tokens) == (5, 5) and 0 < c.output_tokens < 50
    assert len(a.prefix_blocks) == 3 and a.block_tokens == 16
    assert a.prefix_blocks[:2] == b.prefix_blocks[:2] and a.prefix_blocks[2] != b.prefix_blocks[2]
    assert a.tenant == b.tenant != "ada" and c.tenant == ""
    text = record(tmp_path).read_text()
    assert "ada" not in text and "prompt_ids" not in text


def test_hashes_are_keyed_with_a_secret_of_the_process(tmp_path: Path) -> None:
    one, two = (read("canonical", record(tmp_path / name, None)).rows for name in ("one", "two"))
    assert one[0].prefix_blocks[0] == one[1].prefix_blocks[0] != two[0].prefix_blocks[0]
    assert one[0].tenant != two[0].tenant
    assert read("canonical", record(tmp_path / "x", b"k")) == read("canonical", record(tmp_path / "y", b"k"))


def test_a_recorded_trace_plays_again_and_hits_what_was_shared(tmp_path: Path) -> None:
    made = from_trace(read("canonical", record(tmp_path)).rows, 1024, 64)
    run = play(configure(Config(), made), made, StepForm(form="linear", c0=0.01, c1=0.0001))
    assert all(one.complete for one in run.requests)
    assert [one.cached_tokens for one in run.requests] == [0, 32, 0]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"journal\.trace: .*file"):
        TraceRecorder(tmp_path / "file")


def test_a_later_process_of_the_same_number_keeps_what_is_there(tmp_path: Path) -> None:
    first, second, third = (record(tmp_path) for _ in range(3))
    assert [first.stem + end for end in ("", "-1", "-2")] == [one.stem for one in (first, second, third)]
    assert all(len(read("canonical", one).rows) == 3 for one in (first, second, third))


def test_off_by_default() -> None:
    assert Settings().journal == JournalConfig(trace="")
