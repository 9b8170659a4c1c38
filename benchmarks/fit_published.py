"""Coefficients of published machines, from public measurements: fits, validates and writes the ready-made files.

Run ``python benchmarks/fit_published.py [--write] [NAME ...]``.  Three measured vLLM runs (LLMServingSim repository)
are fitted to the latencies of their requests, since nobody logged the steps: the real host is played again and again.
Two tables of step times (splitwise-sim repository) are fitted directly.  ``docs/simulator.md`` shows the output.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import logging
import multiprocessing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import structlog

from mainspring.core.config import AllocatorConfig, Config, SchedulerConfig
from mainspring.plugins.simulation.play import play
from mainspring.plugins.simulation.records import Run
from mainspring.plugins.step_time.files import FOLDER, StepTimeFile, Validation, dump
from mainspring.plugins.step_time.fit import Columns, choose
from mainspring.plugins.step_time.forms import StepForm
from mainspring.plugins.step_time.from_runs import Latencies, errors, fit_runs
from mainspring.plugins.traces.readers import vllm_timed
from mainspring.plugins.workloads.scenario import Scenario, from_trace

DATA = Path(__file__).parents[1] / "tests" / "data" / "traces" / "calibration"
START = StepForm(form="linear", c0=0.01, c1=5e-5, c2=2e-5, c3=1e-7)  # about what data sheets say
COLUMNS = {
    "linear": Columns("linear"),
    "max": Columns("max", 256),
    "piecewise": Columns("piecewise", knots=(0.0, 64.0, 512.0)),
}


#: What decides between forms, and between one and two steps in flight, which the measurements do not say.
JUDGED = ("makespan", "ttft_p50", "tpot_p50", "e2e_p50")


class Measured(NamedTuple):
    """A measured run: its file, the engine's limits, and what it ran on."""

    file: str
    machine: str
    model: str
    max_running: int
    num_blocks: int


RUNS = {
    "rtx-4090_llama-3.1-8b": Measured(
        "RTX4090_Llama-3.1-8B", "1 x RTX 4090 24 GB, vLLM 0.19", "Llama-3.1-8B, bf16", 256, 2588
    ),
    "rtx-pro-6000_llama-3.1-8b": Measured(
        "RTXPRO6000_Llama-3.1-8B", "1 x RTX PRO 6000 96 GB, vLLM 0.19", "Llama-3.1-8B, bf16", 128, 40_000
    ),
    "rtx-pro-6000_qwen3-30b-a3b": Measured(
        "RTXPRO6000_Qwen3-30B-A3B-Instruct-2507",
        "1 x RTX PRO 6000 96 GB, vLLM 0.19",
        "Qwen3-30B-A3B-Instruct-2507, bf16",
        256,
        40_000,
    ),
}
TABLES = {
    "a100-80gb-x8_llama-2-70b": ("llama2-70b", "a100-80gb", 8, "8 x A100 80 GB", "Llama-2-70B"),
    "h100-80gb-x8_llama-2-70b": ("llama2-70b", "h100-80gb", 8, "8 x H100 80 GB", "Llama-2-70B"),
}


def load(run: Measured) -> tuple[Scenario, Config, Latencies]:
    """The run as a scenario, the engine as it was set up, and what was measured."""
    path = DATA / f"{run.file}.requests.jsonl.gz"
    trace = vllm_timed.read(path)
    rows = sorted(vllm_timed.measured(path), key=lambda one: one.queued_ts)
    measured = Latencies(
        [one.first_token_ts - one.queued_ts for one in rows],
        [one.last_token_ts - one.queued_ts for one in rows],
        [row.arrival_s for row in trace.rows],
        [one.output_toks for one in rows],
    )
    scenario = from_trace(trace.rows, run.num_blocks * 16, 4096, run.file)
    config = Config(
        scheduler=SchedulerConfig(token_budget=2048, max_running=run.max_running, max_waiting=1 << 20),
        allocator=AllocatorConfig(use="paged", num_blocks=run.num_blocks),
    )
    return scenario, config, measured


def at_depth(config: Config, depth: int) -> Config:
    """The same engine with so many steps in flight."""
    scheduler = msgspec.structs.replace(config.scheduler, depth=depth)
    return msgspec.structs.replace(config, scheduler=scheduler)


def fit_run(name: str) -> tuple[str, StepTimeFile, list[str]]:
    """The file of a measured run, and lines for people."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    run = RUNS[name]
    scenario, config, measured = load(run)

    def again(form: StepForm) -> Run:
        return play(config, scenario, form)

    lines = []
    even, odd = list(range(0, len(scenario.rows), 2)), list(range(1, len(scenario.rows), 2))
    blind: dict[str, float] = {}
    tried: dict[str, tuple[StepForm, dict[str, float]]] = {}
    for depth in (1, 2):
        config = at_depth(config, depth)
        for key, columns in COLUMNS.items():
            form, loss = fit_runs(again, measured, START, columns, even)
            told = errors(again(form), measured, odd)
            case = f"{key}, depth {depth}"
            blind[case] = float(np.mean([abs(told[metric]) for metric in JUDGED]))
            tried[case] = form, told
            shown = "  ".join(f"{metric} {100 * value:+.1f} %" for metric, value in told.items())
            lines.append(f"{name} {case}, half for half (loss {loss:.4f}): {shown}")
    best = min(blind, key=lambda case: blind[case])
    config = at_depth(config, int(best[-1]))
    form, _ = fit_runs(again, measured, tried[best][0], COLUMNS[best.partition(",")[0]])
    told = errors(again(form), measured)
    shown = "  ".join(f"{metric} {100 * value:+.1f} %" for metric, value in told.items())
    lines.append(f"{name} {best}, all: {shown}\n  {form}")
    validation = Validation(
        method="latencies of one run of 300 requests; forms: mean error of makespan and medians of the unseen half",
        forms=blind,
        runs={**told, **{f"blind_{key}": value for key, value in tried[best][1].items()}},
    )
    source = "github:casys-kaist/LLMServingSim at 5daddb21a545658d5150b535712d0494584b5278, measured vLLM runs"
    return (
        name,
        StepTimeFile(
            machine=run.machine,
            model=run.model,
            source=source,
            step=form,
            validation=validation,
            licence="MIT",
            details={"steps in flight": best[-1], "steps": "not logged: fitted to latencies"},
        ),
        lines,
    )


def fit_table(name: str) -> tuple[str, StepTimeFile, list[str]]:
    """The file of a table of step times."""
    model, hardware, parallel, machine, title = TABLES[name]
    features, seconds = [], []
    with gzip.open(DATA / "splitwise_perf_model.csv.gz", "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if (row["model"], row["hardware"], int(row["tensor_parallel"])) == (model, hardware, parallel):
                prompt, batch, new = int(row["prompt_size"]), int(row["batch_size"]), int(row["token_size"])
                features.append((prompt * batch, 0.0, 0.0, batch * prompt * prompt / 2))
                seconds.append(float(row["prompt_time"]) / 1e3)
                features.append((0.0, batch, batch * (prompt + new / 2), 0.0))
                seconds.append(float(row["token_time"]) / 1e3)
    chosen = choose(np.asarray(features, np.float64), np.asarray(seconds))
    lines = [f"{name}: {chosen.forms} {chosen.held_out}\n  {chosen.step}"]
    validation = Validation(
        method="isolated steps, five folds; forms: median held-out error", held_out=chosen.held_out, forms=chosen.forms
    )
    source = "github:Mutinifni/splitwise-sim at 8f99e7dc9b407f4ce2488d03dd44c0b8b946dab0, data/perf_model.csv"
    return (
        name,
        StepTimeFile(
            machine=machine, model=title, source=source, step=chosen.step, validation=validation, licence="MIT"
        ),
        lines,
    )


def fit_one(name: str) -> tuple[str, StepTimeFile, list[str]]:
    """Either kind."""
    return fit_run(name) if name in RUNS else fit_table(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"some of: {', '.join([*RUNS, *TABLES])}")
    parser.add_argument("--write", action="store_true", help=f"write the files into {FOLDER.name}/")
    args: Any = parser.parse_args()
    with multiprocessing.Pool(2) as pool:
        for name, made, lines in pool.imap(fit_one, args.names or [*RUNS, *TABLES]):
            print("\n".join(lines), flush=True)
            if args.write:
                FOLDER.mkdir(exist_ok=True)
                (FOLDER / f"{name}.toml").write_text(dump(made), encoding="utf-8")


if __name__ == "__main__":
    main()
