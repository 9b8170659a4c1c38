"""Steps of ragged rows for comparing backends: prompts in chunks and decode rows mixed, dummies among them."""

from __future__ import annotations

from random import Random

from mainspring.core.messages import GrantedRow, StepLaunch
from mainspring.plugins.executors.batch import Limits, StepBatch, build

NUM_BLOCKS = 64
LENGTHS = (1, 3, 4, 5, 17, 2, 40, 9)


def mixed_steps(
    vocab_size: int, block_size: int = 4, lengths: tuple[int, ...] = LENGTHS, chunk: int = 6, count: int = 12
) -> list[StepBatch]:
    """``count`` steps over ``NUM_BLOCKS`` blocks: prompts of these lengths in chunks of up to ``chunk``, then one token
    each; every third step has a dummy row."""
    random, limits = Random(1), Limits(vocab_size, 256, NUM_BLOCKS, block_size)
    blocks = random.sample(range(NUM_BLOCKS), NUM_BLOCKS)
    tables = [tuple(blocks.pop() for _ in range(-(-(length + 8) // block_size))) for length in lengths]
    done, out = [0] * len(lengths), []
    for step in range(count):
        rows = []
        for index, table in enumerate(tables):
            left = lengths[index] - done[index]
            tokens = 1 if left <= 0 else min(left, random.randint(1, chunk))
            if done[index] + tokens > len(table) * block_size or random.random() < 0.1:
                continue
            start = done[index]
            slots = tuple(table[at // block_size] * block_size + at % block_size for at in range(start, start + tokens))
            ids = tuple(random.randrange(vocab_size) for _ in range(tokens))
            rows.append(GrantedRow(str(index), start, tokens, ids, random.random() < 0.8, table, slots))
            done[index] += tokens
        padding = (2,) if step % 3 == 0 else ()
        if rows:
            out.append(build(StepLaunch(step, tuple(rows), None, padding=padding), limits))
    return out
