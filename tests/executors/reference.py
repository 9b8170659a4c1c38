"""What transformers answers for a model folder, and the tiny models that the families are compared on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from mainspring.core.config import AllocatorConfig, ExecutorConfig
from mainspring.core.messages import SamplingParams, Submit
from mainspring.plugins.settings import Config, ModelConfig, SchedulerConfig
from mainspring.plugins.simulator import Simulator

BASE: dict[str, Any] = {"tie_word_embeddings": False, "max_position_embeddings": 256}
#: Family -> what its config.json has beside that of the tiny Llama.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": BASE,
    "llama-biases": BASE | {"attention_bias": True, "mlp_bias": True},
    "llama-mqa-head-dim": BASE | {"num_key_value_heads": 1, "head_dim": 32},
    "mistral-window-8": BASE
    | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 8, "head_dim": 32},
    "qwen2": BASE | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2-windows-above-layer-1": BASE
    | {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 8,
        "max_window_layers": 1,
        "num_hidden_layers": 3,
    },
    "qwen3": BASE | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32},
    "qwen3-bias-layer-types": BASE
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "head_dim": 16,
        "attention_bias": True,
        "use_sliding_window": True,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}


def reference(folder: Path, attention: str = "eager") -> Any:
    """The folder's model in float32, with the attention that spells everything out."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).eval()


def greedy_ids(model: Any, prompt: list[int], new_tokens: int) -> list[int]:
    """Greedy ids by recomputing the whole sequence for every token."""
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(new_tokens):
            ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def whole_logits(model: Any, ids: list[int]) -> torch.Tensor:
    """Logits ``[tokens, vocab]`` of one pass over ``ids``."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([ids]), use_cache=False).logits[0]
    return logits


def tokenwise_logits(model: Any, ids: list[int]) -> torch.Tensor:
    """Logits ``[tokens, vocab]`` of feeding ``ids`` one at a time with the model's own cache."""
    cache, out = None, []
    with torch.inference_mode():
        for token in ids:
            step = model(torch.tensor([[token]]), cache=cache, use_cache=True)
            cache = step.cache
            out.append(step.logits[0, 0])
    return torch.stack(out)


def simulated(executor: Any, config: Config, prompts: list[list[int]], new_tokens: int) -> tuple[Any, list[list[int]]]:
    """Greedy ids of ``prompts`` that arrive one after the other at a whole engine in virtual time, and the engine."""
    sim = Simulator(config, executor, lambda launch: 1.0, sampler="standard")
    for index, prompt in enumerate(prompts):
        sampling = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True)
        sim.at(2.5 * index, Submit(str(index), tuple(prompt), sampling))
    sim.run()
    out: list[list[int]] = [[] for _ in prompts]
    for emit in sim.emitted:
        for row in emit.rows:
            out[int(row.rid)].extend(row.token_ids)
    return sim, out


def engine_config(folder: Path, num_blocks: int, use: str = "paged", **scheduler: Any) -> Config:
    """A small engine in float32 that checks its books after every message."""
    return Config(
        paranoid=True,
        scheduler=SchedulerConfig(**({"token_budget": 24, "max_running": 4} | scheduler)),
        allocator=AllocatorConfig(use=use, block_size=4, num_blocks=num_blocks),
        executor=ExecutorConfig(use="torch", dtype="fp32", weights="fp32", kv_dtype="fp32", threads=1),
        model=ModelConfig(path=str(folder)),
    )
