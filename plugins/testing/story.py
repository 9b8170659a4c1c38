"""A breach told so that it can be understood: the law, the traffic, the steps before, who waited, what was answered."""

from __future__ import annotations

from ...core.messages import StepPlan
from ...core.policy import Decision
from .laws import Breach
from .recorder import Answer
from .runs import Run

_STEPS_BEFORE = 4


def tell(law: str, promise: str, breach: Breach, run: Run) -> str:
    """Several lines of text."""
    scenario = run.scenario
    engine = (
        f"token_budget {scenario.token_budget}, max_running {scenario.max_running}, depth {scenario.depth}, "
        f"{scenario.num_blocks} blocks of {scenario.block_size} tokens"
    )
    lines = [
        f"{run.subject.name} breaks the law {law!r}: {promise}",
        f"  {breach.what}" + ("" if breach.step is None else f" (planning step {breach.step})"),
        f"  traffic {scenario.name!r}: {engine}",
    ]
    at = breach.step if breach.step is not None else run.plans[-1][1].step + 1 if run.plans else 1
    shown = [(now, plan) for now, plan in run.plans if at - _STEPS_BEFORE <= plan.step <= at]
    lines += [_step(now, plan, ">" if plan.step == at else " ") for now, plan in shown]
    if answer := next((one for one in reversed(run.answers) if one.step <= at), None):
        lines += [f"  waiting then: {_few(run, answer.waiting)}", f"  running then: {_few(run, answer.running)}"]
    lines += [f"  {_answer(answer)}" for answer in [one for one in run.answers if one.step == at][-3:]]
    lines.append(f"  again: play(Subject({_subject(run)}), scenario {scenario.name!r}) of mainspring.testing")
    return "\n".join(lines)


def _step(now: float, plan: StepPlan, mark: str) -> str:
    rows = ", ".join(f"{row.rid} {row.count}" for row in plan.rows) or "nobody"
    preempted = f"; preempted {', '.join(plan.preempted)}" if plan.preempted else ""
    return f"{mark} step {plan.step} at {now:.3f} s: {rows}{preempted}"


def _few(run: Run, rids: tuple[str, ...]) -> str:
    told = []
    for rid in rids[:6]:
        moment, request = run.submits[rid]
        told.append(
            f"{rid} (at {moment:.3f} s, prompt {len(request.prompt_ids)}, max {request.sampling.max_tokens}, "
            f"tenant {request.tenant}, priority {request.priority})"
        )
    return ", ".join(told) + (f" and {len(rids) - 6} more" if len(rids) > 6 else "") or "nobody"


def _answer(answer: Answer) -> str:
    value = answer.value
    if answer.error:
        return f"{answer.hook}() raised {answer.error}"
    if isinstance(value, Decision):
        rows = ", ".join(f"{rid} {count}" for rid, count in value.rows[:12]) or "nobody"
        return f"{answer.hook}() gave {rows}" + (f", preempting {', '.join(value.preempt)}" if value.preempt else "")
    text = repr(value)
    return f"{answer.hook}() gave {text[:200]}" + ("..." if len(text) > 200 else "")


def _subject(run: Run) -> str:
    options = f", {dict(run.subject.options)!r}" if run.subject.options else ""
    return f"{run.subject.name!r}{options}"
