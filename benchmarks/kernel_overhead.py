"""What the microkernel costs beside the model: a hop, a step of 256 rows, the fan-out of a step to 256 streams.

Prints microseconds (median) and the ratio to one hop through an ``asyncio.Queue`` in the same run.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable

from mainspring.core.clock import MonotonicClock
from mainspring.core.config import AllocatorConfig, SamplerConfig, SchedulerConfig
from mainspring.core.kernel import Actors
from mainspring.core.messages import Emit, EmitRow, Message, Note, SamplingParams, StepLaunch, StepResult, Submit
from mainspring.core.policy import ExecutorInfo
from mainspring.core.registry import Registry
from mainspring.core.router import Router
from mainspring.plugins.schema import GenerateRequest
from mainspring.plugins.settings import Config
from mainspring.plugins.text.edge import TextEdge

ROWS = 256
ROUNDS = 200


def median_us(samples: list[float]) -> float:
    return statistics.median(samples) * 1e6


def router_hop() -> float:
    """One message through the synchronous router to a handler that answers nothing."""
    router = Router(MonotonicClock(), {Note: (lambda _message, _now: None,)})
    note = Note("r", "x")
    samples = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(100):
            router.post(note)
        samples.append((time.perf_counter() - start) / 100)
    return median_us(samples)


async def queue_hop() -> float:
    """One message through an ``asyncio.Queue`` to a task that answers through another one."""
    there: asyncio.Queue[Note] = asyncio.Queue()
    back: asyncio.Queue[Note] = asyncio.Queue()

    async def echo() -> None:
        while True:
            back.put_nowait(await there.get())

    task = asyncio.create_task(echo())
    note, samples = Note("r", "x"), []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(20):
            there.put_nowait(note)
            await back.get()
        samples.append((time.perf_counter() - start) / 40)
    task.cancel()
    return median_us(samples)


def step(sampler: str) -> float:
    """One decode step of 256 rows: result booked, next step planned, granted and its sampling planned."""
    config = Config(
        scheduler=SchedulerConfig(token_budget=8192, max_running=ROWS, depth=1),
        allocator=AllocatorConfig(use="paged"),
        sampler=SamplerConfig(use=sampler),
    )
    info = ExecutorInfo("null", 49152, 8192, (2,), 64 * ROWS)
    actors, launches = Actors(config, Registry(), info), list[StepLaunch]()

    def launch(message: Message, _now: float) -> None:
        assert isinstance(message, StepLaunch)
        launches.append(message)

    router = Router(MonotonicClock(), {**actors.routes(launch, lambda _message, _now: None), Emit: ()})
    params = SamplingParams(temperature=0.8, top_p=0.9, max_tokens=900, ignore_eos=True)
    router.post(*(Submit(f"r{index}", tuple(range(16)), params) for index in range(ROWS)))
    samples = []
    for _ in range(ROUNDS):
        now = launches.pop()
        rids = tuple(row.rid for row in now.rows)
        result = StepResult(now.step, rids, (7,) * len(rids))
        start = time.perf_counter()
        router.post(result)
        samples.append(time.perf_counter() - start)
    assert len(launches[0].rows) == ROWS
    return median_us(samples[10:])


class _Port:
    """As much of a kernel as the text edge needs."""

    info = ExecutorInfo("null", 49152, 8192, (2,), 1)

    def now(self) -> float:
        return time.monotonic()

    def post(self, *messages: Message) -> None:
        """Nobody is behind it."""


async def fan_out() -> float:
    """One Emit of 256 rows decoded to text and handed to 256 sinks."""
    edge, received = TextEdge(Config()), [0]

    def sink(_event: object) -> None:
        received[0] += 1

    port = _Port()
    await edge.start(port)  # type: ignore[arg-type]
    task = asyncio.create_task(edge.run(port))  # type: ignore[arg-type]
    rids = [edge.open(GenerateRequest(token_ids=(5,)), sink) for _ in range(ROWS)]
    while any(not edge._live[rid].submitted for rid in rids):  # noqa: ASYNC110 - set-up, outside what is measured
        await asyncio.sleep(0.01)
    samples = []
    for number in range(ROUNDS):
        rows = tuple(EmitRow(rid, (1000 + number,)) for rid in rids)
        start = time.perf_counter()
        edge.deliver(Emit(number, rows))
        await edge.flush()
        samples.append(time.perf_counter() - start)
    assert received[0] >= ROWS * ROUNDS
    task.cancel()
    return median_us(samples)


def main() -> None:
    peer = asyncio.run(queue_hop())
    figures: dict[str, Callable[[], float]] = {
        "asyncio.Queue hop (the ruler)": lambda: peer,
        "router hop": router_hop,
        f"step of {ROWS} rows, no sampling plan": lambda: step("scripted"),
        f"step of {ROWS} rows, standard sampler": lambda: step("standard"),
        f"text fan-out of a step to {ROWS} streams": lambda: asyncio.run(fan_out()),
    }
    print(f"{'':44}{'us':>10}{'x queue hop':>14}{'us per row':>12}")
    for name, measure in figures.items():
        value = measure()
        per_row = f"{value / ROWS:.2f}" if str(ROWS) in name else ""
        print(f"{name:44}{value:10.2f}{value / peer:14.2f}{per_row:>12}")


if __name__ == "__main__":
    main()
