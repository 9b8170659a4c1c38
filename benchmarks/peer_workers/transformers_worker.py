"""transformers as a peer: one batch of ``generate`` per job.

``python transformers_worker.py FOLDER THREADS DTYPE`` in its own environment, see ``serving.py``.
"""

from __future__ import annotations

import sys
from typing import Any

from serving import serve, take_stdout


def main() -> None:
    """Load and serve."""
    answers = take_stdout()
    import torch
    import transformers

    torch.set_num_threads(int(sys.argv[2]))
    dtype = sys.argv[3]
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=getattr(torch, dtype)).eval()
    model.generation_config.pad_token_id = 0

    def generate(ids: list[list[int]], new_tokens: int) -> list[int]:
        rows = torch.tensor(ids)
        made = model.generate(
            rows,
            attention_mask=torch.ones_like(rows),
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
        )
        return [made.shape[1] - rows.shape[1]] * len(ids)

    serve(answers, transformers.__version__, dtype, generate)


if __name__ == "__main__":
    main()
