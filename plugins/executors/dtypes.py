"""Names of number formats in the configuration -> what this machine computes and stores in.

``auto`` is the fastest exact choice: bf16 throughout on a CPU with bf16 instructions, else float32 throughout.  Where
``dtype = "bf16"`` is asked for and the CPU lacks the instructions, weights and keys/values are rounded to bf16 and
arithmetic is float32: emulated bf16 products are 3 to 10 times slower and no more exact.  The packed weights then
take float32 memory, and are counted so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ...core.errors import ConfigError, nearest

if TYPE_CHECKING:
    from ...core.config import ExecutorConfig

NAMES = {"fp32": torch.float32, "bf16": torch.bfloat16}
#: What keys and values may be kept in; int8 has one float32 scale per token and head beside it.
KV_NAMES = {**NAMES, "fp16": torch.float16, "int8": torch.int8}
#: Activations and weights where fp16 is as fast as bf16: on a graphics processor.
DEVICE_NAMES = {**NAMES, "fp16": torch.float16}
SCALE = torch.float32


@dataclass(frozen=True, slots=True)
class Formats:
    """``weights``: what they are rounded to; ``compute``: activations and packed weights; ``kv``: the pool."""

    weights: torch.dtype
    compute: torch.dtype
    kv: torch.dtype

    def describe(self) -> str:
        """For people, for instance ``weights fp32, activations fp32, KV fp32``."""
        name = {dtype: text for text, dtype in KV_NAMES.items()}
        return f"weights {name[self.weights]}, activations {name[self.compute]}, KV {name[self.kv]}"


def resolve(config: ExecutorConfig, native_bf16: bool, names: Mapping[str, torch.dtype] = NAMES) -> Formats:
    """``native_bf16``: whether CPU or device has bf16 instructions; ``names`` of activations and weights that it takes.

    Raises ConfigError naming key, value and valid names.
    """
    for key, valid in (("dtype", names), ("weights", names), ("kv_dtype", KV_NAMES)):
        value = getattr(config, key)
        if value not in ("auto", *valid):
            raise ConfigError(f"executor.{key} = {value!r} is not supported{nearest(value, ['auto', *valid])}")
    dtype = names.get(config.dtype, torch.bfloat16 if native_bf16 else torch.float32)
    return Formats(
        weights=names.get(config.weights, dtype),
        compute=torch.float32 if dtype == torch.bfloat16 and not native_bf16 else dtype,
        kv=KV_NAMES.get(config.kv_dtype, dtype),
    )


def head_bytes(kv: torch.dtype, head_dim: int) -> int:
    """Bytes of one head of one token's keys (or values) in the pool, its scale included."""
    return head_dim * kv.itemsize + (SCALE.itemsize if kv == torch.int8 else 0)


def quantise(heads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``[..., head_dim]`` -> int8 codes of the same shape and float32 scales ``[...]``: each head of each token by
    itself, its largest value at 127, so that the result does not depend on what else is in the step."""
    scales = heads.abs().amax(-1).to(SCALE) / 127
    codes = heads / scales.clamp(min=torch.finfo(SCALE).tiny)[..., None]
    return codes.round().to(torch.int8), scales
