"""The memory ledger (E-14)."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.core.config import AllocatorConfig, ExecutorConfig
from mainspring.core.errors import ConfigError
from mainspring.plugins.executors.memory import available_bytes, kv_bytes, parse, plan, show
from mainspring.plugins.settings import Config, SchedulerConfig

MIB, GIB = 2**20, 2**30


def config(memory: str = "auto", num_blocks: int = 0, max_running: int = 256) -> Config:
    return Config(
        executor=ExecutorConfig(memory=memory),
        allocator=AllocatorConfig(num_blocks=num_blocks),
        scheduler=SchedulerConfig(max_running=max_running),
    )


def made(config: Config, available: int = 16 * GIB, block_bytes: int = MIB, weights: int = 100 * MIB) -> int:
    ledger = plan(config, weights, 28 * MIB, block_bytes, 4096, available)
    assert ledger.columns() == {
        "weights": weights,
        "workspace": 28 * MIB,
        "kv": ledger.num_blocks * block_bytes,
        "overhead": ledger.overhead,
    }
    return ledger.num_blocks


def test_the_documented_example_prints_8_gib() -> None:
    size = kv_bytes(num_layers=32, num_kv_heads=32, head_dim=128, num_tokens=4 * 4096, element_bytes=2)
    assert show(size) == "8.00 GiB"


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GiB", 4 * GIB), ("512MiB", 512 * MIB), ("1.5 GiB", 3 * GIB // 2), ("1000", 1000), ("2kib", 2048)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse(text) == size


@pytest.mark.parametrize("text", ["", "4G B", "-1GiB", "0", "4GB", "lots"])
def test_bad_sizes_name_the_key_and_the_form(text: str) -> None:
    with pytest.raises(ConfigError, match=r"executor\.memory = .*expected a size such as '4GiB'"):
        parse(text)


def test_default_is_the_smaller_of_4_gib_and_a_quarter_of_what_is_free() -> None:
    assert made(config(), available=64 * GIB) == 4096 - 128
    assert made(config(), available=4 * GIB) == 1024 - 128


def test_a_pool_larger_than_any_use_is_not_taken() -> None:
    assert made(config(max_running=2)) == 2 * 4096 // 16


def test_num_blocks_overrides_and_is_checked_against_memory_e14() -> None:
    assert made(config(num_blocks=7)) == 7
    with pytest.raises(
        ConfigError, match=r"allocator\.num_blocks = 70000: .* need 68\.48 GiB; available are 16\.00 GiB"
    ):
        made(config(num_blocks=70000))


def test_budget_too_small_for_one_block_e14() -> None:
    with pytest.raises(
        ConfigError, match=r"executor\.memory = '100MiB': .*1 KV block.* need 129\.00 MiB; .*100\.00 MiB"
    ):
        made(config("100MiB"))


def test_weights_larger_than_memory_e14() -> None:
    with pytest.raises(ConfigError, match=r"weights 8\.00 GiB.*change executor\.memory"):
        made(config(), available=4 * GIB, weights=8 * GIB)
    with pytest.raises(ConfigError, match=r"are needed and 4\.00 GiB are free"):
        made(config("12GiB"), available=4 * GIB, weights=8 * GIB)


def test_cgroup_limits_bound_what_is_free(tmp_path: Path) -> None:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable:    8388608 kB\n")
    (proc / "self/cgroup").write_text("0::/inner/box\n")
    box = cgroup / "inner/box"
    box.mkdir(parents=True)
    assert available_bytes(proc, cgroup) == 8 * GIB
    (box / "memory.max").write_text("max\n")
    (box / "memory.current").write_text("1\n")
    assert available_bytes(proc, cgroup) == 8 * GIB
    (box.parent / "memory.max").write_text(str(3 * GIB))
    (box.parent / "memory.current").write_text(str(GIB))
    assert available_bytes(proc, cgroup) == 2 * GIB
    (box / "memory.max").write_text(str(GIB))
    (box / "memory.current").write_text(str(2 * GIB))
    assert available_bytes(proc, cgroup) == 0


def test_blocks_of_a_host_beside_a_device_are_not_the_devices() -> None:
    options = {"host_blocks": 8}
    settings = Config(allocator=AllocatorConfig(options=options), scheduler=SchedulerConfig(max_running=1))
    ledger = plan(settings, 100 * MIB, 28 * MIB, MIB, 4096, 140 * MIB * 10 // 9 + 1, host_available=8 * MIB)
    assert (ledger.num_blocks, ledger.host_kv) == (12, 8 * MIB)
    with pytest.raises(ConfigError, match=r"host_blocks = 8: blocks of 1\.00 MiB need 8\.00 MiB .* 7\.00 MiB are free"):
        plan(settings, 100 * MIB, 28 * MIB, MIB, 4096, 64 * GIB, host_available=7 * MIB)


def test_of_a_device_nine_tenths_are_taken() -> None:
    settings = Config(scheduler=SchedulerConfig(max_running=256))
    assert plan(settings, GIB, 0, MIB, 65536, 100 * GIB, host_available=GIB).num_blocks == 89 * 1024
    with pytest.raises(ConfigError, match="nine tenths of the device's free memory"):
        plan(settings, 10 * GIB, 0, MIB, 4096, 10 * GIB, host_available=GIB)
