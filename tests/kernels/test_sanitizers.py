"""AddressSanitizer with UBSan and ThreadSanitizer: nothing on the kernels as they are, and every planted bug is
found."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.emulator.module import schedule
from tests.emulator.sanitizers import command

from .plants import PLANTS
from .scenarios import SCENARIOS, planted

ROOT = Path(__file__).parents[2]
Reports = dict[str, Future[subprocess.CompletedProcess[str]]]

pytestmark = pytest.mark.slow


def _run(kind: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    line, environment = command(kind, sys.executable, "-m", "tests.kernels.scenarios", *arguments)
    return subprocess.run(line, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def reports() -> Iterator[Reports]:
    """Every run under a sanitizer, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        started = {kind: pool.submit(_run, kind, *SCENARIOS) for kind in ("thread", "address")}
        for name, plant in PLANTS.items():
            started[name] = pool.submit(_run, plant.sanitizer, "--plant", name, plant.scenario)
        yield started


@pytest.mark.parametrize("name", PLANTS)
def test_every_planted_bug_is_found(reports: Reports, name: str) -> None:
    done = reports[name].result()
    assert done.returncode not in (0, 2), done.stderr
    assert PLANTS[name].says in done.stderr
    assert ".cu:" in done.stderr  # it names the kernel's line


@pytest.mark.parametrize("kind", ["address", "thread"])
def test_the_kernels_are_clean(reports: Reports, kind: str) -> None:
    done = reports[kind].result()
    assert done.returncode == 0, done.stderr[:6000]
    assert done.stdout.split() == [word for name in SCENARIOS for word in (name, "ok")]


@pytest.mark.parametrize("name", [name for name, plant in PLANTS.items() if plant.shows])
def test_running_ahead_makes_a_missing_barrier_visible(name: str) -> None:
    """Order 3, every seed; so such a bug is found without a sanitizer, too."""
    run, build = SCENARIOS[PLANTS[name].scenario], planted(name)
    for seed in range(8):
        with schedule(order=3, seed=seed):
            assert not run(build), seed


@pytest.mark.parametrize("seeds", [1, pytest.param(8, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_order_and_seed(name: str, seeds: int) -> None:
    """Orders 0 and 1 have no seeds; 2 and 3 run with eight in the soak."""
    run = SCENARIOS[name]
    for order, seed in [(0, 0), (1, 0), *((order, seed) for order in (2, 3) for seed in range(seeds))]:
        with schedule(order, seed):
            assert run(planted(None)), (order, seed)
