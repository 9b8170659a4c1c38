"""The conformance kit proves itself: every wrong policy is caught by the law it breaks, and a right one by none."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import SkipTest

import pytest

from mainspring.core.errors import ConfigError, PluginError
from mainspring.core.policy import SchedulerPolicy
from mainspring.testing import ALWAYS, CLAIMS, LawBroken, Subject, Trial, play, standard

HERE = Path(__file__).parent
#: Checks that search or start processes; used where they are what must catch the policy.
LONG = {"deterministic", "state_machine"}


@pytest.fixture(scope="module")
def wrong() -> Iterator[dict[str, type[SchedulerPolicy]]]:
    """The wrong policies, importable by name as an author's own would be."""
    sys.path.insert(0, str(HERE))
    try:
        modules = [importlib.import_module(name) for name in ("broken", "impure")]
        yield {name: kind for module in modules for name, kind in vars(module).items()}
    finally:
        sys.path.remove(str(HERE))
        for name in ("broken", "impure"):
            sys.modules.pop(name, None)


def broken_laws(policy: type[SchedulerPolicy], long: bool = False) -> set[str]:
    found = set[str]()
    with Trial(policy, profile="fast") as trial:
        for check in trial.checks():
            if check.name in LONG and not long:
                continue
            try:
                check.run()
            except SkipTest:
                continue
            except LawBroken as error:
                found.add(error.law)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "law"),
    [
        ("Starves", "liveness"),
        ("SleepsForever", "liveness"),
        ("ServesNobody", "liveness"),
        ("LeaksTheBudget", "token_budget"),
        ("MutatesTheRequest", "read_only"),
        ("MutatesTheShares", "read_only"),
        ("Raises", "never_raises"),
        ("RaisesWhileRead", "never_raises"),
        ("NeverReturns", "returns"),
        ("NeverEndsItsOrder", "returns"),
        ("ReadsTheClock", "pure"),
        ("ReadsTheClockUnderAnotherName", "pure"),
        ("LooksIntoTheFuture", "contract_only"),
        ("LooksBehindTheView", "contract_only"),
        ("KeepsViews", "keeps_nothing"),
        ("NamesStrangers", "known_requests"),
        ("OrdersStrangers", "known_requests"),
        ("CapsStrangers", "known_requests"),
        ("NamesTwice", "no_duplicates"),
        ("OrdersTwice", "no_duplicates"),
        ("NegativeCounts", "positive_counts"),
        ("NegativeCaps", "positive_counts"),
        ("ReservesHalves", "positive_counts"),
        ("WaitingVictims", "running_victims"),
        ("PreemptsWaiting", "running_victims"),
        ("AnswersNonsense", "valid_answers"),
        ("ClaimsArrivalOrder", "claim:arrival_order"),
        ("ClaimsPriorityOrder", "claim:priority_order"),
        ("ClaimsDeadlineOrder", "claim:deadline_order"),
        ("ClaimsShortestFirst", "claim:shortest_first"),
        ("ClaimsBoundedBypass", "claim:bounded_bypass"),
        ("ClaimsToBeBusy", "claim:work_conserving"),
        ("ClaimsFairness", "claim:tenant_fair"),
    ],
)
def test_a_wrong_policy_is_caught_by_the_law_it_breaks(
    wrong: dict[str, type[SchedulerPolicy]], policy: str, law: str
) -> None:
    """Invariants K 128-130 and I 124, turned against their offenders."""
    found = broken_laws(wrong[policy])
    also = {"LooksBehindTheView": {"pure"}, "OrdersTwice": {"liveness"}}.get(policy, set())
    assert found - also == {law}


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["OrdersTiesByHash", "OrdersByAddress"])
def test_an_order_that_is_not_repeatable_breaks_determinism(
    wrong: dict[str, type[SchedulerPolicy]], policy: str
) -> None:
    """Invariant A 21.  Within one process the hash of a string is stable: only another process shows it."""
    assert broken_laws(wrong[policy], long=True) == {"deterministic"}


@pytest.mark.slow
def test_the_state_machine_finds_what_the_standard_traffic_misses(wrong: dict[str, type[SchedulerPolicy]]) -> None:
    with Trial(wrong["RaisesInSmallPools"], profile="fast") as trial:
        assert all(law(run) is None for law in ALWAYS.values() for run in trial.runs)
        machine = next(check for check in trial.checks() if check.name == "state_machine")
        with pytest.raises(AssertionError, match=r"never_raises.*\n.*I did not expect nine blocks"):
            machine.run()


@pytest.mark.slow
def test_every_claim_and_every_law_has_a_policy_that_breaks_it() -> None:
    """Conservation, single end and exact output are the host's work, which no policy can break."""
    beyond_reach = {"block_conservation", "one_end", "exact_output"}
    marks = test_a_wrong_policy_is_caught_by_the_law_it_breaks.pytestmark  # type: ignore[attr-defined]
    caught = {law for mark in marks if mark.name == "parametrize" for _, law in mark.args[1]}
    assert caught == {*ALWAYS, *(f"claim:{claim}" for claim in CLAIMS)} - beyond_reach


def test_a_right_policy_breaks_nothing() -> None:
    with Trial("fcfs", profile="fast") as trial:
        assert trial.broken() == {}
        assert trial.claims


def test_a_breach_is_told_as_a_story(wrong: dict[str, type[SchedulerPolicy]]) -> None:
    with Trial(wrong["LeaksTheBudget"], profile="fast") as trial, pytest.raises(LawBroken) as caught:
        next(check for check in trial.checks() if check.name == "token_budget").run()
    story = str(caught.value)
    assert "LeaksTheBudget breaks the law 'token_budget': No step computes more tokens than its budget." in story
    assert "schedule() gave" in story
    assert "waiting then: r" in story
    assert "traffic " in story


def test_an_unknown_claim_names_the_nearest() -> None:
    class Boasts(SchedulerPolicy):
        claims = {"arival_order": True}

    with Trial(Boasts) as trial, pytest.raises(PluginError, match=r"'Boasts' claims 'arival_order'.*'arrival_order'"):
        trial.checks()


def test_an_unknown_policy_and_an_unknown_option_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'fcfs'"):
        _ = Trial("fcsf").policy
    with pytest.raises(ConfigError, match=r"unknown key scheduler\.options.colour = 1"):
        _ = Trial("fcfs", {"colour": 1}).policy


@pytest.mark.parametrize("damage", ["not json\n", "3\n", "[1, 2]\n", '{"a": 1}\n', None])
def test_a_file_that_is_no_golden_trace_is_named(tmp_path: Path, damage: str | None) -> None:
    file = tmp_path / "nowhere" / "golden.jsonl"
    if damage is not None:
        file.parent.mkdir()
        file.write_text(damage)
    with Trial("fcfs", profile="fast", golden=file) as trial:
        check = next(check for check in trial.checks() if check.name == "golden")
        with pytest.raises(LawBroken, match=r"golden\.jsonl is no golden trace"):
            check.run()


def test_a_golden_trace_is_written_once_and_then_compared(tmp_path: Path) -> None:
    file = tmp_path / "golden.jsonl"

    def golden(use: str | type[SchedulerPolicy]) -> None:
        with Trial(use, profile="fast", golden=file) as trial:
            next(check for check in trial.checks() if check.name == "golden").run()

    class LastFirst(SchedulerPolicy):
        def waiting_key(self, request: object, now: float) -> int:
            return -request.seq  # type: ignore[attr-defined, no-any-return]

    golden("fcfs")
    assert len(file.read_text(encoding="utf-8").splitlines()) > 20
    golden("fcfs")
    with pytest.raises(LawBroken, match=r"the same inputs gave step \d+"):
        golden(LastFirst)


def test_the_standard_traffic_is_adversarial_enough() -> None:
    """Preemption, refusals, deadlines, cancels, every depth and forced lengths all occur, or the laws prove nothing."""
    runs = [play(Subject("fcfs"), scenario) for scenario in standard()]
    finishes = [finish for run in runs for several in run.finishes.values() for finish in several]
    assert {finish.reason.value for finish in finishes} == {"length", "cancelled", "deadline", "error"}
    assert any(finish.num_preemptions > 1 for finish in finishes)
    assert {run.scenario.depth for run in runs} == {1, 2, "auto"}
    assert any(request.forced_length for run in runs for _, request in run.submits.values())


def test_the_kit_needs_no_torch() -> None:
    code = "import sys, mainspring.testing, mainspring.plugins.testing.pytest_plugin; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
