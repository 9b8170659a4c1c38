"""The whole engine next to other engines on the same model and machine, in alternation: only ratios mean anything.

    python benchmarks/peers.py [--engines auto fast "openvino q4" ...] [--concurrency 1 4 16 64] [--prompt-tokens 128]
        [--new-tokens 128] [--visits 3] [--threads N] [--results FILE] [--environments FOLDER]
    python benchmarks/peers.py --set-up-only
    python benchmarks/peers.py --results FILE --report-only

Each engine is a process of its own that answers jobs: all requests of a level sent at once, greedy, end-of-sequence
ignored, the same random ids for everybody and other ones at each visit.  Ours is the whole engine: host, policy,
allocator, sampler, text.  Peers are installed into environments of their own at the first run; one that cannot be
installed or does not start is left out with the reason.  ``--prompt-tokens 1024 --new-tokens 1 --concurrency 1`` is
the prefill.

``--results`` appends every measurement as a line of JSON, so that the whole can be measured in parts; the report is
over all of a file.  Rates are medians over the visits, output tokens (of a prefill: prompt tokens) per second.  A ratio
is of the medians of two engines within one run of this program; where several runs have both, the median of those.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from peer_workers.environments import OURS, PEERS, CannotSetUp

from mainspring.plugins.folders import cache_folder

ALL = OURS | PEERS


def resident_mib(process: int) -> float:
    """Resident memory of a process and all below it; shared pages count in each."""
    total, left = 0.0, [process]
    while left:
        pid = left.pop()
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        except OSError:
            continue  # ended meanwhile
        total += next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS")), 0.0)
        left += map(int, children.split())
    return total


class Worker:
    """One engine in its process.  Raises CannotSetUp."""

    def __init__(self, name: str, environments: Path, threads: int) -> None:
        command = ALL[name](environments, threads)
        self.name = name
        self.log = (environments / f"{name.replace(' ', '-')}.log").open("w")
        begun = time.perf_counter()
        self.process: Any = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        )
        self.about = self._answer()
        self.start_s = time.perf_counter() - begun
        self.started_mib = resident_mib(self.process.pid)

    def _answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            self.close()
            said = [line for line in Path(self.log.name).read_text().splitlines() if line.strip()]
            raise CannotSetUp(f"{self.name} ended: {said[-1] if said else 'without a word'} (all in {self.log.name})")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def seconds(self, ids: list[list[int]], new_tokens: int) -> float:
        """How long a job took."""
        print(json.dumps({"ids": ids, "new_tokens": new_tokens}), file=self.process.stdin, flush=True)
        return float(self._answer()["seconds"])

    def close(self) -> None:
        """End the process, by force if it does not go."""
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.log.close()


class Job(NamedTuple):
    """A level: so many requests at once of so many tokens."""

    concurrency: int
    prompt_tokens: int
    new_tokens: int

    def ids(self, visit: int) -> list[list[int]]:
        """Random prompts: nothing to share, nothing seen before."""
        source = random.Random(f"{self} {visit}")
        return [[source.randrange(100, 40000) for _ in range(self.prompt_tokens)] for _ in range(self.concurrency)]

    def rate(self, seconds: float) -> float:
        """Tokens per second."""
        return self.concurrency * (self.new_tokens if self.new_tokens > 1 else self.prompt_tokens) / seconds

    def __str__(self) -> str:
        return f"{self.concurrency} x {self.prompt_tokens} + {self.new_tokens}"


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure; one record for each engine's start, each visit and each end."""
    records: list[dict[str, Any]] = []
    workers: list[Worker] = []
    this_run = f"{time.time():.0f}"

    def note(worker: Worker, **facts: Any) -> None:
        records.append({"run": this_run, "engine": worker.name, **facts})
        if args.results:
            with args.results.open("a") as file:
                file.write(json.dumps(records[-1]) + "\n")

    try:
        for name in args.engines:
            try:
                worker = Worker(name, args.environments, args.threads)
            except CannotSetUp as error:
                print(f"not measured: {error}", flush=True)
                continue
            workers.append(worker)
            print(f"{name}: {worker.about['version']}, {worker.about['precision']}; {worker.start_s:.1f} s", flush=True)
            note(worker, start_s=worker.start_s, started_mib=worker.started_mib, threads=args.threads, **worker.about)
        for concurrency in args.concurrency:
            job = Job(concurrency, args.prompt_tokens, args.new_tokens)
            for worker in workers:
                worker.seconds(job.ids(-1), min(job.new_tokens, 4))  # warms up
            for visit in range(args.visits):
                for worker in workers:
                    seconds = worker.seconds(job.ids(visit), job.new_tokens)
                    note(worker, job=job, seconds=seconds)
                    print(f"{job}: {worker.name} {job.rate(seconds):.1f} tokens/s", flush=True)
        for worker in workers:
            note(worker, ended_mib=resident_mib(worker.process.pid))
    finally:
        for worker in workers:
            worker.close()
    return records


def report(records: list[dict[str, Any]]) -> str:
    """Tables for people: rates and ratios by job, then starts and memory."""
    runs: dict[Job, dict[str, dict[str, list[float]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for record in records:
        if "job" in record:
            runs[Job(*record["job"])][record["run"]][record["engine"]].append(record["seconds"])
    seen = [name for name in ALL if any(record["engine"] == name for record in records)]
    ours = [name for name in seen if name in OURS]
    lines = []
    for job, of_job in runs.items():
        lines += [f"\n{job} tokens", "| engine | tokens/s | " + " | ".join(f"{name} is" for name in ours) + " |"]
        lines.append("|---|---|" + "---|" * len(ours))
        least: dict[str, float] = {}
        for name in seen:
            rates = [job.rate(seconds) for of_run in of_job.values() for seconds in of_run.get(name, ())]
            if not rates:
                continue
            cells = []
            for own in ours:
                both = [
                    statistics.median(part[name]) / statistics.median(part[own])
                    for part in of_job.values()
                    if name in part and own in part
                ]
                cells.append(f"{statistics.median(both):.2f}x" if both and name in PEERS else "")
                if cells[-1]:
                    least[own] = min(least.get(own, float("inf")), statistics.median(both))
            lines.append(f"| {name} | {statistics.median(rates):.1f} | " + " | ".join(cells) + " |")
        best = [f"{least[own]:.2f}x" if own in least else "" for own in ours]
        lines.append("| against the best peer | | " + " | ".join(best) + " |")
    lines += ["\n| engine | precision | ready after s | MiB then | MiB at the end |", "|---|---|---|---|---|"]
    for name in seen:
        own = [record for record in records if record["engine"] == name]
        cells = []
        for key in ("start_s", "started_mib", "ended_mib"):
            values = [record[key] for record in own if key in record]
            cells.append(f"{statistics.median(values):.{key == 'start_s':d}f}" if values else "")
        said = next(f"{record['version']}, {record['precision']}" for record in own if "version" in record)
        lines.append(f"| {name} | {said} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", choices=list(ALL), metavar="NAME",
                        default=["auto", "fast", *PEERS], help=f"of {', '.join(ALL)}")  # fmt: skip
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--visits", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--environments", type=Path, default=cache_folder() / "peers")
    parser.add_argument("--results", type=Path, help="append to this file, and report over all of it")
    parser.add_argument("--set-up-only", action="store_true", help="install what is missing and stop")
    parser.add_argument("--report-only", action="store_true")
    args = parser.parse_args()
    args.environments.mkdir(parents=True, exist_ok=True)
    if args.set_up_only:
        for name in args.engines:
            try:
                ALL[name](args.environments, args.threads)
            except CannotSetUp as error:
                print(f"{name} cannot be set up: {error}")
        return
    records = [] if args.report_only else run(args)
    if args.results:
        records = [json.loads(line) for line in args.results.read_text().splitlines()]
    if not any("job" in record for record in records):
        sys.exit("nothing was measured")
    print(report(records))


if __name__ == "__main__":
    main()
