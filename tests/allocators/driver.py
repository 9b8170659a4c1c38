"""Drives an allocator as the engine does and believes nothing: a small host, a KV memory of token ids, a model.

Every slot of the memory holds the id that was written to it.  Before a step counts as run, each granted row reads its
whole context back through its block table; one wrong, stolen, stale or uncopied block shows at once.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from mainspring.core.messages import Row, SamplingParams, Started, StepGrant, StepPlan, StepResult, Submit, Wake
from mainspring.core.policy import Allocator, AllocatorContext
from mainspring.core.request import RequestView

EMPTY = -1


class Job:
    """The host's record of one request.  ``ids`` are known; one more may be sampled in a step in flight."""

    def __init__(self, submit: Submit) -> None:
        self.submit, self.rid = submit, submit.rid
        self.ids = list(submit.prompt_ids)
        self.num_prompt_tokens = len(submit.prompt_ids)
        self.computed = 0
        self.pending = 0  # ids being sampled
        self.running = False
        self.started = False  # ever
        self.forked = False  # holds blocks although it has not started
        self.view = RequestView(self)

    @property
    def num_known_tokens(self) -> int:
        return len(self.ids)

    @property
    def num_tokens(self) -> int:
        return len(self.ids) + self.pending

    @property
    def output_ids(self) -> list[int]:
        return self.ids[self.num_prompt_tokens :]

    def known_ids(self, start: int, stop: int) -> tuple[int, ...]:
        return tuple(self.ids[start:stop])

    @property
    def full(self) -> bool:
        """Every id in flight included, it has as many tokens as it may ever have."""
        return self.num_tokens >= self.num_prompt_tokens + self.submit.sampling.max_tokens


class Driver:
    """``depth`` steps may be in flight.  Every method leaves the allocator's books checked."""

    def __init__(self, allocator: Any, depth: int = 1, checks: bool = True) -> None:
        self.allocator, self.depth, self._checks = allocator, depth, checks
        self.size: int = allocator.block_size
        self.jobs: dict[str, Job] = {}
        num_host_blocks = int(allocator.stats().get("host_blocks", 0))
        self.memory = [EMPTY] * ((allocator.num_blocks + num_host_blocks) * self.size)
        self.in_flight: list[tuple[StepGrant, dict[str, int]]] = []
        self.released: list[str] = []
        self.preempted: list[str] = []
        self.step = 0
        self.now = 0.0
        self.cached: dict[str, int] = {}  # rid -> hit at the newest start
        self.tables: dict[str, tuple[int, ...]] = {}
        self._last: dict[str, int] = {}
        self._next_token = 1000

    # --- requests ----------------------------------------------------------------------------------------------------

    def submit(self, rid: str, prompt: tuple[int, ...], max_tokens: int = 20, **fields: Any) -> Job:
        job = self.jobs[rid] = Job(Submit(rid, prompt, SamplingParams(max_tokens=max_tokens), **fields))
        return job

    def end(self, rid: str) -> None:
        """The request ends now; its blocks go with the next plan."""
        job = self.jobs.pop(rid)
        if job.started or job.forked:  # the host releases whoever ever started, preempted ones too
            self.released.append(rid)

    def preempt(self, rid: str) -> None:
        job = self.jobs[rid]
        job.running, job.computed = False, 0
        self.preempted.append(rid)

    def fork(self, parent: str, child: str) -> None:
        """``child`` goes on from what ``parent`` knows, in the next plan."""
        source = self.jobs[parent]
        job = self.submit(child, source.submit.prompt_ids, source.submit.sampling.max_tokens)
        job.ids, job.forked = list(source.ids), True
        self.allocator.fork(parent, child)
        self.check()

    # --- steps -------------------------------------------------------------------------------------------------------

    def plan(self, wishes: list[tuple[str, int]]) -> StepGrant:
        """Plan one step as far as the draft allows; what it allows must be granted."""
        draft = self.allocator.draft()
        for rid in (*self.released, *self.preempted):
            draft.release(rid)
        rows: list[Row] = []
        started: list[Started] = []
        for rid, wish in wishes:
            job = self.jobs[rid]
            if job.full or (job.pending and not job.running):
                continue
            cached = -1
            if not job.running:
                cached = draft.match(job.view)
                assert 0 <= cached < job.num_tokens, (
                    f"{rid}: {cached} of {job.num_tokens}: a hit leaves at least one token to compute"
                )
                if draft.need(rid, job.num_tokens) > draft.free_blocks:
                    draft.unmatch(rid)
                    continue
            computed = max(cached, job.computed)
            count = min(wish, job.num_tokens - computed)
            if count <= 0:
                continue
            if draft.extend(rid, computed + count):
                if cached >= 0:
                    draft.unmatch(rid)
                continue
            if cached >= 0:
                started.append(self._start(job, cached))
            rows.append(self._row(job, computed, count))
        return self._send(rows, started)

    def _start(self, job: Job, cached: int) -> Started:
        job.running, job.started, job.forked = True, True, False
        self.cached[job.rid] = cached
        submit = job.submit
        ids = tuple(job.ids)
        return Started(
            job.rid, ids, job.num_prompt_tokens, cached, submit.sampling, submit.cache_salt, submit.read_cache
        )

    def _row(self, job: Job, start: int, count: int) -> Row:
        known = start < len(job.ids)
        ids = tuple(job.ids[start : start + count]) if known else None
        job.computed = start + count
        samples = job.computed == job.num_tokens
        job.pending += samples
        return Row(job.rid, start, count, ids, samples)

    def _send(self, rows: list[Row], started: list[Started]) -> StepGrant:
        self.step += 1
        plan = StepPlan(self.step, tuple(rows), tuple(started), tuple(self.released), tuple(self.preempted))
        self.released.clear()
        self.preempted.clear()
        (grant,) = self.allocator.handle(plan, self.now)
        self.check()
        assert isinstance(grant, StepGrant)
        assert not grant.denied, f"the draft allowed {grant.denied}"
        assert [row.rid for row in grant.rows] == [row.rid for row in rows]
        if rows:
            self.in_flight.append((grant, self._run(grant)))
        return grant

    def _run(self, grant: StepGrant) -> dict[str, int]:
        """Copies, then all writes, then all reads; returns the sampled ids."""
        size, memory = self.size, self.memory
        for source, target in grant.copies:
            memory[target * size : (target + 1) * size] = memory[source * size : (source + 1) * size]
        for row in grant.rows:
            ids = (self._last[row.rid],) if row.token_ids is None else row.token_ids
            assert len(ids) == row.count == len(row.slot_mapping)
            for position, (slot, token) in enumerate(zip(row.slot_mapping, ids, strict=True), row.start):
                block = row.block_table[position // size]
                assert slot == block * size + position % size, "the slot is not where the block table says"
                memory[slot] = token
        sampled: dict[str, int] = {}
        for row in grant.rows:
            stop = row.start + row.count
            context = [memory[row.block_table[at // size] * size + at % size] for at in range(stop)]
            job = self.jobs[row.rid]
            known = [*job.ids, *([self._last[row.rid]] if stop > len(job.ids) else [])]
            assert context == known[:stop], f"{row.rid} reads a context that is not its own"
            assert len(set(row.block_table)) == len(row.block_table)
            assert max(row.block_table) < self.allocator.num_blocks, "a row computes in host blocks"
            self.tables[row.rid] = row.block_table
            if row.samples:
                self._next_token += 1
                sampled[row.rid] = self._next_token
        self._last.update(sampled)
        return sampled

    def book(self, failed: tuple[str, ...] = ()) -> None:
        """The result of the oldest step in flight arrives."""
        grant, sampled = self.in_flight.pop(0)
        reasons = tuple((rid, "failed") for rid in failed)
        result = StepResult(grant.step, tuple(sampled), tuple(sampled.values()), reasons)
        assert not list(self.allocator.handle(result, self.now))
        self.check()
        for rid, token in sampled.items():
            job = self.jobs.get(rid)
            if job is None:
                continue
            job.pending -= 1
            if rid not in failed:
                job.ids.append(token)
        for rid in failed:
            if rid in self.jobs:
                self.end(rid)

    def run(self, *rids: str, tokens: int = 10**6) -> StepGrant:
        """One whole step for ``rids``, booked."""
        grant = self.plan([(rid, tokens) for rid in rids])
        if grant.rows:
            self.book()
        return grant

    def finish(self, *rids: str) -> None:
        """End ``rids`` and give their blocks back now."""
        for rid in rids:
            self.end(rid)
        self._send([], [])

    def prefill(self, rid: str, prompt: tuple[int, ...], **fields: Any) -> int:
        """A request that is computed in one step and ends; returns its hit in tokens."""
        self.submit(rid, prompt, **fields)
        self.run(rid)
        self.finish(rid)
        return self.cached[rid]

    def drain(self) -> None:
        """End everything and let every step in flight be booked: nothing may be left in use."""
        for rid in list(self.jobs):
            self.end(rid)
        self._send([], [])
        while self.in_flight:
            self.book()
        self._send([], [])
        assert self.allocator.free_blocks == self.allocator.num_blocks, self.allocator.stats()
        assert not self.allocator.stats().get("swapped_blocks"), self.allocator.stats()

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.allocator.handle(Wake(), self.now)
        self.check()

    def check(self) -> None:
        if not self._checks:
            return
        self.allocator.check()
        stats = self.allocator.stats()
        total = stats["free_blocks"] + stats["used_blocks"] + stats["fenced_blocks"]
        assert total == stats["num_blocks"], stats
        assert self.allocator.free_blocks == stats["free_blocks"]


def prompts(rng: Random, num_bases: int = 3, longest: int = 24) -> Callable[[], tuple[int, ...]]:
    """Random prompts that often begin alike."""
    bases = [tuple(rng.randrange(10, 14) for _ in range(longest)) for _ in range(num_bases)]

    def draw() -> tuple[int, ...]:
        length = rng.randint(1, longest)
        shared = rng.randint(0, length)
        return rng.choice(bases)[:shared] + tuple(rng.randrange(10, 14) for _ in range(length - shared))

    return draw


def random_operations(allocator: Allocator, seed: int, count: int, check_every: int = 1) -> Driver:
    """``count`` random operations: submit, extend, fork, hit, evict, preempt, cancel, fail, double free, lease, reset,
    time; then everything ends.  Books are checked after every message, or only every so many operations."""
    rng = Random(seed)
    driver = Driver(allocator, depth=rng.choice((1, 2)))
    draw = prompts(rng)
    for number in range(count):
        driver._checks = number % check_every == 0
        _random_operation(driver, rng, draw, number)
    driver._checks = True
    driver.drain()
    return driver


def _random_operation(driver: Driver, rng: Random, draw: Callable[[], tuple[int, ...]], number: int) -> None:
    jobs, allocator = driver.jobs, driver.allocator
    running = [rid for rid, job in jobs.items() if job.running]
    match rng.choice(("submit", "plan", "plan", "plan", "book", "book", "end", "preempt", "fork", "rare")):
        case "submit" if len(jobs) < 12:
            prompt = draw()[: allocator.num_blocks * driver.size - 1]
            most = allocator.num_blocks * driver.size - len(prompt)
            driver.submit(
                f"r{number}",
                prompt,
                rng.randint(1, min(12, most)),
                cache_salt=rng.choice(("", "", "x")),
                read_cache=rng.random() < 0.8,
            )
        case "plan" if len(driver.in_flight) < driver.depth:
            rids = rng.sample(list(jobs), rng.randint(0, len(jobs)))
            rids.sort(key=lambda rid: not jobs[rid].running)
            driver.plan([(rid, rng.choice((1, 3, 8, 100))) for rid in rids])
        case "book" if driver.in_flight:
            failed = tuple(driver.in_flight[0][1])[:1] if rng.random() < 0.05 else ()
            driver.book(failed)
        case "end" if jobs:
            driver.end(rng.choice(list(jobs)))
        case "preempt" if running:
            driver.preempt(rng.choice(running))
        case "fork" if hasattr(allocator, "fork") and len(jobs) < 12:
            parents = [rid for rid in running if not jobs[rid].full and allocator.held_blocks(rid)]
            parents = [rid for rid in parents if rid not in driver.released and rid not in driver.preempted]
            if parents:
                parent = rng.choice(parents)
                driver.fork(parent, f"r{number}")
        case "rare":
            _rare_operation(driver, rng, draw)


def _rare_operation(driver: Driver, rng: Random, draw: Callable[[], tuple[int, ...]]) -> None:
    allocator = driver.allocator
    match rng.randrange(5):
        case 0:
            driver.wait(rng.random())
        case 1:  # double free, and of what never was
            driver.released.extend(["never", *driver.released[:2]])
        case 2 if hasattr(allocator, "lease"):
            allocator.lease(draw(), "", driver.now + rng.random())
        case 3 if hasattr(allocator, "reset") and rng.random() < 0.1:
            allocator.reset(force=rng.random() < 0.5)
    driver.check()


def make_context(
    num_blocks: int = 24, block_size: int = 4, evict: str = "lru", max_idle_s: float = 0.0
) -> AllocatorContext:
    return AllocatorContext(num_blocks, block_size, evict, max_idle_s)
