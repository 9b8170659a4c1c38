"""``plugins/kernels/cpu/abi.hpp`` for Python: its structs field by field, and its functions with their types.

ctypes gives up the interpreter's lock during every call.
"""

from __future__ import annotations

import ctypes as c
from pathlib import Path
from typing import Any

FLOAT32, BFLOAT16, Q4_HALF, Q4_FLOAT, Q8_HALF, Q8_FLOAT16 = range(6)
SRC_F32, SRC_F16, SRC_BF16, SRC_Q4_0, SRC_Q4_1, SRC_Q8_0, SRC_Q4_K, SRC_Q6_K = range(8)
KV_F32, KV_F16, KV_BF16, KV_INT8 = range(4)

_P, _I, _L, _F = c.c_void_p, c.c_int32, c.c_int64, c.c_float


class Segment(c.Structure):
    _fields_ = [("weights", _P), ("bias", _P), ("format", _I), ("outputs", _I), ("inputs", _I), ("first", _I)]


class Linear(c.Structure):
    _fields_ = [
        ("segments", c.POINTER(Segment)), ("num_segments", _I), ("outputs", _I), ("inputs", _I),
        ("int8_activations", _I),
    ]  # fmt: skip


class Table(c.Structure):
    _fields_ = [("rows", _P), ("row_bytes", _L), ("source", _I), ("width", _I)]


class KV(c.Structure):
    _fields_ = [
        ("keys", _P), ("values", _P), ("key_scales", _P), ("value_scales", _P),
        ("format", _I), ("num_blocks", _I), ("block_size", _I), ("num_kv_heads", _I),
        ("head_dim", _I), ("padded_dim", _I),
    ]  # fmt: skip


class Batch(c.Structure):
    _fields_ = [
        ("ids", _P), ("positions", _P), ("slots", _P), ("cu_seqlens", _P), ("context_lens", _P), ("tables", _P),
        ("logits_rows", _P), ("cos", _P), ("sin", _P),
        ("num_tokens", _I), ("num_rows", _I), ("table_width", _I), ("num_logits", _I),
    ]  # fmt: skip


class Layer(c.Structure):
    _fields_ = [
        ("input_norm", _P), ("ffn_norm", _P), ("query_norm", _P), ("key_norm", _P),
        ("qkv", Linear), ("output", Linear), ("gate_up", Linear), ("down", Linear), ("window", _I), ("pad", _I),
    ]  # fmt: skip


class Shortlist(c.Structure):
    _fields_ = [
        ("few", Linear), ("rest", Linear), ("order", _P), ("error", _P), ("few_unit", _F), ("size_unit", _F),
    ]  # fmt: skip


class Model(c.Structure):
    _fields_ = [
        ("layers", c.POINTER(Layer)), ("norm", _P), ("embedding", Table), ("head", Linear),
        ("shortlist", c.POINTER(Shortlist)), ("kv", KV),
        ("num_layers", _I), ("hidden", _I), ("num_heads", _I), ("ffn", _I), ("vocab", _I), ("eps", _F),
    ]  # fmt: skip


class Draw(c.Structure):
    _fields_ = [
        ("logits", _P), ("temperature", _P), ("top_p", _P), ("min_p", _P), ("uniform", _P), ("top_k", _P),
        ("banned_rows", _P), ("banned_ids", _P), ("ids", _P), ("states", _P),
        ("num_rows", _I), ("vocab", _I), ("num_bans", _I), ("bits", _I),
    ]  # fmt: skip


class Take(c.Structure):
    _fields_ = [("token", _I), ("row", _I)]


_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "ms_lanes": (c.c_int, []),
    "ms_open": (_P, [_I]),
    "ms_close": (None, [_P]),
    "ms_segment_bytes": (_L, [_I, _I, _I]),
    "ms_pack": (None, [_P, c.POINTER(Segment), _I, _P, _L, _P]),
    "ms_energies": (c.c_bool, [_P, c.POINTER(Model), c.POINTER(Batch), _P]),
    "ms_pack_coarse": (None, [_P, c.POINTER(Shortlist), c.POINTER(Segment), _P]),
    "ms_shortlisted": (None, [_P, c.POINTER(_L)]),
    "ms_embed": (None, [_P, c.POINTER(Table), _P, _I, _P]),
    "ms_rms_norm": (None, [_P, _P, _P, _I, _I, _F, _P]),
    "ms_linear": (None, [_P, c.POINTER(Linear), _P, _I, _P]),
    "ms_rope_and_write": (None, [_P, _P, _I, c.POINTER(KV), _I, c.POINTER(Batch)]),
    "ms_attention": (None, [_P, _P, _I, c.POINTER(KV), _I, _I, c.POINTER(Batch), _P]),
    "ms_norm_heads": (None, [_P, _P, _I, _I, _I, _I, _P, _P, _F]),
    "ms_silu_mul": (None, [_P, _P, _I, _I, _P]),
    "ms_draw": (None, [_P, c.POINTER(Draw)]),
    "ms_step": (None, [_P, c.POINTER(Model), c.POINTER(Batch), _P, c.POINTER(Draw), c.POINTER(c.c_double)]),
    "ms_begin": (
        c.c_uint32,
        [_P, c.POINTER(Model), c.POINTER(Batch), _P, c.POINTER(Draw), c.POINTER(c.c_double), _P, c.POINTER(Take), _I],
    ),
    "ms_finish": (None, [_P]),
    "ms_wait": (None, [_P, c.c_uint32]),
    "ms_read": (_F, [_P, _P, _L]),
}


def load(path: Path) -> Any:
    """The library at ``path`` with every function's types declared.  Raises OSError."""
    library = c.CDLL(str(path))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def padded_dim(library: Any, head_dim: int) -> int:
    """Elements that a head takes in the pool: whole vectors."""
    lanes: int = library.ms_lanes()
    return -(-head_dim // lanes) * lanes
