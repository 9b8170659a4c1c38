"""Every registered scheduler is tried on every law and on what it claims; a new file in the folder is tried by itself.

The options below are those that change what a policy does; each is tried like a policy of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mainspring.core.registry import Registry
from mainspring.testing import Trial

NAMES = [info.name for info in Registry().available("scheduler") if info.origin == "mainspring"]
#: (policy, options, wrappers)
VARIANTS: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    *((name, {}, ()) for name in NAMES),
    ("priority", {"lower_first": False}, ()),
    ("deadline", {"order": "slack"}, ()),
    ("shortest", {"mode": "remaining"}, ()),
    ("shortest", {"mode": "hrrn"}, ()),
    ("fair", {"lift": False}, ()),
    ("token_budget", {"prefill_interval": 3}, ()),
    ("priority", {}, ("ageing",)),
    ("fcfs", {}, ("tenant_share",)),
]


def title(variant: tuple[str, dict[str, Any], tuple[str, ...]]) -> str:
    name, options, wrap = variant
    return "-".join([name, *(f"{key}={value}" for key, value in options.items()), *wrap])


@pytest.fixture(scope="module", params=VARIANTS, ids=title)
def trial(request: pytest.FixtureRequest) -> Iterator[Trial]:
    name, options, wrap = request.param
    with Trial(name, options, wrap=wrap, profile="fast") as trial:
        yield trial


def test_the_folder_is_walked() -> None:
    assert {"fcfs", "fair", "priority"} <= set(NAMES)


@pytest.mark.slow
def test_it_keeps_every_law_and_every_claim(trial: Trial) -> None:
    """Invariants A 1-21, B 23-37, C 39-55, I 121-124, K 128-130 as laws; the state machine; determinism (A 21)."""
    broken = trial.broken()
    assert not broken, "\n\n".join(broken.values())
