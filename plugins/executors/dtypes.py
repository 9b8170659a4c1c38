"""Names of number formats in the configuration -> what this machine computes and stores in.

``auto`` is the fastest exact choice: bf16 throughout on a CPU with bf16 instructions, else float32 throughout.  Where
``dtype = "bf16"`` is asked for and the CPU lacks the instructions, weights and keys/values are rounded to bf16 and
arithmetic is float32: emulated bf16 products are 3 to 10 times slower and no more exact.  The packed weights then
take float32 memory, and are counted so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...core.errors import ConfigError, nearest

if TYPE_CHECKING:
    from ...core.config import ExecutorConfig

NAMES = {"fp32": torch.float32, "bf16": torch.bfloat16}
#: What keys and values may be kept in; int8 has one float32 scale per token and head beside it.
KV_NAMES = {**NAMES, "fp16": torch.float16, "int8": torch.int8}
#: Activations and weights where fp16 is as fast as bf16: on a graphics processor.
DEVICE_NAMES = {**NAMES, "fp16": torch.float16}
_TEXTS = {dtype: name for name, dtype in KV_NAMES.items()}
SCALE = torch.float32
#: What only the native kernels offer: grouped weights, and 8-bit activations for those.
NATIVE_WEIGHTS, NATIVE_DTYPES = ("q8", "q4"), ("fast",)


@dataclass(frozen=True, slots=True)
class Formats:
    """``weights``: what they are rounded to; ``compute``: activations and packed weights; ``kv``: the pool."""

    weights: torch.dtype
    compute: torch.dtype
    kv: torch.dtype

    @property
    def target(self) -> str:
        """What weights are packed for."""
        return str(self.compute).removeprefix("torch.")

    def describe(self) -> str:
        """For people, for instance ``weights fp32, activations fp32, KV fp32``."""
        return f"weights {_TEXTS[self.weights]}, activations {_TEXTS[self.compute]}, KV {_TEXTS[self.kv]}"


@dataclass(frozen=True, slots=True)
class NativeFormats(Formats):
    """``kept``: ``file`` (as stored there), ``fp32``, ``bf16``, ``q8`` or ``q4``; ``fast``: 8-bit activations for
    grouped weights, and keys and values in fp16."""

    kept: str
    fast: bool

    @property
    def numbers(self) -> torch.dtype | None:
        """What all weights are read as; None: as they are stored."""
        return NAMES.get(self.kept)

    @property
    def target(self) -> str:
        return "the native kernels"

    def describe(self) -> str:
        """For people, for instance ``weights as in the file, activations 16 bits where grouped, KV fp32``."""
        weights = "as in the file" if self.kept == "file" else self.kept
        grouped = f"{'8' if self.fast else '16'} bits where grouped"
        return f"weights {weights}, activations {'fp32' if self.numbers else grouped}, KV {_TEXTS[self.kv]}"


def resolve(config: ExecutorConfig, native_bf16: bool, names: Mapping[str, torch.dtype] = NAMES) -> Formats:
    """``native_bf16``: whether CPU or device has bf16 instructions; ``names`` of activations and weights that it takes.

    Raises ConfigError naming key, value and valid names.
    """
    for key, own in (("weights", NATIVE_WEIGHTS), ("dtype", NATIVE_DTYPES)):
        if getattr(config, key) in own:
            raise ConfigError(
                f"executor.{key} = {getattr(config, key)!r} needs executor.use = 'native' and a machine that can build "
                f"its kernels (valid elsewhere: {', '.join(['auto', *names])})"
            )
    _check_names(config, names, names)
    dtype = names.get(config.dtype, torch.bfloat16 if native_bf16 else torch.float32)
    return Formats(
        weights=names.get(config.weights, dtype),
        compute=torch.float32 if dtype == torch.bfloat16 and not native_bf16 else dtype,
        kv=KV_NAMES.get(config.kv_dtype, dtype),
    )


def resolve_native(config: ExecutorConfig) -> NativeFormats:
    """What the native kernels make of the configuration: without a wish, weights as they are stored, and arithmetic
    that is as exact as float32, but for ``fast``.  Raises ConfigError naming key, value and valid names."""
    _check_names(config, (*NAMES, *NATIVE_WEIGHTS), (*NAMES, *NATIVE_DTYPES))
    weights = config.weights
    if weights == "auto":
        weights = config.dtype if config.dtype in NAMES else "file"
    if config.dtype in NAMES and weights in NATIVE_WEIGHTS:
        raise ConfigError(
            f"executor.dtype = {config.dtype!r}: weights {weights!r} meet activations of 16 bits ('auto') or 8 ('fast')"
        )
    if config.dtype in NATIVE_DTYPES and weights in NAMES:
        raise ConfigError(f"executor.dtype = {config.dtype!r}: weights {weights!r} meet float32 activations ('auto')")
    fast = config.dtype in NATIVE_DTYPES
    default = torch.float16 if fast else NAMES.get(config.dtype, torch.float32)
    return NativeFormats(
        weights=NAMES.get(weights, torch.float32),
        compute=torch.float32,
        kv=KV_NAMES.get(config.kv_dtype, default),
        kept=weights,
        fast=fast,
    )


def _check_names(config: ExecutorConfig, weights: Iterable[str], dtypes: Iterable[str]) -> None:
    for key, names in (("dtype", dtypes), ("weights", weights), ("kv_dtype", KV_NAMES)):
        value, valid = getattr(config, key), ["auto", *names]
        if value not in valid:
            raise ConfigError(f"executor.{key} = {value!r} is not supported{nearest(value, valid)}")


def head_bytes(kv: torch.dtype, head_dim: int) -> int:
    """Bytes of one head of one token's keys (or values) in the pool, its scale included."""
    return head_dim * kv.itemsize + (SCALE.itemsize if kv == torch.int8 else 0)


def quantise(heads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``[..., head_dim]`` -> int8 codes of the same shape and float32 scales ``[...]``: each head of each token by
    itself, its largest value at 127, so that the result does not depend on what else is in the step."""
    scales = heads.abs().amax(-1).to(SCALE) / 127
    codes = heads / scales.clamp(min=torch.finfo(SCALE).tiny)[..., None]
    return codes.round().to(torch.int8), scales


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros whose pages are taken from the machine when they are first written: a pool of gigabytes costs nothing."""
    bits = {4: np.int32, 2: np.int16, 1: np.int8}[dtype.itemsize]
    return torch.from_numpy(np.zeros(shape, bits)).view(dtype)
