"""Hub ids: found without a network they are a clear error, with one they are a folder like any other."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from mainspring.core.errors import ConfigError
from mainspring.plugins.models.checkpoint import find_model, open_model
from mainspring.plugins.models.hub import is_hub_id
from mainspring.plugins.models.tiny import write_tiny_model


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("HuggingFaceTB/SmolLM2-135M", True),
        ("a/b_c.d", True),
        ("model", False),
        ("./model", False),
        ("/models/x", False),
        ("a/b/c", False),
        ("models/x.gguf", False),
        ("~/x", False),
    ],
)
def test_what_a_hub_id_looks_like(text: str, is_one: bool) -> None:
    assert is_hub_id(text) is is_one


def test_without_a_network_both_ways_are_named_e17(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=r"'some/model': there is no such file or folder here, and the hub cannot be"):
        open_model("some/model")


def test_what_the_hub_says_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> str:
        raise OSError("401 gated\nmore")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(ConfigError, match=r"the hub answered: 401 gated$"):
        find_model("some/model")


def test_what_is_missing_is_named_by_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"a hub id needs `pip install 'mainspring\[models\]'`"):
        find_model("some/model")
    write_tiny_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["GemmaForCausalLM"]}))
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"needs transformers, .*`pip install 'mainspring\[models\]'`"):
        open_model(tmp_path)


def test_a_fetched_folder_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny_model(tmp_path)
    asked: list[str] = []

    def fetched(name: str, **options: Any) -> str:
        asked.append(name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetched)
    assert open_model("some/model").path == tmp_path
    assert asked == ["some/model"]


def test_a_folder_of_that_name_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny_model(tmp_path / "some/model")
    monkeypatch.chdir(tmp_path)
    assert open_model("some/model").path == Path("some/model")
