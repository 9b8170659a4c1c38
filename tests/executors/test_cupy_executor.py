"""The executor around the device's network: the same tokens as torch, what it reports, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import torch
from tests.executors.emulated import EmulatedDevice
from tests.executors.reference import engine_config, simulated

from mainspring.core.config import ExecutorConfig
from mainspring.core.errors import ConfigError, EngineFault
from mainspring.core.registry import Registry
from mainspring.plugins.executors import auto, cupy
from mainspring.plugins.executors.auto import AutoExecutor
from mainspring.plugins.executors.cupy import CupyExecutor, Options
from mainspring.plugins.executors.torch import TorchExecutor
from mainspring.plugins.models.tiny import write_tiny_model
from mainspring.plugins.settings import Config, ModelConfig, SchedulerConfig

PROMPTS = [list(range(20, 39)), [20, 21, 22, 23, 24, 25, 26, 27, 90], [7], list(range(20, 33)), list(range(60, 100))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny Llama whose heads have a size that there are kernels for."""
    made = tmp_path_factory.mktemp("tiny64")
    write_tiny_model(made, head_dim=64)
    return made


def config(folder: Path, **executor: Any) -> Config:
    return Config(
        scheduler=SchedulerConfig(token_budget=32, max_running=4),
        executor=ExecutorConfig(use="cupy", **executor),
        model=ModelConfig(path=str(folder)),
    )


def loaded(settings: Config, options: Options | None = None) -> tuple[CupyExecutor, Any, list[str]]:
    executor, said = CupyExecutor(options, settings, EmulatedDevice()), list[str]()
    return executor, executor.load(said.append), said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("allocator", "depth", "options", "graphs"),
    [
        ("prefix", 1, {}, True),
        ("prefix", 2, {}, True),
        ("paged", 2, {}, False),
        ("prefix", 2, {"preempt": "swap", "host_blocks": 20}, True),
        ("none", 1, {}, False),
    ],
)
def test_the_engine_gives_the_tokens_of_torch(
    folder: Path, allocator: str, depth: Literal[1, 2], options: dict[str, Any], graphs: bool
) -> None:
    """Chunks of prompts mixed with decode rows, shared prefixes, and preemption in a pool of 18 blocks."""
    settings = engine_config(folder, 18, use=allocator, depth=depth)
    _, expected = simulated(TorchExecutor(None, settings), settings, PROMPTS, 20)
    chosen = msgspec.structs.replace(settings.allocator, options=options)
    settings = msgspec.structs.replace(settings, allocator=chosen)
    device = EmulatedDevice()
    engine, made = simulated(CupyExecutor(Options(graphs=graphs), settings, device), settings, PROMPTS, 20)
    assert made == expected
    stats = engine.actors.host.stats()
    assert stats["policy_faults"] == 0
    if allocator == "prefix":
        assert stats["preemptions"] >= 2
        assert engine.actors.allocator.stats()["hit_tokens"] >= 8
    assert ("copy_blocks" in device.log) == bool(options)
    assert (device.captured > 0) == graphs


@pytest.mark.slow
def test_info_and_ledger(folder: Path) -> None:
    executor, info, said = loaded(config(folder))
    assert info.detail.endswith("CUDA emulated on the CPU, safetensors, weights bf16, activations bf16, KV bf16")
    assert executor._loaded is not None
    network: Any = executor._loaded.network
    pool = sum(part.nbytes for part in network.ops.pool.parts)
    assert (info.num_blocks, info.memory["kv"]) == (4 * 256 // 16, pool)
    assert info.memory["weights"] == network.ops.weight_bytes()
    assert network.ops.buffer_bytes <= info.memory["workspace"] < 2 * network.ops.buffer_bytes
    assert said[0] == "device: CUDA emulated on the CPU"
    assert said[-2:] == [
        "decode steps captured as graphs for batches of 1, 2, 4",
        f"weights packed for bfloat16: {info.memory['weights'] / 2**20:.2f} MiB",
    ]
    executor.close()


@pytest.mark.slow
def test_graphs_can_be_switched_off(folder: Path) -> None:
    executor, _, said = loaded(config(folder), Options(graphs=False))
    assert "decode steps captured as graphs for batches of no size" in said
    executor.close()


@pytest.mark.slow
def test_a_failed_compilation_is_the_engines_fault(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, **arguments: Any) -> None:
        raise EngineFault("kernels do not compile")

    monkeypatch.setattr(EmulatedDevice, "raw_module", broken)
    with pytest.raises(EngineFault, match="do not compile"):
        loaded(config(folder))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"head_dim": 32}, "head_dim = 32, and the kernels have 64, 80, 96, 128 and 256"),
        (
            {"head_dim": 64, "num_attention_heads": 17, "num_key_value_heads": 1},
            "17 heads share a key/value head, and the kernels take 1 to 16",
        ),
        ({"head_dim": 64, "intermediate_size": 92}, "ffn_size = 92, and the kernels take multiples of 8"),
    ],
)
def test_models_that_no_kernel_is_made_for(tmp_path: Path, fields: dict[str, Any], text: str) -> None:
    write_tiny_model(tmp_path, **fields)
    with pytest.raises(ConfigError, match=rf"executor\.use = 'cupy': {text}: set executor\.use = 'torch'"):
        loaded(config(tmp_path))


def test_models_that_run_through_transformers(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, head_dim=64)
    facts = json.loads((tmp_path / "config.json").read_text())
    facts |= {"architectures": ["OlmoForCausalLM"], "model_type": "olmo"}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    with pytest.raises(
        ConfigError, match=r"'cupy': OlmoForCausalLM runs through transformers, .*executor\.use = 'torch'"
    ):
        loaded(config(tmp_path))


@pytest.mark.parametrize(
    ("key", "value"), [("dtype", "int8"), ("dtype", "fp17"), ("weights", "int8"), ("kv_dtype", "fp8")]
)
def test_formats_that_are_not_known(folder: Path, key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"executor\.{key} = '{value}' is not supported"):
        loaded(config(folder, **{key: value}))


def test_what_does_not_fit_the_device_is_refused_with_sizes_e14(folder: Path) -> None:
    executor = CupyExecutor(None, config(folder), EmulatedDevice(free_bytes=2**19))
    with pytest.raises(ConfigError, match=r"need .* available are .*nine tenths of the device's free memory"):
        executor.load(print)


def test_without_a_device_the_start_is_refused(folder: Path) -> None:
    """This machine's torch has no CUDA, or no device, or the device is used by nobody: whatever it is, it is named."""
    if torch.cuda.is_available():
        pytest.skip("there is a device here")
    with pytest.raises(ConfigError, match=r"executor\.use = 'cupy': torch .*CUDA"):
        CupyExecutor(None, config(folder)).load(print)


def test_options_are_checked() -> None:
    registry = Registry()
    made = registry.make("executor", "cupy", {"device": 1, "graphs": False}, Config())
    assert made.options == Options(1, False)
    with pytest.raises(ConfigError, match=r"executor\.options\.device = -1: expected `int` >= 0"):
        registry.make("executor", "cupy", {"device": -1}, Config())
    with pytest.raises(ConfigError, match=r"unknown key executor\.options\.graph = 1; did you mean 'graphs'"):
        registry.make("executor", "cupy", {"graph": 1}, Config())


# --- auto ---


def test_auto_takes_a_usable_device_and_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "device_trouble", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Model X")
    monkeypatch.setattr(cupy, "find_device", lambda index: EmulatedDevice())
    executor, said = AutoExecutor(None, config(folder)), list[str]()
    info = executor.load(said.append)
    executor.close()
    assert said[0] == "auto chose cupy (Model X)"
    assert info.detail.startswith("auto chose cupy (Model X); torch ")


@pytest.mark.parametrize(
    ("trouble", "head_dim", "text"),
    [
        ("no CUDA device", 64, "not cupy: no CUDA device)"),
        (None, 32, "not cupy: head_dim = 32, and the kernels have 64"),
    ],
)
def test_auto_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str | None, head_dim: int, text: str
) -> None:
    write_tiny_model(tmp_path, head_dim=head_dim)
    monkeypatch.setattr(auto, "device_trouble", lambda: trouble)
    said: list[str] = []
    executor = AutoExecutor(None, config(tmp_path, threads=1))
    executor.load(said.append)
    executor.close()
    assert said[0].startswith(("auto chose native (", "auto chose torch ("))
    assert text in said[0]


def test_auto_before_load(folder: Path) -> None:
    executor: Any = AutoExecutor(None, config(folder))
    executor.close()
    with pytest.raises(EngineFault, match=r"before load\(\)"):
        executor.execute(None, None)
