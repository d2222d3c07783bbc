"""The C header in ctypes: structures and the argument types of every function. Mirrors csrc/exlchat.h."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_double, c_float, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from typing import Any

MAX_SECTIONS = 6
MAX_MATRICES = 3
EXPERT_MATRICES = 2

X_HALF, X_NORM = 0, 1
Y_HALF, Y_ADD, Y_GATED, Y_FLOAT, Y_ACTIVATED = 0, 1, 2, 3, 4
SILU, GELU_TANH, GELU_ERF = 0, 1, 2
NORM_NONE, NORM_RMS, NORM_LAYER = 0, 1, 2
SWIGLU_OAI = 8
CACHE_HALF, CACHE_FLOAT8, CACHE_CODES8, CACHE_CODES4 = 0, 1, 2, 3


class CSection(Structure):
    """`ExlSection`."""

    _fields_ = [
        (name, c_int32)
        for name in (
            "bits",
            "plain",
            "rows_per_scale",
            "row",
            "piece",
            "pieces",
            "word",
            "piece_words",
            "scale",
            "scale_words",
        )
    ]


class CMatrix(Structure):
    """`ExlMatrix`."""

    _fields_ = [
        *((name, c_void_p) for name in ("words", "scales", "gather", "bias")),
        *(
            (name, c_int32)
            for name in (
                "features",
                "stored",
                "column_tiles",
                "words_per_column",
                "scale_words_per_column",
                "pieces",
                "section_count",
            )
        ),
        ("sections", CSection * MAX_SECTIONS),
    ]


class CNormCopy(Structure):
    """`ExlNormCopy`."""

    _fields_ = [*((name, c_void_p) for name in ("values", "scatter", "weight")), ("stored", c_int64)]


class CResidual(Structure):
    """`ExlResidual`."""

    _fields_ = [
        *((name, c_void_p) for name in ("hidden", "squares")),
        ("copies", CNormCopy * MAX_MATRICES),
        ("columns", c_int64),
    ]


class CGemv(Structure):
    """`ExlGemv`."""

    _fields_ = [
        ("plan", c_void_p),
        ("matrix", CMatrix * MAX_MATRICES),
        *((name, c_void_p) for name in ("x", "squares", "y", "scatter")),
        ("residual", CResidual),
        ("eps", c_float),
        *(
            (name, c_int32)
            for name in (
                "width",
                "matrices",
                "rows",
                "x_kind",
                "y_kind",
                "y_stride",
                "activation",
                "blocks",
                "columns",
                "plan_ints",
                "segments",
                "x_rows",
                "room",
            )
        ),
    ]


class CGemm(Structure):
    """`ExlGemm`."""

    _fields_ = [
        ("matrix", CMatrix * MAX_MATRICES),
        *((name, c_void_p) for name in ("x", "y", "partial", "x_features")),
        *((name, c_int32) for name in ("matrices", "rows", "y_stride", "blocks", "room")),
    ]


GEMM_BLOCK_BYTES = 131072
GEMM_MAX_ROWS = 4096


class CEmbed(Structure):
    """`ExlEmbed`."""

    _fields_ = [
        *((name, c_void_p) for name in ("table", "token")),
        ("residual", CResidual),
        ("multiplier", c_float),
        *((name, c_int32) for name in ("width", "rows")),
    ]


class CHead(Structure):
    """`ExlHead`."""

    _fields_ = [
        *((name, c_void_p) for name in ("x", "squares", "weight", "y")),
        ("eps", c_float),
        *((name, c_int32) for name in ("width", "outputs", "rows", "y_stride")),
    ]


HEAD_INPUTS = 32


class CSettleCopy(Structure):
    """`ExlSettleCopy`."""

    _fields_ = [(name, c_void_p) for name in ("x", "scatter")]


SETTLE_WIDTH = 16384
SETTLE_SLOTS = 17


class CSettle(Structure):
    """`ExlSettle`."""

    _fields_ = [
        *((name, c_void_p) for name in ("hidden", "y", "added", "weights", "gate", "post_norm", "norm", "norm_bias")),
        ("copies", CSettleCopy * MAX_MATRICES),
        *((name, c_float) for name in ("multiplier", "post_eps", "eps")),
        *((name, c_int32) for name in ("width", "slots", "y_floats", "added_floats", "norm_kind")),
    ]


class CNormHeads(Structure):
    """`ExlNormHeads`."""

    _fields_ = [
        *((name, c_void_p) for name in ("qkv", "query_norm", "key_norm")),
        ("eps", c_float),
        *((name, c_int32) for name in ("heads", "kv_heads", "head_dim", "kind")),
    ]


class CScaleLogits(Structure):
    """`ExlScaleLogits`."""

    _fields_ = [("logits", c_void_p), *((name, c_float) for name in ("scale", "softcap")), ("vocab", c_int32)]


class CAttention(Structure):
    """`ExlAttention`."""

    _fields_ = [
        *((name, c_void_p) for name in ("qkv", "position", "turns", "page_table", "query_norm", "key_norm")),
        *((name, c_void_p) for name in ("scatter", "sinks")),
        *((name, c_void_p) for name in ("keys", "values", "key_scales", "value_scales", "out", "partial", "tickets")),
        *((name, c_float) for name in ("scale", "softcap", "eps")),
        *(
            (name, c_int32)
            for name in (
                "heads",
                "kv_heads",
                "head_dim",
                "rotary_dim",
                "key_format",
                "value_format",
                "window",
                "splits",
            )
        ),
        *((name, c_int32) for name in ("page_stride", "head_stride", "interleaved")),
        *((name, c_int32) for name in ("rows", "out_stride", "table_stride")),
    ]


class CPages(Structure):
    """`ExlPages`."""

    _fields_ = [
        *((name, c_void_p) for name in ("page_table", "keys", "values", "key_scales", "value_scales")),
        *((name, c_void_p) for name in ("plain_keys", "plain_values")),
        *((name, c_int64) for name in ("keys_head", "keys_token", "values_head", "values_token")),
        *((name, c_int32) for name in ("kv_heads", "head_dim", "key_format", "value_format")),
        *((name, c_int32) for name in ("page_stride", "head_stride", "first", "tokens")),
    ]


class CDraw(Structure):
    """`ExlDraw`."""

    _fields_ = [
        ("top_p", c_double),
        *((name, c_uint64) for name in ("seed", "index")),
        ("mu", c_double),
        *((name, c_float) for name in ("octaves_per_logit", "deepest")),
        *((name, c_int32) for name in ("top_k", "greedy")),
        *((name, c_uint32) for name in ("sequence", "attempt")),
        ("unused", c_uint32 * 2),
    ]


MAX_VOCAB = 327680
SAMPLE_SCRATCH_BYTES = 51728


class CSample(Structure):
    """`ExlSample`."""

    _fields_ = [
        *((name, c_void_p) for name in ("logits", "draw", "token", "position", "ring", "context", "numbers")),
        ("scratch", c_void_p),
        *((name, c_int32) for name in ("vocab", "ring_slots", "room")),
    ]


DRY_MOST = 50
CHAIN_STEPS = 13
CHAIN_BLOCKS = 256
ADJUST_IDS = 256
CHAIN_SCRATCH_BYTES, CHAIN_SCRATCH_BYTES_A_TOKEN = 311312, 24


class CChain(Structure):
    """`ExlChain`."""

    _fields_ = [
        *((name, c_double) for name in ("repetition", "frequency", "presence")),
        ("dry", c_double * DRY_MOST),
        *((name, c_double) for name in ("smoothing_factor", "smoothing_curve", "temperature")),
        *((name, c_double) for name in ("dynatemp_low", "dynatemp_high", "dynatemp_exponent")),
        *((name, c_double) for name in ("top_n_sigma", "top_p", "top_a", "min_p", "tfs", "typical", "epsilon", "eta")),
        *((name, c_double) for name in ("mirostat_tau", "mirostat_eta", "xtc_probability", "xtc_threshold")),
        *((name, c_int32) for name in ("penalties", "penalty_range", "penalty_decay", "dry_on", "dry_range", "ngram")),
        *((name, c_int32) for name in ("biased", "barred", "top_k", "step_count")),
        ("steps", c_int32 * CHAIN_STEPS),
        ("unused", c_int32),
    ]


class CAdjust(Structure):
    """`ExlAdjust`."""

    _fields_ = [
        *((name, c_void_p) for name in ("logits", "adjusted", "draw", "chain", "position", "context", "bias")),
        *((name, c_void_p) for name in ("barred_until", "mask", "breakers")),
        *((name, c_void_p) for name in ("counted", "newest", "repeated", "numbers", "ends")),
        *((name, c_int32) for name in ("vocab", "room", "blocks")),
    ]


class CChainJob(Structure):
    """`ExlChainJob`."""

    _fields_ = [
        ("sample", CSample),
        *((name, c_void_p) for name in ("chain", "sheltered", "ends", "scratch")),
        ("blocks", c_int32),
    ]


MAX_EXPERTS = 512
MAX_CHOSEN, MAX_SLOTS = 16, 65536
MAX_DENSE_INPUTS = 24576


class CRoute(Structure):
    """`ExlRoute`."""

    _fields_ = [
        *((name, c_void_p) for name in ("x", "router", "bias", "logits", "chosen", "weights", "ticket")),
        *((name, c_int32) for name in ("width", "rows", "experts", "slots", "router_float", "renormalised")),
    ]


class CExpert(Structure):
    """`ExlExpert`."""

    _fields_ = [
        *((name, c_void_p * EXPERT_MATRICES) for name in ("words", "scales", "bias")),
        *((name, c_void_p) for name in ("gather", "scatter")),
    ]


class CExpertProduct(Structure):
    """`ExlExpertProduct`."""

    _fields_ = [
        *((name, c_void_p) for name in ("plan", "table")),
        ("matrix", CMatrix * EXPERT_MATRICES),
        *((name, c_void_p) for name in ("chosen", "x", "y")),
        ("limit", c_float),
        *((name, c_int32) for name in ("experts", "slots", "matrices", "gathered", "x_stride")),
        *((name, c_int32) for name in ("y_kind", "y_stride", "activation")),
        *((name, c_int32) for name in ("blocks", "columns", "plan_ints", "segments", "x_rows", "room")),
    ]


class CDenseProduct(Structure):
    """`ExlDenseProduct`."""

    _fields_ = [
        *((name, c_void_p * EXPERT_MATRICES) for name in ("weights", "bias")),
        *((name, c_void_p) for name in ("chosen", "x", "y")),
        ("expert_stride", c_int64),
        ("limit", c_float),
        *((name, c_int32) for name in ("slots", "matrices", "inputs", "outputs", "x_stride")),
        *((name, c_int32) for name in ("y_kind", "y_stride", "activation", "blocks")),
    ]


FUNCTIONS: dict[str, list[type[Any]]] = {
    "exl_gemv": [POINTER(CGemv), c_int, c_void_p],
    "exl_gemm": [POINTER(CGemm), c_void_p],
    "exl_dequantize": [POINTER(CMatrix), c_void_p, c_void_p],
    "exl_attention": [POINTER(CAttention), c_int, c_void_p],
    "exl_read_pages": [POINTER(CPages), c_void_p],
    "exl_write_pages": [POINTER(CPages), c_void_p],
    "exl_embed": [POINTER(CEmbed), c_int, c_void_p],
    "exl_head": [POINTER(CHead), c_int, c_void_p],
    "exl_settle": [POINTER(CSettle), c_int, c_void_p],
    "exl_norm_heads": [POINTER(CNormHeads), c_int, c_void_p],
    "exl_scale_logits": [POINTER(CScaleLogits), c_int, c_void_p],
    "exl_add_norm": [c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_int, c_float, c_void_p],
    "exl_gate": [c_void_p, c_void_p, c_int, c_int, c_int, c_void_p],
    "exl_turn": [c_void_p, c_void_p, *([c_int] * 6), c_void_p],
    "exl_sample": [POINTER(CSample), c_int, c_void_p],
    "exl_adjust": [POINTER(CAdjust), c_int, c_void_p],
    "exl_chain": [POINTER(CChainJob), c_int, c_void_p],
    "exl_route": [POINTER(CRoute), c_int, c_void_p],
    "exl_expert_product": [POINTER(CExpertProduct), c_int, c_void_p],
    "exl_dense_product": [POINTER(CDenseProduct), c_int, c_void_p],
}


def address(structure: Structure) -> Any:
    """A pointer argument."""
    return ctypes.byref(structure)
