"""What every worker of ``../peers.py`` does: say that it is ready, then answer jobs, one JSON object a line.

A job is ``ids`` (rows of equal length) and ``new_tokens``; its answer is ``seconds`` from handing the rows over until
all of them have all their tokens.  Greedy, end-of-sequence ignored.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any


def take_stdout() -> Any:
    """The stream for answers; whatever a library prints from now on goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def serve(answers: Any, version: str, precision: str, generate: Callable[[list[list[int]], int], list[int]]) -> None:
    """``generate(ids, new_tokens)`` returns how many tokens each row was given."""
    print(json.dumps({"version": version, "precision": precision}), file=answers, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        ids, new_tokens = job["ids"], int(job["new_tokens"])
        begun = time.perf_counter()
        made = generate(ids, new_tokens)
        seconds = time.perf_counter() - begun
        assert made == [new_tokens] * len(ids), made
        print(json.dumps({"seconds": seconds}), file=answers, flush=True)
