"""Metrics against hand-worked values: definitions, what does not end, percentiles, classes, fairness, Little's law."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.errors import ConfigError
from mainspring.plugins.simulation.records import RequestRecord, Run, StepRecord
from mainspring.plugins.traces.canonical import TraceRow
from mainspring.plugins.workloads import Scenario, Slo
from mainspring.plugins.workloads.fairness import service_gap
from mainspring.plugins.workloads.metrics import METRICS, View, direction, little, measure, percentile, value
from mainspring.plugins.workloads.scenario import from_trace


def request(number: int, arrival: float, times: tuple[float, ...], **fields: Any) -> RequestRecord:
    facts: dict[str, Any] = {
        "prompt_tokens": 100,
        "wanted_tokens": len(times),
        "scheduled_s": times[0] - 0.5 if times else None,
        "first_token_s": times[0] if times else None,
        "finished_s": times[-1] if times else None,
        "token_times": times,
        **fields,
    }
    return RequestRecord(number=number, rid=f"r{number}", arrival_s=arrival, **facts)


def view(*requests: RequestRecord, slo: dict[str, Slo] | None = None, **more: Any) -> View:
    rows = tuple(
        TraceRow(
            arrival_s=one.arrival_s, input_tokens=100, output_tokens=max(1, one.wanted_tokens), slo=one.slo,
            session=one.session, parent=number - 1 if one.session and number else None, delay_s=1.0 if number else 0.0,
        )
        for number, one in enumerate(requests)
    )  # fmt: skip
    made: Scenario = from_trace(rows, 10_000, 100)
    return View(
        Run(clock="sim", requests=requests, steps=more.pop("steps", ()), counters=more.pop("counters", {})),
        msgspec.structs.replace(made, slo=slo or {}),
        **more,
    )


A = request(0, 1.0, (3.0, 4.0, 6.0), cached_tokens=60, preemptions=1)
B = request(1, 2.0, (4.0,), slo="short")
LOST = request(2, 3.0, (), wanted_tokens=5)


def test_definitions_on_two_requests() -> None:
    told = measure(view(A, B), METRICS[:12])
    both = view(A, B)
    assert value(both, "ttft_mean") == 2.0 and value(both, "ttft_max") == 2.0
    assert value(both, "e2e_mean") == (5.0 + 2.0) / 2
    assert value(both, "tpot_mean") == 1.5  # (6 - 3) / 2; a single token has none
    assert value(both, "itl_mean") == 1.5 and value(both, "itl_max") == 2.0
    assert value(both, "normalized_mean") == (5.0 / 3 + 2.0) / 2
    assert value(both, "queue_mean") == 1.5
    assert told["throughput"] == 4 / 5  # from the first arrival to the last end
    assert told["total_throughput"] == (40 + 3 + 100 + 1) / 5
    assert told["hit_rate"] == 0.3 and told["hit_share"] == 0.5
    assert told["preemption_rate"] == 0.5
    assert told["makespan"] == 5.0 and told["unfinished"] == 0.0
    assert value(both, "ttft_mean@short") == 2.0 and value(both, "e2e_mean@short") == 2.0


def test_what_does_not_end_counts_as_infinity_and_as_a_miss() -> None:
    limits = {"": Slo(ttft_s=2.0, tpot_s=1.5, e2e_s=5.0), "short": Slo(ttft_s=1.9)}
    three = view(A, B, LOST, slo=limits)
    assert value(three, "ttft_mean") == math.inf and value(three, "e2e_p99") == math.inf
    assert value(three, "ttft_p50") == 2.0
    assert value(three, "tpot_p90") == math.inf and value(three, "itl_max") == math.inf
    assert value(three, "makespan") == math.inf and value(three, "unfinished") == 1.0
    assert value(three, "attainment") == pytest.approx(1 / 3)
    assert value(three, "goodput") == pytest.approx(1 / 5)
    half = msgspec.structs.replace(A, wanted_tokens=4)  # ended by a deadline, one token short
    assert value(view(half), "e2e_mean") == math.inf and value(view(half, slo=limits), "attainment") == 0.0


def test_slowdown_needs_the_time_alone() -> None:
    assert value(view(A, B, alone=lambda prompt, output: output / 2), "slowdown_mean") == (5 / 1.5 + 2 / 0.5) / 2
    with pytest.raises(ConfigError, match="slowdown"):
        value(view(A), "slowdown_mean")


def test_sessions_leave_think_time_out() -> None:
    first = request(0, 0.0, (2.0, 3.0), session="s")
    second = request(1, 4.0, (6.0, 8.0), session="s")
    assert value(view(first, second), "session_mean") == 8.0 - 1.0
    lost = request(1, 4.0, (), session="s", wanted_tokens=2)
    assert value(view(first, lost), "session_mean") == math.inf


def joined() -> View:
    """Row 0 starts the agents 1 (slow, a tool of 4 s before it) and 2; row 3 waits 2 s behind both."""
    times = ((0.0, 1.0), (5.0, 10.0), (1.0, 3.0), (12.0, 15.0))
    requests = tuple(
        request(number, arrival, (end,), session="s", slo="agent" if number in (1, 2) else "main")
        for number, (arrival, end) in enumerate(times)
    )
    facts = [{}, {"parent": 0, "delay_s": 4.0}, {"parent": 0}, {"parent": 2, "after": (1,), "delay_s": 2.0}]
    rows = tuple(
        TraceRow(arrival_s=one.arrival_s, input_tokens=100, output_tokens=1, session="s", slo=one.slo, **fact)  # type: ignore[arg-type]
        for one, fact in zip(requests, facts, strict=True)
    )
    return View(Run(clock="sim", requests=requests, steps=()), from_trace(rows, 10_000, 100))


def test_a_session_that_waits_for_several_leaves_out_the_delays_before_the_last() -> None:
    assert value(joined(), "session_mean") == 15.0 - 2.0 - 4.0


def test_a_class_of_a_session_leaves_out_only_delays_within_its_span() -> None:
    assert value(joined(), "session_mean@agent") == 10.0 - 1.0  # from the arrival of 2; 1 was called by row 0
    second = request(1, 4.0, (6.0, 8.0), session="s", slo="later")
    assert value(view(request(0, 0.0, (2.0, 3.0), session="s"), second), "session_mean@later") == 8.0 - 4.0


def test_warm_up_is_left_out_by_arrival() -> None:
    assert value(view(A, B, from_s=1.5), "ttft_mean") == 2.0
    assert len(view(A, B, from_s=1.5).requests) == 1
    assert value(view(A, B, to_s=1.5), "throughput") == 3 / 5


def test_recomputed_share_is_of_all_computed_tokens() -> None:
    steps = (StepRecord(1, 0.0, 1.0, 90, 0, 0, 0.0, 1, 1, 0, 0.0), StepRecord(2, 1.0, 1.0, 0, 10, 0, 0.0, 1, 1, 0, 0.0))
    assert value(view(A, steps=steps, counters={"recomputed_tokens": 25.0}), "recomputed_share") == 0.25


@pytest.mark.parametrize("metric", ["ttft_p98", "ttfft_mean", "hit", "ttft"])
def test_unknown_metrics_name_the_nearest(metric: str) -> None:
    with pytest.raises(ConfigError, match="there is no such metric"):
        direction(metric)


def test_unknown_classes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'shrt'.*short"):
        value(view(A, B), "ttft_mean@shrt")


def test_directions() -> None:
    assert {name for name in METRICS if direction(name) == "higher"} == {
        "throughput", "total_throughput", "request_throughput", "attainment", "goodput", "hit_rate", "hit_share",
    }  # fmt: skip


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.sampled_from([0, 50, 90, 95, 99, 100]))
def test_percentiles_are_numpys(values: list[float], percent: float) -> None:
    assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)))


def test_percentiles_of_infinity_and_of_nothing() -> None:
    assert percentile([1.0, 2.0, math.inf, math.inf], 50) == math.inf
    assert percentile([1.0, 2.0, 3.0, math.inf], 50) == 2.5
    assert math.isnan(percentile([], 50))


# --- fairness --------------------------------------------------------------------------------------------------------


def served(number: int, tenant: str, arrival: float, first: float, count: int = 2) -> RequestRecord:
    times = tuple(first + 0.1 * index for index in range(count))
    return request(number, arrival, times, tenant=tenant, cached_tokens=90)


def test_service_gap_counts_only_while_both_wait() -> None:
    """a and b wait from 0 to 3: a is served at 1 and 2 (10 + 4 each), b at 3."""
    three = (served(0, "a", 0.0, 1.0), served(1, "a", 0.0, 2.0), served(2, "a", 0.0, 3.0), served(3, "b", 0.0, 3.0))
    assert service_gap(three) == pytest.approx(14 + 14)  # a's third start comes at the same moment as b's
    alone = (served(0, "a", 0.0, 1.0), served(1, "a", 2.0, 3.0), served(2, "b", 3.5, 4.0))
    assert service_gap(alone) == 0.0
    assert service_gap([served(0, "a", 0.0, 1.0)]) == 0.0


def test_service_gap_of_an_unserved_tenant_grows() -> None:
    many = [served(number, "a", 0.0, 1.0 + number) for number in range(5)]
    starved = request(9, 0.0, (), tenant="b", wanted_tokens=3)
    assert service_gap([*many, starved]) == pytest.approx(4 * 14 + 12)


def test_service_gap_of_tenants_served_in_the_same_steps_is_nothing() -> None:
    """Both get 256 tokens at the same moments, whatever they are called."""
    pairs = [(served(0, one, 0.0, 1.0, 256), served(1, two, 0.0, 1.0, 256)) for one, two in ("ab", "ba")]
    waiting = [request(number, 0.0, (300.0,), tenant=tenant) for number, tenant in ((2, "a"), (3, "b"))]
    assert [service_gap([*pair, *waiting]) for pair in pairs] == [0.0, 0.0]
    once = [(0.5,) + (2.0,) * 128, (2.0,) * 128]  # a is 10 + 2 ahead when both get much in one step
    ahead = [
        [request(number, 0.0, times, tenant=tenant, cached_tokens=90) for number, (tenant, times) in enumerate(named)]
        for named in (zip("ab", once, strict=True), zip("ba", once, strict=True))
    ]
    starved = [request(number, 0.0, (), tenant=tenant, wanted_tokens=1) for number, tenant in ((2, "a"), (3, "b"))]
    assert [service_gap([*pair, *starved]) for pair in ahead] == [12.0, 12.0]


# --- Little's law ----------------------------------------------------------------------------------------------------


def test_little_compares_two_counts() -> None:
    run = Run(clock="sim", requests=(A, B), steps=(), in_system_s=7.0)
    assert little(run).error == 0.0
    lost = Run(clock="live", requests=(A, B), steps=(), in_system_s=6.0)  # the host saw them later than they were due
    assert little(lost).error == pytest.approx(1 / 7)
