"""All checks of one policy: the laws, determinism, the state machine, its claims, a golden trace.  Runs are shared."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple
from unittest import SkipTest

from ...core.policy import SchedulerPolicy
from ..watchdog import Watchdog
from .claims import CLAIMS, breach_of, check_claims
from .laws import ALWAYS, Breach, difference, first_difference
from .purity import impure_source
from .replay import importable, replay
from .runs import HANGS_S, Player, Run, Subject, play
from .scenarios import Scenario, standard
from .story import tell

#: Scenarios that show an order among many; they are replayed in processes with other hash seeds.
_REPLAYED = ("random mix", "random mix, depth 2", "identical twins, depth 2", "tiny pool")
_GOLDEN = "random mix, depth 2"
_EXAMPLES = {"fast": 12, "full": 250}
_HASH_SEEDS = {"fast": (77,), "full": (1, 2)}


class LawBroken(AssertionError):
    """A policy broke a law or a claim; the text is the story."""

    def __init__(self, law: str, story: str) -> None:
        super().__init__(story)
        self.law = law


class Check(NamedTuple):
    """One thing to try.  ``run`` raises LawBroken, or ``unittest.SkipTest`` where it makes no sense any more."""

    name: str
    run: Callable[[], None]


class Trial(AbstractContextManager["Trial"]):
    """A policy on trial.  ``checks`` lists what can be tried, each by itself; leave the block to free the watchdog."""

    def __init__(
        self,
        use: str | type[SchedulerPolicy],
        options: Mapping[str, Any] | None = None,
        *,
        wrap: tuple[str | dict[str, Any], ...] = (),
        profile: str = "full",
        golden: Path | None = None,
    ) -> None:
        """``profile`` is ``"fast"`` (seconds) or ``"full"`` (under a minute).  ``golden`` is a file with the decisions
        of an earlier version: written if it does not exist."""
        self.subject = Subject(use, options or {}, wrap)
        self._examples, self._hash_seeds, self._golden = _EXAMPLES[profile], _HASH_SEEDS[profile], golden
        self._watchdog = Watchdog(HANGS_S)
        self.hangs = False  # a hook did not return in one of the runs so far

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the watchdog's thread."""
        self._watchdog.close()

    @cached_property
    def policy(self) -> SchedulerPolicy:
        """An instance.  Raises ConfigError or PluginError if there is no such policy, or it does not fit."""
        host: Any = Player(self.subject, Scenario("nothing"), recorded=False).simulator.actors.host
        policy: SchedulerPolicy = host.planner.guard.policy
        return policy

    @cached_property
    def claims(self) -> dict[str, Any]:
        """What the policy promises with these options."""
        check_claims(self.subject.name, self.policy.claims)
        return dict(self.policy.claims)

    def checks(self) -> list[Check]:
        """Everything that this policy is tried on, in order."""
        found = [Check(name, lambda name=name: self._try_law(name)) for name in ALWAYS]  # type: ignore[misc]
        found.append(Check("deterministic", self._try_determinism))
        found.append(Check("state_machine", self._try_machine))
        found += [Check(f"claim:{claim}", lambda claim=claim: self._try_claim(claim)) for claim in self.claims]  # type: ignore[misc]
        if self._golden is not None:
            found.append(Check("golden", self._try_golden))
        return found

    def broken(self) -> dict[str, str]:
        """law -> story of everything that does not hold."""
        stories: dict[str, str] = {}
        for check in self.checks():
            try:
                check.run()
            except AssertionError as error:
                stories[check.name] = str(error)
            except SkipTest:
                continue
        return stories

    @cached_property
    def runs(self) -> list[Run]:
        """The standard traffic, played once; nothing more is tried on a policy that hangs."""
        runs: list[Run] = []
        for scenario in standard():
            runs.append(play(self.subject, scenario, self._watchdog))
            if runs[-1].hung:
                self.hangs = True
                break
        return runs

    def _try_law(self, name: str) -> None:
        law = ALWAYS[name]
        promise = (law.__doc__ or "").splitlines()[0]
        if name == "pure" and (found := impure_source(type(self.policy))):
            raise LawBroken(name, f"{self.subject.name} breaks the law 'pure': {promise}\n  " + "\n  ".join(found))
        for run in self.runs:
            if breach := law(run):
                raise LawBroken(name, tell(name, promise, breach, run))

    def _try_determinism(self) -> None:
        """The same inputs give the same decisions, also in another process with other hashes."""
        self._skip_if_hung()
        for run in self.runs:
            again = play(self.subject, run.scenario, self._watchdog)
            self._same(run, first_difference(run, again))
        if not (use := importable(self.subject)):
            return
        elsewhere = Subject(use, self.subject.options, self.subject.wrap)
        for decisions in replay(elsewhere, list(_REPLAYED), self._hash_seeds):
            for run in self.runs:
                if run.scenario.name in decisions:
                    self._same(run, difference(_plain(run.decisions()), decisions[run.scenario.name]))

    def _same(self, run: Run, breach: Breach | None) -> None:
        if breach:
            promise = "the same inputs give the same decisions, whatever the hash seed"
            raise LawBroken("deterministic", tell("deterministic", promise, breach, run))

    def _skip_if_hung(self) -> None:
        if any(run.hung for run in self.runs):
            raise SkipTest("the policy hangs")

    def _try_machine(self) -> None:
        """Random traffic finds no breach of a law that the standard traffic missed."""
        broken = [name for name, law in ALWAYS.items() if any(law(run) for run in self.runs)]
        if broken:
            raise SkipTest(f"the standard traffic already breaks {', '.join(broken)}")
        from .machine import try_policy  # needs hypothesis, which only those have who test

        try_policy(self.subject, self._watchdog, self._examples)

    def _try_claim(self, claim: str) -> None:
        bound = self.claims[claim]
        self._skip_if_hung()
        for scenario in CLAIMS[claim].scenarios:
            run = play(self.subject, scenario, self._watchdog)
            if breach := breach_of(run, claim, bound):
                promise = CLAIMS[claim].promise.format(bound=bound)
                raise LawBroken(f"claim:{claim}", tell(f"claim:{claim}", promise, breach, run))

    def golden_trace(self) -> str:
        """The decisions on one fixed traffic, as in a golden file: a line of JSON for each step."""
        run = play(self.subject, self._golden_scenario, self._watchdog)
        return "".join(json.dumps(decision) + "\n" for decision in run.decisions())

    @cached_property
    def _golden_scenario(self) -> Scenario:
        return next(scenario for scenario in standard() if scenario.name == _GOLDEN)

    def _try_golden(self) -> None:
        """The decisions on one fixed traffic are those on file."""
        assert self._golden is not None
        self._skip_if_hung()
        try:
            if not self._golden.exists():
                self._golden.write_text(self.golden_trace(), encoding="utf-8")
                return
            filed = _lines(self._golden.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise LawBroken("golden", f"{self._golden} is no golden trace: {error}") from error
        if breach := difference(filed, _lines(self.golden_trace())):
            promise = f"the decisions are those of {self._golden} (delete it to accept the new ones)"
            run = play(self.subject, self._golden_scenario, self._watchdog)
            raise LawBroken("golden", tell("golden", promise, breach, run))


def _lines(trace: str) -> list[Any]:
    lines = [json.loads(line) for line in trace.splitlines()]
    for number, line in enumerate(lines, start=1):
        if not isinstance(line, list) or len(line) != 5:
            raise ValueError(f"line {number} is no decision")
    return lines


def _plain(decisions: list[tuple[Any, ...]]) -> list[Any]:
    """As they come back from JSON."""
    plain: list[Any] = json.loads(json.dumps(decisions))
    return plain
