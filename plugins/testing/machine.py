"""A Hypothesis state machine: random arrivals, cancels, pauses and waits on random small engines, then every law.

Hypothesis is imported here only; it shrinks a failure to the shortest traffic that still shows it.
"""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from ...core.config import Depth
from ...core.messages import Cancel, Control, Pause, Resume
from ..watchdog import Watchdog
from .laws import ALWAYS
from .runs import Player, Subject
from .scenarios import Scenario, submit
from .story import tell

_TENANTS = ("a", "b", "c")


def try_policy(subject: Subject, watchdog: Watchdog, examples: int) -> None:
    """Run the machine ``examples`` times.  Raises AssertionError with the story of the shortest failure."""

    class PolicyMachine(RuleBasedStateMachine):
        """One engine; every rule is something that the outside world does to it."""

        player: Player

        @initialize(
            budget=st.sampled_from((1, 5, 16, 64)),
            running=st.sampled_from((1, 2, 8)),
            depth=st.sampled_from(get_args(Depth)),
            blocks=st.sampled_from((5, 9, 40)),
            size=st.sampled_from((1, 4)),
            watermark=st.sampled_from((0.0, 0.2)),
        )
        def engine(self, budget: int, running: int, depth: Depth, blocks: int, size: int, watermark: float) -> None:
            scenario = Scenario("state machine", (), budget, running, depth, blocks, size, watermark=watermark)
            self.player, self.count, self.moment = Player(subject, scenario, watchdog), 0, 0.0

        @rule(
            prompt=st.integers(1, 24),
            output=st.integers(1, 10),
            tenant=st.sampled_from(_TENANTS),
            priority=st.integers(-1, 2),
            patience=st.sampled_from((None, None, 0.05, 2.0)),
            forced=st.sampled_from((None, None, 3)),
        )
        def arrive(self, patience: float | None, forced: int | None, prompt: int, output: int, **fields: Any) -> None:
            deadline = None if patience is None else self.moment + patience
            one = submit(f"r{self.count}", prompt, output, deadline=deadline, forced_length=forced, **fields)
            self.player.simulator.at(self.moment, one)
            self.count += 1

        @precondition(lambda self: self.count)
        @rule(data=st.data(), kind=st.sampled_from((Cancel, Cancel, Pause, Resume)))
        def disturb(self, data: st.DataObject, kind: Any) -> None:
            rid = f"r{data.draw(st.integers(0, self.count - 1))}"
            self.player.simulator.at(self.moment, kind(rid) if kind is Cancel else kind((rid,)))

        @rule(action=st.sampled_from(("hold", "release", "release")))
        def operate(self, action: str) -> None:
            self.player.simulator.at(self.moment, Control(action))

        @rule(seconds=st.sampled_from((0.005, 0.02, 0.1, 1.0)))
        def wait(self, seconds: float) -> None:
            self.moment += seconds
            self.player.run(self.moment)

        def teardown(self) -> None:
            if not hasattr(self, "player"):
                return
            everyone = tuple(f"r{index}" for index in range(self.count))
            self.player.simulator.at(self.moment, Control("release"), Resume(everyone))
            self.player.run()
            run = self.player.result()
            for name, law in ALWAYS.items():
                if breach := law(run):
                    raise AssertionError(tell(name, (law.__doc__ or "").splitlines()[0], breach, run))

    phases = [Phase.explicit, Phase.generate, Phase.shrink]
    run_state_machine_as_test(
        PolicyMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            deadline=None,
            derandomize=True,
            database=None,
            phases=phases,
            suppress_health_check=list(HealthCheck),
        ),
    )
