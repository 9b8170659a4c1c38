"""Shadow: another policy is asked on the traffic of a running engine, and nothing of it is applied."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.experiments.served import TWO, ask, begin, config, fail, write

from mainspring.core.errors import ConfigError
from mainspring.core.messages import Submit
from mainspring.plugins.experiments.served.start import Served, start
from mainspring.plugins.testing.fake_executor import FakeExecutor, expected_ids


@pytest.mark.slow
def test_shadow_logs_divergences_and_applies_nothing(tmp_path: Path) -> None:
    served = begin(tmp_path, 'mode = "shadow"')
    order: list[str] = []

    async def traffic() -> list[Any]:
        async with served.engine as engine:
            engine.kernel.router._taps += (
                lambda message, now: order.append(message.rid) if isinstance(message, Submit) else None,
            )
            lengths = [200, 8, 120, 8, 60, 8, 30, 8]
            return await asyncio.gather(*(ask(engine, number, length) for number, length in enumerate(lengths)))

    results = asyncio.run(traffic())
    for ids, result in results:
        assert list(result.token_ids) == expected_ids(tuple(ids), 4, 49_152)
    told = served.finish()
    summary = json.loads((tmp_path / "out" / "shadow.json").read_text())
    lines = (tmp_path / "out" / "divergences.jsonl").read_text().splitlines()
    assert 0 < summary["diverged"] == len(lines) < summary["steps"]
    assert summary["faults"] == 0 and f"differed in {len(lines)} of {summary['steps']} steps" in told
    first = json.loads(lines[0])
    assert first["policy"] == "shortest" and first.keys() & {"only_real", "only_shadow", "tokens"}


def test_a_full_disk_costs_the_files_and_no_request(tmp_path: Path) -> None:
    """``/dev/full`` takes nothing; what the terminal shows is there all the same."""
    served = begin(tmp_path, 'mode = "shadow"')
    for name in ("divergences.jsonl", "shadow.json"):
        (tmp_path / "out" / name).symlink_to("/dev/full")
    assert served.shadow is not None
    served.shadow.buffer_bytes = 0

    async def traffic() -> list[Any]:
        async with served.engine as engine:
            lengths = [200, 8, 120, 8, 60, 8, 30, 8]
            return await asyncio.gather(*(ask(engine, number, length) for number, length in enumerate(lengths)))

    assert [len(result.token_ids) for _, result in asyncio.run(traffic())] == [4] * 8
    told = served.finish()
    assert "shadow: differed in" in told and "cannot be written: No space left on device" in told
    assert served.shadow.summary()["diverged"] > 1


@pytest.mark.parametrize(
    ("arms", "words"),
    [
        (TWO + "token_budget = 16\n", "scheduler.token_budget: a shadow shares the engine"),
        (TWO + 'use = "fair"\n[arms.third]\n', "a shadow experiment has two, this one has 3"),
        (TWO + 'use = "fair"\n[arms.other.request]\ntop_k = 1\n', "the requests of a server are its clients'"),
    ],
)
def test_what_a_shadow_cannot_do_is_refused(arms: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"served\.toml") as refused:
        begin(tmp_path, 'mode = "shadow"', arms)
    assert words in str(refused.value)


def test_what_a_shadow_was_asked_outlives_a_rebuild(tmp_path: Path) -> None:
    served = begin(tmp_path, 'mode = "shadow"')
    assert served.shadow is not None

    async def traffic() -> int:
        async with served.engine as engine:
            await asyncio.gather(*(ask(engine, number, 8 + number) for number in range(4)))
            asked = int(engine.kernel.stats()["shadow_steps"])
            await fail(engine)
            await asyncio.gather(*(ask(engine, number, 8 + number) for number in range(4)))
            return asked + int(engine.kernel.stats()["shadow_steps"])

    asked = asyncio.run(traffic())
    summary = served.shadow.summary()
    assert summary["steps"] >= asked > 10


def test_a_start_that_fails_leaves_no_file_open(tmp_path: Path) -> None:
    class Broken(FakeExecutor):
        def load(self, progress: Any) -> Any:
            raise RuntimeError("no weights")

    def start_it(folder: Path) -> Served:
        path = write(folder, 'mode = "shadow"')
        return start(path, config(), folder / "out", gateways=False, make_executor=lambda _: Broken())

    async def serving(served: Served) -> None:
        async with served.engine:
            raise AssertionError("it cannot serve")

    served = start_it(tmp_path)
    with pytest.raises(RuntimeError, match="no weights"):
        asyncio.run(serving(served))
    assert served.shadow is not None and served.shadow._file is None
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "out").symlink_to(tmp_path / "not" / "there")
    with pytest.raises(ConfigError, match=r"--experiment-out .*: cannot be written"):
        start_it(tmp_path / "two")
