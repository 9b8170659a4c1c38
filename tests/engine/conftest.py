"""Tests here load real weights, a gigabyte each time."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from tests.engine.loaded import Loaded


@pytest.fixture(autouse=True)
def free_weights() -> Iterator[None]:
    """Engines are full of cycles, and the collector does not know how large tensors are."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def executor() -> Iterator[Loaded]:
    loaded = Loaded()
    yield loaded
    loaded.inner.close()
