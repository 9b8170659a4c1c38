"""What a policy may promise beside the laws: each claim has traffic of its own, and a law with the claimed bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, get_args

from ...core.config import Depth
from ...core.errors import PluginError, nearest
from ...core.messages import Message, StepResult, Submit
from .laws import Breach
from .runs import Run
from .scenarios import Scenario, burst, mix, submit

ClaimLaw = Callable[[Run, Any], Breach | None]


class Claim(NamedTuple):
    """``promise`` in words (``{bound}`` is the claimed value), the law, and what it is tried on."""

    promise: str
    law: ClaimLaw
    scenarios: tuple[Scenario, ...]


def _out_of_order(run: Run, key: Callable[[str], Any], what: str) -> Breach | None:
    """The first request that was started although one with a smaller key had been waiting."""
    started = list(run.starts)
    for at, rid in enumerate(started):
        moment, step = run.starts[rid]
        for later in started[at + 1 :]:
            if run.submits[later][0] < moment and key(later) < key(rid):
                return Breach(f"{rid} ({what} {key(rid)}) started before {later} ({what} {key(later)})", step)
    return None


def arrival_order(run: Run, _bound: Any) -> Breach | None:
    order = {rid: index for index, rid in enumerate(run.submits)}
    return _out_of_order(run, order.__getitem__, "arrival number")


def priority_order(run: Run, bound: Any) -> Breach | None:
    """``bound`` may be ``"higher"`` or ``"lower"``, for which goes first; True accepts either, throughout."""
    signs = {"higher": (-1,), "lower": (1,)}.get(bound, (-1, 1))
    found = [_out_of_order(run, partial(_signed_priority, run, sign), "signed priority") for sign in signs]
    return None if None in found else found[0]


def _signed_priority(run: Run, sign: int, rid: str) -> int:
    return sign * run.submits[rid][1].priority


def deadline_order(run: Run, _bound: Any) -> Breach | None:
    return _out_of_order(run, lambda rid: run.submits[rid][1].deadline or float("inf"), "deadline")


def shortest_first(run: Run, _bound: Any) -> Breach | None:
    return _out_of_order(run, lambda rid: len(run.submits[rid][1].prompt_ids), "prompt length")


def work_conserving(run: Run, _bound: Any) -> Breach | None:
    """While anybody waits, the engine is not idle and steps use all tokens and slots (the pool is large)."""
    steps = [message for _, message in run.log if isinstance(message, StepResult)]
    for earlier, later in pairwise(steps):
        for rid, (start, step) in run.starts.items():
            if max(run.submits[rid][0], earlier.finished) < min(start, later.launched) - 1e-9:
                return Breach(f"the engine was idle after {earlier.finished:.3f} s although {rid} waited", step)
    for now, plan in run.plans:
        alive = [rid for rid, (arrived, _) in run.submits.items() if arrived < now < run.ended_at.get(rid, now)]
        waiting = [rid for rid in alive if rid not in run.starts or run.starts[rid][1] > plan.step]
        used, slots = sum(row.count for row in plan.rows), len(alive) - len(waiting)
        if waiting and used < run.scenario.token_budget and slots < run.scenario.max_running:
            what = (
                f"{used} of {run.scenario.token_budget} tokens and {slots} of {run.scenario.max_running} slots are used"
            )
            return Breach(f"{what} while {waiting[0]} waits", plan.step)
    return None


def bounded_bypass(run: Run, bound: Any) -> Breach | None:
    passed: Counter[str] = Counter()
    order = {rid: index for index, rid in enumerate(run.submits)}
    for rid, (moment, step) in run.starts.items():
        for other, (arrived, _) in run.submits.items():
            waits = arrived < moment and run.starts.get(other, (float("inf"), 0))[1:] > (step,)
            if waits and order[other] < order[rid]:
                passed[other] += 1
                if passed[other] > bound:
                    return Breach(f"{other} was passed by {passed[other]} later requests; the claim is {bound}", step)
    return None


def tenant_fair(run: Run, bound: Any) -> Breach | None:
    """The gap in service (input + 2 x output tokens) of tenants that always have work waiting, or the default bound."""
    longest = max(len(request.prompt_ids) for _, request in run.submits.values())
    limit = 2 * max(longest, 2 * run.scenario.token_budget) if bound is True else bound
    requests = {rid: request for rid, (_, request) in run.submits.items()}
    service = Counter({request.tenant: 0 for request in requests.values()})
    for now, plan in run.plans:
        for row in plan.rows:
            size = len(requests[row.rid].prompt_ids)
            new_input = min(row.start + row.count, size) - min(row.start, size)
            service[requests[row.rid].tenant] += new_input + 2 * row.samples
        waiting = {requests[rid].tenant for rid in requests if run.starts.get(rid, (now + 1, 0))[0] > now}
        gap = max(service.values()) - min(service.values())
        if now > 0.5 and waiting != service.keys():
            return None  # from here on one of them has nothing waiting
        if gap > limit:
            return Breach(f"{dict(service)} tokens of service: the gap is {gap}, the bound {limit}", plan.step)
    return None


def _one_slot(name: str, *requests: Submit) -> tuple[Scenario, ...]:
    """They all wait for the one slot while a first request keeps it busy, so that the order of service shows."""
    first = submit("first", 4, 8, deadline=5.0, priority=0)
    return (Scenario(name, ((0.0, first), *burst(requests, 0.001)), max_running=1),)


def _backlog() -> tuple[tuple[float, Message], ...]:
    """Two tenants that ask for more than there is, one of them twice as often."""
    actions: list[tuple[float, Message]] = []
    for index in range(60):
        actions.append((0.02 * index, submit(f"much{index}", 16, 8, tenant="much")))
        if index % 2:
            actions.append((0.02 * index, submit(f"less{index}", 16, 8, tenant="less")))
    return tuple(actions)


_ROOMY = Scenario("random mix with room", num_blocks=400)
_MIXED = tuple(
    replace(_ROOMY, actions=tuple(mix(seed, 25))).at_depth(depth) for seed, depth in enumerate(get_args(Depth), 11)
)

_CROWDED = tuple(
    replace(_ROOMY, name="a crowd", actions=tuple(mix(seed, 40, over_s=0.5)), max_running=2).at_depth(depth)
    for seed, depth in enumerate(get_args(Depth), 13)
)

#: Every claim that a policy can make.
CLAIMS: dict[str, Claim] = {
    "arrival_order": Claim("requests start in the order of arrival", arrival_order, _MIXED),
    "priority_order": Claim(
        "a waiting request of a better class starts first; {bound} says which is better",
        priority_order,
        _one_slot("eight classes, one slot", *(submit(f"p{p}", 4, 2, priority=p) for p in (5, 1, 8, 3, 2, 7, 4, 6))),
    ),
    "deadline_order": Claim(
        "the earliest deadline starts first",
        deadline_order,
        _one_slot("deadlines, one slot", *(submit(f"d{at}", 4, 2, deadline=float(at)) for at in (50, 10, 80, 30, 20))),
    ),
    "shortest_first": Claim(
        "the shortest prompt starts first",
        shortest_first,
        _one_slot("lengths, one slot", *(submit(f"n{size}", size, 2) for size in (23, 5, 17, 2, 11, 29, 8))),
    ),
    "work_conserving": Claim("the budget is used while anybody who fits waits", work_conserving, _MIXED),
    "bounded_bypass": Claim("at most {bound} later requests start before one that waits", bounded_bypass, _CROWDED),
    "tenant_fair": Claim(
        "always-busy tenants stay within {bound} tokens of each other's service",
        tenant_fair,
        (Scenario("two busy tenants", _backlog(), 32, 4, num_blocks=200),),
    ),
}


def check_claims(name: str, claims: Mapping[str, Any]) -> None:
    """Raise PluginError if ``claims`` of the policy ``name`` holds one that does not exist."""
    for claim in claims:
        if claim not in CLAIMS:
            raise PluginError(f"policy {name!r} claims {claim!r}: there is no such claim{nearest(claim, CLAIMS)}")


def breach_of(run: Run, claim: str, bound: Any) -> Breach | None:
    """Judge one run of the claim's own traffic; False as a bound means that nothing is claimed."""
    return None if bound is False else CLAIMS[claim].law(run, bound)
