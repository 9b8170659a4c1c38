"""Each primitive that the kernels are made of, against its answer from the tests, by the tables of the PTX manual."""

from __future__ import annotations

from typing import Any

import numpy as np

from mainspring.plugins.executors.cupy_device import Device

from .arrays import down, up
from .report import Report, module_at


def check_primitives(device: Device, report: Report) -> None:
    """All of them; wrong ones are in the report."""
    tests = module_at("tests/emulator/primitives.py")
    kernels = device.raw_module(code=tests.TEXT, name_expressions=tests.KERNELS)

    def launch(name: str, threads: int, arrays: list[Any], shared_bytes: int) -> list[Any]:
        there = [up(array, device.device) for array in arrays]
        addresses = tuple(np.uint64(tensor.data_ptr()) for tensor in there)
        kernels.get_function(name)((1,), (threads,), addresses, shared_mem=shared_bytes)
        device.synchronize()
        return [down(tensor, array) for tensor, array in zip(there, arrays, strict=True)]

    for name, right in tests.check_all(launch).items():
        report.check(f"primitive {name}", float(not right), 0.0)
