"""A bad policy costs one step's decision: the guard counts, says why, uses the default (invariants K 128-131)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from structlog.testing import capture_logs

from mainspring.core.config import AllocatorConfig, Config, SchedulerConfig
from mainspring.core.hookspecs import Register, hookimpl
from mainspring.core.messages import Message, Note, SamplingParams, StepPlan, Submit, Swap
from mainspring.core.policy import Decision, PolicyContext, SchedulerPolicy, SchedulerView
from mainspring.core.registry import Registry
from mainspring.core.request import RequestView
from mainspring.plugins.watchdog import Watchdog
from mainspring.schedulers.host.guard import SLOW_IN_A_ROW, Guard
from mainspring.testing import FakeExecutor, ManualClock, Simulator, expected_ids

CONTEXT = PolicyContext(8, 4, 64, 4)


class Offer:
    """A plugin that offers some policies by their class names."""

    def __init__(self, *policies: type[SchedulerPolicy]) -> None:
        self._policies = policies

    @hookimpl
    def register_schedulers(self, register: Register) -> None:
        for policy in self._policies:
            register(policy.__name__, policy)


def engine(*policies: type[SchedulerPolicy], log: list[Message] | None = None) -> Simulator:
    """Three requests for the first of ``policies``; budget 8, four slots."""
    registry = Registry()
    registry.add(Offer(*policies), "these tests")
    config = Config(
        paranoid=True,
        scheduler=SchedulerConfig(use=policies[0].__name__, token_budget=8, max_running=4),
        allocator=AllocatorConfig(block_size=4),
    )
    seen = [] if log is None else log
    taps = [lambda message, now: seen.append(message)]
    simulator = Simulator(config, FakeExecutor(64, 4), lambda launch: 1.0, registry, taps)
    for rid in "abc":
        simulator.at(0.0, Submit(rid, prompt_of(rid), SamplingParams(max_tokens=6, ignore_eos=True)))
    return simulator


def prompt_of(rid: str) -> tuple[int, ...]:
    return tuple(range(ord(rid), ord(rid) + 5))


def texts(simulator: Simulator) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    for emit in simulator.emitted:
        for row in emit.rows:
            out.setdefault(row.rid, []).extend(row.token_ids)
    return out


ALONE = {rid: expected_ids(prompt_of(rid), 6) for rid in "abc"}


def deciding(answer: Callable[[SchedulerView], Any]) -> type[SchedulerPolicy]:
    """A policy whose whole decision is ``answer``."""

    class Deciding(SchedulerPolicy):
        def schedule(self, view: SchedulerView) -> Any:
            return answer(view)

    return Deciding


def fail(view: SchedulerView) -> Decision:
    raise LookupError("no idea")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda view: Decision([("nobody", 1)]), "unknown"),
        (lambda view: Decision([("a", 1), ("a", 1)]), "twice"),
        (lambda view: Decision([("a", 9)]), "9 tokens planned, the budget is 8"),
        (lambda view: Decision([("a", -1)]), "'a' gets -1 tokens"),
        (lambda view: Decision([("a", 0)]), "'a' gets 0 tokens"),
        (lambda view: Decision([("a", 1.5)]), "'a' gets 1.5 tokens"),  # type: ignore[list-item]
        (lambda view: Decision((), preempt=["nobody"]), "victim 'nobody' is not running"),
        (lambda view: Decision([("a", 1)], padding=[-1]), "padding"),
        (lambda view: None if view.num_running else Decision(()), "although the engine is idle"),
        (fail, "LookupError: no idea"),
        (lambda view: 7, "Error"),
    ],
)
def test_an_answer_that_cannot_be_used_is_replaced_by_the_default(
    answer: Callable[[SchedulerView], Any], reason: str
) -> None:
    """K 128, 129: counted, logged with the reason; every request still gets its own text, and the books balance."""
    with capture_logs() as lines:
        simulator = engine(deciding(answer))
        simulator.run()
    assert texts(simulator) == ALONE
    host: Any = simulator.actors.host
    faults = [line for line in lines if line["event"] == "policy_fault"]
    assert host.stats()["policy_faults"] == len(faults) > 0
    assert {line["hook"] for line in faults} == {"schedule"}
    assert reason in faults[0]["reason"]
    assert not host.records
    assert simulator.actors.allocator.free_blocks == 64


def test_one_bad_step_costs_one_decision() -> None:
    """K 129: the policy is asked again in the next step."""
    asked = list[int]()

    def once(view: SchedulerView) -> Decision | None:
        asked.append(view.step)
        if len(asked) == 2:
            raise ValueError("a bad day")
        return None

    with capture_logs() as lines:
        simulator = engine(deciding(once))
        simulator.run()
    assert len(asked) > 5
    assert [line["reason"] for line in lines if line["event"] == "policy_fault"] == ["ValueError: a bad day"]
    assert texts(simulator) == ALONE


@pytest.mark.parametrize("name", ["rid", "priority", "num_tokens", "status", "something_new"])
def test_a_request_cannot_be_changed_by_who_sees_it(name: str) -> None:
    """K 130."""

    class Assigns(SchedulerPolicy):
        def waiting_key(self, request: RequestView, now: float) -> int:
            setattr(request, name, 1)
            return 0

    with capture_logs() as lines:
        simulator = engine(Assigns)
        simulator.run()
    assert any("AttributeError" in line.get("reason", "") for line in lines)
    assert texts(simulator) == ALONE


@pytest.mark.parametrize("name", ["token_budget", "free_blocks", "running", "step", "something_new"])
def test_the_view_of_the_host_cannot_be_changed(name: str) -> None:
    """K 130."""

    def change(view: SchedulerView) -> None:
        setattr(view, name, 10**6)

    with capture_logs() as lines:
        simulator = engine(deciding(change))
        simulator.run()
    assert any("AttributeError" in line.get("reason", "") for line in lines)
    assert texts(simulator) == ALONE


class Counting(SchedulerPolicy):
    """Hands a number over."""

    def __init__(self, options: Any, context: PolicyContext) -> None:
        super().__init__(options, context)
        self.served = 0

    def split_budget(self, view: SchedulerView) -> None:
        self.served += 1

    def export_state(self) -> dict[str, Any]:
        return {"served": self.served}


class Shy(SchedulerPolicy):
    """Cannot take over."""

    def import_state(self, policy: str, state: object) -> None:
        raise RuntimeError("I would rather not")


class LastFirst(SchedulerPolicy):
    """Another order, so that it shows who decided."""

    def order_waiting(self, view: SchedulerView) -> Iterable[RequestView]:
        return sorted(view.waiting, key=lambda request: -request.seq)


def test_a_swap_in_the_middle_loses_nothing_and_is_recorded() -> None:
    """K 131."""
    log: list[Message] = []
    simulator = engine(Counting, LastFirst, log=log)
    simulator.run(until=1.5)
    for rid in "de":
        simulator.post(Submit(rid, prompt_of(rid), SamplingParams(max_tokens=6, ignore_eos=True)))
    simulator.post(Swap(SchedulerConfig(use="LastFirst", token_budget=8, max_running=4)))
    simulator.run()
    (note,) = [message for message in log if isinstance(message, Note)]
    assert note.point == "scheduler.swapped"
    assert (note.facts["old"], note.facts["new"]) == ("Counting", "LastFirst")
    plans = [message for message in log if isinstance(message, StepPlan)]
    starts = [started.rid for plan in plans if plan.step > note.facts["step"] for started in plan.started]
    assert starts.index("e") < starts.index("d")
    assert texts(simulator) == {rid: expected_ids(prompt_of(rid), 6) for rid in "abcde"}
    assert simulator.actors.allocator.free_blocks == 64


def test_a_swap_that_fails_changes_nothing() -> None:
    """K 131: rolled back, the old policy goes on."""
    log: list[Message] = []
    simulator = engine(Counting, Shy, log=log)
    simulator.run(until=1.5)
    simulator.post(Swap(SchedulerConfig(use="Shy")))
    simulator.run()
    (note,) = [message for message in log if isinstance(message, Note)]
    assert note.point == "scheduler.swap_failed"
    assert "I would rather not" in note.facts["error"]
    host: Any = simulator.actors.host
    assert host.planner.name == "Counting"
    assert host.config.token_budget == 8
    assert texts(simulator) == ALONE


# --- time ------------------------------------------------------------------------------------------------------------


class Slow(SchedulerPolicy):
    """Takes as long as ``times`` says, call by call."""

    def __init__(self, clock: ManualClock, times: Iterable[float]) -> None:
        super().__init__(None, CONTEXT)
        self._clock, self._times = clock, iter(times)

    def admit(self, request: RequestView, view: SchedulerView) -> str:
        self._clock.advance_to(self._clock.now() + next(self._times))
        return "an answer"


def ask(guard: Guard, times: int) -> list[Any]:
    return [guard.call("admit", None, None) for _ in range(times)]


def test_a_slow_answer_counts_and_three_in_a_row_replace_the_policy() -> None:
    clock = ManualClock()
    guard = Guard(Slow(clock, [0.06] * 9), "slow", clock)
    with capture_logs() as lines:
        assert ask(guard, SLOW_IN_A_ROW) == ["an answer"] * SLOW_IN_A_ROW
        assert ask(guard, 2) == [None, None]
    (line,) = lines
    assert (line["event"], line["policy"]) == ("policy_replaced", "slow")
    assert "50 ms 3 times in a row" in line["reason"]
    assert guard.name == "default (was slow)"
    assert not guard.overrides("admit")


def test_a_quick_answer_in_between_starts_the_count_again() -> None:
    clock = ManualClock()
    guard = Guard(Slow(clock, [0.06, 0.06, 0.05, 0.06, 0.06, 0.01]), "slow", clock)
    assert ask(guard, 6) == ["an answer"] * 6
    assert guard.name == "slow"


def test_without_a_clock_nobody_is_slow() -> None:
    """Tests and simulation are exact, however slow the machine is."""
    guard = Guard(Slow(ManualClock(), [100.0] * 9), "slow")
    assert ask(guard, 9) == ["an answer"] * 9


class Stuck(SchedulerPolicy):
    """Never answers."""

    def schedule(self, view: SchedulerView) -> Decision:
        while True:
            pass

    def order_waiting(self, view: SchedulerView) -> Iterable[RequestView]:
        yield from ()
        while True:
            pass


def test_a_call_that_never_returns_counts_as_an_exception() -> None:
    with Watchdog(0.02) as watchdog, capture_logs() as lines:
        guard = Guard(Stuck(None, CONTEXT), "stuck", watch=watchdog)
        assert guard.call("schedule", None) is None
    assert guard.faults == {"schedule": 1}
    assert "did not return within 0.02 s" in lines[0]["reason"]


def test_a_lazy_answer_is_watched_while_it_is_read() -> None:
    with Watchdog(0.02) as watchdog:
        answer = Guard(Stuck(None, CONTEXT), "stuck", watch=watchdog).call("order_waiting", None)
        with pytest.raises(TimeoutError):
            list(answer)
