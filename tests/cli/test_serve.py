"""``mainspring serve`` without its model: which configuration it reads, and reads again."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mainspring.core.__main__ import main
from mainspring.core.errors import ConfigError
from mainspring.core.registry import Registry
from mainspring.plugins.config_file import load
from mainspring.plugins.engine import Engine


def test_an_occupied_port_is_found_before_torch_is_imported() -> None:
    """E-12: whoever supervises the server hears of it at once, and nothing has been loaded."""
    code = (
        "import socket, sys\n"
        "from mainspring.core.__main__ import main\n"
        "with socket.create_server(('127.0.0.1', 0)) as taken:\n"
        "    port = taken.getsockname()[1]\n"
        "    code = main(['serve', '--set', f'server.port={port}', '--set', 'journal.path='])\n"
        "print(code, 'torch' in sys.modules)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["2", "False"], done.stderr
    assert "address already in use" in done.stderr


def test_an_address_is_given_back_where_the_start_goes_no_further() -> None:
    config = load(None, ["server.port=0", "journal.path=", "scheduler.use=fcfz"]).config
    gateways: list[Any] = []

    class Seen(Registry):
        def make(self, slot: str, use: str, options: Mapping[str, Any], *arguments: Any, where: str = "") -> Any:
            made = super().make(slot, use, options, *arguments)
            gateways.extend([made] if slot == "gateway" else [])
            return made

    with pytest.raises(ConfigError, match="fcfz"):
        Engine(config, gateways=True, registry=Seen())
    (gateway,) = gateways
    with socket.create_server(("127.0.0.1", gateway.port)):
        pass


def test_a_reload_reads_the_file_of_the_start_or_says_that_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this it would fall back to the packaged file, and quietly to its policy."""
    engines: list[Engine] = []

    async def serve(engine: Engine) -> int:
        engines.append(engine)
        return 0

    monkeypatch.setattr("mainspring.plugins.cli.serve.serve", serve)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "plugins.toml"
    file.write_text("gateways = []\n[scheduler]\nuse = 'fair'\n[log]\nlevel = 'error'\n")
    assert main(["serve"]) == 0
    (engine,) = engines
    assert engine.reread is not None
    file.write_text("[scheduler]\nuse = 'mlfq'\n")
    assert engine.reread().scheduler.use == "mlfq"
    file.unlink()
    with pytest.raises(ConfigError, match=r"plugins\.toml: cannot be read"):
        engine.reread()
