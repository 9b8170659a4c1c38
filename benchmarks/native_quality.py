"""What each native format costs in quality, against transformers in float32 on the same weights; the default model.

    python benchmarks/native_quality.py [--prompts 64] [--new-tokens 64] [--text-tokens 8192] [--formats auto fast ...]

The text is Python's language reference as the interpreter ships it (``pydoc_data.topics``).  Prompts are 32 of its
tokens each, continued greedily in float32; every format is then fed the same ids (teacher forced) and its logits are
compared at each new token: largest and mean error, Kullback-Leibler divergence from float32 in nats, and how often the
best token is the same.  ``free`` is how many prompts continue identically when the format decodes by itself.
Perplexity is over consecutive windows of 512 tokens of the text.  ``q8`` and ``q4`` are the weights quantised again
from float32: the file's own blocks would stay as they are.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import torch
from parts.reference import greedy, transformers_model
from parts.steps import BLOCK, FORMATS, blocks_for, load, network_of, step
from peer_workers.environments import hugging_face_folder

from mainspring.plugins.models.checkpoint import find_model
from mainspring.plugins.text.gguf_vocab import load_gguf

WINDOW, PROMPT = 512, 32


class Reader(NamedTuple):
    """A model: ``continue_(prompts, count)`` greedily; ``logits(ids, last)``: of the last ids, ``[last, vocab]``."""

    continue_: Callable[[list[list[int]], int], list[list[int]]]
    logits: Callable[[list[int], int], torch.Tensor]


def of_transformers() -> Reader:
    """transformers in float32."""
    model = transformers_model("fp32")
    return Reader(
        lambda prompts, count: greedy(model, torch.tensor(prompts), count)[:, PROMPT:].tolist(),
        lambda ids, last: model(torch.tensor([ids]), logits_to_keep=last).logits[0],
    )


def of_network(network: Any) -> Reader:
    """A network of this package."""

    def continue_(prompts: list[list[int]], count: int) -> list[list[int]]:
        texts = [[*prompt] for prompt in prompts]
        ids = network.forward(step([(0, text) for text in texts], room=PROMPT + count)).argmax(-1).tolist()
        for done in range(count):
            for text, token in zip(texts, ids, strict=True):
                text.append(token)
            if done < count - 1:
                rows = [(len(text) - 1, text[-1:]) for text in texts]
                ids = network.forward(step(rows, room=PROMPT + count)).argmax(-1).tolist()
        return [text[PROMPT:] for text in texts]

    return Reader(continue_, lambda ids, last: network.forward(step([(0, ids)], last)))


class Kept(NamedTuple):
    """What float32 says: the tokens it chose, the logits it chose them from, the text's perplexity."""

    made: list[list[int]]
    logits: list[torch.Tensor]
    perplexity: float


def perplexity(reader: Reader, text: list[int]) -> float:
    """Over windows that begin anew."""
    total, count = 0.0, 0
    for begin in range(0, len(text) - WINDOW + 1, WINDOW):
        ids = text[begin : begin + WINDOW]
        logits = reader.logits(ids[:-1], WINDOW - 1).double().log_softmax(-1)
        total -= float(logits.gather(1, torch.tensor(ids[1:])[:, None]).sum())
        count += WINDOW - 1
    return math.exp(total / count)


def compared(name: str, reader: Reader, prompts: list[list[int]], kept: Kept, text: list[int]) -> str:
    """One line of the table."""
    largest = mean = divergence = 0.0
    same = 0
    for prompt, ids, wanted in zip(prompts, kept.made, kept.logits, strict=True):
        logits = reader.logits(prompt + ids[:-1], len(ids))
        same += int((logits.argmax(-1) == torch.tensor(ids)).sum())
        error = (logits - wanted).abs()
        largest, mean = max(largest, float(error.max())), mean + float(error.mean()) / len(prompts)
        p, q = wanted.double().log_softmax(-1), logits.double().log_softmax(-1)
        divergence += float((p.exp() * (p - q)).sum(-1).mean()) / len(prompts)
    own = reader.continue_(prompts, len(kept.made[0]))
    free = sum(ids == mine for ids, mine in zip(kept.made, own, strict=True))
    asked = sum(map(len, kept.made))
    found = perplexity(reader, text)
    return (
        f"| `{name}` | {largest:.2g} | {mean:.2g} | {divergence:.1e} | {100 * same / asked:.2f} % | "
        f"{free} of {len(prompts)} | {found:.4f} ({100 * (found / kept.perplexity - 1):+.2f} %) |"
    )


def main() -> None:
    """Parse, measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--text-tokens", type=int, default=8192)
    parser.add_argument("--formats", nargs="+", choices=list(FORMATS), metavar="NAME",
                        default=[name for name in FORMATS if name != "torch"])  # fmt: skip
    args = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    text = load_gguf(find_model(""))[0].encode("\n".join(topics[name] for name in sorted(topics))).ids
    apart = (len(text) - PROMPT) // args.prompts
    prompts = [text[at * apart : at * apart + PROMPT] for at in range(args.prompts)]
    num_blocks = args.prompts * blocks_for(PROMPT + args.new_tokens) + WINDOW // BLOCK
    print("| format | largest error | mean error | KL | same best token | free | perplexity |")
    print("|---|---|---|---|---|---|---|")
    with torch.inference_mode(), tempfile.TemporaryDirectory() as folder:
        reference = of_transformers()
        made = reference.continue_(prompts, args.new_tokens)
        logits = [reference.logits(prompt + ids[:-1], len(ids)) for prompt, ids in zip(prompts, made, strict=True)]
        shown = text[: args.text_tokens]
        kept = Kept(made, logits, perplexity(reference, shown))
        del reference
        print(f"| transformers float32 | | | | | | {kept.perplexity:.4f} |", flush=True)
        numbers: Path | None = None
        for name in args.formats:
            if name.startswith("q") and numbers is None:
                numbers = hugging_face_folder(Path(folder))
            executor = load(name, threads, num_blocks, numbers if name.startswith("q") else None)
            print(compared(name, of_network(network_of(executor)), prompts, kept, shown), flush=True)
            executor.close()


if __name__ == "__main__":
    main()
