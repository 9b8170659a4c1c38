"""Small experiments for tests: a made-up machine, and files that are written where a test wants them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mainspring.plugins.simulation.records import RequestRecord

STEPS = """
machine = "made up"
model = "made up"
source = "for tests"
[step]
form = "linear"
c0 = 0.0125
c1 = 4.3e-5
c2 = 2.3e-5
c3 = 8.7e-8
[validation]
method = "none"
"""

PARTS: dict[str, str] = {
    "head": 'name = "order by prefix"\nbaseline = "fcfs"\nprimary = "ttft_mean"\nseeds = 5\nstep_time = "steps.toml"\n',
    "workload": '[workload]\nscenario = "S1"\nsize = "tiny"\n[workload.options]\nnum_requests = 40\n',
    "load": "[load]\nrho = [0.8]\n",
    "arms": '[arms.fcfs.scheduler]\nuse = "fcfs"\n[arms.prefix.scheduler]\nuse = "prefix_priority"\n',
}


def write(folder: Path, **parts: str) -> Path:
    """An experiment file with some of its parts replaced; ``more`` goes before everything."""
    (folder / "steps.toml").write_text(STEPS, encoding="utf-8")
    path = folder / "experiment.toml"
    chosen: dict[str, Any] = {**PARTS, **parts}
    path.write_text(chosen.pop("more", "") + "".join(chosen.values()), encoding="utf-8")
    return path


def record(rid: str, at: float = 0.0, ttft: float = 0.1, reason: str = "length") -> RequestRecord:
    """A request of three tokens, 0.1 s apart."""
    times = (at + ttft, at + ttft + 0.1, at + ttft + 0.2)
    return RequestRecord(
        number=0,
        rid=rid,
        arrival_s=at,
        scheduled_s=at,
        first_token_s=times[0],
        finished_s=times[-1],
        token_times=times,
        prompt_tokens=10,
        wanted_tokens=3,
        reason=reason,
    )
