"""``mainspring doctor`` finds what is wrong and says how to mend it; every failing check is made to fail here."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from mainspring.core.__main__ import main
from mainspring.core.errors import ConfigError
from mainspring.plugins import doctor
from mainspring.plugins.config_file import load
from mainspring.plugins.settings import Config

GIB = 2**30


def test_python_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.python().state == "ok"
    monkeypatch.setattr(doctor, "MIN_PYTHON", (99, 0))
    assert doctor.python().state == "fail"


def test_links_that_were_checked_out_as_text(tmp_path: Path) -> None:
    for name in doctor.FOLDERS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "plugins.toml").write_text("gateways = []\n")
    assert doctor.package(tmp_path).state == "ok"
    (tmp_path / "plugins.toml").write_text("../../plugins.toml")
    assert doctor.package(tmp_path).state == "fail"
    (tmp_path / "core" / "__init__.py").unlink()
    (tmp_path / "core").rmdir()
    (tmp_path / "core").write_text("../../core")
    finding = doctor.package(tmp_path)
    assert finding.state == "fail"
    assert finding.detail.endswith(": core")
    assert "symlinks" in finding.mend


def test_this_package_is_whole() -> None:
    assert doctor.package().state == "ok"


def test_torch_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise OSError("libtorch.so: cannot open shared object file")

    monkeypatch.setattr("importlib.import_module", broken)
    finding = doctor.torch()
    assert finding.state == "fail"
    assert "libtorch.so" in finding.detail


def test_model_missing_and_damaged(tmp_path: Path) -> None:
    finding, num_bytes = doctor.model(str(tmp_path / "nowhere.gguf"))
    assert (finding.state, num_bytes) == ("fail", 0)
    assert "nowhere.gguf" in finding.detail
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF" + bytes(60))
    assert doctor.model(str(damaged))[0].state == "fail"
    text = tmp_path / "notes.gguf"
    text.write_text("these are not weights")
    assert doctor.model(str(text))[0].state == "fail"


@pytest.mark.slow
def test_the_default_model_is_found() -> None:
    finding, num_bytes = doctor.model("")
    assert finding.state == "ok"
    assert num_bytes > 50 * 2**20


@pytest.mark.parametrize(
    ("need", "free", "state"),
    [(GIB, 8 * GIB, "ok"), (GIB, 2 * GIB - 1, "warn"), (GIB, GIB - 1, "fail")],
)
def test_memory(need: int, free: int, state: str) -> None:
    assert doctor.memory(need, free).state == state


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    finding = doctor.writable("cache", tmp_path / "file" / "below", "XDG_CACHE_HOME")
    assert finding.state == "fail"
    assert "XDG_CACHE_HOME" in finding.mend
    assert doctor.writable("cache", tmp_path / "new", "XDG_CACHE_HOME").state == "ok"
    assert doctor.writable("journal", None, "journal.path").state == "ok"


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        finding = doctor.port("127.0.0.1", number)
        assert finding.state == "fail"
        assert str(number) in finding.detail
    assert doctor.port("127.0.0.1", 0).state == "ok"


def test_a_name_that_is_no_address() -> None:
    assert doctor.port("not a host name", 80).state == "fail"


def test_plugins_that_do_not_exist_or_refuse_their_options() -> None:
    config = load(None, ["scheduler.use=fcsf", "scheduler.wrap=['nothing']", "executor.use=nowhere:Engine"]).config
    finding = doctor.plugins(config, "test")
    assert finding.state == "fail"
    for word in ("fcsf", "did you mean 'fcfs'", "nothing", "nowhere:Engine"):
        assert word in finding.detail
    config = load(None, ["scheduler.options.no_such_option=1"]).config
    assert "no_such_option" in doctor.plugins(config, "test").detail


@pytest.mark.parametrize(
    ("item", "word"),
    [
        ("allocator.evict=odd", "allocator.evict = 'odd'"),
        ("executor.memory=lots", "executor.memory = 'lots'"),
        ("scheduler.wrap=['aging']", "scheduler.wrap = 'aging'"),
    ],
)
def test_settings_that_a_start_would_refuse(item: str, word: str) -> None:
    finding = doctor.plugins(load(None, [item]).config, "test")
    assert finding.state == "fail" and word in finding.detail


def test_the_default_plugins_load() -> None:
    assert doctor.plugins(Config(), "test").state == "ok"


@pytest.mark.parametrize(
    ("trouble", "available", "state", "text"),
    [
        (None, True, "ok", "Model X"),
        ("CuPy is not installed", True, "warn", "CuPy is not installed"),
        ("torch has no CUDA", False, "ok", "none, so the model runs on the CPU: torch has no CUDA"),
    ],
)
def test_device(monkeypatch: pytest.MonkeyPatch, trouble: str | None, available: bool, state: str, text: str) -> None:
    import torch

    from mainspring.plugins.executors import cupy_device

    monkeypatch.setattr(cupy_device, "device_trouble", lambda: trouble)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Model X")
    finding = doctor.device()
    assert (finding.state, finding.detail) == (state, text)


def test_a_device_whose_driver_fails_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    from mainspring.plugins.executors import cupy_device

    def broken() -> None:
        raise RuntimeError("unknown error")

    monkeypatch.setattr(cupy_device, "device_trouble", broken)
    assert (doctor.device().state, doctor.device().detail) == ("warn", "RuntimeError: unknown error")


def test_no_compiler_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert doctor.compiler().state == "warn"
    assert "no-such-compiler" in doctor.compiler().detail


def test_a_compiler_with_arguments_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "env g++ -pipe")
    assert doctor.compiler().state == "ok"
    assert doctor.compiler().detail.endswith("/env g++ -pipe")


def test_a_wrong_configuration_does_not_end_the_examination(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_wrong() -> tuple[Config, str]:
        raise ConfigError("plugins.toml: unknown key 'x'")

    findings = {finding.check: finding for finding in doctor.examine(load_wrong)}
    assert findings["config"].state == "fail"
    assert {"plugins", "model", "memory", "cache", "journal", "port"} <= set(findings)
    for finding in findings.values():
        assert bool(finding.mend) == (finding.state != "ok")


def test_exit_code_and_forms(capsys: pytest.CaptureFixture[str]) -> None:
    good = ["--set", "server.port=0"]
    assert main(["doctor", *good]) == 0
    assert all(line.startswith(("ok", "warn", " ")) for line in capsys.readouterr().out.splitlines())
    assert main(["doctor", "--json", *good, "--set", "model.path=/nowhere"]) == 1
    found = {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert found["model"]["state"] == "fail"
    assert "/nowhere" in found["model"]["detail"]
