"""What every allocator promises, whatever it keeps and shares: tried on each one that the allocators folder registers.

The driver plays the engine: drafts, plans, a KV memory of token ids, steps in flight.  It fails on a row that reads
anything but its own context, on a plan that the draft allowed and the allocator denied, and on unbalanced books.
"""

from __future__ import annotations

import importlib
import pkgutil
from random import Random
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.allocators.driver import Driver, make_context, random_operations

import mainspring.allocators
from mainspring.allocators.prefix import PrefixAllocator
from mainspring.allocators.sharing.eviction import KEYS
from mainspring.core.messages import SamplingParams, Started, StepPlan
from mainspring.core.policy import Allocator, AllocatorContext
from mainspring.core.registry import verify


def registered() -> dict[str, tuple[Any, Any]]:
    """name -> (factory, options type) of every built-in allocator."""
    found: dict[str, tuple[Any, Any]] = {}

    def register(name: str, factory: Any, options: type | None = None) -> None:
        found[name] = (factory, options)

    for module in pkgutil.iter_modules(mainspring.allocators.__path__):
        hook = getattr(importlib.import_module(f"mainspring.allocators.{module.name}"), "register_allocators", None)
        if hook is not None:
            hook(register)
    return found


def make(name: str, context: AllocatorContext, **fields: Any) -> Allocator:
    factory, options = registered()[name]
    made: Allocator = factory(options(**fields) if options else None, context)
    return made


NAMES = sorted(registered())
CACHING = ["prefix", "radix"]


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ids(count: int, first: int = 100) -> tuple[int, ...]:
    return tuple(range(first, first + count))


# --- single promises -------------------------------------------------------------------------------------------------


def test_it_meets_the_contract(name: str) -> None:
    verify(name, Allocator, registered()[name][0], "options context")


def test_d56_every_block_of_the_pool_can_be_used(name: str) -> None:
    """D56: there is no reserved null block; usable blocks are all of ``range(num_blocks)``."""
    driver = Driver(make(name, make_context(num_blocks=5, block_size=4)))
    driver.submit("a", ids(19), max_tokens=1)
    grant = driver.run("a")
    assert sorted(grant.rows[0].block_table) == list(range(5))


def test_d57_asking_for_more_than_is_free_changes_nothing(name: str) -> None:
    """D57, D74: a draft refuses what does not fit; a plan that asks nevertheless is denied and nothing else happens."""
    allocator = make(name, make_context(num_blocks=4, block_size=4))
    driver = Driver(allocator)
    driver.submit("a", ids(6), max_tokens=2)
    driver.plan([("a", 6)])
    job = driver.submit("b", ids(13, 500), max_tokens=3)
    draft = allocator.draft()
    assert draft.match(job.view) == 0
    before = draft.free_blocks
    assert draft.extend("b", 13) > 0
    assert draft.free_blocks == before
    plan = StepPlan(9, (driver._row(job, 0, 13),), (driver._start(job, 0),))
    free, stats = allocator.free_blocks, allocator.stats()
    (grant,) = allocator.handle(plan, 0.0)
    assert grant.denied == ("b",)  # type: ignore[attr-defined]
    assert (grant.rows, grant.started) == ((), ())  # type: ignore[attr-defined]
    allocator.check()
    assert (allocator.free_blocks, allocator.held_blocks("b")) == (free, 0)
    assert allocator.stats() == stats


def test_d62_d63_a_block_is_taken_when_a_position_needs_it(name: str) -> None:
    """D62, D63: 10 tokens in blocks of 4 are 3 blocks; positions 10 and 11 need none, position 12 one."""
    driver = Driver(make(name, make_context(num_blocks=8, block_size=4)))
    driver.submit("a", ids(10), max_tokens=6)
    sizes = []
    for _ in range(4):
        grant = driver.run("a")
        row = grant.rows[0]
        sizes.append(len(row.block_table))
        for position, slot in enumerate(row.slot_mapping, row.start):
            assert slot == row.block_table[position // 4] * 4 + position % 4
    assert sizes == ([4] * 4 if name == "contiguous" else [3, 3, 3, 4])


def test_b05_a_block_returns_once_whatever_the_caller_does(name: str) -> None:
    """B-05: releasing twice, preempting what was released, releasing what never was: the pool stays whole."""
    allocator = make(name, make_context(num_blocks=6, block_size=4))
    driver = Driver(allocator)
    driver.submit("a", ids(10), max_tokens=2)
    driver.run("a")
    allocator.handle(StepPlan(7, (), released=("a", "a", "never"), preempted=("a",)), 0.0)
    allocator.handle(StepPlan(8, (), released=("a",)), 0.0)
    allocator.check()
    assert allocator.free_blocks == 6
    driver.jobs.clear()
    driver.submit("b", ids(23, 500), max_tokens=1)
    assert sorted(driver.run("b").rows[0].block_table) == list(range(6))


@pytest.mark.parametrize("block_size", [1, 16])
def test_b06_d60_at_idle_the_books_balance(name: str, block_size: int) -> None:
    """B-06, D60: ends by cancel, preemption and failure, in any order, leave every block free or cached."""
    for seed in range(3):
        allocator = make(name, make_context(num_blocks=8, block_size=block_size))
        random_operations(allocator, seed, 150)
        stats = allocator.stats()
        assert (stats["free_blocks"], stats["used_blocks"], stats["fenced_blocks"]) == (8, 0, 0)


def test_c43_c47_blocks_are_fenced_until_the_newest_step_that_names_them_is_booked(name: str) -> None:
    """C43, C44, C47, F102: ended amid its prompt with two steps in flight, the blocks come back once, with the
    later step; the request itself is forgotten at once."""
    allocator = make(name, make_context(num_blocks=8, block_size=4))
    driver = Driver(allocator, depth=2)
    driver.submit("a", ids(12), max_tokens=4)
    driver.plan([("a", 4)])
    driver.plan([("a", 4)])
    driver.end("a")
    driver.plan([])
    assert allocator.held_blocks("a") == 0 or name == "none"
    assert allocator.free_blocks < 8
    driver.book()
    if name != "none":  # there each step has its own scratch
        assert allocator.stats()["fenced_blocks"] == (4 if name == "contiguous" else 2)
    driver.book()
    assert allocator.free_blocks == 8
    assert allocator.draft().fenced_blocks == 0


def test_c46_without_a_step_in_flight_blocks_return_at_once(name: str) -> None:
    driver = Driver(make(name, make_context(num_blocks=8, block_size=4)))
    driver.submit("a", ids(9), max_tokens=4)
    driver.run("a")
    driver.finish("a")
    assert driver.allocator.free_blocks == 8


def test_b08_hits_are_pinned_before_anything_is_taken(name: str) -> None:
    """B-08: A's cached prefix and a B that wants those very blocks, in one plan: one waits, both read their own."""
    driver = Driver(make(name, make_context(num_blocks=6, block_size=4)))
    driver.prefill("warm", ids(16), max_tokens=1)
    driver.submit("b", ids(18, 500), max_tokens=2)
    driver.submit("a", ids(18), max_tokens=2)
    driver.plan([("b", 18), ("a", 18)])
    driver.book()
    driver.plan([("a", 18), ("b", 18)])
    driver.book()
    driver.drain()


def test_a_preempted_request_resumes_in_the_same_plan(name: str) -> None:
    """C50, A-10: named as preempted and as started at once; only what the cache lacks is computed again."""
    driver = Driver(make(name, make_context(num_blocks=8, block_size=4)))
    driver.submit("a", ids(10), max_tokens=4)
    driver.run("a")
    driver.preempt("a")
    grant = driver.run("a")
    assert grant.rows[0].start == (8 if name in CACHING else 0)


def test_b12_e78_a_passage_is_reused_only_after_the_same_beginning(name: str) -> None:
    """B-12, E78: three blocks after another first block are computed again."""
    driver = Driver(make(name, make_context(num_blocks=16, block_size=4)))
    driver.prefill("a", ids(16))
    assert driver.prefill("b", ids(4, 900) + ids(12, 104)) == 0


def test_rows_of_an_unknown_request_are_served(name: str) -> None:
    """A request that is started without known ids of its own is still given blocks; its content is never shared."""
    allocator = make(name, make_context(num_blocks=4, block_size=4))
    started = Started("a", ids(4), 4, 0, SamplingParams(max_tokens=4))
    driver = Driver(allocator)
    job = driver.submit("a", ids(4), max_tokens=4)
    (grant,) = allocator.handle(StepPlan(1, (driver._row(job, 0, 4),), (started,)), 0.0)
    assert grant.started == (started,)  # type: ignore[attr-defined]


# --- random operations -----------------------------------------------------------------------------------------------


def contexts(seed: int) -> AllocatorContext:
    rng = Random(seed)
    return make_context(rng.choice((3, 6, 24)), rng.choice((1, 4)), rng.choice(sorted(KEYS)), rng.choice((0.0, 2.0)))


@pytest.mark.slow
def test_random_operations(name: str) -> None:
    """10,000: no leak, no block with two owners, no foreign content."""
    for seed in range(20):
        random_operations(make(name, contexts(seed)), seed, 500)


@pytest.mark.slow
@pytest.mark.parametrize("name", CACHING)
def test_random_operations_with_swapping(name: str) -> None:
    """Host blocks are never lost, never owned twice, and what comes back from them is what went there."""
    num_in = 0.0
    for seed in range(20):
        allocator = make(name, contexts(seed), preempt="swap", host_blocks=1 + seed % 8)
        random_operations(allocator, seed, 500)
        num_in += allocator.stats()["swap_ins"]
    assert num_in > 20


@pytest.mark.soak
def test_a_hundred_thousand_random_operations(name: str) -> None:
    for seed in range(1000, 1200):
        random_operations(make(name, contexts(seed)), seed, 500)


def constant(parent: int, tokens: tuple[int, ...]) -> int:
    return 7


@pytest.mark.slow
def test_b01_random_operations_with_a_constant_hash() -> None:
    for seed in range(20):
        random_operations(PrefixAllocator(None, contexts(seed), hasher=constant), seed, 500)


@pytest.mark.soak
@pytest.mark.parametrize("range_of_hash", [1, 4])
def test_b01_a_hundred_thousand_random_operations_with_colliding_hashes(range_of_hash: int) -> None:
    """B-01: the hash may have any range; only equal content is ever shared."""
    for seed in range(1000, 1200):
        hasher = lambda parent, tokens: hash((parent, tokens)) % range_of_hash  # noqa: E731
        random_operations(PrefixAllocator(None, contexts(seed), hasher=hasher), seed, 500)


# --- a state machine that shrinks ------------------------------------------------------------------------------------


class AllocatorMachine(RuleBasedStateMachine):
    """Hypothesis plays the engine's part; subclasses say which allocator."""

    name = "paged"
    options: ClassVar[dict[str, Any]] = {}

    @initialize(
        num_blocks=st.integers(1, 12),
        block_size=st.sampled_from((1, 2, 4)),
        depth=st.sampled_from((1, 2)),
        evict=st.sampled_from(sorted(KEYS)),
    )
    def begin(self, num_blocks: int, block_size: int, depth: int, evict: str) -> None:
        if num_blocks * block_size < 2:
            num_blocks = 2
        self.driver = Driver(make(self.name, make_context(num_blocks, block_size, evict), **self.options), depth)
        self.counter = 0

    @property
    def num_slots(self) -> int:
        return self.driver.size * int(self.driver.allocator.num_blocks)

    def job(self, data: st.DataObject, rids: list[str]) -> str:
        return data.draw(st.sampled_from(rids))

    @precondition(lambda self: len(self.driver.jobs) < 6)
    @rule(data=st.data(), salt=st.sampled_from(("", "x")), read_cache=st.booleans(), max_tokens=st.integers(1, 8))
    def submit(self, data: st.DataObject, salt: str, read_cache: bool, max_tokens: int) -> None:
        prompt = data.draw(st.lists(st.sampled_from((10, 11)), min_size=1, max_size=min(16, self.num_slots - 1)))
        self.counter += 1
        most = min(max_tokens, self.num_slots - len(prompt))
        self.driver.submit(f"r{self.counter}", tuple(prompt), most, cache_salt=salt, read_cache=read_cache)

    @precondition(lambda self: len(self.driver.in_flight) < self.driver.depth)
    @rule(data=st.data())
    def plan(self, data: st.DataObject) -> None:
        jobs = self.driver.jobs
        rids = data.draw(st.permutations(sorted(jobs))) if jobs else []
        rids = rids[: data.draw(st.integers(0, len(rids)))]
        rids.sort(key=lambda rid: not jobs[rid].running)
        self.driver.plan([(rid, data.draw(st.sampled_from((1, 3, 100)))) for rid in rids])

    @precondition(lambda self: self.driver.in_flight)
    @rule(fail=st.booleans())
    def book(self, fail: bool) -> None:
        self.driver.book(tuple(self.driver.in_flight[0][1])[: fail and 1])

    @precondition(lambda self: self.driver.jobs)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.driver.end(self.job(data, sorted(self.driver.jobs)))

    @precondition(lambda self: any(job.running for job in self.driver.jobs.values()))
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        self.driver.preempt(self.job(data, [rid for rid, job in self.driver.jobs.items() if job.running]))

    @rule()
    def release_twice(self) -> None:
        self.driver.released.extend(["never", *self.driver.released[:2]])

    @precondition(lambda self: hasattr(self.driver.allocator, "fork") and len(self.driver.jobs) < 6)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        driver = self.driver
        going = [rid for rid, job in driver.jobs.items() if job.running and not job.full]
        if going:
            self.counter += 1
            driver.fork(self.job(data, going), f"r{self.counter}")

    @precondition(lambda self: hasattr(self.driver.allocator, "reset"))
    @rule(force=st.booleans())
    def reset(self, force: bool) -> None:
        self.driver.allocator.reset(force)
        self.driver.check()

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.drain()


def machine(allocator: str, **options: Any) -> Any:
    title = allocator.title() + "Swap" * bool(options)
    kind: Any = type(f"{title}Machine", (AllocatorMachine,), {"name": allocator, "options": options})
    case = kind.TestCase
    case.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
    return pytest.mark.slow(case)


TestPaged, TestContiguous, TestNone, TestPrefix, TestRadix = (
    machine(allocator) for allocator in ("paged", "contiguous", "none", "prefix", "radix")
)
TestPrefixSwap, TestRadixSwap = (machine(allocator, preempt="swap", host_blocks=4) for allocator in CACHING)


def test_every_allocator_has_its_machine() -> None:
    assert set(NAMES) == {"paged", "contiguous", "none", "prefix", "radix"}
