"""OpenVINO GenAI as a peer: run by the Python of its own environment, see ``../peers.py``.

Reads one JSON object a line (``ids``: rows of equal length, ``new_tokens``) and answers each with its seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def main() -> None:
    """``python openvino_worker.py MODEL.gguf``."""
    import numpy as np
    import openvino
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size, scheduler.max_num_batched_tokens = 1, 512
    answers = os.fdopen(os.dup(1), "w")  # the library prints to standard output
    os.dup2(2, 1)
    pipeline: Any = openvino_genai.LLMPipeline(sys.argv[1], "CPU", scheduler_config=scheduler)
    print(json.dumps({"ready": openvino.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        options = openvino_genai.GenerationConfig()
        options.max_new_tokens = options.min_new_tokens = job["new_tokens"]
        options.ignore_eos, options.do_sample = True, False
        rows = np.asarray(job["ids"], np.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(rows), openvino.Tensor(np.ones_like(rows)))
        begun = time.perf_counter()
        made = pipeline.generate(inputs, options).tokens
        seconds = time.perf_counter() - begun
        assert [len(row) for row in made] == [job["new_tokens"]] * len(rows)
        print(json.dumps({"seconds": seconds}), file=answers, flush=True)


if __name__ == "__main__":
    main()
