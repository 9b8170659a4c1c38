"""S10, trees of thought: children that share their path, released together, joined at each depth."""

from __future__ import annotations

from ..traces.canonical import TraceRow
from .draws import Ids, Stream, generator, poisson
from .scenario import Guard, Scenario

ROOT, NODE, DEPTH, CHILDREN, BEAM = 1000, 100, 4, 3, 2


def make(size: str, seed: int, trees: int = 0, rate_per_s: float = 0.5) -> Scenario:
    """``rate_per_s`` of trees: root prompt 1,000 tokens, depth 4, 3 children a node, the best 2 of a depth are kept,
    100 tokens a node.  A depth starts when the one before it has ended."""
    full = size == "full"
    count = trees or (100 if full else 10)
    root, node, block = (ROOT, NODE, 20) if full else (62, 6, 2)
    rng, ids, rows = generator(seed, "S10"), Ids(), list[TraceRow]()
    for number, at in enumerate(poisson(rng, count, rate_per_s)):
        kept: list[tuple[Stream, int | None]] = [(Stream(ids, block), None)]  # (path, row that ends it)
        level: tuple[int, ...] = ()
        for depth in range(DEPTH):
            length, nodes = root + depth * node, list[tuple[Stream, int]]()
            for path, parent in kept:
                for _ in range(CHILDREN):
                    rows.append(
                        TraceRow(
                            arrival_s=at,
                            input_tokens=length,
                            output_tokens=node,
                            prefix_blocks=path.first(length),
                            block_tokens=block,
                            session=f"tree{number}",
                            parent=parent,
                            after=tuple(other for other in level if other != parent),
                        )
                    )
                    nodes.append((path.branch(length), len(rows) - 1))
            level = tuple(row for _, row in nodes)
            best = sorted(rng.permutation(len(nodes))[:BEAM].tolist())
            kept = [nodes[index] for index in best]
    peak = root + DEPTH * node + CHILDREN * BEAM * node  # of one tree
    return Scenario(
        name="S10",
        title="Trees of thought",
        size=size,
        seed=seed,
        rows=tuple(rows),
        kv_tokens=8 * peak,
        max_output=node,
        scheduler={"max_running": 48, "token_budget": 512 if full else 64},
        primary=("session_mean", "session_p90"),
        guards=(Guard(metric="hit_rate"),),
        rate_per_s=rate_per_s,
        notes="Breadth first over trees looks fine per request and needs the most KV.",
    )
