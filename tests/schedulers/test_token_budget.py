"""Chunked prefill under one budget, decode first; and the plain order it is built on."""

from __future__ import annotations

import pytest
from tests.support import Lab, config, lab, submit

from mainspring.plugins.testing.fake_executor import expected_ids


def first_token_steps(it: Lab) -> dict[str, int]:
    """Step of each request's first token."""
    steps: dict[str, int] = {}
    for emit in it.emits():
        for row in emit.rows:
            if row.token_ids:
                steps.setdefault(row.rid, emit.step)
    return steps


def test_slots_are_refilled_at_once() -> None:
    """Two slots, jobs of 2, 4, 3 and 1 steps: continuous batching never leaves a slot empty while somebody waits."""
    it = lab(config(max_running=2))
    it.sim.at(0.0, *(submit(rid, 1, steps) for rid, steps in zip("ABCD", (2, 4, 3, 1), strict=True)))
    it.sim.run()
    assert it.batches() == ["A1* B1*", "A1* B1*", "B1* C1*", "B1* C1*", "C1* D1*"]


@pytest.mark.parametrize("use", ["fcfs", "token_budget"])
def test_worked_example_of_chunked_prefill(use: str) -> None:
    """Invariant 14: budget 8, A of 10 and B of 3 tokens, C of 4 later."""
    options = {} if use == "fcfs" else {"long_prefill_cap": 8}
    it = lab(config(use=use, token_budget=8, options=options))
    it.sim.at(0.0, submit("A", 10), submit("B", 3))
    it.sim.at(1.5, submit("C", 4))
    it.sim.run(until=4.0)
    assert it.batches()[:4] == ["A8", "A2* B3*", "A1* B1* C4*", "A1* B1* C1*"]


def test_late_long_prompt_gets_what_decoding_leaves() -> None:
    """Invariant 14: with two decoding and budget 8, a prompt of 12 takes 6 and 6."""
    it = lab(config(use="token_budget", token_budget=8))
    it.sim.at(0.0, submit("A", 1), submit("B", 1))
    it.sim.at(0.5, submit("D", 12))
    it.sim.run(until=4.0)
    assert it.batches()[1:4] == ["A1* B1* D6", "A1* B1* D6*", "A1* B1* D1*"]


def test_a_lone_long_prompt_gets_the_whole_budget() -> None:
    """Invariant 6: the cap is there for the others, and there are none."""
    it = lab(
        config(16, use="token_budget", token_budget=1024, options={"long_prefill_cap": 400}),
        num_blocks=300,
        vocab_size=5000,
    )
    it.sim.at(0.0, submit("A", 2000, 1))
    it.sim.run()
    assert it.batches() == ["A1024", "A976*"]


def test_the_cap_adapts_to_the_number_of_prompts() -> None:
    """Invariant 8: cap 100, budget 1024, two prompts: max(100, 1024 / 2)."""
    it = lab(
        config(16, use="token_budget", token_budget=1024, options={"long_prefill_cap": 100}),
        num_blocks=300,
        vocab_size=5000,
    )
    it.sim.at(0.0, submit("A", 2000, 1), submit("B", 10, 1))
    it.sim.run()
    assert it.batches()[0] == "A512 B10*"


def test_long_prompt_does_not_hold_up_short_ones() -> None:
    """A-14: budget 64, a prompt of 4,000 tokens, then prompts of 20: each starts within three steps of its arrival."""
    it = lab(config(16, use="token_budget", token_budget=64), num_blocks=400, max_context=5000, vocab_size=5000)
    it.sim.at(0.0, submit("long", 4000, 2))
    for index in range(5):
        it.sim.at(2.5 + 4 * index, submit(f"s{index}", 20, 3))
    it.sim.run()
    steps = first_token_steps(it)
    assert all(steps[f"s{index}"] <= 3 + 4 * index + 3 for index in range(5)), steps
    assert steps["long"] > 60
    assert it.outputs()["long"] == expected_ids(tuple(range(10, 4010)), 2, vocab_size=5000)


def test_fcfs_lets_the_long_prompt_go_first() -> None:
    """What the test above is about: without the cap the short ones wait for the whole prompt."""
    it = lab(config(16, token_budget=64), num_blocks=400, max_context=5000, vocab_size=5000)
    it.sim.at(0.0, submit("long", 4000, 2))
    it.sim.at(2.5, submit("s", 20, 3))
    it.sim.run()
    assert first_token_steps(it)["s"] > 60


def test_prefill_interval() -> None:
    """Invariant 15: a newcomer waits exactly interval - 1 steps after the last prompt work, and so do its chunks."""
    it = lab(config(use="token_budget", token_budget=8, options={"prefill_interval": 4}))
    it.sim.at(0.0, submit("A", 2))
    it.sim.at(0.5, submit("B", 10))
    it.sim.run(until=11.0)
    batches = it.batches()
    assert batches[:5] == ["A2*", "A1*", "A1*", "A1*", "A1* B7"]
    assert batches[5:9] == ["A1*", "A1*", "A1*", "A1* B3*"]


def test_prefill_interval_holds_nothing_when_nobody_decodes() -> None:
    it = lab(config(use="token_budget", token_budget=4, options={"prefill_interval": 4}))
    it.sim.at(0.0, submit("A", 10, 1))
    it.sim.run()
    assert it.batches() == ["A4", "A4", "A2*"]
