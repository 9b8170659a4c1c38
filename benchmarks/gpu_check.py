"""The kernels and the executor on this machine's CUDA device: first whether they are right, then how fast they are.

    python benchmarks/gpu_check.py [--json FILE] [--seconds 340] [--only SECTION ...] [--cpu [--all]]

Sections, in this order: each primitive against NumPy (``primitives``), every kernel against float64 and the sampler
(``kernels``), the engine on random weights against the torch executor, with replayed graphs and without an allocation
(``engine``), bandwidth, matrix rate and launch cost (``speed``), tokens per second of whole models (``models``).  The
exit code is 1 if anything was wrong, 2 if there is no device.  What there is no time left for is left out and listed.

It needs Python 3.11, torch, CuPy and NumPy: no tokenizer, no server, no model file, no network.  Weights are random, in
the shapes of SmolLM2-135M and Llama-3-8B.  ``--cpu`` runs the first three sections on the emulator of the tests; with
``--all`` the others too, in tiny sizes, which shows that they run and says nothing about speed.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT), str(ROOT / "benchmarks")]

import torch
from gpu.report import Report

from mainspring.core.errors import MainspringError
from mainspring.plugins.executors.cupy_device import Device, find_device

SECTIONS = ("primitives", "kernels", "engine", "speed", "models")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="correctness only, on the emulator")
    parser.add_argument("--all", action="store_true", help="with --cpu: the sections on speed too, in tiny sizes")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    parser.add_argument("--seconds", type=float, default=340.0, help="leave out what would take longer")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="these sections")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    report = Report(options.seconds)
    device: Device
    if options.cpu:
        from tests.executors.emulated import EmulatedDevice

        device = EmulatedDevice()
    else:
        try:
            device = find_device()
        except MainspringError as error:
            print(error, file=sys.stderr)
            return 2
    report.note("device", device.description)
    report.note("torch", torch.__version__)
    with torch.inference_mode():
        for section in SECTIONS:
            if section in options.only and (not options.cpu or options.all or section not in ("speed", "models")):
                attempt(section, device, report, small=options.cpu)
    report.note("failed", ", ".join(report.failed) or "nothing")
    if options.json:
        options.json.write_text(report.as_json() + "\n", encoding="utf-8")
    return 1 if report.failed else 0


def attempt(section: str, device: Device, report: Report, *, small: bool) -> None:
    """Run one section; if it breaks off, the others still run and the report says why."""
    try:
        run(section, device, report, small=small)
    except Exception:  # noqa: BLE001 - a device fails in many ways
        report.failed.append(f"section {section}")
        report.note(f"section {section} broke off", traceback.format_exc())


def run(section: str, device: Device, report: Report, *, small: bool) -> None:
    if section == "primitives":
        from gpu.primitives import check_primitives

        check_primitives(device, report)
    elif section == "kernels":
        from gpu.kernels import check_kernels

        check_kernels(device, report, small=small)
    elif section == "engine":
        from gpu.engine import check_engine

        check_engine(device, report, small=small)
    elif section == "speed":
        from gpu.speed import measure_kernels

        measure_kernels(device, report, tiny=small)
    else:
        from gpu.models import measure_models

        measure_models(device, report, tiny=small)


if __name__ == "__main__":
    sys.exit(main())
