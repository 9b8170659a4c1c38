"""Paired runs in virtual time: the same arrivals for all arms, results that survive a kill, verdicts and refusals."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.experiments.lab import PARTS, write

from mainspring.core.__main__ import main
from mainspring.core.errors import ConfigError
from mainspring.plugins.experiments import spec
from mainspring.plugins.experiments.measure import Facts, Summary
from mainspring.plugins.experiments.played import analyse
from mainspring.plugins.experiments.report import Report
from mainspring.plugins.experiments.run import basis, run
from mainspring.plugins.experiments.runner import Runner
from mainspring.plugins.experiments.simulated import SimulatedClock
from mainspring.plugins.experiments.store import Store
from mainspring.plugins.experiments.table import text

HEAD = PARTS["head"]


def summaries(out: Path) -> dict[str, bytes]:
    """Every result as it lies there, without the real time that it took."""
    import gzip

    found = {}
    for path in sorted((out / "runs").iterdir()):
        tree = json.loads(gzip.decompress(path.read_bytes()))
        del tree["took_s"]
        found[path.name] = msgspec.json.encode(tree)
    return found


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    folder = tmp_path_factory.mktemp("ab")
    return folder, run(write(folder, load="[load]\nrho = [0.5, 0.95]\n"), folder / "out")


def test_both_arms_of_a_pair_see_the_same_arrivals_and_do_the_same_work(played: tuple[Path, Report]) -> None:
    folder, report = played
    experiment = spec.read(folder / "experiment.toml")
    store = Store(folder / "out", experiment, True, basis(experiment, SimulatedClock(experiment)))
    for seed in experiment.spec.seed_list:
        one, two = (store.get("rho 0.95", "pair", seed, arm) for arm in ("fcfs", "prefix"))
        assert one is not None and two is not None
        assert one.columns.arrival == two.columns.arrival
        assert one.columns.prompt == two.columns.prompt and one.columns.output == two.columns.output
        assert one.columns.finished != two.columns.finished
    assert [level.pairs for level in report.levels] == [5, 5] and report.complete


def test_the_report_holds_verdict_interval_floor_and_guards(played: tuple[Path, Report]) -> None:
    folder, report = played
    assert report == msgspec.json.decode((folder / "out" / "report.json").read_bytes(), type=Report)
    arm = report.levels[1].arms[0]
    primary = arm.effects[0]
    assert primary.metric == "ttft_mean" and primary.verdict in ("better", "no difference shown")
    assert primary.low and primary.change and primary.high and primary.low < primary.change < primary.high < 1
    assert primary.floor and primary.floor > 0 and len(primary.values) == 5
    assert [guard.metric for guard in arm.guards] == ["ttft_p99@rare"]
    assert any("a p99 wants 1000" in caution for caution in report.levels[1].cautions)
    told = text(report)
    assert "A/A FLOOR" in told and report.finding in told and "guard" in told


def test_the_page_is_whole_and_needs_no_network(played: tuple[Path, Report]) -> None:
    folder, _ = played
    page = (folder / "out" / "report.html").read_text(encoding="utf-8")

    class Tags(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []
            self.titles: list[str] = []
            self.remote: list[str] = []

        def handle_starttag(self, tag: str, attrs: Any) -> None:
            if tag not in ("meta", "line", "rect"):
                self.open.append(tag)
            self.remote += [value for name, value in attrs if name in ("src", "href") and value]

        def handle_startendtag(self, tag: str, attrs: Any) -> None:
            return

        def handle_endtag(self, tag: str) -> None:
            if tag not in ("line", "rect"):
                assert self.open.pop() == tag

        def handle_data(self, data: str) -> None:
            if self.open and self.open[-1] == "figcaption":
                self.titles.append(data)

    tags = Tags()
    tags.feed(page)
    assert tags.open == [] and tags.remote == [] and "http" not in page and "nan" not in page
    for title in (
        "Time to first token",
        "Time per output token",
        "Time between tokens",
        "Goodput over offered load",
        "Batch composition, fcfs",
        "Batch composition, prefix",
        "Mean time to first token by class",
        "Share of prompt tokens found in the cache",
        "Requests that prefix started earlier or later",
    ):
        assert title in tags.titles


def test_the_page_works_in_a_browser(played: tuple[Path, Report], tmp_path: Path) -> None:
    """Its script runs: one button per load level, and the last level is the one that is shown."""
    import shutil

    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no chromium on the PATH")
    command = [found, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
    page = f"file://{played[0] / 'out' / 'report.html'}"
    done = subprocess.run([*command, page], capture_output=True, text=True, timeout=120, check=True)
    assert '<button aria-pressed="false">rho 0.5</button><button aria-pressed="true">rho 0.95</button>' in done.stdout
    assert '<section class="level hidden" data-label="rho 0.5">' in done.stdout
    assert '<section class="level" data-label="rho 0.95">' in done.stdout


def test_a_killed_run_goes_on_where_it_was(played: tuple[Path, Report], tmp_path: Path) -> None:
    """SIGKILL in the middle; the resumed run plays only what is missing, and ends with the same results."""
    path, out = write(tmp_path, load="[load]\nrho = [0.5, 0.95]\n"), tmp_path / "out"
    command = [sys.executable, "-m", "mainspring", "ab", str(path), "--out", str(out)]
    process = subprocess.Popen(command, env=os.environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "pair 3 of 5" in line:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    before = {path.name: path.stat().st_mtime_ns for path in (out / "runs").iterdir() if path.suffix == ".gz"}
    assert 7 < len(before) < 31
    with pytest.raises(ConfigError, match="--resume goes on"):
        run(path, out)
    lines: list[str] = []
    report = run(path, out, resume=True, progress=lines.append)
    assert len([line for line in lines if "runs left" in line]) == 32 - len(before)
    after = {path.name: path.stat().st_mtime_ns for path in (out / "runs").iterdir()}
    assert before.items() <= after.items()
    assert summaries(out) == summaries(played[0] / "out")
    assert report.levels == played[1].levels


def test_a_folder_of_another_experiment_is_refused(tmp_path: Path) -> None:
    path, out = write(tmp_path), tmp_path / "out"
    Store(out, spec.read(path), resume=False)
    write(tmp_path, head=HEAD.replace("seeds = 5", "seeds = 6"))
    with pytest.raises(ConfigError, match="another experiment file"):
        Store(out, spec.read(path), resume=True)
    with pytest.raises(ConfigError, match="there is nothing to resume"):
        Store(tmp_path / "other", spec.read(path), resume=True)


def test_results_of_other_coefficients_or_another_trace_are_not_mixed(tmp_path: Path) -> None:
    """The names stay; what the files say changes."""
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n", encoding="utf-8")
    work = '[workload]\ntrace = "trace.csv"\nformat = "azure"\nkv_tokens = 4096\nmax_output = 64\nwindow_requests = 1\n'
    path, out = write(tmp_path, workload=work), tmp_path / "out"

    def store(resume: bool) -> Store:
        experiment = spec.read(path)
        return Store(out, experiment, resume, basis(experiment, SimulatedClock(experiment)))

    store(resume=False)
    store(resume=True)
    for file, more in ((tmp_path / "steps.toml", "c0 = 0.0125"), (trace, "GeneratedTokens")):
        before = file.read_text(encoding="utf-8")
        file.write_text(before.replace(more, more + ("1" if "c0" in more else "\n")), encoding="utf-8")
        with pytest.raises(ConfigError, match="another experiment file, step-time file"):
            store(resume=True)
        file.write_text(before, encoding="utf-8")
        store(resume=True)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "not" / "there")
    with pytest.raises(ConfigError, match=r"--out .*: cannot be written"):
        Store(tmp_path / "out", spec.read(write(tmp_path)), resume=False)


def test_a_half_written_result_does_not_count(tmp_path: Path) -> None:
    path, out = write(tmp_path), tmp_path / "out"
    Store(out, spec.read(path), resume=False)
    (out / "runs" / ".half.json.gz.part").write_bytes(b"half")
    assert not Store(out, spec.read(path), resume=True).has("rho 0.8", "pair", 0, "fcfs")


def test_it_stops_early_only_by_the_rule_and_pays_for_looking(tmp_path: Path) -> None:
    """The other arm has a fifth of the slots: worse at every look, so the second level of pairs is never played."""
    arms = "[arms.fcfs]\n[arms.narrow.scheduler]\nmax_running = 6\n"
    head = HEAD.replace("seeds = 5", "seeds = 12")
    report = run(
        write(tmp_path, head=head, arms=arms, load="[load]\nrho = [0.9]\n[stop]\nlooks = [6]\n"), tmp_path / "out"
    )
    level = report.levels[0]
    assert level.stopped_early and level.pairs == 6 and report.complete
    assert report.confidence == pytest.approx(0.975)
    assert level.arms[0].effects[0].verdict == "worse"


def test_a_budget_of_time_leaves_too_few_runs_and_no_verdict(tmp_path: Path) -> None:
    report = run(write(tmp_path, load="[load]\nrate = [20.0]\n[stop]\nwall_s = 0.001\n"), tmp_path / "out")
    assert not report.complete
    arm = report.levels[0].arms[0]
    assert {effect.verdict for effect in arm.effects} <= {"refused"}
    assert "too few runs: 0 pairs, 5 are needed" in arm.checks[0] and "no verdict" in report.finding


def facts(**changes: Any) -> Facts:
    good = Facts(100, 90, 0, 1000, 0.001, 0.0, 0.2, "x")
    return msgspec.structs.replace(good, **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lost": 3}, "3 of 100 requests have not ended"),
        ({"little_error": 0.03}, "Little's law is off by 3.0%"),
    ],
)
def test_a_run_that_went_wrong_refuses_the_verdict(
    changes: dict[str, Any], words: str, played: tuple[Path, Report], tmp_path: Path
) -> None:
    """One run of one arm is made bad in the store; everything else is as it was."""
    assert facts().failed == [] and words in facts(**changes).failed[0]
    report = tampered(played[0], tmp_path, "prefix", changes)
    good, bad = report.levels
    assert not good.arms[0].checks
    assert f"prefix: 1 of 5 runs: {facts(requests=40, **changes).failed[0]}" in bad.arms[0].checks
    assert {effect.verdict for effect in bad.arms[0].effects} == {"refused"}


def test_a_late_generator_refuses_verdicts_on_times_only(played: tuple[Path, Report], tmp_path: Path) -> None:
    """What is counted on the same requests does not depend on milliseconds, so there the pairs may speak."""
    changes = {"lag_p99_s": 0.006, "median_ttft_s": 0.2}
    words = "the generator was late: p99 6.0 ms, the limit is 5.0 ms"
    assert facts(**changes).failed == [] and facts(**changes).late == words
    assert facts(lag_p99_s=0.006, median_ttft_s=1.0).late == ""
    report = tampered(played[0], tmp_path, "prefix", changes)
    good, bad = (level.arms[0] for level in report.levels)
    assert not good.checks and bad.checks == (f"prefix: 1 of 5 runs: {words}",)
    verdicts = {effect.metric: effect.verdict for effect in bad.effects}
    assert verdicts.pop("hit_rate") != "refused" and set(verdicts.values()) == {"refused"}
    assert {guard.result for guard in bad.guards} == {"not shown"}
    assert f"no verdict on prefix: prefix: 1 of 5 runs: {words}" in report.finding


def test_arms_that_did_unequal_work_get_no_verdict(played: tuple[Path, Report], tmp_path: Path) -> None:
    report = tampered(played[0], tmp_path, "prefix", {"output_tokens": 5})
    assert report.levels[1].arms[0].checks == ("in 1 pairs the arms did not do the same work (output tokens)",)


def test_a_simulation_that_does_not_repeat_gets_no_verdict(played: tuple[Path, Report], tmp_path: Path) -> None:
    report = tampered(played[0], tmp_path, "fcfs", {"digest": "another"})
    assert "the simulation does not repeat" in report.levels[1].arms[0].checks[0]


def tampered(folder: Path, tmp_path: Path, arm: str, changes: dict[str, Any]) -> Report:
    import shutil

    shutil.copytree(folder, tmp_path / "ab")
    path = tmp_path / "ab" / "experiment.toml"
    experiment = spec.read(path)
    clock = SimulatedClock(experiment)
    store = Store(tmp_path / "ab" / "out", experiment, True, basis(experiment, clock))
    summary = store.get("rho 0.95", "pair", 0, arm)
    assert isinstance(summary, Summary)
    store.put(msgspec.structs.replace(summary, facts=msgspec.structs.replace(summary.facts, **changes)))
    runner = Runner(experiment, store, clock)
    return analyse(runner, runner.levels(), {})[0]


def test_the_verb_prints_a_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = write(tmp_path, load="[load]\nrate = [20.0]\n"), tmp_path / "out"
    assert main(["ab", str(path), "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert "20 per s: prefix against fcfs, 5 pairs" in shown.out and "report.html" in shown.out
    assert "runs left" in shown.err
    assert main(["ab", str(path), "--out", str(out), "--resume", "--quiet", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["primary"] == "ttft_mean" and shown.err == ""
    assert main(["ab", str(path), "--out", str(out)]) == 2
    assert "--resume goes on" in capsys.readouterr().err


def test_an_interrupt_leaves_reports_of_what_was_played(tmp_path: Path) -> None:
    path, out = write(tmp_path, load="[load]\nrate = [20.0]\n"), tmp_path / "out"

    def progress(line: str) -> None:
        if "pair 2" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(path, out, progress=progress)
    report = msgspec.json.decode((out / "report.json").read_bytes(), type=Report)
    assert not report.complete and report.levels[0].pairs == 1


def test_a_pool_that_no_request_fits_is_no_capacity(tmp_path: Path) -> None:
    small = "[config.allocator]\nnum_blocks = 3\n"
    with pytest.raises(ConfigError, match=r"capacity of fcfs .* 40 of 40 .* first with kv_capacity_exceeded"):
        run(write(tmp_path, load="[load]\nrho = [0.8]\n" + small), tmp_path / "out")


def test_equal_arms_are_pointed_out(tmp_path: Path) -> None:
    arms = PARTS["arms"].replace("prefix_priority", "fcfs")
    report = run(write(tmp_path, load="[load]\nrate = [20.0]\n", arms=arms), tmp_path / "out")
    assert "prefix is configured exactly as fcfs: it can show nothing but noise" in report.levels[0].cautions
    assert report.levels[0].arms[0].effects[0].verdict == "no difference shown"


def test_a_disk_that_fills_up_costs_what_was_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused in one sentence, nothing half written, and --resume goes on once there is room."""
    path, out = write(tmp_path, load="[load]\nrate = [20.0]\n"), tmp_path / "out"
    written, fsync = list[int](), os.fsync

    def full(descriptor: int) -> None:
        written.append(descriptor)
        if len(written) > 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(ConfigError, match=r"--out .*: cannot be written: No space left .* kept for --resume"):
            run(path, out)
    kept = sorted((out / "runs").iterdir())
    assert kept and all(file.name.endswith(".json.gz") for file in kept)
    assert run(path, out, resume=True).complete


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"--out .*: cannot be written: "):
        run(write(tmp_path), tmp_path / "out")
    assert (tmp_path / "out").read_text(encoding="utf-8") == "mine"
