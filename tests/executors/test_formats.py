"""Names of number formats, and the choice of ``auto``."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mainspring.core.config import ExecutorConfig
from mainspring.core.errors import ConfigError
from mainspring.plugins.executors.dtypes import Formats, resolve

FP32, BF16 = torch.float32, torch.bfloat16


@pytest.mark.parametrize(
    ("options", "native", "expected"),
    [
        ({}, False, Formats(FP32, FP32, FP32)),
        ({}, True, Formats(BF16, BF16, BF16)),
        ({"dtype": "fp32"}, True, Formats(FP32, FP32, FP32)),
        ({"dtype": "bf16"}, True, Formats(BF16, BF16, BF16)),
        ({"dtype": "bf16"}, False, Formats(BF16, FP32, BF16)),
        ({"dtype": "fp32", "weights": "bf16"}, True, Formats(BF16, FP32, FP32)),
        ({"kv_dtype": "bf16"}, False, Formats(FP32, FP32, BF16)),
        ({"kv_dtype": "int8"}, False, Formats(FP32, FP32, torch.int8)),
        ({"kv_dtype": "fp16"}, True, Formats(BF16, BF16, torch.float16)),
    ],
)
def test_formats(options: dict[str, Any], native: bool, expected: Formats) -> None:
    assert resolve(ExecutorConfig(**options), native) == expected


@pytest.mark.parametrize(("key", "value"), [("dtype", "fp16"), ("weights", "bf61"), ("kv_dtype", "int7")])
def test_other_names_are_refused_with_the_valid_ones(key: str, value: str) -> None:
    options: dict[str, Any] = {key: value}
    with pytest.raises(ConfigError, match=rf"executor\.{key} = '{value}' .*valid: auto, bf16, fp"):
        resolve(ExecutorConfig(**options), native_bf16=False)
