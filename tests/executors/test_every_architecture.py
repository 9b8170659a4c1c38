"""Every decoder that the installed transformers knows either answers as it does by itself, or is refused.

Made for transformers 5.24; another version has other architectures, which this test then names.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from tests.executors.architectures import REFUSED, RUN, architectures, write_tiny
from tests.executors.reference import engine_config, greedy_ids, reference, simulated
from tests.executors.test_foreign import MODELS, PROMPTS

from mainspring.core.errors import ConfigError
from mainspring.plugins.executors.torch import TorchExecutor

pytestmark = [pytest.mark.soak, pytest.mark.filterwarnings("ignore")]  # what transformers warns of is its own
#: Not tried: families of this package, models of several parts, and those whose configuration cannot be shrunk so.
OTHERS = (
    "Llama", "Mistral", "Qwen2", "Qwen3",
    "Blt", "CohereCompass", "Dbrx", "Dots1", "Dots3Note", "Emu3", "FalconH1", "Fuyu", "Gemma3n", "Gemma4Assistant",
    "Gemma4", "Gemma4UnifiedAssistant", "Gemma4Unified", "Inkling2", "Inkling2Loop", "Lfm2Moe", "Mamba2", "Mllama",
    "PLBart", "Phi4Multimodal", "Whisper", "Zamba2", "Zamba",
)  # fmt: skip


def test_no_architecture_is_forgotten() -> None:
    known = {name for name in architectures() if not name.endswith("ForConditionalGeneration")}
    others = {name + "ForCausalLM" for name in OTHERS} | {"ReformerModelWithLMHead"}
    assert known == {*RUN, *REFUSED} | others
    assert len(RUN) + len(REFUSED) + len(others) == len(known)


@pytest.mark.parametrize("name", RUN)
def test_it_answers_as_it_does_by_itself(tmp_path: Path, name: str) -> None:
    write_tiny(tmp_path, name)
    config = engine_config(tmp_path, 16, "prefix")
    sim, made = simulated(executor := TorchExecutor(None, config), config, PROMPTS, 16)
    executor.close()
    finishes = [row.finish for emit in sim.emitted for row in emit.rows if row.finish]
    assert sum(finish.num_preemptions for finish in finishes) > 0
    own = reference(tmp_path)
    assert made == [greedy_ids(own, prompt, 16) for prompt in PROMPTS]


@pytest.mark.parametrize(("name", "words"), REFUSED.items())
def test_it_is_refused(tmp_path: Path, name: str, words: str) -> None:
    write_tiny(tmp_path, name)
    with pytest.raises(ConfigError, match=words):
        TorchExecutor(None, engine_config(tmp_path, 24)).load(print)


def test_a_model_with_a_vision_tower_answers_text(tmp_path: Path) -> None:
    text = MODELS["Gemma3TextConfig"]
    vision = {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
        "patch_size": 14,
    }  # fmt: skip
    kind = transformers.Gemma3ForConditionalGeneration
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    torch.manual_seed(3)
    kind(config).save_pretrained(tmp_path)
    engine = engine_config(tmp_path, 16, "prefix")
    _, made = simulated(executor := TorchExecutor(None, engine), engine, PROMPTS, 16)
    executor.close()
    own = kind.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager").eval()
    assert made == [greedy_ids(own, prompt, 16) for prompt in PROMPTS]
