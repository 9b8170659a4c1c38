"""Contracts of the pluggable parts: what a scheduler policy, allocator, sampler, executor and gateway promise.

A scheduling policy *decides, it does not do*: it gets read-only windows on the host's records, the time as an argument
and an injected seeded generator, and answers with data.  It owns no request, block or queue, so it can be wrong, slow
or swapped without harm.  Allocator and sampler are pure actors: synchronous functions of ``(message, now)``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from .messages import Failure, Message, SamplingParams, StepLaunch, StepResult
from .request import RequestView, window

#: The plugin API levels this kernel runs.  A plugin declares ``api_level``; another level is refused by name.
API_LEVELS = frozenset({1})


# --- scheduling ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """Facts a policy is built with.  ``rng`` is its only source of randomness (seeded by the host)."""

    token_budget: int
    max_running: int
    num_blocks: int
    block_size: int
    rng: Random = field(default_factory=lambda: Random(0))


class Decision(NamedTuple):
    """An answer for one step, as data.

    ``rows`` are ``(rid, tokens)`` in order of service, running and waiting requests alike; ``preempt`` are running
    rids to take out first; ``padding`` are token counts of dummy rows; ``reasons`` says why a rid was left out or
    taken out; ``wake_at`` asks to be called again at that clock value even if nothing happens.
    """

    rows: Sequence[tuple[str, int]]
    preempt: Sequence[str] = ()
    padding: Sequence[int] = ()
    reasons: Mapping[str, str] = {}
    wake_at: float | None = None


class Event(NamedTuple):
    """Something that happened to a request: ``arrived``, ``started`` (enters the running set), ``scheduled``
    (``num_tokens`` in this step), ``preempted``, ``tokens`` (``num_tokens`` ids delivered) or ``finished``."""

    kind: Literal["arrived", "started", "scheduled", "preempted", "tokens", "finished"]
    request: RequestView
    num_tokens: int
    now: float


class SchedulerView:
    """The read-only window on the host that every full-pass hook gets.  Valid during the call only."""

    __slots__ = ("_behind", "now", "waiting")

    def __init__(self, behind: Any, now: float, waiting: Iterable[RequestView] = ()) -> None:
        self._behind, self.now = behind, now
        self.waiting = waiting  # in the order of the waiting key; iterate only as far as needed

    step: int = window("step")  # the newest step that was planned
    token_budget: int = window("config.token_budget")
    max_running: int = window("config.max_running")
    num_running: int = window("num_running")
    num_waiting: int = window("num_waiting")
    num_in_flight: int = window("num_in_flight")  # steps launched and not yet booked
    admitting: bool = window("admitting")  # false while the operator holds admission
    watermark: float = window("config.watermark")
    free_blocks: int = window("allocator.free_blocks")
    num_blocks: int = window("allocator.num_blocks")
    block_size: int = window("allocator.block_size")
    step_time: Callable[[int], float] = window("step_time")  # seconds expected for a step of that many tokens
    tenant_tokens: Mapping[str, int] = window("tenant_tokens_view")  # tokens computed per tenant

    @property
    def running(self) -> Sequence[RequestView]:
        """In order of admission."""
        return tuple(request.view for request in self._behind.running.values())

    def cached_prefix_tokens(self, request: RequestView) -> int:
        """Tokens of the request's known prefix that the KV cache holds now."""
        return int(self._behind.allocator.cached_prefix_tokens(request))

    def held_blocks(self, request: RequestView) -> int:
        """Blocks the request holds now."""
        return int(self._behind.allocator.held_blocks(request.rid))

    def draft(self) -> AllocationDraft:
        """A fresh what-if overlay on the KV pool for this step; using it changes nothing."""
        return self._behind.draft()  # type: ignore[no-any-return]


Rekey = Literal["arrival", "event", "step"]


class SchedulerPolicy:
    """Base of every scheduling policy: override only what the policy is about; each hook has a working default.

    Laws (the conformance kit tries them): same inputs, same answers; no clock, no I/O, no own randomness; nothing
    handed in is kept beyond the call, except rids and numbers.
    """

    api_level: ClassVar[int] = 1
    #: When ``waiting_key`` may change: never, when ``on_event`` names the request, or at every step.
    rekey: ClassVar[Rekey] = "arrival"
    #: What the policy promises, by law name, with its bound; tried by the conformance kit.
    claims: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, options: Any, context: PolicyContext) -> None:
        self.options, self.context = options, context

    def admit(self, request: RequestView, view: SchedulerView) -> str | None:
        """Called once at arrival: a reason refuses the request (code ``overloaded``), None accepts it."""
        return None

    def bucket(self, request: RequestView) -> Hashable:
        """The queue a waiting request stands in, for instance its tenant; the default is one queue."""
        return None

    def bucket_key(self, bucket: Hashable, planned_tokens: int, now: float) -> Any:
        """Orders the buckets, smallest first; read again after a pick from it.  ``planned_tokens`` of it have been
        admitted so far in the step being planned."""
        return 0

    def waiting_key(self, request: RequestView, now: float) -> Any:
        """Orders the requests within a bucket, smallest first.  Preempted before never started, then arrival."""
        return (request.num_preemptions == 0, request.seq)

    def order_waiting(self, view: SchedulerView) -> Iterable[RequestView] | None:
        """The escape for keys that change every step: the whole waiting order (may be lazy), or None."""
        return None

    def split_budget(self, view: SchedulerView) -> Mapping[str, int] | None:
        """Order of service and token caps of the running requests: rid -> most tokens in this step.

        Running requests not named get nothing.  The key ``"*"`` caps each newly admitted request.  None: everyone in
        order of admission, as much as the budget holds.
        """
        return None

    def select_victims(self, view: SchedulerView, need_blocks: int, for_request: RequestView) -> Sequence[str] | None:
        """Running rids to preempt, in order, until ``need_blocks`` are free for ``for_request``.

        Empty: nobody, ``for_request`` waits (a running one is then preempted itself).  None: the latest admitted.
        For a waiting ``for_request`` the default is nobody; ``need_blocks`` 0 then means that only a slot is short.
        """
        return None

    def reserve(self, request: RequestView, view: SchedulerView) -> int:
        """Tokens whose blocks must be available to admit ``request``; for a running one, tokens promised to it still.

        The default is the context known now.  An idle engine admits whatever this says.
        """
        return request.num_tokens

    def on_event(self, event: Event) -> Iterable[str] | None:
        """Where state lives.  With ``rekey = "event"`` it returns the rids of waiting requests whose key changed."""
        return None

    def schedule(self, view: SchedulerView) -> Decision | None:
        """The whole decision of a step, instead of the narrow hooks; None leaves it to them."""
        return None

    def export_state(self) -> dict[str, Any]:
        """Plain data that another policy may read at a hot swap."""
        return {}

    def import_state(self, policy: str, state: Mapping[str, Any]) -> None:
        """Take over from ``policy``; raising rolls the swap back."""


class SchedulerActor(Protocol):
    """The scheduler slot's actor: owns the request records; every accepted request ends exactly once."""

    records: Mapping[str, Any]

    def handle(self, message: Message, now: float) -> Iterable[Message]: ...
    def abort_all(self, failure: Failure, now: float) -> Message:
        """End everything with ``failure``; the actor is dropped afterwards."""

    def check(self) -> None: ...
    def stats(self) -> Mapping[str, float]: ...


# --- allocator -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AllocatorContext:
    """Facts an allocator is built with."""

    num_blocks: int
    block_size: int
    evict: str = "lru"
    max_idle_s: float = 0.0


class AllocationDraft(Protocol):
    """A what-if overlay on the allocator for planning one step: exact if the plan does the same things in order.

    It changes nothing in the allocator.  Sizes are in blocks of the pool.
    """

    @property
    def free_blocks(self) -> int:
        """Blocks that could still be taken (cached ones without users count)."""

    @property
    def fenced_blocks(self) -> int:
        """Blocks that come back when the steps in flight are booked."""

    def release(self, rid: str) -> None:
        """``rid`` ends or is preempted in this plan: what comes back at once counts as free."""

    def match(self, request: RequestView) -> int:
        """Pin the cached prefix for a request that would start; returns its length in tokens, at most
        ``request.num_tokens - 1``."""

    def unmatch(self, rid: str) -> None:
        """Undo ``match``: the request is not started after all."""

    def need(self, rid: str, num_tokens: int) -> int:
        """Blocks to take so that ``rid`` can hold ``num_tokens``."""

    def extend(self, rid: str, num_tokens: int) -> int:
        """Take them; returns 0, or how many blocks are short (then nothing was taken)."""


class Allocator(Protocol):
    """Owns the block pool.  Handles ``StepPlan`` -> ``StepGrant`` and ``StepResult`` (lifts fences); any
    other message, such as ``Wake``, only tells it the time.

    Laws: a block has one owner unless it is shared on purpose; blocks named by a launched step return to the pool
    only when that step has been booked; free + cached + in use + fenced = total after every message.
    """

    api_level: int

    def __init__(self, options: Any, context: AllocatorContext) -> None: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def free_blocks(self) -> int:
        """Blocks without a user now, cached ones included."""

    def handle(self, message: Message, now: float) -> Iterable[Message]: ...
    def draft(self) -> AllocationDraft: ...
    def cached_prefix_tokens(self, request: RequestView) -> int:
        """Length in tokens of the cached prefix of the request's known ids; no side effect."""

    def held_blocks(self, rid: str) -> int: ...
    def check(self) -> None:
        """Raise AssertionError if the books do not balance."""

    def stats(self) -> dict[str, float]:
        """Ledger figures: blocks by state, hits, evictions, ..."""


# --- sampler ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SamplerContext:
    """Facts a sampler is built with."""

    vocab_size: int
    end_token_ids: tuple[int, ...] = ()


class SampleOutput(NamedTuple):
    """What the array half returns: one id per row of logits; ``failed`` as (row, why), whose id is meaningless."""

    token_ids: list[int]
    failed: list[tuple[int, str]]


class Sampler(Protocol):
    """Two halves: the actor half turns a grant into a sampling plan; the array half (``run``) draws.

    Laws: a row's draw depends on its logits, its parameters, its seed and its position only, never on its batch.
    """

    api_level: int
    #: Names of request parameters it understands; any other is refused with ``unsupported_parameter``.
    parameters: frozenset[str]

    def __init__(self, options: Any, context: SamplerContext) -> None: ...
    def validate(self, params: SamplingParams) -> None:
        """Raise ClientError naming the field, the value and the valid range."""

    def handle(self, message: Message, now: float) -> Iterable[Message]:
        """``StepGrant`` -> ``StepLaunch`` (none for a grant without rows)."""

    def run(self, logits: Any, plan: Any) -> SampleOutput:
        """Draw from ``logits``, torch float32 ``[num_sampling_rows, vocab]`` (may be overwritten).  Any thread."""

    def check(self) -> None: ...


# --- executor --------------------------------------------------------------------------------------------------------


class ExecutorInfo(NamedTuple):
    """What an executor found out while loading.  ``memory`` are bytes by column (weights, workspace, kv, overhead)."""

    model: str
    vocab_size: int
    max_context: int
    end_token_ids: tuple[int, ...]
    num_blocks: int
    memory: Mapping[str, int] = {}
    detail: str = ""


class Executor(Protocol):
    """Runs the model.  All methods are called on one thread of its own; ``execute`` may block."""

    def load(self, progress: Callable[[str], None]) -> ExecutorInfo:
        """Load weights and allocate the KV pool, once."""

    def execute(self, launch: StepLaunch, sample: Callable[[Any, Any], SampleOutput]) -> StepResult:
        """One step: copies, forward, ``sample(logits, launch.sampling)`` for the rows that sample."""

    def close(self) -> None: ...
