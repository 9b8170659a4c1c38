"""``mainspring serve`` without its model: which configuration it reads, and reads again."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.core.__main__ import main
from mainspring.core.errors import ConfigError
from mainspring.plugins.engine import Engine


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
