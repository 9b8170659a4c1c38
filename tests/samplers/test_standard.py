"""The standard sampler draws exactly what its definition says: against an obvious float64 reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mainspring.core.errors import ClientError, EngineFault
from mainspring.core.hookspecs import PROJECT
from mainspring.core.messages import SamplingParams
from mainspring.core.policy import SampleOutput, Sampler, SamplerContext
from mainspring.samplers import order, stages, standard
from mainspring.samplers.plan import SamplingPlan
from mainspring.samplers.standard import StandardSampler


@dataclass
class Case:
    """One row to draw; off by default."""

    uniform: float
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


def plan(cases: list[Case]) -> SamplingPlan:
    none = np.zeros(0, np.int64)
    return SamplingPlan(
        temperature=np.array([case.temperature for case in cases], np.float32),
        top_k=np.array([case.top_k for case in cases], np.int32),
        top_p=np.array([case.top_p for case in cases], np.float32),
        min_p=np.array([case.min_p for case in cases], np.float32),
        uniform=np.array([case.uniform for case in cases]),
        greedy=np.array([case.temperature == 0 for case in cases]),
        banned_rows=none,
        banned_ids=none,
    )


def run(logits: npt.NDArray[np.float32], cases: list[Case]) -> SampleOutput:
    sampler = StandardSampler(None, SamplerContext(logits.shape[1]))
    return sampler.run(torch.from_numpy(logits.copy()), plan(cases))


def reference(row: npt.NDArray[np.float32], case: Case) -> tuple[int, float]:
    """The definition, step by step, and how close (as a share) any comparison came without being exactly equal."""
    order = np.lexsort((np.arange(len(row)), -row))  # by descending logit, then ascending id
    if case.temperature == 0:
        return int(order[0]), 1.0
    values = row[order].astype(np.float64)
    weights = np.exp((values - values[0]) / np.float64(np.float32(case.temperature)))
    gaps = []
    if case.top_k > 0:
        weights = weights[: case.top_k]
    if case.top_p < 1:
        mass = np.cumsum(weights)
        goal = np.float64(np.float32(case.top_p)) * mass[-1]
        gaps.append((mass - goal) / mass[-1])
        weights = weights[: int(np.argmax(mass >= goal)) + 1]
    if case.min_p > 0:
        floor = np.float64(np.float32(case.min_p))
        gaps.append(weights - floor)
        weights = weights[weights >= floor]
    mass = np.cumsum(weights)
    goal = case.uniform * mass[-1]
    gaps.append((mass - goal) / mass[-1])
    distances = np.abs(np.concatenate(gaps))
    return int(order[np.argmax(mass > goal)]), float(distances[distances > 0].min(initial=1.0))


def check(logits: npt.NDArray[np.float32], cases: list[Case]) -> None:
    output = run(logits, cases)
    assert output.failed == []
    for row, case, got in zip(logits, cases, output.token_ids, strict=True):
        expected, margin = reference(row, case)
        assert got == expected or margin < 1e-9, (case, got, expected, margin)


CASES = st.builds(
    Case,
    uniform=st.floats(0, 1, exclude_max=True),
    temperature=st.one_of(st.just(0.0), st.just(1.0), st.floats(1e-4, 50)),
    top_k=st.integers(0, 12),
    top_p=st.one_of(st.just(1.0), st.floats(0, 1)),
    min_p=st.one_of(st.just(0.0), st.floats(0, 1)),
)
#: Few distinct values, so that ties are everywhere; impossible tokens; and plain floats.
LOGITS = st.one_of(st.sampled_from((-np.inf, -1.0, -0.0, 0.0, 0.5, 2.0)), st.floats(-60, 60, width=32))


@pytest.mark.slow
@given(st.data())
@settings(max_examples=150)
def test_small_vocabularies_match_the_reference(data: st.DataObject) -> None:
    cases = data.draw(st.lists(CASES, min_size=1, max_size=4))
    size = data.draw(st.integers(2, 12))
    rows = [data.draw(st.lists(LOGITS, min_size=size, max_size=size)) for _ in cases]
    logits = np.array(rows, np.float32)
    assume(np.isfinite(logits.max(axis=1)).all())
    check(logits, cases)


GRID = [
    Case(0.0, temperature, top_k, top_p, min_p)
    for temperature in (0.5, 1.0, 2.5)
    for top_k in (0, 2, 50, 255, 256, 1500, 4096)
    for top_p in (0.3, 0.95, 1.0)
    for min_p in (0.0, 0.02)
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["spread", "flat", "coarse", "equal"])
def test_every_short_cut_gives_what_the_definition_gives(kind: str) -> None:
    """C-16, C-17: wide rows, where most answers come from a few leading tokens and some need more or all."""
    generator = np.random.default_rng(1)
    shape = (len(GRID), 6000)
    logits = {
        "spread": generator.normal(size=shape) * 3,
        "flat": generator.normal(size=shape) * 0.1,
        "coarse": np.round(generator.normal(size=shape) * 2),  # hundreds of ties at every cut
        "equal": np.zeros(shape),
    }[kind].astype(np.float32)
    for uniform in (0.0, 0.2, 0.7, 0.999, 1 - 2.0**-53):
        check(logits, [Case(uniform, case.temperature, case.top_k, case.top_p, case.min_p) for case in GRID])


@pytest.mark.parametrize("kind", ["drawn", "greedy"])
def test_the_path_for_other_devices_gives_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What NumPy does on a CPU is done by torch elsewhere: the same ids, ties and failures."""
    logits = np.round(np.random.default_rng(2).normal(size=(6, 2000)) * 2).astype(np.float32)
    logits[3, 1500], logits[4, 7] = np.copysign(np.nan, -1), np.inf
    cases = [Case(0.9, temperature=0.0 if kind == "greedy" else 30.0)] * 6
    expected = run(logits, cases)
    for module in (order, stages):
        monkeypatch.setattr(module, "on_cpu", lambda _: False)
    found = run(logits, cases)
    assert [row for row, _ in found.failed] == [3, 4] and found.failed == expected.failed
    drawn = [np.delete(output.token_ids, [3, 4]).tolist() for output in (found, expected)]
    assert drawn[0] == drawn[1]


@pytest.mark.slow
def test_c03_one_row_draws_the_same_at_a_real_vocabulary_in_any_batch() -> None:
    """At 49152 tokens, with 1 or 2 threads, as a slice of another tensor, at every place of a batch."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(24, 49152, generator=generator) * 4
    kinds = [(1.0, 0, 1.0, 0.0), (0.8, 50, 1.0, 0.0), (1.0, 0, 0.9, 0.0), (3.0, 0, 1.0, 1e-3), (0.0, 0, 1.0, 0.0)]
    cases = [Case(row / 24, *kinds[row % len(kinds)]) for row in range(24)]
    sampler = StandardSampler(None, SamplerContext(49152))
    together = sampler.run(logits.clone(), plan(cases)).token_ids
    backwards = sampler.run(logits.flip(0), plan(cases[::-1])).token_ids[::-1]
    spread = torch.empty(24, 2 * 49152)
    spread[:, ::2] = logits
    strided = sampler.run(spread[:, ::2], plan(cases)).token_ids
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = [sampler.run(logits[n : n + 1].clone(), plan([cases[n]])).token_ids[0] for n in range(24)]
    finally:
        torch.set_num_threads(threads)
    assert alone == together == backwards == strided


def test_c15_the_reasons_say_what_was_wrong() -> None:
    logits = np.zeros((4, 5), np.float32)
    logits[0, 1], logits[1, 1], logits[2] = np.nan, np.inf, -np.inf
    output = run(logits, [Case(0.5)] * 4)
    assert [row for row, _ in output.failed] == [0, 1, 2]
    for (_, why), word in zip(output.failed, ("NaN", "+inf", "no token"), strict=True):
        assert word in why


def test_top_p_drops_the_token_before_which_p_is_exactly_reached() -> None:
    """Four equal tokens, p = 0.5: two reach it, so the third is out; any more and it is in."""
    logits = np.zeros((1, 4), np.float32)
    last = 1 - 2.0**-53
    assert run(logits, [Case(last, top_p=0.5)]).token_ids == [1]
    assert run(logits, [Case(last, top_p=0.5001)]).token_ids == [2]
    assert run(logits, [Case(last, top_p=0.5, top_k=2)]).token_ids == [0], "a share of what top-k left"


def test_the_draw_starts_at_the_next_token_when_the_uniform_hits_an_edge() -> None:
    """The cumulative probability must exceed the uniform: 0.25 of four equal tokens is the second one."""
    logits = np.zeros((3, 4), np.float32)
    assert run(logits, [Case(0.0), Case(0.25), Case(np.nextafter(0.25, 0))]).token_ids == [0, 1, 0]


def test_another_order_of_the_cuts_is_another_distribution() -> None:
    """The order is data: with top-p before top-k the share counts the whole vocabulary."""

    class PFirst(StandardSampler):
        order = (StandardSampler.order[1], StandardSampler.order[0])

    logits = torch.zeros(1, 10)
    cases = plan([Case(1 - 2.0**-53, top_k=4, top_p=0.5)])
    assert StandardSampler(None, SamplerContext(10)).run(logits.clone(), cases).token_ids == [1]
    assert PFirst(None, SamplerContext(10)).run(logits.clone(), cases).token_ids == [3]


@pytest.mark.parametrize(
    "logits", [torch.zeros(2, 5), torch.zeros(1, 6), torch.zeros(5), torch.zeros(1, 5, dtype=torch.float16)]
)
def test_wrong_logits_are_our_fault_and_say_so(logits: torch.Tensor) -> None:
    with pytest.raises(EngineFault, match=r"expected torch.float32 \[1, 5\]"):
        StandardSampler(None, SamplerContext(5)).run(logits, plan([Case(0.0)]))


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("temperature", -1.0, "from 0 to any finite number"),
        ("temperature", True, "must be a number"),
        ("temperature", "1", "must be a number"),
        ("top_p", 1.5, "from 0 to 1"),
        ("min_p", float("nan"), "from 0 to 1"),
        ("top_k", -2, "switch it off"),
        ("top_k", 1.0, "must be an integer"),
        ("seed", 2**64, "from 0 to 18446744073709551615"),
        ("seed", False, "must be an integer"),
        ("min_tokens", -1, "at least 0"),
        ("max_tokens", -1, "at least 0"),
        ("stop_token_ids", (100,), "from 0 to 99, the vocabulary's last id"),
    ],
)
def test_refusals_name_field_value_and_range(field: str, value: Any, rule: str) -> None:
    with pytest.raises(ClientError) as caught:
        StandardSampler(None, SamplerContext(100)).validate(SamplingParams(**{field: value}))
    shown = value[0] if field == "stop_token_ids" else value
    assert caught.value.message.startswith(f"{field} = {shown!r}: ")
    assert rule in caught.value.message
    assert (caught.value.code, caught.value.param) == ("invalid_request", field)


def test_an_unknown_parameter_gets_the_nearest_name() -> None:
    with pytest.raises(ClientError, match="'top_kk'; did you mean 'top_k'"):
        StandardSampler(None, SamplerContext(100)).validate(SamplingParams(extra={"top_kk": 4}))


def test_the_extremes_of_every_range_are_accepted_and_drawn_from() -> None:
    sampler = StandardSampler(None, SamplerContext(100))
    for params in (
        SamplingParams(temperature=0, top_p=1, min_p=0, seed=0),  # integers where numbers are meant
        SamplingParams(temperature=1.7e308, top_k=10**30, seed=2**64 - 1, min_tokens=10**30, max_tokens=10**30),
        SamplingParams(top_p=0.0, min_p=1.0, top_k=-1, stop_token_ids=(0, 99), min_tokens=300, max_tokens=1),
    ):
        sampler.validate(params)


def test_the_module_registers_one_sampler_that_keeps_the_contract() -> None:
    found: list[tuple[str, Any, Any]] = []
    standard.register_samplers(lambda name, factory, options=None: found.append((name, factory, options)))
    assert found == [("standard", StandardSampler, None)]
    assert hasattr(standard.register_samplers, f"{PROJECT}_impl")
    kept: Sampler = StandardSampler(None, SamplerContext(10))
    assert kept.api_level == 1
