"""Victim choice and admission estimates: small keys behind options, the same for every policy that takes them."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from tests.schedulers.test_priority import preempted
from tests.support import Lab, config, lab, submit

from mainspring.core.config import AllocatorConfig, Config, SchedulerConfig
from mainspring.core.errors import ConfigError
from mainspring.core.messages import SamplingParams, Submit
from mainspring.core.policy import Event, PolicyContext
from mainspring.core.registry import Registry
from mainspring.schedulers.host.build import make_policy
from mainspring.schedulers.keys.admission import AverageOutput, final_length, peak_tokens


def tight(**options: Any) -> Lab:
    """Three run in 12 blocks of 4 tokens and outgrow them; C was admitted last, A has the longest prompt."""
    it = lab(config(4, options=options), num_blocks=12)
    it.sim.at(0.0, submit("A", 17, 12, priority=1), submit("B", 10, 30, priority=9))
    it.sim.at(1.5, submit("C", 14, 20, priority=2))
    it.sim.run()
    assert all(finish.usage.output in (12, 20, 30) for finish in it.ends().values())
    return it


@pytest.mark.parametrize(
    ("victims", "first"),
    [
        ("latest", "C"),
        ("least_computed", "B"),
        ("most_computed", "A"),
        ("lowest_priority", "B"),
        ("longest_remaining", "B"),
    ],
)
def test_victim_choice(victims: str, first: str) -> None:
    assert preempted(tight(victims=victims))[0] == first


def test_random_victims_come_from_the_hosts_generator() -> None:
    chosen = {preempted(seeded(seed))[0] for seed in range(8)}
    assert len(chosen) > 1
    assert preempted(seeded(1)) == preempted(seeded(1))


def seeded(seed: int) -> Lab:
    it = lab(config(4, options={"victims": "random"}, seed=seed), num_blocks=12)
    it.sim.at(0.0, *(submit(rid, 14, 20) for rid in "ABC"))
    it.sim.run()
    return it


def test_final_length_admission_never_preempts() -> None:
    assert preempted(tight(admission="prompt"))
    assert not preempted(tight(admission="final"))


def test_peak_admits_what_final_length_holds_back() -> None:
    """A is nearly done when B gets long: together they fit at every moment, the sum of their final lengths does not."""
    for admission, together in (("final", False), ("peak", True)):
        it = lab(config(1, options={"admission": admission}), num_blocks=30)
        it.sim.at(0.0, submit("A", 10, 8))
        it.sim.at(1.5, submit("B", 2, 12))
        it.sim.run()
        assert any("A" in batch and "B" in batch for batch in it.batches()) is together, admission
        assert not preempted(it)


def brute_force_peak(lengths: list[tuple[int, int]]) -> int:
    longest = max(to_come for _, to_come in lengths)
    return max(sum(now + step for now, to_come in lengths if to_come >= step) for step in range(longest + 1))


def test_peak_is_the_peak() -> None:
    """Invariant 126, against a simulation of every step."""
    rng = random.Random(5)
    for _ in range(300):
        lengths = [(rng.randint(1, 50), rng.randint(0, 40)) for _ in range(rng.randint(1, 8))]
        assert peak_tokens(lengths) == brute_force_peak(lengths)


def test_estimates_do_not_believe_in_any_max_tokens() -> None:
    """Invariant 127: clipping is for the estimate only, the request still gets all it asked for."""
    it = lab(config(4, options={"admission": "final", "longest_output": 8}), num_blocks=20)
    it.sim.at(0.0, submit("A", 8, 40), submit("B", 8, 4))
    it.sim.run()
    assert it.batches()[0] == "A8* B8*"
    assert it.ends()["A"].usage.output == 40


@pytest.mark.parametrize("admission", ["final", "peak"])
def test_the_average_of_what_has_finished_replaces_max_tokens(admission: str) -> None:
    """Invariants J 126 and 127: requests that may have 200 tokens end after 10, and more of them run at once."""
    makespans, most = dict[str, float](), dict[str, int]()
    for estimate in ("max_tokens", "average"):
        options = {"admission": admission, "output_estimate": estimate}
        it = lab(config(4, max_running=16, options=options), num_blocks=60)
        it.sim.at(0.0, *(submit(f"r{index}", 8, 200, forced_length=10) for index in range(30)))
        it.sim.at(0.0, submit("long", 8, 60))
        it.sim.run()
        lengths = {rid: len(ids) for rid, ids in it.outputs().items()}
        assert lengths == {**{f"r{index}": 10 for index in range(30)}, "long": 60}  # the estimate ends nobody
        makespans[estimate] = max(end.timing.finished or 0.0 for end in it.ends().values())
        most[estimate] = max(len(plan.rows) for plan in it.plans)
        assert it.host.stats()["policy_faults"] == 0
    assert most["max_tokens"] <= 4 < most["average"]
    assert makespans["average"] < makespans["max_tokens"]


def test_the_running_average() -> None:
    """Unknown before the first end; who has outgrown it counts for a tenth more than it has; never more than asked."""

    def seen(produced: int, kind: Any = "finished", max_tokens: int = 1000) -> Any:
        view = SimpleNamespace(
            num_output_tokens=produced, num_tokens=8 + produced, num_prompt_tokens=8, max_tokens=max_tokens
        )
        return Event(kind, view, 0, 0.0)  # type: ignore[arg-type]

    average = AverageOutput(longest_output=400)
    assert average.longest(seen(0).request) == 400
    for event in (seen(0), seen(7, "tokens"), seen(32), seen(64)):
        average.learn(event)
    assert average.tokens == 32 + 32 / 16
    assert [average.longest(seen(produced).request) for produced in (0, 30, 100, 390)] == [34, 34, 111, 400]
    assert final_length(seen(30).request, average.longest(seen(30).request)) == 8 + 34
    assert final_length(seen(30, max_tokens=31).request, average.longest(seen(30).request)) == 8 + 31


def test_an_idle_engine_admits_whatever_the_estimate_says() -> None:
    it = lab(config(4, options={"admission": "final"}), num_blocks=10)
    it.sim.at(0.0, submit("A", 8, 5000))
    it.sim.run()
    assert it.ends()["A"].usage.output == 32


def test_admit_every() -> None:
    it = lab(config(options={"admit_every": 4}))
    it.sim.at(0.0, submit("A", 2, 12))
    it.sim.at(0.5, submit("B", 2, 3))
    it.sim.run()
    assert it.batches()[:5] == ["A2*", "A1*", "A1*", "A1* B2*", "A1* B1*"]


def test_the_watermark_goes_with_any_estimate() -> None:
    """Invariant 67: admission keeps a share free; who runs may use it."""
    it = lab(config(4, watermark=0.5), num_blocks=10)
    it.sim.at(0.0, submit("A", 12, 20))
    it.sim.at(0.5, submit("B", 12, 20))
    it.sim.run()
    assert not any("A" in batch and "B" in batch for batch in it.batches())
    assert not preempted(it)


@pytest.mark.parametrize(
    ("use", "options", "words"),
    [
        ("fcfs", {"victim": "latest"}, "victims"),
        ("fcfs", {"victims": "newest"}, "scheduler.options.victims = 'newest'"),
        ("fcfs", {"admit_every": 0}, "admit_every = 0"),
        ("priority", {"lower_frist": True}, "lower_first"),
        ("mlfq", {"levels": "many"}, "levels = 'many'"),
        ("fair", {"weights": {"a": 0}}, "weights"),
        ("shortest", {"mode": "fewest"}, "mode = 'fewest'"),
        ("dynamic_batch", {"max_wait_s": -1}, "max_wait_s = -1"),
        ("fiar", {}, "fair"),
    ],
)
def test_wrong_options_stop_the_start(use: str, options: dict[str, Any], words: str) -> None:
    """F-02: the key, its value and the nearest valid one are named."""
    with pytest.raises(ConfigError) as caught:
        make_policy(Registry().make, SchedulerConfig(use=use, options=options), PolicyContext(8, 1, 8, 4))
    assert words in str(caught.value)


def recompute_tax(victims: str, num_blocks: int) -> float:
    """Recomputed tokens per token of work: prompts of 16 to 128 tokens and outputs up to 128 on a small pool."""
    from mainspring.plugins.simulator import Simulator
    from mainspring.plugins.testing.fake_executor import FakeExecutor

    settings = Config(
        scheduler=SchedulerConfig(options={"victims": victims}, max_running=64, depth=1),
        allocator=AllocatorConfig(use="paged", block_size=16),
    )
    simulator = Simulator(settings, FakeExecutor(num_blocks, 16))
    rng, work = random.Random(12345), 0
    for index in range(60):
        prompt, output = rng.randint(16, 128), rng.randint(16, 128)
        work += prompt + output
        ids = tuple(rng.randrange(2, 1000) for _ in range(prompt))
        simulator.at(0.0, Submit(f"r{index}", ids, SamplingParams(max_tokens=output, ignore_eos=True)))
    simulator.run()
    counters: Any = simulator.actors.host
    return float(counters.counters["recomputed_tokens"]) / work


@pytest.mark.slow
def test_recompute_tax_of_victims() -> None:
    """Least computed wastes least, most computed most; a pool that is large enough wastes nothing."""
    tax = {victims: recompute_tax(victims, 120) for victims in ("least_computed", "latest", "random", "most_computed")}
    assert tax["least_computed"] < tax["random"] < tax["most_computed"], tax
    assert tax["latest"] < tax["random"], tax
    assert recompute_tax("latest", 1000) == 0
