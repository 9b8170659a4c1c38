"""Preempted requests in host memory: which blocks are copied out, who holds them, and what it takes to copy them back.

Host blocks are numbered behind those of the pool, so a copy is one pair of block numbers either way.  The executor
makes all copies of a step in order and before anything of that step is written, so host blocks need no fences: whoever
is given one next writes it in a later copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Numbers
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta

from ...core.errors import ConfigError
from ...core.messages import GrantedRow, Started, StepResult
from .sequence import Sequence

Copies = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class SharingOptions:
    """Options of ``prefix`` and ``radix``."""

    preempt: Literal["recompute", "swap", "auto"] = "recompute"  # what becomes of a preempted request's tokens
    host_blocks: Annotated[int, Meta(ge=0)] = 0  # blocks of host memory for them; when they are full: recompute
    swap_gib_s: Annotated[float, Meta(gt=0)] = 2.0  # GiB per second: the copy bandwidth that "auto" assumes
    token_bytes: Annotated[int, Meta(ge=1)] = 46080  # bytes of a token's keys and values, which "auto" assumes


class Swapped(NamedTuple):
    """Logical blocks of a request from ``first`` on, in these host blocks; ``num_tokens`` of it were computed."""

    first: int
    blocks: tuple[int, ...]
    num_tokens: int


class HostBlocks:
    """Host blocks ``num_blocks`` and up.  Raises ConfigError for a way of preempting that lacks them."""

    def __init__(self, options: SharingOptions, num_blocks: int, block_size: int) -> None:
        if options.preempt != "recompute" and not options.host_blocks:
            raise ConfigError(
                f"allocator.options.host_blocks = 0: preempt = {options.preempt!r} needs at least one block"
            )
        self._options, self._block_size = options, block_size
        self._all = range(num_blocks, num_blocks + options.host_blocks)
        self._free = list(self._all)
        self._swapped: dict[str, Swapped] = {}
        self._token_time = TokenTime()
        self.num_out = self.num_in = 0  # requests copied out and back

    @property
    def num_used(self) -> int:
        return len(self._all) - len(self._free)

    # --- out ---------------------------------------------------------------------------------------------------------

    def put(self, rid: str, sequence: Sequence, users: Numbers[int]) -> Copies:
        """``sequence`` is about to lose its blocks: the copies out of those that no other request holds, or none."""
        first = self._first_lost(sequence, users)
        count = -(-sequence.computed // self._block_size) - first
        lost = sequence.computed - first * self._block_size
        if count <= 0 or count > len(self._free) or not (sequence.findable and self._pays(lost, count)):
            return []
        taken = tuple(self._free[-count:])
        del self._free[-count:]
        self._swapped[rid] = Swapped(first, taken, sequence.computed)
        self.num_out += 1
        return list(zip(sequence.table[first : first + count], taken, strict=True))

    @staticmethod
    def _first_lost(sequence: Sequence, users: Numbers[int]) -> int:
        """Logical index from which on no other request holds a block; who shares one, shares all before it."""
        first = len(sequence.table)
        while first and users[sequence.table[first - 1]] == 1:
            first -= 1
        return first

    def _pays(self, lost_tokens: int, num_blocks: int) -> bool:
        """Copying out and back takes less time than computing again."""
        options = self._options
        if options.preempt != "auto":
            return options.preempt == "swap"
        copied = 2 * num_blocks * self._block_size * options.token_bytes
        return copied / (options.swap_gib_s * 2**30) < lost_tokens * self._token_time.seconds

    # --- back --------------------------------------------------------------------------------------------------------

    def num_held(self, rid: str, num_found: int, num_known: int) -> int:
        """Tokens that ``rid`` has computed when the cache holds its first ``num_found`` blocks and the rest stands
        here, at most ``num_known - 1``; 0 if nothing here helps."""
        swapped = self._swapped.get(rid)
        if swapped is None or swapped.first > num_found:
            return 0
        held = min(swapped.num_tokens, num_known - 1)
        return held if held > num_found * self._block_size else 0

    def completes(self, started: Started, num_found: int) -> bool:
        """What the newcomer counts as computed, beyond the blocks found, stands here."""
        return started.num_cached_tokens <= self.num_held(started.rid, num_found, len(started.token_ids))

    def take(self, started: Started, num_found: int, table: Numbers[int]) -> Copies:
        """The newcomer runs with ``table``, of which it found ``num_found`` blocks: the copies back.  What it had here
        is free."""
        swapped = self._swapped.get(started.rid)
        if swapped is None:
            return []
        needed = range(num_found, -(-started.num_cached_tokens // self._block_size))
        copies = [(swapped.blocks[index - swapped.first], table[index]) for index in needed]
        self.num_in += bool(copies)
        self.discard(started.rid)
        return copies

    def discard(self, rid: str) -> None:
        """Free what ``rid`` has here, if anything."""
        if (swapped := self._swapped.pop(rid, None)) is not None:
            self._free.extend(swapped.blocks)

    # --- steps -------------------------------------------------------------------------------------------------------

    def launched(self, step: int, rows: Iterable[GrantedRow]) -> None:
        if self._options.preempt == "auto":
            self._token_time.launched(step, sum(row.count for row in rows))

    def book(self, result: StepResult) -> None:
        """A failed step may not have made its copies, and what it wrote may be anything: everybody recomputes."""
        self._token_time.book(result)
        for rid in list(self._swapped) if result.failed else ():
            self.discard(rid)

    # --- books -------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise AssertionError if a host block is lost or has two owners."""
        used = [block for swapped in self._swapped.values() for block in swapped.blocks]
        assert sorted([*self._free, *used]) == list(self._all), "host blocks lost or owned twice"
        for rid, swapped in self._swapped.items():
            assert swapped.first + len(swapped.blocks) == -(-swapped.num_tokens // self._block_size), rid

    def stats(self) -> dict[str, float]:
        return {
            "host_blocks": len(self._all),
            "swapped_blocks": self.num_used,
            "swap_outs": self.num_out,
            "swap_ins": self.num_in,
        }


class TokenTime:
    """Seconds per token, learned from the steps that ran.  Large steps, which are what computing again looks like,
    count most (least squares through zero); older ones fade by ``FADE`` per step."""

    FADE = 0.98

    def __init__(self) -> None:
        self._launched: dict[int, int] = {}  # step in flight -> tokens
        self._work = self._squares = 0.0

    @property
    def seconds(self) -> float:
        """0 before anything was seen."""
        return self._work / self._squares if self._squares else 0.0

    def launched(self, step: int, num_tokens: int) -> None:
        self._launched[step] = num_tokens

    def book(self, result: StepResult) -> None:
        count = self._launched.pop(result.step, 0)
        self._work = self.FADE * self._work + count * (result.finished - result.launched)
        self._squares = self.FADE * self._squares + count * count
