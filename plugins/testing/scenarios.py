"""What a policy is tried on: small engines and what arrives at them, as plain data.  Builders for your own too."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from ...core.config import Depth
from ...core.messages import Cancel, Message, Pause, Resume, SamplingParams, Submit

FIRST_ID, VOCAB_SIZE = 2, 1000  # ids below end a generation; the fake executor never draws them by itself


@dataclass(frozen=True)
class Scenario:
    """One engine and its traffic.  Times are virtual seconds; a step takes ``step_s`` plus ``token_s`` per token."""

    name: str
    actions: tuple[tuple[float, Message], ...] = ()
    token_budget: int = 32
    max_running: int = 8
    depth: Depth = 1
    num_blocks: int = 64
    block_size: int = 4
    max_bypass: int = 16
    watermark: float = 0.0
    max_context: int = 200
    step_s: float = 0.01
    token_s: float = 0.001
    max_events: int = 2000

    def at_depth(self, depth: Depth) -> Scenario:
        """The same with so many steps in flight."""
        return replace(self, name=f"{self.name}, depth {depth}", depth=depth)


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    """``length`` token ids; the same for the same ``seed``."""
    rng = Random(seed)
    return tuple(rng.randrange(FIRST_ID, VOCAB_SIZE) for _ in range(length))


def submit(rid: str, prompt_tokens: int, max_tokens: int, *, seed: int | None = None, **fields: Any) -> Submit:
    """A request for exactly ``max_tokens`` tokens after ``prompt_tokens`` ids of its own."""
    ids = prompt(prompt_tokens, sum(map(ord, rid)) if seed is None else seed)
    return Submit(rid, ids, SamplingParams(max_tokens=max_tokens, ignore_eos=True), **fields)


def burst(requests: Iterable[Submit], moment: float = 0.0) -> tuple[tuple[float, Message], ...]:
    """Everybody at once, in the given order."""
    return tuple((moment, request) for request in requests)


def mix(
    seed: int, count: int, *, over_s: float = 1.0, prompts: int = 40, outputs: int = 12
) -> list[tuple[float, Submit]]:
    """``count`` random requests over ``over_s`` seconds: three tenants, classes, deadlines, a few long prompts, a few
    whose length is known only to the finish check."""
    rng, requests = Random(seed), list[tuple[float, Submit]]()
    for index in range(count):
        moment = rng.uniform(0, over_s)
        size = rng.randint(1, prompts) if rng.random() < 0.8 else rng.randint(1, 6)
        requests.append(
            (
                moment,
                submit(
                    f"r{index}",
                    size,
                    rng.randint(1, outputs),
                    tenant=rng.choice("aaabbc"),
                    priority=rng.choice((0, 0, 0, 1, 2, -1)),
                    deadline=moment + rng.uniform(0.05, 5) if rng.random() < 0.2 else None,
                    forced_length=rng.randint(1, outputs) if rng.random() < 0.2 else None,
                ),
            )
        )
    return sorted(requests, key=lambda request: request[0])


def disturbed(seed: int, requests: Iterable[tuple[float, Submit]]) -> tuple[tuple[float, Message], ...]:
    """The same requests, of which some are cancelled and some paused for a while."""
    rng, actions = Random(seed), list[tuple[float, Message]]()
    for moment, request in requests:
        actions.append((moment, request))
        if rng.random() < 0.3:
            actions.append((moment + rng.uniform(0, 0.5), Cancel(request.rid)))
        if rng.random() < 0.3:
            pause = moment + rng.uniform(0, 0.5)
            actions += [(pause, Pause((request.rid,))), (pause + rng.uniform(0, 0.5), Resume((request.rid,)))]
    return tuple(sorted(actions, key=lambda action: action[0]))


def _shared_prefixes() -> list[tuple[float, Submit]]:
    rng = Random(5)
    heads = [prompt(20, seed) for seed in range(3)]
    sampling = SamplingParams(max_tokens=5, ignore_eos=True)
    return [
        (index * 0.01, Submit(f"p{index}", rng.choice(heads) + prompt(rng.randint(1, 8), index), sampling))
        for index in range(18)
    ]


def standard() -> tuple[Scenario, ...]:
    """The traffic that every policy is tried on: adversarial mixes, tiny pools, every ``scheduler.depth``."""
    twins = burst(submit(f"twin{index}", 9, 5, seed=1, tenant="ab"[index % 2]) for index in range(12))
    giants = (
        *burst(submit(f"giant{index}", 90, 4) for index in range(3)),
        *burst(submit(f"s{i}", 3, 4) for i in range(9)),
    )
    odd = [
        (0.0, submit("empty", 0, 4)),
        (0.0, submit("larger-than-the-pool", 150, 4)),
        (0.0, submit("fills-the-pool", 39, 40)),
        (0.0, submit("late", 8, 4, deadline=0.0)),
        (0.0, submit("fine", 8, 4)),
        (0.0, Cancel("nobody")),
        (0.001, Cancel("fine")),
        (0.02, submit("again", 8, 4)),
        (0.03, submit("lone", 5, 9)),
    ]
    return (
        Scenario(
            "ten that fit", burst(submit(f"r{index}", 6, 6, tenant="abc"[index % 3]) for index in range(10)), 64, 16
        ),
        Scenario("random mix", tuple(mix(1, 30))),
        Scenario("random mix", tuple(mix(2, 30)), max_running=4).at_depth(2),
        Scenario("tiny pool", tuple(mix(3, 20, prompts=25)), 16, num_blocks=12),
        Scenario("tiny pool", tuple(mix(4, 20, prompts=25)), 16, num_blocks=12, watermark=0.1).at_depth(2),
        Scenario("cancels and pauses", disturbed(6, mix(5, 25)), num_blocks=24),
        Scenario("cancels and pauses", disturbed(8, mix(7, 25)), num_blocks=24, block_size=1).at_depth(2),
        Scenario("cancels and pauses", disturbed(12, mix(11, 25)), 16, num_blocks=24).at_depth("auto"),
        Scenario("shared prefixes", tuple(_shared_prefixes()), num_blocks=40).at_depth(2),
        Scenario("giants and dwarfs", giants, 16, num_blocks=60),
        Scenario("identical twins", twins, 8, max_running=3).at_depth(2),
        Scenario("one slot", tuple(mix(9, 15, prompts=10, outputs=5)), max_running=1),
        Scenario("one token a step", tuple(mix(10, 8, prompts=8, outputs=4)), 1),
        Scenario("odd requests", tuple(odd), num_blocks=10),
    )
