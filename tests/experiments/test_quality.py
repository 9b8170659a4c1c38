"""Variety and repetition of outputs, and the page of text."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.experiments.lab import write

from mainspring.core.errors import ConfigError
from mainspring.plugins.experiments import spec
from mainspring.plugins.experiments.quality import direction_of, quality
from mainspring.plugins.experiments.run import run

PROMPTS = 'clock = "live"\nbaseline = "a"\nprimary = "distinct_2"\n'


def test_distinct_n_and_repetition_are_counted_on_ids() -> None:
    """Two outputs; by hand: 9 unigrams of which 5 differ, 7 bigrams of which 4, one 4-gram of 3 repeated."""
    made = quality({0: [1, 2, 1, 2, 1, 2], 1: [3, 4, 5]})
    assert made["distinct_1"] == pytest.approx(5 / 9)
    assert made["distinct_2"] == pytest.approx(4 / 7)
    assert made["repetition_4"] == pytest.approx(1 / 3)
    assert quality({0: [1]}) == {"distinct_1": 1.0, "distinct_2": None, "repetition_4": None}


def test_their_directions_are_known_and_so_are_the_others() -> None:
    assert direction_of("distinct_2") == "higher" and direction_of("repetition_4") == "lower"
    assert direction_of("ttft_mean") == "lower" and direction_of("hit_rate") == "higher"
    with pytest.raises(ConfigError):
        direction_of("distinct_9")


def test_they_need_text(tmp_path: Path) -> None:
    path = write(tmp_path, head=PROMPTS, arms="[arms.a]\n[arms.b]\n")
    with pytest.raises(ConfigError, match=r"distinct_2: needs workload\.prompts"):
        spec.read(path)


def test_the_page_of_text_says_what_it_ran_on_and_what_came_out(tmp_path: Path) -> None:
    run(write(tmp_path, load="[load]\nrate = [25.0]\n", more="price_per_hour = 3.6\n"), tmp_path / "out")
    page = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    for words in (
        "# order by prefix", "| **Hardware** | made up |", "| **Batching** |", "prefix: use = prefix_priority",
        "| **Cache** | 3840 tokens of KV", "## 25 per s", "| arm | TTFT p50, ms |", "cost per million tokens",
        "| `fcfs` |", "| `prefix` |", "## Correctness", "## Finding", "Means over 5 runs of each arm, ",
    ):  # fmt: skip
        assert words in page
