"""Forks, warm-ups and leases through the host, on the sharing allocators."""

from __future__ import annotations

import pytest
from tests.support import Lab, config, lab, submit

from mainspring.core.messages import Cancel, FinishReason
from mainspring.plugins.testing.fake_executor import expected_ids

PROMPT = tuple(range(10, 31))  # 21 tokens: five blocks and one token


def sharing(allocator: str, depth: int = 1, num_blocks: int = 40) -> Lab:
    return lab(config(4, allocator, token_budget=64, depth=depth), num_blocks=num_blocks)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("allocator", ["prefix", "radix", "paged"])
def test_a_fork_continues_its_parent(allocator: str, depth: int) -> None:
    """Parent and children write on apart; each gets the text it would have got alone."""
    it = sharing(allocator, depth)
    it.sim.at(0.0, submit("A", PROMPT, 12))
    it.sim.at(6.5, submit("B", (), 8, parent="A"), submit("C", (), 5, parent="A"))
    it.sim.run()
    outputs, ends = it.outputs(), it.ends()
    assert outputs["A"] == expected_ids(PROMPT, 12)
    known = ends["B"].usage.input
    prompt = PROMPT + tuple(outputs["A"][: known - len(PROMPT)])
    assert outputs["B"] == expected_ids(prompt, 8)
    assert outputs["C"] == expected_ids(prompt, 5)
    if allocator != "paged":
        assert ends["B"].usage.cached >= known - 1
        copies = [copy for grant in it.grants for copy in grant.copies]
        assert 1 <= len(copies) <= 3  # only the block that is written to
    assert it.host.counters["denied"] == 0
    it.assert_empty()


@pytest.mark.parametrize("allocator", ["prefix", "radix"])
def test_a_fork_cancelled_before_it_starts_gives_everything_back(allocator: str) -> None:
    it = lab(config(4, allocator, max_running=1), num_blocks=40)
    it.sim.at(0.0, submit("A", PROMPT, 12))
    it.sim.at(3.5, submit("B", (), 8, parent="A"))
    it.sim.at(5.5, Cancel("B"))
    it.sim.run()
    assert it.ends()["B"].reason is FinishReason.CANCELLED
    it.assert_empty()


def test_a_fork_of_nobody_is_refused() -> None:
    it = sharing("prefix")
    it.sim.at(0.0, submit("B", (), 8, parent="A"))
    it.sim.run()
    failure = it.ends()["B"].failure
    assert failure is not None
    assert (failure.code, failure.param) == ("not_found", "parent")


@pytest.mark.parametrize("depth", [1, 2])
def test_warming_samples_nothing_and_is_hit(depth: int) -> None:
    it = sharing("prefix", depth)
    it.sim.at(0.0, submit("W", PROMPT, 5, warm=True))
    it.sim.at(9.5, submit("A", (*PROMPT, 7), 3))
    it.sim.run()
    warm, hit = it.ends()["W"], it.ends()["A"]
    assert (warm.reason, warm.usage.output) == (FinishReason.LENGTH, 0)
    assert hit.usage.cached == 20
    assert it.outputs()["A"] == expected_ids((*PROMPT, 7), 3)
    it.assert_empty()


def test_a_lease_outlives_other_traffic_and_ends_by_itself() -> None:
    """A leased prefix is evicted last, never blocks running work, and expires."""
    hits = {}
    for lease_s in (0.0, 1000.0):
        it = sharing("prefix", num_blocks=16)
        it.sim.at(0.0, submit("W", PROMPT, 1, warm=True, lease_s=lease_s))
        for index in range(6):
            it.sim.at(5.0 + 10 * index, submit(f"x{index}", tuple(range(100 * index + 50, 100 * index + 75)), 4))
        it.sim.at(100.0, submit("A", (*PROMPT, 7), 3))
        it.sim.run()
        hits[lease_s] = it.ends()["A"].usage.cached
        it.assert_empty()
    assert hits == {0.0: 0, 1000.0: 20}
    it = sharing("prefix", num_blocks=8)
    it.sim.at(0.0, submit("W", PROMPT, 1, warm=True, lease_s=1000.0))
    it.sim.at(5.0, submit("giant", tuple(range(50, 79)), 3))  # needs every block
    it.sim.run()
    assert it.ends()["giant"].reason is FinishReason.LENGTH
