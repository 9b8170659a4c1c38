"""For authors of policies: everything to try one without a model, a GPU or a wall clock.

``pytest --policy package.module:Class`` runs the whole suite; ``Trial`` is the same as an object.  ``play`` records a
scenario; ``Simulator``, ``FakeExecutor`` and ``ManualClock`` are the parts for tests of your own.
"""

from __future__ import annotations

from .plugins.manual_clock import ManualClock
from .plugins.simulator import LinearStepTime, Simulator
from .plugins.testing.claims import CLAIMS
from .plugins.testing.fake_executor import FakeExecutor, expected_ids
from .plugins.testing.laws import ALWAYS, Breach
from .plugins.testing.runs import Player, Run, Subject, play
from .plugins.testing.scenarios import Scenario, burst, disturbed, mix, prompt, standard, submit
from .plugins.testing.suite import Check, LawBroken, Trial

__all__ = [
    "ALWAYS",
    "CLAIMS",
    "Breach",
    "Check",
    "FakeExecutor",
    "LawBroken",
    "LinearStepTime",
    "ManualClock",
    "Player",
    "Run",
    "Scenario",
    "Simulator",
    "Subject",
    "Trial",
    "burst",
    "disturbed",
    "expected_ids",
    "mix",
    "play",
    "prompt",
    "standard",
    "submit",
]
