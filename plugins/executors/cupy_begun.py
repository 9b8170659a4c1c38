"""A step on the device that may not have ended."""

from __future__ import annotations

import time
from collections.abc import Iterable

from ...core.messages import GrantedRow, StepResult
from .batch import Ints
from .cupy_device import Wait
from .cupy_draw import Drawn


class Begun:
    """Implements ``overlap.Pending``.  ``rids`` are those that draw, in order of rows; ``drawn`` None: no row does."""

    def __init__(
        self, step: int, rids: tuple[str, ...], drawn: Drawn | None, wait: Wait, launched: float, before: Begun | None
    ) -> None:
        """``wait`` returns when the step is over; ``launched`` in seconds; ``before``: the step launched before."""
        self.step, self.rids, self.drawn, self.finished = step, rids, drawn, 0.0
        self._wait, self._launched, self._before = wait, launched, before
        self._rows = {rid: row for row, rid in enumerate(rids)}

    def takes(self, rows: Iterable[GrantedRow], starts: Ints) -> list[tuple[int, int]]:
        """(token, row of this step) of the tokens of the next step that are drawn by this one.  ``starts`` of its
        ``rows``: their first tokens."""
        return [
            (int(start), self._rows[row.rid])
            for row, start in zip(rows, starts, strict=False)
            if row.token_ids is None and row.rid in self._rows
        ]

    def result(self) -> StepResult:
        """See ``Pending.result``.  A step that was launched while another ran begins when that one ends."""
        self._wait()
        ids, failed = self.drawn.read() if self.drawn else ([], [])
        self.finished = time.monotonic()
        launched = max(self._launched, self._before.finished) if self._before else self._launched
        self._before = None
        return StepResult(
            step=self.step,
            rids=self.rids,
            token_ids=tuple(ids),
            failed=tuple((self.rids[row], why) for row, why in failed),
            launched=launched,
            finished=self.finished,
        )
