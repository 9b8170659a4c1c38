"""What every built-in policy decides on the kit's fixed traffic, step by step; the files lie in ``policy_decisions/``.

``python -m tests.golden.decisions`` in the repository's root writes them anew, after a change that is meant.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mainspring.testing import Trial

FILES = Path(__file__).parent / "policy_decisions"

#: file name -> (policy, options, wrappers); ``mlfq`` with levels that such short requests reach
CASES: dict[str, tuple[str, dict[str, Any], tuple[str | dict[str, Any], ...]]] = {
    "deadline": ("deadline", {}, ()),
    "dynamic_batch": ("dynamic_batch", {}, ()),
    "fair": ("fair", {}, ()),
    "fcfs": ("fcfs", {}, ()),
    "mlfq": ("mlfq", {"quantum": 8}, ()),
    "prefix_priority": ("prefix_priority", {}, ()),
    "priority": ("priority", {}, ()),
    "shortest_hrrn": ("shortest", {"mode": "hrrn"}, ()),
    "shortest_prefill": ("shortest", {}, ()),
    "shortest_remaining": ("shortest", {"mode": "remaining"}, ()),
    "static_batch": ("static_batch", {}, ()),
    "token_budget": ("token_budget", {}, ()),
    "priority_in_ageing": ("priority", {}, ({"use": "ageing", "max_wait_s": 0.2},)),
    "fcfs_in_tenant_share": ("fcfs", {}, ("tenant_share",)),
}


def decided(name: str) -> str:
    """Play the case ``name``; a line of JSON for each step, as ``--policy-golden`` writes it."""
    use, options, wrap = CASES[name]
    with Trial(use, options, wrap=wrap) as trial:
        return trial.golden_trace()


def path_of(name: str) -> Path:
    return FILES / f"{name}.jsonl"


if __name__ == "__main__":
    for case in CASES:
        path_of(case).write_text(decided(case), encoding="utf-8")
