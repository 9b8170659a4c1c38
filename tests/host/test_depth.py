"""``scheduler.depth = "auto"``: the next step is planned beside a short one, and only then."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, get_args

import pytest
from tests.support import Flights, Lab, config, disturb, lab, one_second, submit

from mainspring.core.config import Depth, SchedulerConfig
from mainspring.core.messages import (
    FinishReason,
    SamplingParams,
    StepLaunch,
    Swap,
)
from mainspring.plugins.testing.fake_executor import expected_ids
from mainspring.schedulers.host.standard import AHEAD_S
from mainspring.schedulers.host.step_time import StepTime

DEPTHS: tuple[Depth, ...] = get_args(Depth)


def lasting(seconds: float) -> Callable[[StepLaunch], float]:
    return lambda launch: seconds


def by_tokens(launch: StepLaunch) -> float:
    """Short for up to five tokens."""
    return 0.010 + 0.002 * sum(row.count for row in launch.rows)


def watch(it: Lab) -> Flights:
    """What is planned from now on."""
    flights = Flights()
    it.sim.router._taps = (*it.sim.router._taps, flights.tap)
    return flights


class Fixed(StepTime):
    """An estimate that nothing changes."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def after_the_last(self, num_tokens: int) -> float:
        return self.seconds


@pytest.mark.parametrize(
    ("expected", "most"),
    [(0.0, 1), (1e-9, 2), (AHEAD_S, 2), (math.nextafter(AHEAD_S, 1.0), 1), (1.0, 1)],
)
def test_only_a_step_that_is_known_to_be_short_has_one_beside_it(expected: float, most: int) -> None:
    it = lab(config())
    it.host.step_time = Fixed(expected)
    flights = watch(it)
    it.sim.at(0.0, submit("A", 4, 10))
    it.sim.run()
    assert flights.counts == [1, *[most] * 9]
    assert it.outputs()["A"] == expected_ids((10, 11, 12, 13), 10)
    it.assert_empty()


def test_nothing_is_planned_ahead_before_a_step_was_seen() -> None:
    it = lab(config(), step_time=lasting(0.010))
    flights = watch(it)
    it.sim.at(0.0, submit("A", 4, 6))
    it.sim.run()
    assert [(round(now, 9), count) for now, count in flights.seen] == [
        (0.00, 1),
        (0.01, 1),
        (0.01, 2),
        (0.02, 2),
        (0.03, 2),
        (0.04, 2),
    ]


def test_the_tokens_of_the_step_in_flight_decide() -> None:
    """Chunks of a prompt take long, so what follows them is planned when they are over; decoding is short, which is
    known when a step of it has ended."""
    it = lab(config(token_budget=8), step_time=by_tokens)
    for index in range(2):  # both sizes have been seen
        it.sim.at(float(index), submit(f"warm{index}", 8, 4))
    it.sim.run()
    flights = watch(it)
    it.sim.at(9.0, submit("A", 20, 5))
    it.sim.run()
    assert it.batches()[-7:] == ["A8", "A8", "A4*", "A1*", "A1*", "A1*", "A1*"]
    assert flights.counts == [1, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(("depth", "first_token"), [(1, 5.0), ("auto", 5.0), (2, 6.0)])
def test_an_arrival_during_a_long_step_is_in_the_very_next_one(depth: Depth, first_token: float) -> None:
    it = lab(config(depth=depth))
    it.sim.at(0.0, submit("A", 4, 20))
    it.sim.at(3.5, submit("B", 4, 3))
    it.sim.run()
    assert it.ends()["B"].timing.first_token == first_token


def test_an_arrival_during_a_short_step_waits_for_one_more() -> None:
    it = lab(config(), step_time=lasting(0.010))
    it.sim.at(0.0, submit("A", 4, 20))
    it.sim.at(0.035, submit("B", 4, 3))
    it.sim.run()
    assert it.ends()["B"].timing.first_token == pytest.approx(0.060)


def test_a_slow_first_prompt_is_forgotten_with_the_first_decode() -> None:
    """Where the running estimate of step times would remember it for a thousand steps."""
    it = lab(config(), step_time=lambda launch: 1.0 if launch.step == 1 else 0.005)
    flights = watch(it)
    it.sim.at(0.0, submit("A", 30, 8))
    it.sim.run()
    assert flights.counts == [1, 1, 1, 2, 2, 2, 2, 2]
    assert it.host.step_time(1) > AHEAD_S


@pytest.mark.parametrize(
    ("last", "num_tokens", "expected"),
    [((1, 0.011), 1, 0.011), ((1, 0.011), 2, 0.022), ((100, 0.08), 16, 0.08), ((30, 0.0), 60, 0.0)],
)
def test_a_step_takes_as_long_as_the_last_or_longer_in_proportion(
    last: tuple[int, float], num_tokens: int, expected: float
) -> None:
    times = StepTime()
    assert times.after_the_last(num_tokens) == 0.0
    times.observe(500, 9.0)
    times.observe(*last)
    assert times.after_the_last(num_tokens) == expected


def test_steps_that_get_longer_have_none_beside_them_any_more() -> None:
    """The estimate is that of now, not that of the moment at which the step was planned."""
    it = lab(config(), step_time=lambda launch: 0.010 if launch.step <= 20 else 0.5)
    flights = watch(it)
    it.sim.at(0.0, submit("A", 4, 40))
    it.sim.run()
    counts = flights.counts
    assert counts[2:22] == [2] * 20
    assert counts[22:] == [1] * 18


@pytest.mark.parametrize(("seconds", "as_is"), [(1.0, 1), (0.010, 2)])
def test_a_swap_changes_it_while_steps_fly(seconds: float, as_is: int) -> None:
    """At any moment, with one or two steps in flight; a step that may be planned now is planned at once."""
    it = lab(config(depth=2), step_time=lasting(seconds))
    flights = watch(it)
    it.sim.at(0.0, submit("A", 4, 40))
    order: tuple[Depth, ...] = ("auto", 1, "auto", 2, 1, 2, "auto")
    for index, depth in enumerate(order, start=1):
        it.sim.at((5 * index - 0.5) * seconds, Swap(SchedulerConfig(depth=depth)))
    it.sim.run()
    most = {1: 1, 2: 2, "auto": as_is}
    for index, depth in enumerate(order, start=1):
        counts = {count for now, count in flights.seen if 5 * index - 0.75 < now / seconds < 5 * index + 4.25}
        assert counts == {most[depth]}, (index, depth)
        before = (2, *order)[index - 1]
        at_once = [now for now, _ in flights.seen if now == pytest.approx((5 * index - 0.5) * seconds)]
        assert bool(at_once) == (most[depth] > most[before])
    assert it.outputs()["A"] == expected_ids((10, 11, 12, 13), 40)
    it.assert_empty()


@pytest.mark.parametrize(("seconds", "wasted"), [(1.0, 0), (0.010, 1)])
def test_an_end_that_nobody_foresaw_wastes_a_row_of_short_steps_only(seconds: float, wasted: int) -> None:
    script = {("A", 12): 0}  # the third output token is the end id
    it = lab(config(), step_time=lasting(seconds), script=lambda rid, at, checksum: script.get((rid, at), 5))
    it.sim.at(0.0, submit("A", 10, sampling=SamplingParams(max_tokens=50)))
    it.sim.run()
    assert it.outputs()["A"] == [5, 5, 0]
    assert it.host.counters["wasted_tokens"] == wasted
    it.assert_empty()


@pytest.mark.parametrize("step_time", [one_second, lasting(0.010), by_tokens])
def test_the_steps_are_those_of_any_depth(step_time: Callable[[StepLaunch], float]) -> None:
    """Tokens in flight count as computed, so a policy is shown the same and answers the same."""
    batches = []
    for depth in DEPTHS:
        it = lab(config(token_budget=7, depth=depth), step_time=step_time)
        it.sim.at(0.0, submit("A", 20, 9), submit("B", 3, 30), submit("C", 11, 5))
        it.sim.run()
        batches.append(it.batches())
    assert batches[0] == batches[1] == batches[2]


@pytest.mark.parametrize("seed", range(12))
def test_random_traffic_while_depth_and_step_times_change(seed: int) -> None:
    """Cancels, pauses, preemption and swaps between all depths, with steps on either side of the limit."""
    rng = random.Random(seed)
    limits: dict[str, Any] = {"token_budget": rng.choice([8, 33]), "max_running": rng.choice([3, 8])}
    seconds = [rng.choice([0.2, 0.8, 1.2, 4.0]) * AHEAD_S for _ in range(40)]
    it = lab(
        config(4, "prefix", **limits),
        num_blocks=rng.choice([20, 60]),
        step_time=lambda launch: seconds[launch.step // 25 % len(seconds)],
    )
    flights = watch(it)
    asked: dict[str, tuple[tuple[int, ...], int]] = {}
    for index in range(40):
        prompt, tokens = tuple(rng.randrange(2, 1000) for _ in range(rng.randint(1, 50))), rng.randint(1, 25)
        rid, moment = f"r{index}", rng.uniform(0, 4)
        asked[rid] = prompt, tokens
        it.sim.at(moment, submit(rid, prompt, tokens))
        disturb(it, rng, rid, moment, early_s=1, late_s=8, pauses=0.2)
        it.sim.at(rng.uniform(0, 6), Swap(SchedulerConfig(depth=rng.choice(DEPTHS), **limits)))
    it.sim.run(max_events=20_000)
    ends, outputs = it.ends(), it.outputs()
    assert ends.keys() == asked.keys()
    for rid, (prompt, tokens) in asked.items():
        assert outputs[rid] == expected_ids(prompt, len(outputs[rid]))
        assert ends[rid].reason is FinishReason.CANCELLED or len(outputs[rid]) == tokens
    assert set(flights.counts) == {1, 2}
    assert it.host.stats()["policy_faults"] == it.host.counters["denied"] == 0
    it.assert_empty()
