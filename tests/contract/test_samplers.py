"""What every sampler promises, whatever its method: tried on each one that the samplers folder registers.

A sampler is driven only as the engine drives it: ``StepGrant`` in, ``StepLaunch`` out, ``run`` on logits.
"""

from __future__ import annotations

import importlib
import itertools
import math
import pkgutil
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import mainspring.samplers
from mainspring.core.errors import ClientError
from mainspring.core.messages import GrantedRow, SamplingParams, Started, StepGrant, StepLaunch
from mainspring.core.policy import SampleOutput, Sampler, SamplerContext

VOCAB = 300
END_IDS = (2, 7)


def registered() -> dict[str, tuple[Any, Any]]:
    """name -> (factory, options type) of every built-in sampler."""
    found: dict[str, tuple[Any, Any]] = {}

    def register(name: str, factory: Any, options: type | None = None) -> None:
        found[name] = (factory, options)

    for module in pkgutil.iter_modules(mainspring.samplers.__path__):
        hook = getattr(importlib.import_module(f"mainspring.samplers.{module.name}"), "register_samplers", None)
        if hook is not None:
            hook(register)
    return found


def make(name: str) -> Sampler:
    factory, options = registered()[name]
    made: Sampler = factory(options() if options else None, SamplerContext(VOCAB, END_IDS))
    return made


SAMPLING = {"temperature", "top_k", "top_p", "min_p", "seed", "min_tokens", "stop_token_ids", "ignore_eos"}


@pytest.fixture(params=sorted(registered()))
def any_sampler(request: pytest.FixtureRequest) -> Sampler:
    """Each registered sampler: what the engine relies on."""
    return make(request.param)


@pytest.fixture(params=[name for name in sorted(registered()) if make(name).parameters >= SAMPLING])
def sampler(request: pytest.FixtureRequest) -> Sampler:
    """Each one that claims to understand the sampling parameters: what a client relies on."""
    return make(request.param)


Request = tuple[str, SamplingParams, int]  # rid, parameters, tokens of output it already has
PROMPT = 10


def grant(requests: Sequence[Request], *, started: bool = True, released: tuple[str, ...] = ()) -> StepGrant:
    rows = tuple(GrantedRow(rid, PROMPT + n - 1, 1, None, True, (), ()) for rid, _, n in requests)
    starts = tuple(Started(rid, (0,) * (PROMPT + n), PROMPT, 0, params) for rid, params, n in requests)
    return StepGrant(0, rows, started=starts if started else (), released=released)


def launch(sampler: Sampler, message: StepGrant) -> StepLaunch:
    (made,) = sampler.handle(message, 0.0)
    sampler.check()
    assert isinstance(made, StepLaunch)
    return made


def sample(sampler: Sampler, logits: torch.Tensor, requests: Sequence[Request]) -> SampleOutput:
    """One step that starts all ``requests`` and ends them again."""
    output = sampler.run(logits.clone(), launch(sampler, grant(requests)).sampling)
    launch(sampler, StepGrant(1, (), released=tuple(rid for rid, _, _ in requests)))
    return output


def ids(sampler: Sampler, logits: torch.Tensor, *params: SamplingParams, start: int = 0) -> list[int]:
    """Ids of one row per parameter set, at output positions ``start``, ``start + 1``, ..."""
    output = sample(sampler, logits, [(f"r{row}", each, start + row) for row, each in enumerate(params)])
    assert output.failed == []
    return output.token_ids


def repeat(logits: torch.Tensor, times: int) -> torch.Tensor:
    return logits.repeat(times, 1)


def random_logits(rows: int, seed: int = 0, spread: float = 2.0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * spread


# --- the actor half --------------------------------------------------------------------------------------------------


def test_a_grant_that_asks_for_nothing_launches_nothing(any_sampler: Sampler) -> None:
    assert list(any_sampler.handle(StepGrant(3, ()), 0.0)) == []


def test_a_grant_that_only_releases_is_passed_on(any_sampler: Sampler) -> None:
    launch(any_sampler, grant([("a", SamplingParams(), 0)]))
    made = launch(any_sampler, StepGrant(4, (), released=("a", "never started")))
    assert (made.step, made.rows, made.released) == (4, (), ("a", "never started"))
    assert any_sampler.run(torch.empty(0, VOCAB), made.sampling) == SampleOutput([], [])


def test_the_launch_carries_the_grant_and_plans_only_rows_that_sample(any_sampler: Sampler) -> None:
    params = SamplingParams(temperature=0.0)
    start = [Started(rid, (0,) * 6, 6, 0, params) for rid in "ab"]
    rows = (GrantedRow("a", 0, 4, (0,) * 4, False, (0,), (0,)), GrantedRow("b", 0, 6, (0,) * 6, True, (1,), (1,)))
    message = StepGrant(5, rows, started=tuple(start), copies=((0, 1),), padding=(8,))
    made = launch(any_sampler, message)
    assert (made.step, made.rows, made.copies, made.padding) == (5, rows, message.copies, message.padding)
    logits = random_logits(1)
    assert any_sampler.run(logits.clone(), made.sampling).token_ids == [int(logits[0].argmax())]


def test_the_defaults_are_valid_and_unknown_parameters_are_refused_by_name(sampler: Sampler) -> None:
    sampler.validate(SamplingParams())
    with pytest.raises(ClientError) as caught:
        sampler.validate(SamplingParams(extra={"no_such_parameter": 1}))
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "no_such_parameter")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("temperature", value) for value in (-0.1, math.nan, math.inf, -math.inf)),
        *(("top_p", value) for value in (-0.1, 1.1, math.nan)),
        *(("min_p", value) for value in (-0.1, 1.1, math.nan)),
        *(("top_k", value) for value in (-2, -(10**9))),
        *(("seed", value) for value in (-1, 2**64)),
        ("min_tokens", -1),
        *(("stop_token_ids", (value,)) for value in (-1, VOCAB, 10**12)),
    ],
)
def test_c01_c02_c17_impossible_values_are_refused(sampler: Sampler, field: str, value: Any) -> None:
    with pytest.raises(ClientError) as caught:
        sampler.validate(SamplingParams(**{field: value}))
    assert (caught.value.code, caught.value.param) == ("invalid_request", field)
    assert field in caught.value.message


# --- meaning of the parameters ---------------------------------------------------------------------------------------


def test_c01_top_k_beyond_the_vocabulary_is_off(sampler: Sampler) -> None:
    logits = repeat(random_logits(1), 64)
    plain = ids(sampler, logits, *[SamplingParams(seed=5)] * 64)
    for k in (0, -1, VOCAB, VOCAB + 1, 10**9):
        sampler.validate(SamplingParams(top_k=k))
        assert ids(sampler, logits, *[SamplingParams(seed=5, top_k=k)] * 64) == plain
    nearly = ids(sampler, logits, *[SamplingParams(seed=5, top_k=VOCAB - 1)] * 64)
    assert all(0 <= each < VOCAB for each in nearly)
    assert ids(sampler, logits, *[SamplingParams(seed=5, top_k=1)] * 64) == [int(logits[0].argmax())] * 64
    assert len(set(plain)) > 10


@pytest.mark.parametrize("temperature", [0.0, 1e-12, 1e-6, 1e-4])
def test_c02_small_temperatures_are_greedy_on_half_precision_logits(sampler: Sampler, temperature: float) -> None:
    logits = (torch.rand(16, VOCAB, generator=torch.Generator().manual_seed(3)) * 60 - 30).half().float()
    logits[:, 17] = 30.5
    params = SamplingParams(temperature=temperature, seed=1)
    sampler.validate(params)
    assert ids(sampler, logits, *[params] * 16) == [17] * 16


@pytest.mark.slow
def test_c02_a_huge_temperature_is_close_to_uniform(sampler: Sampler) -> None:
    logits = repeat(random_logits(1), 3000)
    for temperature in (1e6, 1e300):
        sampler.validate(SamplingParams(temperature=temperature))
        drawn = torch.tensor(ids(sampler, logits, *[SamplingParams(temperature=temperature, seed=8)] * 3000))
        counts = torch.bincount(drawn, minlength=VOCAB)
        chi_square = float(((counts - 10.0) ** 2 / 10.0).sum())
        assert chi_square < 299 + 4 * math.sqrt(2 * 299)


@pytest.mark.slow
def test_draws_follow_the_distribution(sampler: Sampler) -> None:
    probabilities = torch.tensor([0.4, 0.25, 0.2, 0.1, 0.05])
    logits = torch.full((1, VOCAB), -torch.inf)
    logits[0, 20:25] = probabilities.log() * 0.7  # drawn at temperature 0.7, so that the powers cancel
    drawn = ids(sampler, repeat(logits, 10_000), *[SamplingParams(temperature=0.7, seed=11)] * 10_000)
    counts = torch.bincount(torch.tensor(drawn), minlength=VOCAB)
    assert int(counts[20:25].sum()) == 10_000, "an impossible token was drawn"
    expected = probabilities * 10_000
    assert float(((counts[20:25] - expected) ** 2 / expected).sum()) < 18.5  # 99.9 % of chi-square with 4 degrees


def test_c15_every_combination_of_filters_leaves_a_token(sampler: Sampler) -> None:
    grid = list(itertools.product((0, 1, 2, 50), (0.0, 0.1, 0.8, 1.0), (0.0, 0.5, 1.0), (1e-4, 1.0, 5.0)))
    params = [SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m, seed=2) for k, p, m, t in grid]
    logits = random_logits(len(grid), seed=4)
    drawn = ids(sampler, logits, *params)
    ranks = (logits > logits.gather(1, torch.tensor(drawn)[:, None])).sum(-1).tolist()
    for rank, each in zip(ranks, params, strict=True):
        assert rank < (each.top_k or VOCAB)
        if each.top_k == 1 or each.top_p == 0 or each.min_p == 1:
            assert rank == 0


@pytest.mark.slow
def test_c16_ties_at_the_cut_are_always_cut_alike(sampler: Sampler) -> None:
    logits = torch.full((1, VOCAB), -torch.inf)
    logits[0, [50, 9, 30, 4]] = torch.tensor([0.5, 0.2, 0.2, 0.1]).log()
    drawn = ids(sampler, repeat(logits, 10_000), *[SamplingParams(top_k=2, seed=6)] * 10_000)
    assert set(drawn) == {50, 9}
    assert drawn.count(9) == pytest.approx(10_000 * 2 / 7, abs=150)


def test_c16_equal_logits_give_the_lowest_id_in_any_row(sampler: Sampler) -> None:
    logits = torch.full((64, VOCAB), 1.5)
    for params in (SamplingParams(temperature=0.0), SamplingParams(top_k=1), SamplingParams(top_p=0.0)):
        assert ids(sampler, logits, *[params] * 64) == [0] * 64
    logits[:, :100] = -1.0
    logits[:, 200] = -0.0
    logits[:, 100:200] = 0.0
    logits[:, 201:] = -0.0
    assert ids(sampler, logits, *[SamplingParams(temperature=0.0)] * 64) == [100] * 64
    assert set(ids(sampler, logits, *[SamplingParams(top_k=101, seed=1)] * 64)) <= set(range(100, 201))


def test_c17_the_ends_of_top_p_and_min_p(sampler: Sampler) -> None:
    logits = repeat(random_logits(1, seed=9), 64)
    logits[:, 33] = logits[:, 250] = 20.0  # two best tokens
    plain = ids(sampler, logits, *[SamplingParams(seed=5, temperature=9.0)] * 64)
    off = SamplingParams(seed=5, temperature=9.0, top_p=1.0, min_p=0.0)
    assert ids(sampler, logits, *[off] * 64) == plain
    assert ids(sampler, logits, *[SamplingParams(seed=5, top_p=0.0)] * 64) == [33] * 64
    assert set(ids(sampler, logits, *[SamplingParams(seed=5, min_p=1.0, temperature=9.0)] * 64)) == {33, 250}


# --- stopping --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("minimum", [0, 1, 4])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_c10_c11_every_end_id_is_held_back_for_exactly_min_tokens(
    sampler: Sampler, minimum: int, temperature: float
) -> None:
    params = SamplingParams(temperature=temperature, min_tokens=minimum, stop_token_ids=(40, 41), seed=1)
    for wanted in (*END_IDS, 40, 41):
        logits = random_logits(8, seed=wanted).clamp(-9, 9)
        logits[:, wanted] = 50.0
        drawn = ids(sampler, logits, *[params] * 8)
        assert [each in (*END_IDS, 40, 41) for each in drawn] == [place >= minimum for place in range(8)]


def test_c10_ignored_end_ids_are_ordinary_tokens(sampler: Sampler) -> None:
    params = SamplingParams(temperature=0.0, min_tokens=5, ignore_eos=True, stop_token_ids=(40,))
    logits = random_logits(2)
    logits[:, 40], logits[:, 7] = 60.0, 50.0
    assert ids(sampler, logits, params, params) == [7, 7]


def test_min_tokens_does_not_touch_the_neighbours(sampler: Sampler) -> None:
    logits = random_logits(3).clamp(-9, 9)
    logits[:, 2] = 50.0
    held = SamplingParams(temperature=0.0, min_tokens=5)
    free = SamplingParams(temperature=0.0)
    drawn = ids(sampler, logits, free, held, free)
    assert (drawn[0], drawn[2]) == (2, 2)
    assert drawn[1] not in END_IDS


# --- independence ----------------------------------------------------------------------------------------------------

MIXED = [
    SamplingParams(seed=42),
    SamplingParams(seed=42, temperature=0.0),
    SamplingParams(seed=42, top_k=20),
    SamplingParams(seed=42, top_p=0.9),
    SamplingParams(seed=42, min_p=0.05, temperature=1.7),
    SamplingParams(seed=42, top_k=40, top_p=0.8, min_p=0.01),
    SamplingParams(seed=42, temperature=3.0, top_k=290, top_p=0.99),
    SamplingParams(seed=42, min_tokens=99, stop_token_ids=(3, 4, 5)),
]


@pytest.mark.parametrize("params", MIXED)
def test_c03_a_row_draws_the_same_alone_and_anywhere_in_any_batch(sampler: Sampler, params: SamplingParams) -> None:
    for place in range(4):
        row = random_logits(1, seed=100 + place)
        (alone,) = sample(sampler, row, [("me", params, place)]).token_ids
        for size in (2, 8, 64):
            for index in {0, size // 2, size - 1}:
                logits = random_logits(size, seed=size)
                logits[index] = row
                mates: list[Request] = [(f"m{n}", MIXED[(n + place) % len(MIXED)], n) for n in range(size)]
                mates[index] = ("me", params, place)
                assert sample(sampler, logits, mates).token_ids[index] == alone


def test_c03_seed_and_position_matter_and_nothing_else_of_the_request(sampler: Sampler) -> None:
    logits = repeat(random_logits(1), 32)
    first = ids(sampler, logits, *[SamplingParams(seed=1)] * 32)
    assert ids(sampler, logits, *[SamplingParams(seed=1, max_tokens=7)] * 32) == first
    assert ids(sampler, logits, *[SamplingParams(seed=2)] * 32) != first
    assert ids(sampler, logits, *[SamplingParams(seed=2**64 - 1)] * 32) != first
    assert ids(sampler, logits, *[SamplingParams(seed=1)] * 32, start=1)[:-1] == first[1:]


def test_a05_a_resumed_request_goes_on_with_the_same_draws(sampler: Sampler) -> None:
    params = SamplingParams(seed=9, min_tokens=3, top_p=0.95)
    logits = random_logits(8, seed=1)

    def step(at: int, *, started: bool) -> int:
        made = launch(sampler, grant([("a", params, at)], started=started))
        return sampler.run(logits[at : at + 1].clone(), made.sampling).token_ids[0]

    straight = [step(at, started=at == 0) for at in range(8)]
    launch(sampler, StepGrant(9, (), released=("a",)))
    resumed = [step(at, started=at in (0, 2, 5)) for at in range(8)]
    assert resumed == straight
    # Recomputed from the prompt in one chunk: the same position, so the same draw.
    row = GrantedRow("a", 0, PROMPT + 4, (0,) * (PROMPT + 4), True, (), ())
    again = StepGrant(1, (row,), started=(Started("a", (0,) * (PROMPT + 4), PROMPT, 0, params),))
    assert sampler.run(logits[4:5].clone(), launch(sampler, again).sampling).token_ids == [straight[4]]


@pytest.mark.parametrize("params", MIXED)
def test_c15_rows_without_a_usable_logit_fail_alone(sampler: Sampler, params: SamplingParams) -> None:
    logits = random_logits(7, seed=5)
    requests: list[Request] = [(f"r{row}", params, row) for row in range(7)]
    healthy = sample(sampler, logits, requests).token_ids
    logits[1] = -torch.inf
    logits[3, 200] = torch.nan
    logits[5, 100] = torch.inf
    output = sample(sampler, logits, requests)
    assert [row for row, _ in output.failed] == [1, 3, 5]
    assert all(why for _, why in output.failed)
    assert [output.token_ids[row] for row in (0, 2, 4, 6)] == [healthy[row] for row in (0, 2, 4, 6)]


@pytest.mark.parametrize("params", MIXED)
def test_c20_impossible_tokens_are_never_drawn(sampler: Sampler, params: SamplingParams) -> None:
    logits = torch.full((64, VOCAB), -torch.inf)
    logits[:, 299] = -50.0
    assert ids(sampler, logits, *[params] * 64) == [299] * 64


def test_a_nan_under_a_ban_is_still_noticed(sampler: Sampler) -> None:
    logits = random_logits(1)
    logits[0, 2] = torch.nan
    assert [row for row, _ in sample(sampler, logits, [("a", SamplingParams(min_tokens=9), 0)]).failed] == [0]


def test_a_ban_of_everything_possible_fails_that_row(sampler: Sampler) -> None:
    logits = torch.full((2, VOCAB), -torch.inf)
    logits[:, 2] = 0.0
    held, free = SamplingParams(min_tokens=9), SamplingParams()
    output = sample(sampler, logits, [("a", held, 0), ("b", free, 0)])
    assert [row for row, _ in output.failed] == [0]
    assert output.token_ids[1] == 2
