"""Runs whose every byte is kept: `python tests/golden/runs.py` prints them anew after a change that is meant."""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.core.config import Config
from mainspring.plugins.simulation import Run, play
from mainspring.plugins.simulation.play import configure
from mainspring.plugins.step_time.forms import StepForm
from mainspring.plugins.step_time.policy_cost import PolicyCost
from mainspring.plugins.workloads import scenario

FORM = StepForm(form="linear", c0=0.012, c1=5e-5, c2=3e-5, c3=1e-7, c4=1e-9)
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "S1 prefix_priority": ("S1", {"use": "prefix_priority"}, {}),
    "S4 fcfs, depth 2": ("S4", {"depth": 2}, {"policy_cost": PolicyCost(a_us=100.0, b_us=2.0, c_us=0.1)}),
    "S6 shortest": ("S6", {"use": "shortest"}, {}),
    "S6 shortest, depth auto": ("S6", {"use": "shortest", "depth": "auto", "token_budget": 512}, {}),
    "S8 fair": ("S8", {"use": "fair"}, {"noise_sigma": 0.05}),
    "S9 deadline": ("S9", {"use": "deadline"}, {}),
}
GOLDEN: dict[str, str] = {
    "S1 prefix_priority": "7e43e75299bf49f3dc53f1e86eaa1f1ff824401a880c3083ab758cc16dcf9d06",
    "S4 fcfs, depth 2": "add091b8c05d544c0e69ba143f30ddc335c2046ef40e9eb251b2d05be60e918e",
    "S6 shortest": "6ae3e1bd5efd12b903e6d650edd01993a6d82fa97e9e7a4a963e03d1b889ed89",
    "S6 shortest, depth auto": "59c05ce587ebab795d2bad34276a2bf39d36a93b255e7de515557ecaa28680bb",
    "S8 fair": "bfe6c147732c23210af0ef6586a2e8bae2a248088b72aa48d54b70fa595aab19",
    "S9 deadline": "ac9891f960a7bd1c0a8fff5536ac35146056362d1fb673aab05026d4061005f3",
}


def golden_run(name: str) -> Run:
    """Play the case ``name``."""
    which, scheduler, options = CASES[name]
    made = scenario(which, "tiny", 11)
    config = configure(Config(), made)
    limits = {"depth": 1, **scheduler}
    config = msgspec.structs.replace(config, scheduler=msgspec.structs.replace(config.scheduler, **limits))
    return play(config, made, FORM, 11, **options)


if __name__ == "__main__":
    for case in CASES:
        print(f'    "{case}": "{golden_run(case).digest()}",')
