"""The lottery policy keeps every law of scheduling policies, and does what it is for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from mainspring.core.errors import ConfigError
from mainspring.testing import Scenario, Subject, Trial, burst, play, submit


@pytest.mark.parametrize("options", [{}, {"tickets": {"a": 5}, "default_tickets": 2}])
def test_it_keeps_every_law_and_every_claim(options: dict[str, Any]) -> None:
    with Trial("lottery", options, profile="fast") as trial:
        broken = trial.broken()
    assert not broken, "\n\n".join(broken.values())


def test_more_tickets_are_drawn_more_often() -> None:
    """Two tenants with much to do and one slot: of the first 40 admissions about three in four are gold."""
    requests = [submit(f"{tenant}{at}", 4, 2, tenant=tenant) for at in range(60) for tenant in ("gold", "silver")]
    scenario = Scenario("two tenants", burst(requests), max_running=1)
    run = play(Subject("lottery", {"tickets": {"gold": 3, "silver": 1}}), scenario)
    drawn = Counter(run.submits[rid][1].tenant for rid in list(run.starts)[:40])
    assert 24 <= drawn["gold"] <= 36


def test_a_tenant_without_tickets_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="tickets"):
        play(Subject("lottery", {"tickets": {"gold": 0}}), Scenario("nothing"))
