"""An allocator whose full blocks stay findable by content and are shared: the common part of ``prefix`` and ``radix``.

A block becomes findable when it is full, its ids are known and the step that writes it is planned: steps run in order
and each writes before it reads, so a later row, also of the same step, may use it.  Users of a block use all blocks
before it.  When two requests have computed the same block, they end up with one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from ...core.messages import GrantedRow, Message, Row, Started, StepGrant, StepPlan, StepResult
from ...core.policy import AllocatorContext
from ...core.request import RequestView
from ..paged import slot_mapping
from .catalog import Catalog
from .draft import SharingDraft
from .entries import Entry, Lookup
from .events import CacheEvent
from .eviction import eviction_key
from .ledger import HitLedger
from .pool import Pool
from .sequence import Sequence
from .swap import Copies, HostBlocks, SharingOptions


class SharingAllocator:
    """The actor.  Beside its messages it offers ``fork``, ``lease``, ``reset`` and ``observe``; call these between
    messages, never between a plan and its grant."""

    api_level = 1

    def __init__(self, lookup: Lookup, context: AllocatorContext, options: SharingOptions | None = None) -> None:
        self.num_blocks, self.block_size = context.num_blocks, context.block_size
        self.pool = Pool(context.num_blocks)
        self.catalog = Catalog(lookup, eviction_key(context.evict), context.max_idle_s, self._reclaim)
        self.pool.catalog = self.catalog
        self.sequences: dict[str, Sequence] = {}
        self.host = HostBlocks(options or SharingOptions(), context.num_blocks, context.block_size)
        self.hits = HitLedger()
        self.num_copied = self.num_merged = 0
        self._fresh: list[tuple[int, str, Entry]] = []  # (step in flight, rid, entry it made findable)
        self._copies_out: Copies = []  # of preempted requests, for the next grant with rows

    def _reclaim(self, entry: Entry) -> None:
        self.pool.free.append(entry.block)

    @property
    def free(self) -> deque[int]:
        """Blocks with nothing findable in them, in the order in which they are handed out."""
        return self.pool.free

    @property
    def free_blocks(self) -> int:
        return self.pool.num_available

    def held_blocks(self, rid: str) -> int:
        sequence = self.sequences.get(rid)
        return len(sequence.table) if sequence else 0

    def block_table(self, rid: str) -> tuple[int, ...]:
        """Blocks of ``rid`` in order of position."""
        return self.sequences[rid].table

    def num_users(self, block: int) -> int:
        """How many requests hold ``block``."""
        return self.pool.users[block]

    def cached_prefix_tokens(self, request: RequestView) -> int:
        ids = request.known_ids()
        num_found = len(self.find(request.cache_salt, ids)) if request.read_cache else 0
        return self.host.num_held(request.rid, num_found, len(ids)) or num_found * self.block_size

    def find(self, salt: str, ids: tuple[int, ...]) -> list[Entry]:
        """The cached blocks a request with these ids could use: its last token is always left to compute."""
        return self.catalog.lookup.walk(salt, ids, (len(ids) - 1) // self.block_size)

    def draft(self) -> SharingDraft:
        return SharingDraft(self)

    # --- messages ----------------------------------------------------------------------------------------------------

    def handle(self, message: Message, now: float) -> Iterable[Message]:
        """``StepPlan`` and ``StepResult``; any other message only tells the time."""
        self.catalog.advance(now)
        if isinstance(message, StepResult):
            self._book(message)
            return ()
        answer = (self._grant(message),) if isinstance(message, StepPlan) else ()
        self.catalog.expire()
        return answer

    def _grant(self, plan: StepPlan) -> StepGrant:
        """Releases, then the hits of all newcomers, then room in row order: no allocation can evict a hit."""
        starts = {started.rid: started for started in plan.started}
        for rid in plan.released:
            self._release(rid)
            self.host.discard(rid)
        for rid in plan.preempted:
            if rid in self.sequences and rid not in starts:
                self._copies_out += self.host.put(rid, self.sequences[rid], self.pool.users)
            self._release(rid)
        self.hits.left(plan.released, plan.preempted)
        for started in plan.started:
            self._open(started)
        copies: Copies = []
        granted: list[GrantedRow] = []
        denied: list[str] = []
        for row in plan.rows:
            sequence = self.sequences.get(row.rid)
            if sequence is None:
                sequence = self.sequences[row.rid] = Sequence([])
            start = starts.get(row.rid)
            complete, num_found = start is None or self._complete(sequence, start), len(sequence.path)
            if complete and self._take(sequence, row, plan.step, copies):
                if start is not None:
                    copies += self.host.take(start, num_found, sequence.table)
                granted.append(self._row(sequence, row, plan.step))
                if start is not None:
                    self._admitted(sequence, start, num_found)
            else:
                denied.append(row.rid)
                if start is not None or not sequence.table:
                    self._close(row.rid)
        if granted:  # others are not launched, and nothing is overwritten before the next that is
            copies, self._copies_out = [*self._copies_out, *copies], []
            self.host.launched(plan.step, granted)
        return StepGrant(
            plan.step,
            tuple(granted),
            tuple(started for started in plan.started if started.rid not in denied) if denied else plan.started,
            plan.released,
            tuple(copies),
            tuple(denied),
            plan.padding,
        )

    def _open(self, started: Started) -> None:
        """Pin the part of the newcomer's hit that is cached by now."""
        forked = self.sequences.get(started.rid)
        if forked is not None:
            forked.ids = list(started.token_ids)
            return
        sequence = Sequence(list(started.token_ids), started.cache_salt, started.priority)
        sequence.computed = started.num_cached_tokens
        self.sequences[started.rid] = sequence
        if limit := started.num_cached_tokens // self.block_size:
            for entry in self.catalog.lookup.walk(sequence.salt, started.token_ids, limit):
                self._use(sequence, entry)
            sequence.table = tuple(entry.block for entry in sequence.path)

    def _complete(self, sequence: Sequence, started: Started) -> bool:
        """Pin the rest of the hit, which earlier rows of the same step have just made findable, unless it comes from
        the host."""
        if sequence.forked or self.host.completes(started, len(sequence.path)):
            return True
        size, missing = self.block_size, started.num_cached_tokens // self.block_size - len(sequence.path)
        for _ in range(missing):
            first = len(sequence.path) * size
            tokens = started.token_ids[first : first + size]
            entry = self.catalog.lookup.child(sequence.path[-1] if sequence.path else None, sequence.salt, tokens)
            if entry is None:
                return False
            self._use(sequence, entry)
            sequence.table += (entry.block,)
        return True

    def _use(self, sequence: Sequence, entry: Entry) -> None:
        self.pool.hold(entry)
        sequence.path.append(entry)

    def _take(self, sequence: Sequence, row: Row, step: int, copies: Copies) -> bool:
        """Room for the row: own copies of shared blocks that it writes, new blocks at the end.  All or nothing."""
        size, table, pool = self.block_size, sequence.table, self.pool
        stop = -(-(row.start + row.count) // size)
        fresh = max(0, stop - len(table))
        shared: list[int] = []
        if sequence.branched:
            written = range(row.start // size, min(len(table), stop))
            shared = [index for index in written if pool.users[table[index]] > 1 or self.is_foreign(sequence, index)]
        elif not fresh:
            return True
        if len(shared) + fresh > pool.num_available:
            return False
        if shared:
            blocks = list(table)
            for index in shared:
                blocks[index] = pool.take()
                copies.append((table[index], blocks[index]))
                pool.drop(table[index], step)
            self.num_copied += len(shared)
            table = tuple(blocks)
        sequence.table = table + tuple([pool.take() for _ in range(fresh)])
        sequence.branched = False
        return True

    def is_foreign(self, sequence: Sequence, index: int) -> bool:
        """A fork's last block that its parent has filled: findable, so it must not be written."""
        return index >= len(sequence.path) and sequence.table[index] in self.catalog.of_block

    def _row(self, sequence: Sequence, row: Row, step: int) -> GrantedRow:
        stop = row.start + row.count
        sequence.newest, sequence.computed = step, stop
        if len(sequence.ids) < stop:
            sequence.learn(row)
        if row.samples:
            sequence.pending[step] = stop
        table = sequence.table  # as it is written; finding a twin may change the sequence's table for later steps
        if stop // self.block_size > len(sequence.path):
            self._register(row.rid, sequence)
        slots = slot_mapping(table, row.start, row.count, self.block_size)
        return GrantedRow(row.rid, row.start, row.count, row.token_ids, row.samples, table, slots)

    def _register(self, rid: str, sequence: Sequence) -> None:
        """Make blocks findable that are full, computed and known; give up what turns out to exist twice."""
        size, path = self.block_size, sequence.path
        full = min(sequence.computed, len(sequence.ids)) // size
        if full <= len(path) or not sequence.findable:
            return
        for index in range(len(path), full):
            parent = path[-1] if path else None
            tokens, block = tuple(sequence.ids[index * size : (index + 1) * size]), sequence.table[index]
            entry = self.catalog.lookup.child(parent, sequence.salt, tokens)
            if entry is None:
                entry = self.catalog.add(parent, sequence.salt, tokens, block)
                self._fresh.append((sequence.newest, rid, entry))
            elif entry.block != block:
                self._merge(sequence, index, entry)
            entry.priority = min(entry.priority, sequence.priority)
            path.append(entry)

    def _merge(self, sequence: Sequence, index: int, entry: Entry) -> None:
        """Block ``index`` has a twin in the cache: keep one of the two, without using up one that counts as free."""
        block = sequence.table[index]
        if not self.pool.users[entry.block]:
            self.pool.vacate(entry, block)
            return
        self.pool.hold(entry)
        sequence.table = (*sequence.table[:index], entry.block, *sequence.table[index + 1 :])
        self.pool.drop(block, sequence.newest)
        self.num_merged += 1

    def _admitted(self, sequence: Sequence, started: Started, num_found: int) -> None:
        if sequence.forked:
            sequence.forked = False
            return
        for entry in sequence.path[:num_found]:
            entry.hits += 1
        self.hits.count(started, self.block_size)

    def _release(self, rid: str) -> None:
        """Give back what ``rid`` holds, once; an unknown or already released rid changes nothing."""
        if (sequence := self.sequences.pop(rid, None)) is not None:
            self.catalog.tick()
            self._drop(sequence)

    def _close(self, rid: str) -> None:
        """Undo a start that got no room: the order of eviction stays as it was."""
        self._drop(self.sequences.pop(rid), touch=False)

    def _drop(self, sequence: Sequence, touch: bool = True) -> None:
        for block in reversed(sequence.table):  # the end of a chain first
            self.pool.drop(block, sequence.newest, touch)

    def _book(self, result: StepResult) -> None:
        failed = {rid for rid, _ in result.failed}
        self.host.book(result)
        for rid, token in zip(result.rids, result.token_ids, strict=True):
            sequence = self.sequences.get(rid)
            if sequence is not None and rid not in failed:
                sequence.book(result.step, token)
                if sequence.computed // self.block_size > len(sequence.path):
                    self._register(rid, sequence)
        if failed:
            self._distrust(failed, result.step)
        if self._fresh:
            self._fresh = [item for item in self._fresh if item[0] > result.step]
        self.pool.book(result.step)

    def _distrust(self, failed: set[str], step: int) -> None:
        """What failed requests wrote in ``step`` or later may be anything: nobody shall find it."""
        doubtful = set[int]()
        for rid in failed & self.sequences.keys():
            self.sequences[rid].findable = False
            doubtful.update(self.sequences[rid].table)
        for written, rid, entry in self._fresh:
            if rid in failed and written >= step and entry.alive:
                self.catalog.forget(entry)
        self._cut_paths()
        doubtful -= self.catalog.of_block.keys()
        for sequence in self.sequences.values():  # forks
            sequence.findable = sequence.findable and doubtful.isdisjoint(sequence.table)

    def _cut_paths(self) -> None:
        """Requests that use forgotten blocks keep them, but add nothing to the cache any more."""
        for sequence in self.sequences.values():
            if sequence.path and not sequence.path[-1].alive:
                sequence.path = [entry for entry in sequence.path if entry.alive]
                sequence.findable = False

    # --- calls -------------------------------------------------------------------------------------------------------

    def fork(self, parent: str, child: str) -> int:
        """``child`` gets all blocks of ``parent``, copied only when one of them writes to a shared one.

        Returns how many tokens of the child count as computed: at least one is left.  The child must then be started
        with exactly that many cached tokens, or be released.  Raises KeyError if ``parent`` holds nothing.
        """
        source = self.sequences[parent]
        assert child not in self.sequences, f"{child} exists"
        sequence = Sequence(list(source.ids), source.salt, source.priority)
        sequence.forked, sequence.findable = True, source.findable
        sequence.branched = source.branched = True
        sequence.computed = max(0, min(source.computed, len(source.ids) - 1))
        sequence.table = source.table[: -(-sequence.computed // self.block_size)]
        sequence.path = source.path[: sequence.computed // self.block_size]
        sequence.newest = source.newest
        for block in sequence.table:
            self.pool.share(block)
        self.sequences[child] = sequence
        return sequence.computed

    def lease(self, ids: tuple[int, ...], salt: str, until: float) -> int:
        """Keep the cached prefix of ``ids`` behind everything else until the clock value ``until`` (seconds).

        Returns its length in tokens.  Running work may still take leased blocks when nothing else is left.
        """
        path = self.catalog.lookup.walk(salt, ids, len(ids) // self.block_size)
        self.catalog.lease(path, until)
        return len(path) * self.block_size

    def reset(self, force: bool = False) -> bool:
        """Empty the cache.  While requests hold blocks or steps are in flight: False, and nothing changed; with
        ``force`` what is cached goes and what runs keeps its blocks to itself."""
        if (self.sequences or self.pool.num_fenced) and not force:
            return False
        self.catalog.clear()
        self._fresh.clear()
        for sequence in self.sequences.values():
            sequence.path, sequence.findable = [], False
        return True

    def observe(self, observer: Callable[[CacheEvent], None]) -> None:
        """Call ``observer`` for every change of the cache's content from now on; it must not raise."""
        self.catalog.observers.append(observer)

    # --- books -------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        users = [0] * self.num_blocks
        for rid, sequence in self.sequences.items():
            assert len(set(sequence.table)) == len(sequence.table), f"{rid} has a block twice"
            for block in sequence.table:
                users[block] += 1
            for index, entry in enumerate(sequence.path):
                assert entry.alive and entry.block == sequence.table[index], f"{rid}: its path left its table"
            assert len(sequence.table) * self.block_size - sequence.computed < self.block_size or sequence.forked, rid
        self.pool.check(users)
        self.host.check()

    def stats(self) -> dict[str, float]:
        """Ledger figures: blocks by state, tokens held and wasted, hits, evictions."""
        pool, catalog = self.pool, self.catalog
        used_tokens = sum(sequence.computed for sequence in self.sequences.values())
        return {
            "num_blocks": self.num_blocks,
            "free_blocks": pool.num_available,
            "cached_blocks": catalog.num_idle,
            "findable_blocks": len(catalog.of_block),
            "used_blocks": self.num_blocks - pool.num_available - pool.num_fenced,
            "fenced_blocks": pool.num_fenced,
            "used_tokens": used_tokens,
            "wasted_slots": self._wasted_slots(),
            "evictions": catalog.num_evicted,
            "expirations": catalog.num_expired,
            "copied_blocks": self.num_copied,
            "merged_blocks": self.num_merged,
            **self.host.stats(),
            **self.hits.stats(),
        }

    def _wasted_slots(self) -> int:
        """Slots of last blocks that hold nothing yet."""
        sequences = self.sequences.values()
        return sum(len(one.table) * self.block_size - one.computed for one in sequences)
