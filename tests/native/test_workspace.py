"""The ledger has room for what attention keeps of spans that several threads compute."""

from __future__ import annotations

import pytest
from tests.native_kernels import native_library

from mainspring.core.config import ExecutorConfig
from mainspring.plugins.executors.dtypes import resolve_native
from mainspring.plugins.executors.native import NativeBackend
from mainspring.plugins.models.config_hf import from_hf
from mainspring.plugins.models.tiny import CONFIG
from mainspring.plugins.settings import Config

#: 24 rows, for each the largest score, the sum and 16 values, and a turn of 16 numbers for every position.
UNIT_BYTES, TURN_BYTES = 4 * 24 * (16 + 2), 4 * 16


@pytest.mark.parametrize(("threads", "units"), [(1, 0), (2, 8), (16, 64)])
def test_workspace_grows_with_the_spans_of_the_longest_context(threads: int, units: int) -> None:
    """Spans are computed apart where the longest unit is more than a quarter of what a thread has to do, so there are
    never more of them than four times the threads can have of the longest."""
    model = from_hf(CONFIG, (), "tiny", "test")
    backend = NativeBackend(Config(), resolve_native(ExecutorConfig()), native_library(), threads)
    sizes = [backend.workspace_bytes(model, context) for context in (128, 129, 256)]
    assert sizes[1] - sizes[0] == units * UNIT_BYTES + TURN_BYTES
    assert sizes[2] - sizes[1] == 127 * TURN_BYTES
