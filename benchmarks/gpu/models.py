"""Tokens per second of whole networks, as the executor runs them: arrays from the host, graphs, ids back."""

from __future__ import annotations

import gc
import time
from typing import NamedTuple

import numpy as np
import torch

from mainspring.plugins.executors.cupy_device import Device
from mainspring.plugins.executors.cupy_network import CupyNetwork

from .engine import BF16, network
from .report import Report
from .weights import BLOCK, LLAMA, SMOL, Shape, scattered_tables, step, with_small_vocabulary


class Plan(NamedTuple):
    """``rows``: batches of decode to measure; ``context``: tokens before them; ``prompt``: tokens of a prefill step."""

    shape: Shape
    layers: int
    rows: tuple[int, ...]
    context: int
    prompt: int
    steps: int


PLANS = (Plan(SMOL, 0, (1, 8, 64, 256), 512, 4096, 60), Plan(LLAMA, 0, (1, 8, 64), 1024, 4096, 30))
TRY = (Plan(with_small_vocabulary(SMOL), 1, (1, 2), 20, 32, 2),)


def decode_rate(device: Device, made: CupyNetwork, rows: int, context: int, steps: int, vocab: int) -> float:
    """Steps a second of ``rows`` rows, each with the host's work and the ids on the host."""
    tables = scattered_tables(rows, context + steps + 4)
    ids = np.random.default_rng(0).integers(0, vocab, rows)
    begin = 0.0
    for at in range(steps + 3):
        if at == 3:
            device.synchronize()
            begin = time.perf_counter()
        lengths = [context + at + 1] * rows
        logits = made.forward(step([1] * rows, lengths, tables, ids, range(rows)))
        assert logits is not None
        ids = np.array(logits.argmax(-1).tolist())
    return steps / (time.perf_counter() - begin)


def prefill_rate(device: Device, made: CupyNetwork, tokens: int, vocab: int) -> float:
    """Tokens a second of one step: rows of 512 tokens, or fewer."""
    each = min(512, tokens)
    rows = tokens // each
    batch = step(
        [each] * rows, [each] * rows, scattered_tables(rows, each),
        np.random.default_rng(0).integers(0, vocab, tokens), range(rows),
    )  # fmt: skip
    times = []
    for _ in range(4):
        device.synchronize()
        begin = time.perf_counter()
        logits = made.forward(batch)
        assert logits is not None
        logits.argmax(-1).tolist()
        times.append(time.perf_counter() - begin)
    return tokens / min(times[1:])


def measure(device: Device, report: Report, plan: Plan) -> None:
    config, most = plan.shape.config(plan.layers), max(plan.rows)
    each = -(-(plan.context + plan.steps + 4) // BLOCK)
    blocks = max(most * each, plan.prompt // BLOCK)
    begin = time.perf_counter()
    made = network(device, config, BF16, BF16, most, max(plan.prompt, most), blocks, True)
    report.figure(f"{config.name}: loading random weights, capturing", time.perf_counter() - begin, "s")
    for rows in plan.rows:
        rate = decode_rate(device, made, rows, plan.context, plan.steps, config.vocab_size)
        report.figure(
            f"{config.name} bf16, decode of {rows} at {plan.context} tokens", rate * rows, "tokens/s",
            milliseconds_per_step=1e3 / rate,
        )  # fmt: skip
    rate = prefill_rate(device, made, plan.prompt, config.vocab_size)
    report.figure(f"{config.name} bf16, prefill of {plan.prompt} tokens in one step", rate, "tokens/s")
    made.graphs.clear()
    rate = decode_rate(device, made, 1, plan.context, plan.steps, config.vocab_size)
    report.figure(f"{config.name} bf16, decode of 1 without graphs", rate, "tokens/s", milliseconds_per_step=1e3 / rate)
    del made
    gc.collect()
    if device.device.type == "cuda":
        torch.cuda.empty_cache()


def measure_models(device: Device, report: Report, *, tiny: bool) -> None:
    """All of them; ``tiny``: a network that only shows that the measurements run."""
    for plan in TRY if tiny else PLANS:
        if report.time_for(f"{plan.shape.name}, tokens per second", 25):
            measure(device, report, plan)
