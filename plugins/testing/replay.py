"""Decisions of one policy in a process of its own: ``python -m mainspring.plugins.testing.replay`` with JSON on stdin.

Started with another ``PYTHONHASHSEED`` it shows orders that come from hashes or from memory addresses.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from .runs import Player, Subject
from .scenarios import standard

_TIMEOUT_S = 60.0


def replay(subject: Subject, names: list[str], hash_seeds: Iterable[int]) -> list[dict[str, list[Any]]]:
    """For each hash seed: scenario name -> decisions (as ``Run.decisions``).  Raises RuntimeError."""
    order = {"use": subject.use, "options": dict(subject.options), "wrap": list(subject.wrap), "names": names}
    path = os.pathsep.join(entry for entry in sys.path if entry)
    processes = [
        subprocess.Popen(  # noqa: S603  the interpreter that runs now, with a module of ours
            [sys.executable, "-m", __name__],
            env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in hash_seeds
    ]
    answers = []
    try:
        for process in processes:
            out, err = process.communicate(json.dumps(order), timeout=_TIMEOUT_S)
            if process.returncode:
                raise RuntimeError(f"the replay in a process of its own failed:\n{err}")
            answers.append(json.loads(out))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return answers


def importable(subject: Subject) -> str:
    """The name by which another process finds the policy, or ``""`` (a class inside a function, say)."""
    if isinstance(subject.use, str):
        return subject.use
    kind = subject.use
    there = getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind
    return f"{kind.__module__}:{kind.__qualname__}" if there and kind.__module__ != "__main__" else ""


def main() -> None:
    """Read the order, print the decisions."""
    order, answers = json.load(sys.stdin), sys.stdout
    sys.stdout = sys.stderr  # whatever else is printed must not mix with the answer
    subject = Subject(order["use"], order["options"], tuple(order["wrap"]))
    out = {}
    for scenario in standard():
        if scenario.name in order["names"]:
            player = Player(subject, scenario)
            player.run()
            out[scenario.name] = player.result().decisions()
    json.dump(out, answers)


if __name__ == "__main__":
    main()
