"""``mainspring calibrate`` says what is wrong before it measures for minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mainspring.core.__main__ import main
from mainspring.plugins.step_time import calibrate


def test_a_file_that_cannot_be_written_is_refused_before_the_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[bool] = []

    def measure(*arguments: Any, **more: Any) -> Any:
        measured.append(True)
        raise RuntimeError("no need to go on")

    monkeypatch.setattr(calibrate, "calibrate", measure)
    assert main(["calibrate", "--out", str(tmp_path / "none" / "steps.toml")]) == 2
    assert "cannot be written" in capsys.readouterr().err and not measured
    with pytest.raises(RuntimeError, match="no need"):
        main(["calibrate", "--out", str(tmp_path / "steps.toml")])
    assert measured and not (tmp_path / "steps.toml").exists()
