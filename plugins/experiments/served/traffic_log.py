"""What became of every request of a server, as the records that metrics are made of."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from ....core.edge import KernelPort
from ....core.messages import Emit, EmitRow, FinishReason, Message, Submit
from ...simulation.records import RequestRecord

#: (record, clock time of its end)
Keep = Callable[[RequestRecord, float], None]


class TrafficLog:
    """An edge that follows requests from ``Submit`` to their end; ``keep`` gets each record then."""

    name = "traffic_log"
    consumes: tuple[type[Message], ...] = (Submit, Emit)

    def __init__(self, keep: Keep, opened: Callable[[str, float], None] = lambda _rid, _now: None) -> None:
        """``opened(rid, now)`` is called when a request comes in."""
        self._keep, self._opened = keep, opened
        self._open: dict[str, tuple[Submit, float, list[float]]] = {}
        self._port: KernelPort | None = None
        self._count = 0

    def deliver(self, message: Message) -> None:
        assert self._port is not None
        now = self._port.now()
        if isinstance(message, Submit):
            if not message.warm:
                self._open[message.rid] = message, now, []
                self._opened(message.rid, now)
            return
        assert isinstance(message, Emit)
        for row in message.rows:
            self._row(row, now)

    def _row(self, row: EmitRow, now: float) -> None:
        found = self._open.get(row.rid)
        if found is None:
            return
        submit, came, times = found
        times.extend([now] * len(row.token_ids))
        if row.finish is None:
            return
        del self._open[row.rid]
        finish = row.finish
        whole = finish.reason in (FinishReason.STOP, FinishReason.LENGTH)
        self._count += 1
        record = RequestRecord(
            number=self._count,
            rid=row.rid,
            arrival_s=came if submit.received is None else submit.received,
            scheduled_s=finish.timing.scheduled,
            first_token_s=times[0] if times else None,
            finished_s=now,
            token_times=tuple(times),
            prompt_tokens=finish.usage.input,
            cached_tokens=finish.usage.cached,
            wanted_tokens=len(times) if whole else len(times) + 1,
            tenant=submit.tenant,
            priority=submit.priority,
            preemptions=finish.num_preemptions,
            reason=finish.reason.value,
            code=finish.failure.code if finish.failure else "",
        )
        self._keep(record, now)

    async def start(self, port: KernelPort) -> None:
        self._port = port

    async def run(self, port: KernelPort) -> None:
        await anyio.sleep_forever()

    async def flush(self) -> None:
        """Records are kept at once."""
