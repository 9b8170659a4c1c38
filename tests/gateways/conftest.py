"""Gateways run on either event loop: the one that commands serve on, and the one of whoever embeds the engine."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """See ``tests/conftest.py``."""
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    return "asyncio", {"use_uvloop": request.param == "uvloop"}
