"""The C header in ctypes: structures and the argument types of every function. Mirrors csrc/exlchat.h."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_double, c_float, c_int, c_int32, c_uint32, c_uint64, c_void_p
from typing import Any

MAX_SECTIONS = 6
MAX_MATRICES = 3

X_HALF, X_NORM = 0, 1
Y_HALF, Y_ADD, Y_GATED, Y_FLOAT = 0, 1, 2, 3


class CSection(Structure):
    """`ExlSection`."""

    _fields_ = [(name, c_int32) for name in ("bits", "tile", "tiles", "word", "scale", "rows_per_scale")]


class CMatrix(Structure):
    """`ExlMatrix`."""

    _fields_ = [
        *((name, c_void_p) for name in ("words", "scale_index", "scale_max", "gather", "bias")),
        *(
            (name, c_int32)
            for name in ("features", "tiles", "column_tiles", "words_per_column", "scales", "section_count")
        ),
        ("sections", CSection * MAX_SECTIONS),
    ]


class CGemv(Structure):
    """`ExlGemv`."""

    _fields_ = [
        ("matrix", CMatrix * MAX_MATRICES),
        ("x", c_void_p),
        ("norm", c_void_p),
        ("y", c_void_p),
        ("eps", c_float),
        *((name, c_int32) for name in ("matrices", "rows", "x_kind", "y_kind")),
    ]


class CAttention(Structure):
    """`ExlAttention`."""

    _fields_ = [
        *((name, c_void_p) for name in ("qkv", "turns", "position", "keys", "values", "out", "partial", "tickets")),
        ("scale", c_float),
        *((name, c_int32) for name in ("heads", "kv_heads", "head_dim", "capacity", "splits")),
    ]


class CDraw(Structure):
    """`ExlDraw`."""

    _fields_ = [
        ("top_p", c_double),
        *((name, c_uint64) for name in ("seed", "index")),
        *((name, c_float) for name in ("octaves_per_logit", "deepest")),
        *((name, c_int32) for name in ("top_k", "greedy")),
        *((name, c_uint32) for name in ("sequence", "unused")),
    ]


MAX_VOCAB = 262144
SAMPLE_SCRATCH_BYTES = 47120


class CSample(Structure):
    """`ExlSample`."""

    _fields_ = [
        *((name, c_void_p) for name in ("logits", "draw", "token", "position", "ring", "scratch")),
        *((name, c_int32) for name in ("vocab", "ring_slots")),
    ]


FUNCTIONS: dict[str, list[type[Any]]] = {
    "exl_gemv": [POINTER(CGemv), c_int, c_void_p],
    "exl_dequantize": [POINTER(CMatrix), c_void_p, c_void_p],
    "exl_attention": [POINTER(CAttention), c_int, c_void_p],
    "exl_embed": [c_void_p, c_void_p, c_void_p, c_int, c_int, c_void_p],
    "exl_sample": [POINTER(CSample), c_int, c_void_p],
}


def address(structure: Structure) -> Any:
    """A pointer argument."""
    return ctypes.byref(structure)
