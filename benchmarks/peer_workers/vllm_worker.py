"""vLLM for CPUs as a peer: its own engine process and scheduler.

``python vllm_worker.py FOLDER THREADS DTYPE`` in its own environment, see ``serving.py``.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from serving import serve, take_stdout


def main() -> None:
    """Load and serve."""
    answers = take_stdout()
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0))[: int(sys.argv[2])])),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    import vllm

    engine: Any = vllm.LLM(
        model=sys.argv[1],
        dtype=sys.argv[3],
        skip_tokenizer_init=True,
        max_model_len=2048,
        max_num_seqs=64,
        enable_prefix_caching=False,
    )

    def generate(ids: list[list[int]], new_tokens: int) -> list[int]:
        options = vllm.SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        made = engine.generate([{"prompt_token_ids": row} for row in ids], options, use_tqdm=False)
        return [len(row.outputs[0].token_ids) for row in made]

    serve(answers, vllm.__version__, sys.argv[3], generate)


if __name__ == "__main__":
    main()
