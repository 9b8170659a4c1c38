"""S4, agents with tools: a prompt that grows with every step, a few sub-agents, and now and then a compaction."""

from __future__ import annotations

from ..traces.canonical import TraceRow
from .draws import Ids, Rng, Stream, generator, log_uniform, lognormal, lognormal_s, poisson
from .scenario import Guard, Scenario

COMMON, STEPS, GROWTH, ANSWER, TOOL_S, LONGEST_TOOL_S = 4096, 30, 650, 220, 3.0, 30.0
FORKS, COMPACTS, KEPT = 0.05, 0.005, 0.3


class _Agents:
    """Writes the rows of sessions down; ``scale`` divides all lengths."""

    def __init__(self, rng: Rng, scale: int, block: int) -> None:
        self.rng, self.scale, self.block, self.ids = rng, scale, block, Ids()
        self.common = self.ids.take(COMMON // scale // block)
        self.rows: list[TraceRow] = []

    def step(self, session: str, at: float, length: int, text: Stream, parents: tuple[int, ...]) -> int:
        """One request; returns its answer's tokens."""
        rng = self.rng
        answer = lognormal(rng, ANSWER / self.scale, 0.8, 1, 4096 // self.scale)
        self.rows.append(
            TraceRow(
                arrival_s=at,
                input_tokens=length,
                output_tokens=answer,
                prefix_blocks=text.first(length),
                block_tokens=self.block,
                session=session,
                parent=parents[0] if parents else None,
                after=parents[1:],
                delay_s=lognormal_s(rng, TOOL_S, 1.0, LONGEST_TOOL_S) if parents else 0.0,
            )
        )
        return answer

    def session(self, name: str, at: float, steps: int) -> None:
        """A whole session: its own steps, and sub-agents that it waits for."""
        rng, text = self.rng, Stream(self.ids, self.block, self.common)
        length = (COMMON + log_uniform(rng, 1024, 8192)) // self.scale
        fork_at = int(rng.integers(1, steps)) if rng.random() < FORKS else -1
        parents: tuple[int, ...] = ()
        for step in range(steps):
            length += self.step(name, at, length, text, parents)
            parents = (len(self.rows) - 1,)
            if step == fork_at:
                parents += self.sub_agents(name, at, length, text, parents)
            length += self.growth()
            if rng.random() < COMPACTS:
                length = max(COMMON // self.scale + 1, round(KEPT * length))
                text = Stream(self.ids, self.block, self.common)

    def sub_agents(self, name: str, at: float, length: int, text: Stream, parents: tuple[int, ...]) -> tuple[int, ...]:
        """2 to 4 of them, each with a few steps of its own behind the parent's text; returns their last rows."""
        last = []
        for _ in range(int(self.rng.integers(2, 5))):
            own, reach, before = text.branch(length), length, parents
            for _ in range(int(self.rng.integers(2, 6))):
                reach += self.growth()
                reach += self.step(name, at, reach, own, before)
                before = (len(self.rows) - 1,)
            last.append(before[0])
        return tuple(last)

    def growth(self) -> int:
        return lognormal(self.rng, GROWTH / self.scale, 1.2, 1, 16384 // self.scale)


def make(size: str, seed: int, sessions: int = 0, steps: int = 0, rate_per_s: float = 0.2) -> Scenario:
    """``rate_per_s`` of session starts; lengths of an agent on a model of the 8B class."""
    full = size == "full"
    scale, count, steps = (1, sessions or 32, steps or STEPS) if full else (16, sessions or 20, steps or 10)
    agents = _Agents(generator(seed, "S4"), scale, 16)
    for number, at in enumerate(poisson(agents.rng, count, rate_per_s)):
        agents.session(f"s{number}", at, steps)
    rows = tuple(agents.rows)
    sizes = [row.input_tokens + row.output_tokens for row in rows]
    return Scenario(
        name="S4",
        title="Agents with tools and a growing prompt",
        size=size,
        seed=seed,
        rows=rows,
        kv_tokens=max(8 * sum(sizes) // len(sizes), max(sizes) * 3 // 2),
        max_output=4096 // scale,
        scheduler={"max_running": 64, "token_budget": 512 if full else 64},
        primary=("session_mean", "session_p90"),
        guards=(Guard(metric="hit_rate"), Guard(metric="ttft_p99")),
        rate_per_s=rate_per_s,
        notes="Figures per request can improve while sessions get slower.",
    )
