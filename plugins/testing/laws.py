"""The laws that every scheduling policy keeps, one function each: a recorded run in, the first breach or None out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ...core.messages import FinishReason
from ...core.policy import Decision
from .fake_executor import expected_ids
from .recorder import Answer
from .runs import Run


class Breach(NamedTuple):
    """What went wrong, and the step it happened in (None: at no step in particular)."""

    what: str
    step: int | None = None


Law = Callable[[Run], Breach | None]


def token_budget(run: Run) -> Breach | None:
    """No step computes more tokens than its budget."""
    budget = run.scenario.token_budget
    for answer, decision in _decisions(run):
        total = sum(count for _, count in decision.rows if isinstance(count, int))
        if total > budget:
            what = (
                f"{answer.hook}() gave {total} tokens to {len(decision.rows)} requests; the step's budget is {budget}"
            )
            return Breach(what, answer.step)
    return _first(
        Breach(f"step {plan.step} computes {total} tokens; the budget is {budget}", plan.step)
        for _, plan in run.plans
        if (total := sum(row.count for row in plan.rows)) > budget
    )


def known_requests(run: Run) -> Breach | None:
    """Only requests that wait or run are named."""
    for answer in run.answers:
        match answer.hook, answer.value:
            case "order_waiting", list() as names:
                state, allowed = "waiting", answer.waiting
            case "split_budget", dict() as caps:
                names, state, allowed = [rid for rid in caps if rid != "*"], "running", answer.running
            case "schedule", Decision() as decision:
                names, state, allowed = [rid for rid, _ in decision.rows], "there", (*answer.running, *answer.waiting)
            case _:
                continue
        for rid in names:
            if rid not in allowed:
                return Breach(f"{answer.hook}() names {rid!r}, which is not {state}", answer.step)
    return None


def no_duplicates(run: Run) -> Breach | None:
    """Nobody is served, ordered or taken out twice in a step."""
    for answer in run.answers:
        match answer.hook, answer.value:
            case "schedule", Decision() as decision:
                names = [*(rid for rid, _ in decision.rows), *decision.preempt]
            case "order_waiting", list() as names:
                pass
            case _:
                continue
        if twice := [rid for index, rid in enumerate(names) if rid in names[:index]]:
            return Breach(f"{answer.hook}() names {twice[0]!r} twice", answer.step)
    for _, plan in run.plans:
        if len({row.rid for row in plan.rows}) != len(plan.rows):
            return Breach(f"step {plan.step} holds a request twice", plan.step)
    return None


def positive_counts(run: Run) -> Breach | None:
    """Token counts are whole and positive; a cap or a reserve may be 0."""
    for answer in run.answers:
        counts: list[tuple[str, Any, int]] = []
        if isinstance(answer.value, Decision):
            counts = [(rid, count, 1) for rid, count in answer.value.rows]
            counts += [("a dummy row", count, 1) for count in answer.value.padding]
        elif answer.hook == "split_budget" and answer.value:
            counts = [(rid, cap, 0) for rid, cap in answer.value.items()]
        elif answer.hook == "reserve" and not answer.error:
            counts = [("a request", answer.value, 0)]
        for rid, count, least in counts:
            if not isinstance(count, int) or count < least:
                return Breach(f"{answer.hook}() gives {rid} {count!r} tokens", answer.step)
    return None


def running_victims(run: Run) -> Breach | None:
    """Only running requests are taken out."""
    for answer in run.answers:
        victims: Any = answer.value.preempt if isinstance(answer.value, Decision) else ()
        if answer.hook == "select_victims":
            victims = answer.value or ()
        for rid in victims:
            if rid not in answer.running:
                return Breach(f"{answer.hook}() takes out {rid!r}, which is not running", answer.step)
    return None


def never_raises(run: Run) -> Breach | None:
    """No hook raises."""
    return _first(
        Breach(f"{answer.hook}() raised {answer.error}", answer.step)
        for answer in run.answers
        if answer.error and not _is_touch(answer.error)
    )


def returns(run: Run) -> Breach | None:
    """Every hook returns."""
    return Breach(f"{run.hung}() did not return and had to be interrupted") if run.hung else None


def read_only(run: Run) -> Breach | None:
    """Nothing handed in is changed."""
    for touch in run.touches:
        if touch.kind == "writes":
            return Breach(f"the policy assigns to {touch.what}")
    return _first(
        Breach(f"{answer.hook}() tried to change what it was shown: {answer.error}", answer.step)
        for answer in run.answers
        if _is_mutation(answer.error)
    )


def contract_only(run: Run) -> Breach | None:
    """Only what the contract names is looked at: no future, no work in flight, no insides."""
    return _first(Breach(f"the policy looks at {touch.what}") for touch in run.touches if touch.kind == "reads")


def pure(run: Run) -> Breach | None:
    """No clock, no I/O, no thread and no randomness but `context.rng` while a hook runs."""
    return _first(Breach(f"the policy calls {touch.what}") for touch in run.touches if touch.kind == "impure")


def keeps_nothing(run: Run) -> Breach | None:
    """Of what is handed in only rids and numbers are kept: views are valid during the call."""
    return Breach("the policy's own state holds a view that it was handed") if run.keeps_views else None


def valid_answers(run: Run) -> Breach | None:
    """The guard uses every answer."""
    return _first(
        Breach(f"{refusal.hook}() was not used: {refusal.reason}", refusal.step)
        for refusal in run.refusals
        if not run.hung and not _explained(run, refusal.reason)
    )


def block_conservation(run: Run) -> Breach | None:
    """KV blocks are neither lost nor owned twice, and all are free in the end."""
    if run.crash:
        return Breach(f"the kernel stopped: {run.crash}")
    if run.ended and not run.left and run.free_blocks != run.scenario.num_blocks:
        return Breach(f"{run.free_blocks} of {run.scenario.num_blocks} blocks are free in the end")
    return None


def one_end(run: Run) -> Breach | None:
    """Every request ends exactly once, and nothing follows its end."""
    for rid, finishes in run.finishes.items():
        if len(finishes) > 1:
            return Breach(f"{rid} ended {len(finishes)} times")
        if finishes[0].usage.output != len(run.outputs.get(rid, ())):
            return Breach(f"{rid} ended with {finishes[0].usage.output} tokens, {len(run.outputs[rid])} were delivered")
    return None


def liveness(run: Run) -> Breach | None:
    """When arrivals end, everything ends; the engine is never left idle with work that could run."""
    idle = [refusal for refusal in run.refusals if _is_idle(refusal.reason)]
    if idle:
        answer = next((one for one in reversed(run.answers) if one.step <= idle[0].step and one.waiting), None)
        waiting = ", ".join(answer.waiting[:5]) if answer else "somebody"
        return Breach(f"nothing was scheduled in an idle engine although {waiting} waited", idle[0].step)
    if run.crash:
        return None
    if not run.ended:
        return Breach(f"after {run.scenario.max_events} events {', '.join(run.left[:5])} had still not ended")
    lost = [rid for rid in run.submits if rid not in run.finishes]
    return Breach(f"{', '.join(lost[:5])} never ended") if lost else None


def exact_output(run: Run) -> Breach | None:
    """No token is lost, repeated or changed by what the policy decides."""
    for rid, (_, request) in run.submits.items():
        got = run.outputs.get(rid, [])
        if got != expected_ids(request.prompt_ids, len(got)):
            return Breach(f"{rid} got other tokens than it gets alone")
        finish = next(iter(run.finishes.get(rid, ())), None)
        if finish and finish.reason is FinishReason.LENGTH:
            room = min(run.scenario.max_context, run.scenario.num_blocks * run.scenario.block_size)
            length = request.forced_length or request.sampling.max_tokens
            if len(got) != min(length, room - len(request.prompt_ids)):
                return Breach(f"{rid} ended by length after {len(got)} tokens instead of {length}")
    return None


#: The laws of every policy, in the order in which they are tried: the most telling first.
ALWAYS: dict[str, Law] = {
    law.__name__: law
    for law in (
        returns,
        pure,
        contract_only,
        read_only,
        never_raises,
        token_budget,
        known_requests,
        no_duplicates,
        positive_counts,
        running_victims,
        liveness,
        valid_answers,
        block_conservation,
        one_end,
        exact_output,
        keeps_nothing,
    )
}


def first_difference(one: Run, other: Run) -> Breach | None:
    """Where two runs of the same inputs part."""
    return difference(one.decisions(), other.decisions())


def difference(mine: list[Any], other: list[Any]) -> Breach | None:
    """The first step at which two lists of decisions (``Run.decisions``) differ."""
    for left, right in zip(mine, other, strict=False):
        if list(left) != list(right):
            return Breach(f"the same inputs gave {_told(left)} and then {_told(right)}", left[1])
    if len(mine) != len(other):
        return Breach(f"the same inputs took {len(mine)} steps and then {len(other)}")
    return None


def _told(decision: Any) -> str:
    _, step, rows, preempted, _ = decision
    rows = ", ".join(f"{rid} {count}" for rid, count in rows) or "nobody"
    return f"step {step}: {rows}" + (f", preempted {', '.join(preempted)}" if preempted else "")


#: Words of the guard and of the host for answers that a law of its own is about.
_TOLD_ELSEWHERE = (
    "is not running",
    "is not waiting",
    "is unknown",
    "tokens planned",
    " gets ",
    "has the cap",
    "padding ",
    "is not a number of tokens",
)


def _decisions(run: Run) -> Iterator[tuple[Answer, Decision]]:
    return ((answer, answer.value) for answer in run.answers if isinstance(answer.value, Decision))


def _first(breaches: Iterator[Breach]) -> Breach | None:
    return next(breaches, None)


def _is_idle(reason: str) -> bool:
    return "although the engine is idle" in reason


def _is_mutation(error: str) -> bool:
    return any(sign in error for sign in ("does not support item", "has no setter", "can't set attribute"))


def _is_touch(error: str) -> bool:
    return error.startswith("Forbidden: ") or _is_mutation(error)


def _explained(run: Run, reason: str) -> bool:
    """A law of its own speaks of this refusal."""
    told = (sign in reason for sign in _TOLD_ELSEWHERE)
    return _is_idle(reason) or any(told) or any(answer.error and answer.error == reason for answer in run.answers)
