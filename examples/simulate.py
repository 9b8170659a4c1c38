"""Two scheduling policies on the same traffic, in virtual time: no model, no waiting.

A burst of mixed prompts arrives at once; whoever is short fares better under ``shortest``.
"""

from __future__ import annotations

from statistics import mean

from mainspring.core.config import AllocatorConfig, Config, SchedulerConfig
from mainspring.core.messages import Emit
from mainspring.testing import FakeExecutor, LinearStepTime, Simulator, submit

PROMPT_TOKENS = [2000, 1500, 40, 30, 1200, 20, 50, 10]


def first_tokens(policy: str) -> dict[str, float]:
    """Seconds from arrival to first token, by request."""
    config = Config(
        scheduler=SchedulerConfig(use=policy, token_budget=256, max_running=2), allocator=AllocatorConfig(block_size=16)
    )
    seen: dict[str, float] = {}

    def on_emit(emit: Emit, now: float) -> None:
        for row in emit.rows:
            if row.token_ids:
                seen.setdefault(row.rid, now)

    step_time = LinearStepTime(base_s=0.010, per_token_s=0.0005)
    simulator = Simulator(config, FakeExecutor(num_blocks=1024), step_time, on_emit=on_emit)
    for index, length in enumerate(PROMPT_TOKENS):
        simulator.at(0.0, submit(f"r{index}", length, max_tokens=20))
    simulator.run()
    return seen


def main() -> None:
    for policy in ("fcfs", "shortest"):
        seen = first_tokens(policy)
        print(f"{policy:10} mean {mean(seen.values()):.2f} s   worst {max(seen.values()):.2f} s to the first token")


if __name__ == "__main__":
    main()
