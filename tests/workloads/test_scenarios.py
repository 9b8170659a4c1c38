"""The ten scenarios: their shapes as promised, sizes, draws that repeat, and errors that help."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter

import msgspec
import pytest

from mainspring.core.errors import ConfigError
from mainspring.plugins.workloads import Scenario, scale_arrivals, scenario
from mainspring.plugins.workloads.metrics import direction
from mainspring.plugins.workloads.scenario import NAMES


@pytest.mark.parametrize("size", ["tiny", "full"])
@pytest.mark.parametrize("name", NAMES)
def test_every_scenario(name: str, size: str) -> None:
    made = scenario(name, size, 3)
    assert made == scenario(name, size, 3)
    assert made.rows != scenario(name, size, 4).rows
    longest = max(row.input_tokens + row.output_tokens for row in made.rows)
    assert made.kv_tokens > longest  # every request can run alone
    assert max(row.output_tokens for row in made.rows) <= made.max_output
    assert made.notes and made.title and made.guards
    labels = {row.slo for row in made.rows}
    for metric in (*made.primary, *(guard.metric for guard in made.guards)):
        assert direction(metric) in ("lower", "higher")
        assert metric.partition("@")[2] in labels | {""}, metric
    if size == "tiny":
        assert 190 <= len(made.rows) <= 260
    assert made.closed_loop == (name in ("S2", "S4", "S10"))
    parents_first = all((row.parent is None or row.parent < number) for number, row in enumerate(made.rows))
    assert parents_first


def test_tiny_is_full_divided_by_sixteen() -> None:
    for name in ("S1", "S3", "S6", "S8"):
        tiny, full = scenario(name, "tiny", 1), scenario(name, "full", 1)
        means = [statistics.mean(row.input_tokens for row in made.rows) for made in (tiny, full)]
        assert means[1] / means[0] == pytest.approx(16, rel=0.2), name


def test_s1_popularity_is_zipf() -> None:
    rows = scenario("S1", "full", 2, num_requests=8000).rows
    counts = Counter(row.prefix_blocks for row in rows).most_common()
    assert len(counts) == 64
    assert counts[0][1] / counts[7][1] == pytest.approx(8, rel=0.25)
    assert statistics.median(row.input_tokens - 2048 for row in rows) == pytest.approx(128, rel=0.05)


def test_s2_each_prompt_is_the_whole_history() -> None:
    made = scenario("S2", "full", 2)
    turns = Counter(row.session for row in made.rows)
    assert statistics.mean(turns.values()) == pytest.approx(5, rel=0.2) and max(turns.values()) <= 20
    for row in made.rows:
        if row.parent is not None:
            before = made.rows[row.parent]
            assert row.session == before.session and row.slo == "later" and 0 < row.delay_s <= 60
            assert row.input_tokens > before.input_tokens + before.output_tokens
            shared = (before.input_tokens) // before.block_tokens
            assert row.prefix_blocks[:shared] == before.prefix_blocks[:shared]


def test_s4_has_sub_agents_and_compactions() -> None:
    rows = scenario("S4", "full", 0, sessions=200).rows
    assert any(row.after for row in rows)  # a session waits for its sub-agents
    shrunk = [row for row in rows if row.parent is not None and row.input_tokens < rows[row.parent].input_tokens]
    assert 5 < len(shrunk) < 100
    common = set.intersection(*(set(row.prefix_blocks) for row in rows))
    assert len(common) == 4096 // 16


def test_s5_bursts_and_s7_tail() -> None:
    rows = scenario("S5", "full", 1).rows
    gaps = [b.arrival_s - a.arrival_s for a, b in itertools.pairwise(rows)]
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(4, rel=0.25)
    on_off = scenario("S5", "full", 1, arrivals="on_off").rows
    assert all(row.arrival_s % 10 <= 2.0 + 1e-6 for row in on_off)
    outputs = sorted(row.output_tokens for row in scenario("S7", "full", 1).rows)
    assert outputs[0] == 64 and outputs[-1] <= 8192
    assert outputs[500] == pytest.approx(64 * 2 ** (1 / 1.3), rel=0.1)


def test_s8_is_polite_then_overloaded_then_idle_then_back() -> None:
    rows = scenario("S8", "full", 1).rows
    span = rows[-1].arrival_s
    shares = []
    for start, end in ((0, 1 / 3), (1 / 3, 2 / 3), (2 / 3, 5 / 6), (5 / 6, 1.0)):
        part = [row for row in rows if start * span <= row.arrival_s < end * span]
        shares.append(sum(row.tenant == "t0" for row in part) / len(part))
    assert shares[0] == pytest.approx(1 / 8, abs=0.05)
    assert shares[1] == pytest.approx(8 / 11.5, abs=0.05)
    assert shares[2] < 0.05 and shares[3] > 0.6


def test_s10_trees_join_at_each_depth() -> None:
    rows = scenario("S10", "full", 1, trees=5).rows
    assert len(rows) == 5 * (3 + 6 + 6 + 6)
    for row in rows:
        assert row.input_tokens % row.block_tokens == 0
        if row.parent is not None:
            assert row.input_tokens == rows[row.parent].input_tokens + rows[row.parent].output_tokens
            assert len(row.after) in (2, 5)
    assert Counter(sum(1 for row in rows if row.parent == number) for number in range(len(rows)))[3] == 5 * 6


def test_scaling_keeps_shape_delays_and_backlogs() -> None:
    made = scenario("S2", "tiny", 1)
    scaled = scale_arrivals(made.rows, 10.0)
    starts = [row.arrival_s for row in scaled if row.parent is None]
    assert (len(starts) - 1) / max(starts) == pytest.approx(10.0)
    assert [row.delay_s for row in scaled] == [row.delay_s for row in made.rows]
    batch = scale_arrivals(scenario("S9", "tiny", 1).rows, 5.0)
    later = [row.arrival_s for row in batch if row.arrival_s > 0]
    assert len(later) / max(later) == pytest.approx(5.0)
    assert sum(row.arrival_s == 0 for row in batch) == 81
    assert {row.arrival_s for row in scale_arrivals(made.rows, float("inf"))} == {0.0}
    with pytest.raises(ConfigError, match="above 0"):
        scale_arrivals(made.rows, 0.0)


def test_overrides_reach_generators_and_fields() -> None:
    made = scenario("S1", "tiny", 1, num_requests=20, kv_tokens=5000, scheduler={"max_running": 4})
    assert (len(made.rows), made.kv_tokens, made.scheduler) == (20, 5000, {"max_running": 4})
    assert scenario("S1", "tiny", 1, groups_in_cache=64).kv_tokens > scenario("S1", "tiny", 1).kv_tokens


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": "S11"}, "S1"),
        ({"name": "S1", "size": "tinny"}, "tiny"),
        ({"name": "S1", "num_request": 3}, "num_requests"),
        ({"name": "S5", "arrivals": "gama"}, "gamma"),
    ],
)
def test_errors_name_the_nearest(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        scenario(**arguments)  # type: ignore[arg-type]


def test_rows_that_cannot_be_played_are_refused() -> None:
    made: Scenario = scenario("S1", "tiny", 1)
    rows = (msgspec.structs.replace(made.rows[0], parent=3), *made.rows[1:])
    with pytest.raises(ConfigError, match="row 0"):
        msgspec.structs.replace(made, rows=rows)
