"""Steps that the native kernels compute behind each other, each begun before the one before it has ended."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import pytest
from tests.executors.drawn import OTHERS, cancelled_amid, play
from tests.executors.reference import engine_config
from tests.native_kernels import native_library

from mainspring.core.config import Depth
from mainspring.core.errors import EngineFault
from mainspring.core.messages import GrantedRow, SamplingParams, Started, StepGrant, StepLaunch
from mainspring.core.policy import SampleOutput, SamplerContext
from mainspring.plugins.executors.batch import StepBatch, build
from mainspring.plugins.executors.native import NativeExecutor
from mainspring.plugins.executors.native_step import NativeNetwork
from mainspring.plugins.executors.overlap import begins_at_once
from mainspring.plugins.executors.overlapping import Begun
from mainspring.plugins.executors.torch import TorchExecutor
from mainspring.plugins.models.tiny import write_tiny_model
from mainspring.samplers.standard import StandardSampler
from mainspring.schedulers.host import standard


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    native_library()  # skips where there is no compiler
    made = tmp_path_factory.mktemp("tiny")
    write_tiny_model(made)
    return made


class Watched(NativeExecutor):
    """``taken``: ids that a step took from the one before it, unseen; ``apart``: steps that did not end at once."""

    taken = apart = 0

    def compute(self, *step: Any) -> Any:
        """See ``NativeExecutor.compute``."""
        self.taken += len(step[3])
        found = super().compute(*step)
        self.apart += not step[4]
        return found


@pytest.mark.slow
def test_every_token_is_the_samplers_at_any_depth(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any mix of parameters, prompts in chunks, shared prefixes and a preemption."""
    monkeypatch.setattr(standard, "AHEAD_S", 1.0015)  # one token
    settings = {depth: engine_config(folder, 16, use="prefix", depth=depth) for depth in get_args(Depth)}
    expected = play(TorchExecutor(None, settings[1]), settings[1])
    for depth, config in settings.items():
        executor = Watched(None, config)
        assert play(executor, config) == expected
        assert (executor.taken > 0) == (depth != 1)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("sampler", OTHERS)
def test_other_samplers_are_asked(folder: Path, depth: Literal[1, 2], sampler: str) -> None:
    config = engine_config(folder, 16, use="prefix", depth=depth)
    expected = play(TorchExecutor(None, config), config, sampler)
    executor = Watched(None, config)
    assert play(executor, config, sampler) == expected
    assert executor.taken == 0


class Steps:
    """Launches of request ``a``, one token each, for a loaded executor."""

    def __init__(self, folder: Path) -> None:
        self.executor = Watched(None, engine_config(folder, 16))
        self.executor.load(lambda line: None)
        self.sampler = StandardSampler(None, SamplerContext(128))
        self.count = 0

    def launch(self, ids: tuple[int, ...] | None = None, **changes: Any) -> StepLaunch:
        """The next one: a prompt of ``ids``, or the token that the last one draws."""
        at, size = self.count, 1 if ids is None else len(ids)
        self.count += size
        table = tuple(range(4))
        size_of = self.executor.config.allocator.block_size
        slots = tuple(table[place // size_of] * size_of + place % size_of for place in range(at, at + size))
        row = GrantedRow("a", at, size, ids, True, table, slots)
        started = (Started("a", ids, 40, 0, SamplingParams(temperature=0.0)),) if ids else ()
        (launch,) = self.sampler.handle(StepGrant(at, (row,), started), 0.0)
        assert isinstance(launch, StepLaunch)
        made: StepLaunch = replaced(launch, **changes)
        return made

    def begin(self, launch: StepLaunch) -> Begun:
        begun = self.executor.begin(launch, self.sampler.run)
        assert isinstance(begun, Begun)
        return begun


replaced: Any = msgspec.structs.replace


def greedy(folder: Path, prompt: tuple[int, ...], count: int) -> list[int]:
    """One after the other."""
    steps = Steps(folder)
    out = [steps.executor.execute(steps.launch(prompt), steps.sampler.run).token_ids[0]]
    while len(out) < count:
        out += steps.executor.execute(steps.launch(), steps.sampler.run).token_ids
    steps.executor.close()
    return out


def test_more_steps_than_anybody_begins_take_their_ids_from_each_other(folder: Path) -> None:
    """Nothing is read before all are begun: ids go from one to the next, whoever waits for what."""
    expected, steps = greedy(folder, (5, 6, 7), 12), Steps(folder)
    begun = [steps.begin(steps.launch((5, 6, 7)))]
    begun += [steps.begin(steps.launch()) for _ in range(11)]
    assert [one.result().token_ids[0] for one in reversed(begun)] == expected[::-1]
    moments = [moment for one in begun for moment in (one.result().launched, one.result().finished)]
    assert moments == sorted(moments)  # each is launched when the one before it is over, whenever it was begun
    assert steps.executor.apart == 12
    steps.executor.close()


def test_alone_a_step_is_over_at_once_and_waits_for_those_before_it(folder: Path) -> None:
    expected, steps = greedy(folder, (5, 6, 7), 3), Steps(folder)
    first = steps.begin(steps.launch((5, 6, 7)))
    second = steps.executor.begin(steps.launch(), steps.sampler.run, alone=True)
    assert not isinstance(second, Begun)
    third = steps.begin(steps.launch())
    assert [one.token_ids[0] for one in (first.result(), second, third.result())] == expected
    assert first.result().finished <= second.launched <= second.finished
    steps.executor.close()


def test_blocks_are_copied_behind_the_steps_that_write_them(folder: Path) -> None:
    steps = Steps(folder)
    expected = greedy(folder, (5, 6, 7), 3)
    network = steps.executor._loaded.network  # type: ignore[union-attr]
    assert isinstance(network, NativeNetwork)
    first = steps.begin(steps.launch((5, 6, 7)))
    second = steps.begin(steps.launch(copies=((0, 9),)))
    written = network.ops.keys[:, 9, :, :3].clone()
    assert written.any()
    assert (written == network.ops.keys[:, 0, :, :3]).all()
    assert [one.result().token_ids[0] for one in (first, second)] == expected[:2]
    steps.executor.close()


def test_closing_with_a_step_under_way(folder: Path) -> None:
    steps = Steps(folder)
    steps.begin(steps.launch(tuple(range(5, 15))))
    steps.begin(steps.launch())
    steps.executor.close()


def test_a_network_that_is_dropped_with_a_step_under_way(folder: Path) -> None:
    """By a test or a simulation that failed: weights go when the step is over."""
    steps = Steps(folder)
    steps.begin(steps.launch(tuple(range(5, 15))))
    steps.begin(steps.launch())
    del steps
    gc.collect()


class Interrupting:
    """A library of kernels, of which the call to begin a step is ended by a signal."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def ms_begin(self, *arguments: Any) -> int:
        self._library.ms_begin(*arguments)
        raise KeyboardInterrupt


def test_a_signal_right_after_a_step_was_begun(folder: Path) -> None:
    """What the step uses stays, and is waited for, though nobody has been told of it."""
    steps = Steps(folder)
    ops = steps.executor._loaded.network.ops  # type: ignore[union-attr]
    steps.begin(steps.launch((5, 6, 7)))
    library, ops._library = ops._library, Interrupting(ops._library)
    with pytest.raises(KeyboardInterrupt):
        steps.executor.begin(steps.launch(), steps.sampler.run)
    ops._library = library
    ops.finish()
    *_, moments = ops._used[-1]
    assert len(ops._used) == 2 and 0 < moments[0] < moments[2]
    steps.executor.close()


def test_a_step_for_which_there_is_no_memory(folder: Path) -> None:
    """Whoever asks first is told; steps behind it go on."""
    steps = Steps(folder)
    steps.executor.execute(steps.launch((5, 6, 7)), steps.sampler.run)
    begun = steps.begin(steps.launch())
    ops = steps.executor._loaded.network.ops  # type: ignore[union-attr]
    ops.finish()
    ops._used[-1][-1][2] = 0.0  # as C++ leaves it
    with pytest.raises(MemoryError, match="no memory for the intermediate results"):
        begun.result()
    for _ in range(3):
        steps.begin(steps.launch()).result()
    steps.executor.close()


def test_a_step_behind_one_that_failed_is_computed_for_nobody(folder: Path) -> None:
    """Planned ahead, it has the rows of requests that ended with the other: no reason to end everything."""
    steps = Steps(folder)

    def none_left(*_: Any) -> SampleOutput:
        raise MemoryError

    steps.executor.execute(steps.launch((5, 6, 7)), steps.sampler.run)
    with pytest.raises(MemoryError):
        steps.executor.execute(steps.launch(), none_left)
    assert len(steps.executor.execute(steps.launch(), steps.sampler.run).token_ids) == 1
    steps.executor.execute(StepLaunch(9, (), None, released=("a",)), steps.sampler.run)
    with pytest.raises(EngineFault, match="a: a row without ids"):
        steps.executor.execute(steps.launch(), steps.sampler.run)
    steps.executor.close()


def test_a_request_that_ends_while_its_row_runs_leaves_nothing_behind(folder: Path) -> None:
    config = engine_config(folder, 16, depth=2)
    executor = Watched(None, config)
    cancelled_amid(executor, config)
    assert executor.taken > 0
    assert {*executor._last_ids} <= {"b"}  # the request that ended last, until the next step says so
    executor.close()


def test_what_begins_at_once(folder: Path) -> None:
    """Nothing that waits for a step, calls somebody's sampler or lays out a long prompt, since the event loop asks."""
    steps = Steps(folder)
    executor, sampler, launch = steps.executor, steps.sampler, steps.launch((5, 6, 7))
    assert not begins_at_once(executor, launch, sampler.run)  # rotations have to be made
    executor.execute(launch, sampler.run)
    assert begins_at_once(executor, launch, sampler.run)
    assert not begins_at_once(executor, launch, StandardSampler(None, SamplerContext(128)).run)
    assert not begins_at_once(executor, replaced(launch, copies=((0, 9),)), sampler.run)
    row = launch.rows[0]
    cases = [(0, 64, 4, True), (0, 65, 4, False), (0, 1, 2048, True), (0, 1, 2049, False), (960, 64, 4, True)]
    for start, count, entries, expected in [*cases, (961, 64, 4, False)]:  # rotations come by the thousand
        rows = (replaced(row, start=start, count=count, block_table=(0,) * entries),)
        assert begins_at_once(executor, replaced(launch, rows=rows), sampler.run) == expected
    assert not begins_at_once(executor, replaced(launch, padding=(1,)), sampler.run)
    executor.close()
    assert not begins_at_once(executor, launch, sampler.run)
    assert not begins_at_once(TorchExecutor(None, executor.config), launch, sampler.run)


def test_what_does_not_fit_is_refused_before_c_sees_it(folder: Path) -> None:
    steps = Steps(folder)
    network = steps.executor._loaded.network  # type: ignore[union-attr]
    assert isinstance(network, NativeNetwork)
    ops, launch = network.ops, steps.launch((5, 6, 7))
    begun = steps.begin(launch)
    draw: Any = begun.drawn
    prepared = ops.prepare(_batch(steps, steps.launch()))
    for takes in ([(1, 0)], [(-1, 0)], [(0, 1)], [(0, -1)]):
        with pytest.raises(EngineFault, match="ids for 1 tokens, drawn by 1 rows"):
            ops.begin(network.struct, prepared, draw, draw, takes)
    with pytest.raises(EngineFault, match="drawn by 0 rows"):
        ops.begin(network.struct, prepared, draw, None, [(0, 0)])
    for rows, vocab in ((2, 128), (1, 127)):
        plan = launch.sampling
        wrong = replace(draw, struct=type(draw.struct)(num_rows=rows, vocab=vocab), plan=plan)
        with pytest.raises(EngineFault, match=f"a draw of {rows} rows of {vocab}: 1 of 128"):
            ops.begin(network.struct, prepared, wrong, None, [])
        with pytest.raises(EngineFault, match=f"a draw of {rows} rows of {vocab}: 1 of 128"):
            ops.step(network.struct, prepared, wrong)
    begun.result()
    steps.executor.close()


def _batch(steps: Steps, launch: StepLaunch) -> StepBatch:
    assert steps.executor._loaded is not None
    return build(launch, steps.executor._loaded.limits)
