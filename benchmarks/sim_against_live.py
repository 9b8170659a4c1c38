"""Does virtual time say what the real engine does?  The same experiments on both clocks, compared number by number.

First `mainspring calibrate` on this machine, then this with its file.  For each pair of policies and its scenario the
pairs of runs are played live (one executor thread, the generator in the event loop's thread) and in virtual time, at
0.5 and 0.8 of the capacity that each clock measures for itself.  Interrupted, it goes on where it was.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import NamedTuple

from mainspring.plugins.experiments.report import Effect, Report
from mainspring.plugins.experiments.run import run

#: The published claims of other simulators are of this order; the table marks what is beyond.
LIMITS = {"tpot_mean": 0.10, "e2e_mean": 0.10, "ttft_mean": 0.20}


class Case(NamedTuple):
    scenario: str
    policy: str
    primary: str
    count: str  # the option of the scenario that says how many requests


CASES = {
    "S1": Case("S1", "prefix_priority", "ttft_mean", "num_requests"),
    "S6": Case("S6", "shortest", "ttft_mean@short", "num_requests"),
    "S8": Case("S8", "fair", "ttft_p99@polite", "num_requests"),
    "S9": Case("S9", "deadline", "goodput@interactive", "num_requests"),
}

TEMPLATE = """
name = "{case.scenario} {clock}"
baseline = "fcfs"
primary = "{case.primary}"
metrics = ["ttft_mean", "tpot_mean", "e2e_mean"]
seeds = {pairs}
clock = "{clock}"
{steps}
[config.executor]
use = "{executor}"
threads = 1
[workload]
scenario = "{case.scenario}"
size = "tiny"
[workload.options]
{case.count} = {requests}
[load]
rho = [0.5, 0.8]
[arms.fcfs.scheduler]
use = "fcfs"
[arms.other.scheduler]
use = "{case.policy}"
"""


def play(case: Case, clock: str, args: argparse.Namespace) -> Report:
    out = args.out / f"{case.scenario}_{clock}"
    out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"{case.scenario}_{clock}.toml"
    steps = f'step_time = "{args.steps.resolve()}"' if clock == "sim" else ""
    text = TEMPLATE.format(
        case=case, clock=clock, steps=steps, pairs=args.pairs, requests=args.requests, executor=args.executor
    )
    path.write_text(text, encoding="utf-8")
    resume = (out / "state.json").exists()
    return run(
        path, out, resume=resume, progress=lambda line: print(f"{case.scenario} {clock}: {line}", file=sys.stderr)
    )


def errors(sim: Report, live: Report) -> list[tuple[str, str, float, float, str]]:
    """(where, metric, simulated, live, remark) of every absolute figure of the baseline."""
    rows = []
    if sim.capacity and live.capacity:
        rows.append(_row("", "capacity", sim.capacity, live.capacity, 0.05))
    for one, two in zip(sim.levels, live.levels, strict=True):
        for metric, limit in LIMITS.items():
            simulated, measured = one.means["fcfs"].get(metric), two.means["fcfs"].get(metric)
            if simulated and measured:
                rows.append(_row(one.label, metric, simulated, measured, limit))
    return rows


def _row(
    where: str, metric: str, simulated: float, measured: float, limit: float
) -> tuple[str, str, float, float, str]:
    error = simulated / measured - 1
    return (
        where,
        metric,
        simulated,
        measured,
        f"{error:+.1%}" + (f" (beyond {limit:.0%})" if abs(error) > limit else ""),
    )


def sign(sim: Report, live: Report, level: int) -> str:
    """What both clocks say of the primary metric."""
    one, two = (report.levels[level].arms[0].effects[0] for report in (sim, live))
    if not _excludes_zero(two):
        return f"live is undecided: {_text(two)}; simulated {_text(one)}"
    same = one.change is not None and two.change is not None and _log(one) * _log(two) > 0
    verdict = "same sign" if same else "OTHER SIGN"
    return (
        f"{verdict}: simulated {_text(one)}, live {_text(two)}, log ratios differ by {abs(_log(one) - _log(two)):.2f}"
    )


def _log(effect: Effect) -> float:
    assert effect.change is not None
    return math.log(effect.change) if effect.scale == "ratio" else effect.change


def _excludes_zero(effect: Effect) -> bool:
    if effect.low is None or effect.high is None:
        return False
    nothing = 1.0 if effect.scale == "ratio" else 0.0
    return effect.low > nothing or effect.high < nothing


def _text(effect: Effect) -> str:
    if effect.change is None or effect.low is None or effect.high is None:
        return "nothing"
    return f"{effect.change:.3g} [{effect.low:.3g}, {effect.high:.3g}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=Path, help="file of mainspring calibrate, made on this machine")
    parser.add_argument("--out", type=Path, default=Path("build/sim_against_live"))
    parser.add_argument("--scenarios", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--executor", default="native")
    args = parser.parse_args()
    if args.steps is None:  # as one of all benchmarks: there is nothing to compare with
        print("no --steps FILE: run `mainspring calibrate` on this machine first")
        return
    for name in args.scenarios:
        sim, live = (play(CASES[name], clock, args) for clock in ("sim", "live"))
        for where, metric, simulated, measured, remark in errors(sim, live):
            print(f"{name:4} {where:8} {metric:10} simulated {simulated:9.4g}  live {measured:9.4g}  {remark}")
        for level, result in enumerate(live.levels):
            checks = "; ".join(result.arms[0].checks)
            print(
                f"{name:4} {result.label:8} {CASES[name].policy}: {sign(sim, live, level)}"
                + (f" ({checks})" if checks else "")
            )


if __name__ == "__main__":
    main()
