"""What came out of a run, request by request and step by step: the input of every metric, simulated or live."""

from __future__ import annotations

import hashlib
import math

import msgspec


def rid_of(number: int) -> str:
    """The rid of row ``number`` of a scenario."""
    return f"r{number}"


def number_of(rid: str) -> int:
    """The row behind a rid that :func:`rid_of` made."""
    return int(rid[1:])


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a scenario.  Times are seconds from the start of the run; None for what never happened.

    ``arrival_s`` is the scheduled arrival: latencies count from it.  ``token_times`` has one entry for each output
    token.  ``wanted_tokens`` is the forced output length, ``reason`` how it ended ("" if it did not).
    """

    number: int
    rid: str
    arrival_s: float
    submitted_s: float | None = None
    scheduled_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    token_times: tuple[float, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    wanted_tokens: int = 0
    tenant: str = ""
    session: str = ""
    slo: str = ""
    priority: int = 0
    preemptions: int = 0
    reason: str = ""
    code: str = ""  # of the error, if it ended with one

    @property
    def output_tokens(self) -> int:
        return len(self.token_times)

    @property
    def complete(self) -> bool:
        """It got all its tokens."""
        return self.finished_s is not None and len(self.token_times) == self.wanted_tokens

    @property
    def ttft_s(self) -> float:
        """From the scheduled arrival to the first token; infinite if there is none."""
        return math.inf if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def e2e_s(self) -> float:
        """From the scheduled arrival to the end; infinite if it did not get all its tokens."""
        return self.finished_s - self.arrival_s if self.complete and self.finished_s is not None else math.inf

    @property
    def tpot_s(self) -> float | None:
        """(end - first token) / (tokens - 1); None for a single token, infinite if it did not end."""
        if self.wanted_tokens < 2:
            return None
        if not self.complete:
            return math.inf
        return (self.token_times[-1] - self.token_times[0]) / (self.wanted_tokens - 1)


def shifted(one: RequestRecord, by_s: float) -> RequestRecord:
    """``one`` with every time moved."""

    def moved(value: float | None) -> float | None:
        return None if value is None else value + by_s

    changed: RequestRecord = msgspec.structs.replace(
        one,
        arrival_s=one.arrival_s + by_s,
        submitted_s=moved(one.submitted_s),
        scheduled_s=moved(one.scheduled_s),
        first_token_s=moved(one.first_token_s),
        finished_s=moved(one.finished_s),
        token_times=tuple(time + by_s for time in one.token_times),
    )
    return changed


class StepRecord(msgspec.Struct, frozen=True, array_like=True):
    """One step: when it was launched, how long it took, its features, and the requests around it.

    ``prefill``, ``decode``, ``kv`` and ``attention`` are those of ``step_time.Features``; ``batch`` counts rows;
    ``policy_s`` is the cost charged for the decision.
    """

    step: int
    launched_s: float
    seconds: float
    prefill: int
    decode: int
    kv: int
    attention: float
    batch: int
    running: int
    waiting: int
    policy_s: float


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run.  ``counters`` are the host's and the allocator's; ``clock`` is ``sim`` or ``live``.

    ``in_system_s``: request-seconds in the system, integrated over the host's own count of live requests.
    """

    clock: str
    requests: tuple[RequestRecord, ...]
    steps: tuple[StepRecord, ...]
    in_system_s: float = 0.0
    counters: dict[str, float] = {}

    @property
    def end_s(self) -> float:
        """The last end of a request."""
        return max((one.finished_s for one in self.requests if one.finished_s is not None), default=0.0)

    @property
    def start_s(self) -> float:
        """The first scheduled arrival."""
        return min((one.arrival_s for one in self.requests), default=0.0)

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last end."""
        return self.end_s - self.start_s

    def encode(self) -> bytes:
        """JSON; equal runs give equal bytes."""
        return msgspec.json.encode(self)

    def digest(self) -> str:
        """SHA-256 of :meth:`encode`."""
        return hashlib.sha256(self.encode()).hexdigest()
