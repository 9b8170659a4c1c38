"""Playing scenarios: exactly repeatable, hidden lengths, closed loops, costs, noise, and what the records say."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from tests.golden.runs import GOLDEN, golden_run

from mainspring.core.config import AllocatorConfig, Config, SchedulerConfig
from mainspring.core.messages import Message, StepPlan, Submit
from mainspring.core.policy import SchedulerPolicy, SchedulerView
from mainspring.core.registry import Registry
from mainspring.core.request import RequestView
from mainspring.plugins.simulation import Run, play
from mainspring.plugins.simulation.play import configure
from mainspring.plugins.step_time.features import features_of
from mainspring.plugins.step_time.forms import StepForm
from mainspring.plugins.step_time.policy_cost import PolicyCost
from mainspring.plugins.traces.canonical import TraceRow
from mainspring.plugins.workloads import Scenario, scenario
from mainspring.plugins.workloads.metrics import View, little, value
from mainspring.plugins.workloads.s1 import hit_rate_bound
from mainspring.plugins.workloads.scenario import from_trace

FORM = StepForm(form="linear", c0=0.010, c1=4e-5, c2=2e-5, c3=1e-7, c4=1e-9)


def arm(made: Scenario, use: str = "fcfs", allocator: str = "prefix", **limits: Any) -> Config:
    config = configure(Config(), made)
    return msgspec.structs.replace(
        config,
        scheduler=msgspec.structs.replace(config.scheduler, use=use, **limits),
        allocator=msgspec.structs.replace(config.allocator, use=allocator),
    )


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_golden_runs_are_byte_equal(name: str) -> None:
    """Virtual time is exactly repeatable: on any machine, with any Python."""
    assert golden_run(name).digest() == GOLDEN[name]


@pytest.mark.parametrize("name", ["S1", "S2", "S4", "S8", "S9", "S10"])
def test_every_request_ends_and_tokens_are_conserved(name: str) -> None:
    made = scenario(name, "tiny", 5)
    run = play(arm(made), made, FORM, 1)
    assert all(one.complete and one.reason == "length" for one in run.requests)
    assert [one.output_tokens for one in run.requests] == [row.output_tokens for row in made.rows]
    computed = sum(step.prefill + step.decode for step in run.steps)
    prompts = sum(one.prompt_tokens for one in run.requests)
    hits, again = run.counters["kv_hit_tokens"], run.counters.get("recomputed_tokens", 0)
    outputs = sum(one.output_tokens - 1 for one in run.requests)
    assert computed == prompts + outputs - sum(one.cached_tokens for one in run.requests) + again, (hits, again)
    assert little(run).error < 1e-9
    for step in run.steps:
        assert step.seconds == pytest.approx(FORM((step.prefill, step.decode, step.kv, step.attention)))  # type: ignore[arg-type]
    for row, one in zip(made.rows, run.requests, strict=True):
        if row.parent is not None:
            ends = [run.requests[parent].finished_s or 0.0 for parent in row.parents]
            assert one.arrival_s == max(ends) + row.delay_s
        else:
            assert one.arrival_s == row.arrival_s


def test_a_returning_session_finds_its_own_answer() -> None:
    """Turn 2 hits the whole blocks of turn 1, its answer included."""
    made = scenario("S2", "tiny", 1, kv_tokens=100_000)
    run = play(arm(made), made, FORM)
    for row, one in zip(made.rows, run.requests, strict=True):
        if row.parent is not None:
            history = made.rows[row.parent].input_tokens + made.rows[row.parent].output_tokens
            assert one.cached_tokens >= (history - 1) // 16 * 16


def test_siblings_do_not_share_their_answers() -> None:
    """Nodes of a tree have one prompt and different answers: their blocks are not merged."""
    made = scenario("S10", "tiny", 1, trees=1, kv_tokens=10_000, block_size=2)
    seen: list[tuple[int, ...]] = []

    def tap(message: Message, now: float) -> None:
        if isinstance(message, Submit):
            seen.append(message.prompt_ids)

    play(arm(made), made, FORM, taps=[tap])
    assert len(set(seen[:3])) == 1  # the root's children
    assert len(set(seen[3:9])) == 2  # two kept nodes, three children each


class Spy(SchedulerPolicy):
    """Writes down all that it can see of lengths."""

    seen: list[tuple[int, ...]] = []

    def waiting_key(self, request: RequestView, now: float) -> Any:
        hidden = [name for name in dir(request) if "forced" in name or "length" in name]
        Spy.seen.append((request.max_tokens, len(hidden)))
        return (request.num_preemptions == 0, request.seq)

    def order_waiting(self, view: SchedulerView) -> None:
        return None


@pytest.mark.parametrize("known", [False, True])
def test_true_lengths_are_hidden_unless_asked_for(known: bool) -> None:
    made = scenario("S7", "tiny", 1, num_requests=30)
    registry = Registry()
    registry._register("scheduler")("spy", Spy)
    Spy.seen = []
    run = play(arm(made, "spy"), made, FORM, registry=registry, known_lengths=known)
    assert all(one.complete for one in run.requests)
    told = {most for most, _ in Spy.seen}
    assert {hidden for _, hidden in Spy.seen} == {0}
    assert told == ({row.output_tokens for row in made.rows} if known else {made.max_output})


def test_requests_of_one_moment_are_seen_by_one_plan() -> None:
    rows = tuple(TraceRow(arrival_s=1.0, input_tokens=10, output_tokens=2) for _ in range(5))
    plans: list[StepPlan] = []
    run = play(
        arm(made := from_trace(rows, 1000, 8)),
        made,
        FORM,
        taps=[lambda message, now: plans.append(message) if isinstance(message, StepPlan) else None],
    )
    assert len(plans[0].rows) == 5
    assert {one.first_token_s for one in run.requests} == {1.0 + FORM(features_of(plans[0].rows))}


def test_policy_cost_delays_each_step_and_hides_at_depth_two() -> None:
    made = scenario("S6", "tiny", 1, num_requests=40)
    cost = PolicyCost(a_us=2000.0, b_us=10.0, c_us=1.0)
    plain, charged = play(arm(made, depth=1), made, FORM), play(arm(made, depth=1), made, FORM, policy_cost=cost)
    assert value(View(charged, made), "tpot_p50") > value(View(plain, made), "tpot_p50") + 0.0015
    for step in charged.steps:
        assert step.policy_s == pytest.approx((2000 + 10 * step.running + step.waiting) * 1e-6)
    piped = play(arm(made, depth=2), made, FORM, policy_cost=cost)
    assert value(View(piped, made), "tpot_p50") < value(View(charged, made), "tpot_p50") - 0.0005


def test_noise_is_lognormal_seeded_and_off_by_default() -> None:
    made = scenario("S8", "tiny", 1)
    plain = play(arm(made), made, FORM, 1)
    noisy = [play(arm(made), made, FORM, 1, noise_sigma=0.05, noise_seed=seed) for seed in (1, 1, 2)]
    assert noisy[0].digest() == noisy[1].digest() != noisy[2].digest() != plain.digest()
    logs = [
        math.log(step.seconds / FORM((step.prefill, step.decode, step.kv, step.attention)))  # type: ignore[arg-type]
        for step in noisy[0].steps
    ]
    assert sum(logs) / len(logs) == pytest.approx(0, abs=0.005)
    assert (sum(log * log for log in logs) / len(logs)) ** 0.5 == pytest.approx(0.05, rel=0.1)


def test_a_deadline_ends_a_request_and_counts_as_unfinished() -> None:
    made = scenario("S9", "tiny", 1)
    slo = {name: msgspec.structs.replace(limits, deadline_s=0.3) for name, limits in made.slo.items()}
    tight = msgspec.structs.replace(made, slo=slo)
    run = play(arm(tight), tight, FORM)
    assert {one.reason for one in run.requests} == {"length", "deadline"}
    assert value(View(run, tight), "unfinished") == sum(one.reason == "deadline" for one in run.requests) > 0


def test_until_leaves_the_rest_undone() -> None:
    made = scenario("S1", "tiny", 1)
    run = play(arm(made), made, FORM, until_s=5.0)
    late = [one for one in run.requests if one.submitted_s is None]
    assert late and all(one.finished_s is None and not one.complete for one in late)
    assert run.end_s <= 5.0


def decode(run: Run) -> Run:
    return msgspec.json.decode(run.encode(), type=Run)


def test_records_survive_json() -> None:
    made = scenario("S1", "tiny", 1, num_requests=10)
    run = play(arm(made), made, FORM)
    assert decode(run) == run and decode(run).digest() == run.digest()


def test_the_hit_rate_bound_of_s1_holds_for_every_policy() -> None:
    """Nobody exceeds it; ``prefix_priority`` reaches it within two points when the KV holds the groups."""
    for groups in (6, 64):
        made = scenario("S1", "tiny", 1, groups_in_cache=groups, num_requests=200 if groups == 64 else 80)
        bound = hit_rate_bound(made)
        for info in Registry().available("scheduler"):
            run = play(arm(made, info.name), made, FORM)
            rate = value(View(run, made), "hit_rate")
            assert rate <= bound + 1e-12, info.name
            if groups == 64 and info.name == "prefix_priority":
                assert rate >= bound - 0.02


def test_config_of_a_scenario() -> None:
    made = scenario("S1", "full", 1)
    config = configure(Config(scheduler=SchedulerConfig(use="fair"), allocator=AllocatorConfig(use="radix")), made)
    assert (config.scheduler.use, config.scheduler.max_running, config.allocator.use) == ("fair", 32, "radix")
    assert config.allocator.num_blocks == made.kv_tokens // 16
