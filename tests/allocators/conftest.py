"""Both allocators that share prefixes make the same promises."""

from __future__ import annotations

import pytest
from tests.allocators.sharing import KINDS


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)
