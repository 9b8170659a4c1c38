"""``mainspring hits`` answers an operator's question: what would a cache of this size have held?"""

from __future__ import annotations

import gzip
import json
from collections import OrderedDict
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mainspring.core.__main__ import main
from mainspring.core.errors import ConfigError
from mainspring.plugins.traces.mooncake import read_trace

TRACES = Path(__file__).parents[1] / "data" / "traces"
CONVERSATION = TRACES / "conversation_trace.first40min.jsonl.gz"
SYNTHETIC = TRACES / "synthetic_trace.jsonl.gz"

LINE = b'{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1]}\n'


def write(path: Path, prompts: list[list[int]]) -> Path:
    lines = (
        json.dumps({"timestamp": 0, "input_length": 512 * len(prompt), "output_length": 1, "hash_ids": prompt})
        for prompt in prompts
    )
    path.write_text("\n".join(lines) + "\n")
    return path


def rates(capsys: pytest.CaptureFixture[str], trace: Path, *arguments: str) -> list[dict[str, Any]]:
    assert main(["hits", str(trace), "--json", *arguments]) == 0
    document = json.loads(capsys.readouterr().out)
    return list(document["rates"])


#: Share of prompt blocks hit in per cent, by cache size in blocks.
PUBLISHED: dict[Path, dict[int | None, float]] = {
    CONVERSATION: {1000: 4.41, 5000: 10.98, 10_000: 20.58, 30_000: 31.79, None: 35.09},
    SYNTHETIC: {1000: 8.25, 5000: 27.91, 10_000: 42.35, 30_000: 62.42, None: 63.96},
}


def check_published(capsys: pytest.CaptureFixture[str], trace: Path, *sizes: int | None) -> None:
    """Within 0.2 points of what is known of these traces under LRU."""
    words = ",".join(str(size or "unlimited") for size in sizes)
    found = rates(capsys, trace, "--blocks", words, "--evict", "lru", "--allocator", "prefix")
    assert {row["blocks"]: row["hit_percent"] for row in found} == {
        size: pytest.approx(PUBLISHED[trace][size], abs=0.2) for size in sizes
    }
    assert [row["evictions"] > 0 for row in found] == [size is not None for size in sizes]


@pytest.mark.slow
def test_published_traces(capsys: pytest.CaptureFixture[str]) -> None:
    check_published(capsys, CONVERSATION, 5000, None)
    check_published(capsys, SYNTHETIC, 1000, 10_000)


@pytest.mark.soak
@pytest.mark.parametrize("trace", [CONVERSATION, SYNTHETIC])
def test_published_traces_at_every_size(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    check_published(capsys, trace, *PUBLISHED[trace])


def test_small_traces_by_hand(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """1 2 3, then 1 2 4, then 1 2 3 again: 2 + 3 of 9; three of the first blocks are looked up, two found."""
    trace = write(tmp_path / "trace.jsonl", [[1, 2, 3], [1, 2, 4], [1, 2, 3]])
    (row,) = rates(capsys, trace, "--allocator", "prefix")
    assert (row["requests"], row["prompt_blocks"], row["hit_blocks"]) == (3, 9, 5)
    assert row["hit_percent"] == pytest.approx(500 / 9)
    assert row["hit_percent_without_first_block"] == pytest.approx(50)
    (row,) = rates(capsys, trace, "--allocator", "prefix", "--blocks", "3")
    assert (row["hit_blocks"], row["evictions"]) == (4, 2)  # 3 made room for 4, then 4 for 3
    (row,) = rates(capsys, trace, "--allocator", "prefix", "--blocks", "2")
    assert row["hit_blocks"] == 4  # of a prompt longer than the cache the beginning is kept
    (row,) = rates(capsys, trace, "--allocator", "paged")
    assert (row["hit_blocks"], row["evictions"]) == (0, 0)


def test_against_a_plain_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Random prompts: the allocators find what a dictionary of whole prefixes, evicted by last use, would hold."""
    rng = Random(1)
    bases = [[rng.randrange(50) for _ in range(12)] for _ in range(6)]
    prompts = [[*rng.choice(bases)[: rng.randint(1, 12)], rng.randrange(50)] for _ in range(300)]
    trace = write(tmp_path / "trace.jsonl", prompts)
    for size in (13, 20, 40):
        expected = model_hits(prompts, size)
        for allocator in ("prefix", "radix"):
            (row,) = rates(capsys, trace, "--allocator", allocator, "--blocks", str(size))
            assert row["hit_blocks"] == expected


def model_hits(prompts: list[list[int]], capacity: int) -> int:
    cache: OrderedDict[tuple[int, ...], None] = OrderedDict()
    hits = 0
    for prompt in prompts:
        prefixes = [tuple(prompt[: size + 1]) for size in range(len(prompt))]
        found = next((index for index, prefix in enumerate(prefixes) if prefix not in cache), len(prefixes))
        hits += found
        for prefix in reversed(prefixes[:found]):
            cache.move_to_end(prefix)
        while len(cache) + len(prefixes) - found > capacity:
            cache.popitem(last=False)
        for prefix in reversed(prefixes):  # used together, the end of the chain the oldest
            cache[prefix] = None
            cache.move_to_end(prefix)
    return hits


def test_the_table_names_what_was_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = write(tmp_path / "trace.jsonl", [[1, 2], [1, 2]])
    assert main(["hits", str(trace), "--allocator", "prefix", "--evict", "lru,slru", "--blocks", "2,unlimited"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:4] for line in lines[1:]] == [
        ["prefix", "lru", "2", "50.00"],
        ["prefix", "lru", "unlimited", "50.00"],
        ["prefix", "slru", "2", "50.00"],
        ["prefix", "slru", "unlimited", "50.00"],
    ]


def test_the_configured_allocator_is_the_default(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = write(tmp_path / "trace.jsonl", [[1, 2], [1, 2]])
    settings = ("--set", "allocator.use=radix", "--set", "allocator.evict=fifo")
    (row,) = rates(capsys, trace, *settings)
    assert (row["allocator"], row["evict"], row["hit_blocks"]) == ("radix", "fifo", 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--blocks", "0"), "--blocks '0': expected a number of blocks from 1, or unlimited"),
        (("--blocks", "10,many"), "--blocks 'many'"),
        (("--allocator", "prefix", "--evict", "lruu"), "did you mean 'lru'?"),
        (("--allocator", "prefx"), "did you mean 'prefix'?"),
    ],
)
def test_wrong_arguments_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    trace = write(tmp_path / "trace.jsonl", [[1]])
    assert main(["hits", str(trace), *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"timestamp": 0}\n', r"a.jsonl: line 1 .*input_length"),
        ("b.jsonl", b'\n{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["x"]}\n', "line 2"),
        ("c.jsonl", b"not JSON\n", "line 1"),
        ("d.jsonl.gz", gzip.compress(LINE * 500)[:-20], "d.jsonl.gz: damaged"),
        ("e.jsonl.gz", b"plain", "e.jsonl.gz"),
    ],
)
def test_a_bad_trace_is_named_with_its_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        list(read_trace(path))
    with pytest.raises(ConfigError, match="cannot be read"):
        list(read_trace(tmp_path / "missing.jsonl"))


def test_requests_are_read_as_they_stand() -> None:
    requests = list(read_trace(SYNTHETIC))
    assert len(requests) == 3993
    assert (requests[0].timestamp, requests[0].input_length, requests[0].output_length) == (0, 40160, 6)
    assert all(len(each.hash_ids) == -(-each.input_length // 512) for each in requests[:100])
