"""The router under asyncio and under the heap: the same messages in the same order."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import msgspec
import pytest
from tests.support import config, submit

from mainspring.core.clock import MonotonicClock
from mainspring.core.config import Config, Depth
from mainspring.core.kernel import Kernel
from mainspring.core.messages import Cancel, Emit, Message, StepGrant, StepPlan, StepResult, Submit
from mainspring.core.registry import Registry
from mainspring.plugins.executors.thread import ExecutorThread
from mainspring.plugins.simulator import Simulator
from mainspring.plugins.testing.fake_executor import FakeExecutor

NUM_BLOCKS = 12
#: What arrives once the plan of that step has been made.
SCRIPT: dict[int, list[Message]] = {
    0: [submit("A", 10), submit("B", 3, 3)],
    2: [submit("C", 4)],
    4: [submit("D", 12), Cancel("C")],
    5: [submit("E", 5)],
    9: [submit("F", 20, 9), Cancel("D")],
}


def settings(depth: Depth) -> Config:
    plain = config(4, token_budget=8, depth=depth)
    return msgspec.structs.replace(plain, sampler=msgspec.structs.replace(plain.sampler, use="scripted"))


class Script:
    """Feeds ``SCRIPT`` into a router by step and keeps what went past, wall-clock times apart."""

    def __init__(self) -> None:
        self.seen: list[Message] = []
        self.router: object = None
        self.num_ends = 0

    def tap(self, message: Message, now: float) -> None:
        if isinstance(message, StepPlan | StepGrant | Emit | Submit | Cancel):
            self.seen.append(timeless(message))
        if isinstance(message, Emit):
            self.num_ends += sum(row.finish is not None for row in message.rows)
        if isinstance(message, StepResult) and message.step in SCRIPT:
            self.router.post(*SCRIPT[message.step])  # type: ignore[attr-defined]


def timeless(message: Message) -> Message:
    if not isinstance(message, Emit):
        return message
    rows = []
    for row in message.rows:
        finish = row.finish and msgspec.structs.replace(row.finish, timing=None)
        rows.append(msgspec.structs.replace(row, finish=finish))
    return Emit(message.step, tuple(rows))


def simulated(depth: Depth) -> Sequence[Message]:
    script = Script()
    sim = Simulator(settings(depth), FakeExecutor(NUM_BLOCKS, 4), taps=[script.tap])
    script.router = sim.router
    sim.post(*SCRIPT[0])
    sim.run()
    return script.seen


async def live(depth: Depth) -> Sequence[Message]:
    script = Script()
    kernel = Kernel(
        settings(depth),
        Registry(),
        MonotonicClock(),
        lambda kernel: ExecutorThread(FakeExecutor(NUM_BLOCKS, 4), kernel.post_threadsafe, kernel.now),
        taps=[script.tap],
    )
    script.router = kernel.router
    with anyio.fail_after(60):
        async with kernel.running():
            kernel.post(*SCRIPT[0])
            while script.num_ends < 6:
                await anyio.sleep(0.001)
            await anyio.sleep(0.01)
            assert kernel.actors is not None
            kernel.actors.check()
    return script.seen


@pytest.mark.anyio
async def test_equal_message_sequences() -> None:
    """One plan, one grant, one emit per step, identical under both drivers."""
    heap, loop = simulated(1), await live(1)
    assert len(heap) > 60
    assert loop == heap


@pytest.mark.anyio
@pytest.mark.parametrize("depth", [2, "auto"])
async def test_equal_text_with_a_step_in_flight(depth: Depth) -> None:
    """A result may come before or after the next plan, so steps may differ, but never the text."""

    def text(messages: Sequence[Message]) -> dict[str, list[int]]:
        out: dict[str, list[int]] = {}
        for message in messages:
            for row in message.rows if isinstance(message, Emit) else ():
                out.setdefault(row.rid, []).extend(row.token_ids)
        return {rid: ids for rid, ids in out.items() if rid not in ("C", "D")}  # cancelled at some step

    assert text(simulated(depth)) == text(await live(depth))
