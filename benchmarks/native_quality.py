"""What each native format costs in quality, next to float32 (on torch, or on the kernels); the default model.

    python benchmarks/native_quality.py [--prompts 64] [--new-tokens 64] [--text-tokens 4096] [--formats auto fast ...]

The text is Python's language reference as the interpreter ships it (``pydoc_data.topics``).  Prompts are 32 of its
tokens each, continued greedily in float32; every format is then fed the same ids (teacher forced) and its logits are
compared at each new token: largest and mean error, Kullback-Leibler divergence from float32 in nats, and how often the
best token is the same.  ``free`` is how many prompts continue identically when the format decodes by itself.
Perplexity is over consecutive windows of 512 tokens of the text.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch

from mainspring.core.config import AllocatorConfig, ExecutorConfig
from mainspring.plugins.executors.batch import StepBatch
from mainspring.plugins.executors.native import NativeExecutor
from mainspring.plugins.executors.torch import TorchExecutor
from mainspring.plugins.models.checkpoint import find_model
from mainspring.plugins.settings import Config
from mainspring.plugins.text.gguf_vocab import load_gguf

BLOCK, WINDOW, PROMPT = 16, 512, 32
FORMATS: dict[str, tuple[type[TorchExecutor], dict[str, str]]] = {
    "torch fp32": (TorchExecutor, {"dtype": "fp32"}),
    "fp32": (NativeExecutor, {"dtype": "fp32"}),
    "auto": (NativeExecutor, {}),
    "auto, KV fp16": (NativeExecutor, {"kv_dtype": "fp16"}),
    "auto, KV bf16": (NativeExecutor, {"kv_dtype": "bf16"}),
    "auto, KV int8": (NativeExecutor, {"kv_dtype": "int8"}),
    "fast": (NativeExecutor, {"dtype": "fast"}),
    "bf16": (NativeExecutor, {"dtype": "bf16"}),
}


def step(rows: list[tuple[int, list[int]]], per_row: int, sampled: int) -> StepBatch:
    """Rows of (tokens already there, new ids), each in blocks of its own; the last ``sampled`` ids of each sample."""
    counts = [len(ids) for _, ids in rows]
    tables = np.arange(len(rows) * per_row, dtype=np.int32).reshape(len(rows), per_row)
    positions = np.concatenate([np.arange(start, start + len(ids)) for start, ids in rows]).astype(np.int32)
    owner = np.repeat(np.arange(len(rows)), counts)
    cu = np.cumsum([0, *counts]).astype(np.int32)
    return StepBatch(
        ids=np.asarray([token for _, ids in rows for token in ids], np.int32),
        positions=positions,
        slot_mapping=(tables[owner, positions // BLOCK] * BLOCK + positions % BLOCK).astype(np.int32),
        cu_seqlens=cu,
        context_lens=np.asarray([start + len(ids) for start, ids in rows], np.int32),
        block_tables=tables,
        logits_rows=np.concatenate([np.arange(end - sampled, end) for end in cu[1:]]).astype(np.int32),
        num_rows=len(rows),
        sampling_rids=tuple(map(str, range(len(rows)))),
    )


def load(name: str, num_blocks: int) -> TorchExecutor:
    kind, options = FORMATS[name]
    executor = kind(
        None,
        Config(
            executor=ExecutorConfig(threads=len(os.sched_getaffinity(0)), **({"kv_dtype": "fp32"} | options)),
            allocator=AllocatorConfig(block_size=BLOCK, num_blocks=num_blocks),
        ),
    )
    executor.load([].append)
    return executor


def greedy(network: Any, prompts: list[list[int]], count: int) -> list[list[int]]:
    """``count`` tokens behind each prompt."""
    per_row = -(-(PROMPT + count) // BLOCK)
    ids = network.forward(step([(0, prompt) for prompt in prompts], per_row, 1)).argmax(-1).tolist()
    out = [[token] for token in ids]
    for done in range(1, count):
        rows = [(PROMPT + done - 1, made[-1:]) for made in out]
        for made, token in zip(out, network.forward(step(rows, per_row, 1)).argmax(-1).tolist(), strict=True):
            made.append(token)
    return out


def forced(network: Any, prompts: list[list[int]], made: list[list[int]]) -> Iterator[torch.Tensor]:
    """Logits ``[tokens, vocab]`` that each made token was chosen from, prompt by prompt."""
    for prompt, ids in zip(prompts, made, strict=True):
        yield network.forward(step([(0, prompt + ids[:-1])], -(-(PROMPT + len(ids)) // BLOCK), len(ids)))


def perplexity(network: Any, text: list[int]) -> float:
    """Over windows that begin anew."""
    total, count = 0.0, 0
    for begin in range(0, len(text) - WINDOW + 1, WINDOW):
        ids = text[begin : begin + WINDOW]
        logits = network.forward(step([(0, ids[:-1])], WINDOW // BLOCK, WINDOW - 1)).double().log_softmax(-1)
        total -= float(logits.gather(1, torch.tensor(ids[1:])[:, None]).sum())
        count += WINDOW - 1
    return math.exp(total / count)


def main() -> None:
    """Parse, measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--text-tokens", type=int, default=4096)
    parser.add_argument("--formats", nargs="+", default=[name for name in FORMATS if name != "torch fp32"])
    parser.add_argument("--reference", choices=("torch fp32", "fp32"), default="torch fp32")
    args = parser.parse_args()
    text = load_gguf(find_model(""))[0].encode("\n".join(topics[name] for name in sorted(topics))).ids
    apart = (len(text) - PROMPT) // args.prompts
    prompts = [text[at * apart : at * apart + PROMPT] for at in range(args.prompts)]
    num_blocks = args.prompts * -(-(PROMPT + args.new_tokens) // BLOCK) + WINDOW // BLOCK
    print("| format | largest error | mean error | KL | same best token | free | perplexity |")
    print("|---|---|---|---|---|---|---|")
    with torch.inference_mode():
        reference = load(args.reference, num_blocks)
        assert reference._loaded is not None
        made = greedy(reference._loaded.network, prompts, args.new_tokens)
        full = list(forced(reference._loaded.network, prompts[:8], made[:8]))
        known = perplexity(reference._loaded.network, text[: args.text_tokens])
        reference.close()
        print(f"| {args.reference} | | | | | | {known:.4f} |", flush=True)
        for name in args.formats:
            executor = load(name, num_blocks)
            assert executor._loaded is not None
            network = executor._loaded.network
            largest = mean = divergence = 0.0
            same = sum(
                int((logits.argmax(-1) == torch.tensor(ids)).sum())
                for logits, ids in zip(forced(network, prompts, made), made, strict=True)
            )
            for logits, wanted in zip(forced(network, prompts[:8], made[:8]), full, strict=True):
                error = (logits - wanted).abs()
                largest, mean = max(largest, float(error.max())), mean + float(error.mean()) / len(full)
                p, q = wanted.double().log_softmax(-1), logits.double().log_softmax(-1)
                divergence += float((p.exp() * (p - q)).sum(-1).mean()) / len(full)
            free = sum(ids == own for ids, own in zip(made, greedy(network, prompts, args.new_tokens), strict=True))
            asked = args.prompts * args.new_tokens
            print(
                f"| {name} | {largest:.2g} | {mean:.2g} | {divergence:.1e} | {100 * same / asked:.2f} % | "
                f"{free} of {args.prompts} | {perplexity(network, text[: args.text_tokens]):.4f} |",
                flush=True,
            )
            executor.close()


if __name__ == "__main__":
    main()
