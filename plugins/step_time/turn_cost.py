"""What a turn of the engine costs beside the model: take a step's results in, decide, grant, launch the next.

Measured on the real host, policy and allocator without a model, at several numbers of running and waiting requests, and
fitted to ``a + b x running + c x waiting`` microseconds; ``live_turns`` measures what the live engine adds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

from ...core.config import AllocatorConfig, Config, SchedulerConfig
from ...core.messages import SamplingParams, Submit
from ...core.registry import Registry
from ..simulation.scripted_model import ScriptedModel
from ..simulator import LinearStepTime, Simulator
from .fit import nnls
from .policy_cost import PolicyCost

#: (running, waiting)
PLACES = ((1, 0), (8, 0), (32, 0), (128, 0), (8, 200), (32, 200), (128, 200), (32, 1000), (128, 1000))
STEPS, SKIPPED, PROMPT = 30, 5, 32
GROUPS = ("static_batch", "dynamic_batch")  # these have a batch size of their own


def turn_us(registry: Registry, policy: str, running: int, waiting: int) -> float:
    """Median microseconds of a turn."""
    options = {"max_batch": running} if policy in GROUPS else {}
    config = Config(
        scheduler=SchedulerConfig(
            use=policy,
            options=options,
            token_budget=running * PROMPT,
            max_running=running,
            max_waiting=1 << 20,
            depth=1,  # as in `live_turns`
        ),
        allocator=AllocatorConfig(use="prefix"),
    )
    blocks = running * (PROMPT + STEPS + 64) // 16 + 64
    model = ScriptedModel(blocks, 50_000, 1 << 16)
    simulator = Simulator(config, model, LinearStepTime(), registry, on_emit=lambda _emit, _now: None)
    submits = []
    for number in range(running + waiting):
        rid, base = f"r{number}", 100 + number
        model.expect(rid, PROMPT, (7,))
        ids = tuple((base * 131 + at) % 40_000 + 16 for at in range(PROMPT))
        sampling = SamplingParams(max_tokens=STEPS + 40, ignore_eos=True)
        submits.append(Submit(rid, ids, sampling, number % 3, f"t{number % 4}"))
    simulator.at(0.0, *submits)
    simulator.run(max_events=1)
    taken = []
    for _ in range(STEPS):
        started = time.perf_counter()
        if not simulator.run(max_events=1):
            break
        taken.append((time.perf_counter() - started) * 1e6)
    return statistics.median(taken[SKIPPED:])


def fit_turns(
    registry: Registry, policies: Sequence[str] = (), progress: Callable[[str], None] = lambda _line: None
) -> dict[str, PolicyCost]:
    """The formula of each policy; all that the registry knows if none is named."""
    names = list(policies) or [info.name for info in registry.available("scheduler")]
    costs = {}
    for name in names:
        measured = [turn_us(registry, name, running, waiting) for running, waiting in PLACES]
        weight = 1.0 / np.asarray(measured)
        matrix = np.asarray([(1.0, running, waiting) for running, waiting in PLACES]) * weight[:, None]
        a, b, c = (float(value) for value in nnls(matrix, np.ones(len(PLACES))))
        costs[name] = PolicyCost(a_us=round(a, 3), b_us=round(b, 4), c_us=round(c, 5))
        progress(f"a turn with {name}: {a:.0f} + {b:.2f} running + {c:.3f} waiting us")
    return costs
