"""OpenVINO GenAI as a peer: continuous batching, its own default precision for this CPU.

``python openvino_worker.py MODEL.gguf`` in its own environment, see ``serving.py``.
"""

from __future__ import annotations

import sys
from typing import Any

from serving import serve, take_stdout


def main() -> None:
    """Load and serve."""
    answers = take_stdout()
    import numpy as np
    import openvino
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size, scheduler.max_num_batched_tokens = 2, 512
    pipeline: Any = openvino_genai.LLMPipeline(sys.argv[1], "CPU", scheduler_config=scheduler)
    said = openvino.Core().get_property("CPU", "INFERENCE_PRECISION_HINT")

    def generate(ids: list[list[int]], new_tokens: int) -> list[int]:
        options = openvino_genai.GenerationConfig()
        options.max_new_tokens = options.min_new_tokens = new_tokens
        options.ignore_eos, options.do_sample = True, False
        rows = np.asarray(ids, np.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(rows), openvino.Tensor(np.ones_like(rows)))
        return [len(row) for row in pipeline.generate(inputs, options).tokens]

    serve(answers, openvino_genai.__version__, f"the file's weights, computes in {said}", generate)


if __name__ == "__main__":
    main()
