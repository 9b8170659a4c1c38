"""llama.cpp as a peer, through the low-level batches of llama-cpp-python: parallel sequences, prompts first.

``python llama_worker.py MODEL.gguf THREADS`` in its own environment, see ``serving.py``;
``python llama_worker.py MODEL.gguf --quantise OUT.gguf`` writes the model as Q8_0.
"""

from __future__ import annotations

import sys
from typing import Any

from serving import serve, take_stdout

STEP = 512  # tokens of a batch of prompts


def quantise(source: str, target: str) -> None:
    """llama.cpp's own conversion to Q8_0."""
    import llama_cpp

    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.allow_requantize = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, True
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), options):
        raise SystemExit("llama.cpp cannot convert the model")


def main() -> None:
    """Load and serve."""
    if sys.argv[2] == "--quantise":
        return quantise(sys.argv[1], sys.argv[3])
    answers = take_stdout()
    import llama_cpp as llama
    import numpy as np

    llama.llama_backend_init()
    model: Any = llama.llama_model_load_from_file(sys.argv[1].encode(), llama.llama_model_default_params())
    vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    batch = llama.llama_batch_init(STEP, 0, 1)

    def put(token: int, position: int, sequence: int, wanted: bool) -> None:
        at = batch.n_tokens
        batch.token[at], batch.pos[at], batch.n_seq_id[at] = token, position, 1
        batch.seq_id[at][0], batch.logits[at] = sequence, wanted
        batch.n_tokens += 1

    def generate(ids: list[list[int]], new_tokens: int) -> list[int]:
        # A context of its own for each job: its cache is cut into as many sequences as there are rows.
        options = llama.llama_context_default_params()
        options.n_ctx, options.n_seq_max = len(ids) * -(-(len(ids[0]) + new_tokens) // 256) * 256, len(ids)
        options.n_batch = options.n_ubatch = STEP
        options.n_threads = options.n_threads_batch = int(sys.argv[2])
        context: Any = llama.llama_init_from_model(model, options)
        made: list[list[int]] = [[] for _ in ids]

        def run(wanted: list[tuple[int, int]]) -> None:
            """Decode what was put; ``wanted``: (place in the batch, row) of those that sample."""
            if llama.llama_decode(context, batch):
                raise RuntimeError("llama_decode failed")
            for place, row in wanted:
                logits = np.ctypeslib.as_array(llama.llama_get_logits_ith(context, place), (vocab_size,))
                made[row].append(int(logits.argmax()))
            batch.n_tokens = 0

        sampling: list[tuple[int, int]] = []
        batch.n_tokens = 0
        for row, tokens in enumerate(ids):
            for position, token in enumerate(tokens):
                last = position == len(tokens) - 1
                if last:
                    sampling.append((batch.n_tokens, row))
                put(token, position, row, last)
                if batch.n_tokens == STEP:
                    run(sampling)
                    sampling.clear()
        if batch.n_tokens:
            run(sampling)
        for step in range(new_tokens - 1):
            for row, tokens in enumerate(ids):
                put(made[row][-1], len(tokens) + step, row, True)
            run([(row, row) for row in range(len(ids))])
        llama.llama_free(context)
        return [len(row) for row in made]

    serve(answers, llama.__version__, "the file's weights, 8-bit activations, KV fp16", generate)
    return None


if __name__ == "__main__":
    main()
