"""The whole vocabulary: every message that actors exchange, immutable, one batch message per step at every hop.

Commands are imperatives or nouns that ask (``Submit``, ``Cancel``); facts are what happened (``StepResult``).  Only
data lives here: no behaviour, no arrays of a particular library except the sampler's opaque plan.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec


class FinishReason(enum.StrEnum):
    """The closed set of ways a generation ends."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"


class Message(msgspec.Struct, frozen=True):
    """Base of the vocabulary."""


class SamplingParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one request samples and ends.  ``top_k`` 0 or -1, ``top_p`` 1 and ``min_p`` 0 mean off.

    ``extra`` holds parameters that only some samplers know; a sampler refuses by name what it does not know.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    max_tokens: int = 256
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    extra: dict[str, Any] = {}


class Submit(Message, frozen=True):
    """gateway -> scheduler host, once per request.

    ``deadline`` is an absolute clock value in seconds.  ``forced_length`` ends the request after exactly that many
    output tokens (trace replay); it travels beside the request and no policy ever sees it.  ``cache_salt`` isolates
    prefix sharing; ``read_cache = False`` opts out of hits.  ``received`` is when the frame arrived (seconds).
    ``parent`` forks a running request: the prompt is what that one
    knows now, and its KV is shared until somebody writes to it.  ``warm`` ends after the prompt, without sampling;
    ``lease_s`` keeps the prompt cached for so long after the end.
    """

    rid: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = SamplingParams()
    priority: int = 0
    tenant: str = "default"
    deadline: float | None = None
    cache_salt: str = ""
    read_cache: bool = True
    arm: str = ""
    forced_length: int | None = None
    received: float | None = None
    parent: str | None = None
    warm: bool = False
    lease_s: float = 0.0


class Cancel(Message, frozen=True):
    """gateway -> scheduler host: end ``rid`` now; unknown or finished ids are ignored."""

    rid: str
    reason: FinishReason = FinishReason.CANCELLED


class Pause(Message, frozen=True):
    """gateway -> scheduler host: do not schedule these requests (their client does not read)."""

    rids: tuple[str, ...]


class Resume(Message, frozen=True):
    """gateway -> scheduler host: schedule them again."""

    rids: tuple[str, ...]


class Stop(Message, frozen=True):
    """text -> scheduler host: stop strings matched; rows are ``(rid, output tokens kept, stop string)``."""

    rows: tuple[tuple[str, int, str], ...]


class Wake(Message, frozen=True):
    """scheduler host -> itself, behind whatever is queued, so that one plan sees all of one tick's arrivals."""


class Alarm(Message, frozen=True):
    """scheduler host -> whoever drives the clock: post a ``Wake`` at this clock value (seconds)."""

    at: float


class Started(msgspec.Struct, frozen=True):
    """A request that enters the running set with this step (first time or resumed).

    ``token_ids`` are all tokens known so far (prompt, then output), so prompt ids travel once per admission.
    """

    rid: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    num_cached_tokens: int
    sampling: SamplingParams
    cache_salt: str = ""
    read_cache: bool = True
    priority: int = 0


class Row(msgspec.Struct, frozen=True, gc=False):
    """``count`` tokens of ``rid`` from position ``start``; ``token_ids`` None means the id it sampled last.

    ``samples`` is true when the row reaches the last known token, so that the next one is drawn.
    """

    rid: str
    start: int
    count: int
    token_ids: tuple[int, ...] | None
    samples: bool


class GrantedRow(Row, frozen=True, gc=False):
    """A row with room: ``block_table`` block ids by logical block, ``slot_mapping`` one pool slot per token."""

    block_table: tuple[int, ...]
    slot_mapping: tuple[int, ...]


class StepPlan(Message, frozen=True):
    """scheduler host -> allocator, once per step.  A plan without rows only releases and is never launched.

    ``released`` have ended; ``preempted`` lose their blocks and come back, recomputed or copied back.  ``padding``
    lists the token counts of dummy rows (static batching), ``reasons`` says why a waiting request was not scheduled.
    """

    step: int
    rows: tuple[Row, ...]
    started: tuple[Started, ...] = ()
    released: tuple[str, ...] = ()
    preempted: tuple[str, ...] = ()
    padding: tuple[int, ...] = ()
    reasons: tuple[tuple[str, str], ...] = ()


class StepGrant(Message, frozen=True):
    """allocator -> sampler and scheduler host.  ``copies`` are ``(source block, target block)``, done in order before
    anything of the step is written; block ids from ``num_blocks`` on mean host blocks, where preempted requests wait.
    ``denied`` rows got no room: a guard, never how the host finds out that memory is short."""

    step: int
    rows: tuple[GrantedRow, ...]
    started: tuple[Started, ...] = ()
    released: tuple[str, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()
    denied: tuple[str, ...] = ()
    padding: tuple[int, ...] = ()


class StepLaunch(Message, frozen=True):
    """sampler -> executor: the granted rows plus ``sampling``, the sampler's own plan for the rows that sample."""

    step: int
    rows: tuple[GrantedRow, ...]
    sampling: Any
    released: tuple[str, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()
    padding: tuple[int, ...] = ()


class StepResult(Message, frozen=True):
    """executor -> allocator and scheduler host: one id per sampling row, in row order; ``failed`` rows as (rid, why).

    ``launched`` and ``finished`` are clock values in seconds: when the step began to be computed, and when it was over.
    """

    step: int
    rids: tuple[str, ...]
    token_ids: tuple[int, ...]
    failed: tuple[tuple[str, str], ...] = ()
    launched: float = 0.0
    finished: float = 0.0


class Usage(msgspec.Struct, frozen=True):
    """Tokens: ``input`` of the prompt, ``cached`` of those found in the KV cache, ``output`` generated."""

    input: int
    cached: int
    output: int


class Timing(msgspec.Struct, frozen=True, omit_defaults=True):
    """Clock values in seconds on one axis; None for what never happened."""

    arrival: float
    scheduled: float | None = None
    first_token: float | None = None
    finished: float | None = None


class Failure(msgspec.Struct, frozen=True):
    """Why a request ended with ``error``: a code of ``core.errors`` and a text that is safe to show."""

    code: str
    message: str
    param: str | None = None


class Finish(msgspec.Struct, frozen=True):
    """The end of a request.  ``stop`` is the stop string or token id that matched."""

    reason: FinishReason
    usage: Usage
    timing: Timing
    stop: str | int | None = None
    failure: Failure | None = None
    num_preemptions: int = 0


class EmitRow(msgspec.Struct, frozen=True, gc=False):
    """News of one request: new ids, and its end.  The first row of a request has neither: it was accepted."""

    rid: str
    token_ids: tuple[int, ...] = ()
    finish: Finish | None = None


class Emit(Message, frozen=True):
    """scheduler host -> text -> gateways, once per step (``step`` -1 between steps)."""

    step: int
    rows: tuple[EmitRow, ...]


class Note(Message, frozen=True):
    """any edge -> journal: an observation about ``rid`` at a named ``point``, with facts safe to write down."""

    rid: str
    point: str
    facts: dict[str, Any] = {}


class Down(Message, frozen=True):
    """any edge -> kernel: ``actor`` failed while ``step`` was in flight."""

    actor: str
    error: str
    step: int | None = None


class Swap(Message, frozen=True):
    """operator -> scheduler host: apply this ``[scheduler]`` table at the next step boundary, requests and KV kept.

    The answer is a ``Note`` at ``scheduler.swapped`` or ``scheduler.swap_failed`` with rid ``""``.
    """

    scheduler: Any


class Control(Message, frozen=True):
    """operator -> kernel and host: ``tick`` (look at deadlines), ``drain``, ``hold`` / ``release`` admission."""

    action: str


def refusal(message: Submit, failure: Failure, now: float) -> EmitRow:
    """The one terminal of a request that was never accepted."""
    usage, timing = Usage(len(message.prompt_ids), 0, 0), Timing(now, finished=now)
    return EmitRow(message.rid, (), Finish(FinishReason.ERROR, usage, timing, failure=failure))
