"""The C header in ctypes, read from csrc/exlchat.h: structures, constants and the argument types of every function."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from ctypes import POINTER, Structure, c_double, c_float, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from typing import Any

from exlchat.ext.library import HEADER
from exlchat.ext.record import SOURCES

_TEXT = re.sub(r"/\*.*?\*/", "", (SOURCES / HEADER).read_text(encoding="utf-8"), flags=re.DOTALL)
_TYPES: dict[str, type[Any]] = {
    "int": c_int,
    "int32_t": c_int32,
    "int64_t": c_int64,
    "uint32_t": c_uint32,
    "uint64_t": c_uint64,
    "float": c_float,
    "double": c_double,
}


def _constants() -> Iterator[tuple[str, int]]:
    for name, value in re.findall(r"^#define EXL_(\w+) (-?\d+)\b", _TEXT, re.MULTILINE):
        yield name, int(value)
    for names in re.findall(r"\benum \{([^}]*)\}", _TEXT):
        value = -1
        for name, given in re.findall(r"EXL_(\w+)(?: = (\d+))?", names):
            value = int(given) if given else value + 1
            yield name, value


CONSTANTS = dict(_constants())
"""Every number that the header names, without its `EXL_`."""


def _values(names: str) -> list[int]:
    return [CONSTANTS[name] for name in names.split()]


MAX_MATRICES, EXPERT_MATRICES, MAX_ROWS, WIDE_ROWS = _values("MAX_MATRICES EXPERT_MATRICES MAX_ROWS WIDE_ROWS")
X_HALF, X_NORM, X_JOIN_NORM, X_JOIN = _values("X_HALF X_NORM X_JOIN_NORM X_JOIN")
Y_HALF, Y_ADD, Y_GATED, Y_FLOAT, Y_ACTIVATED = _values("Y_HALF Y_ADD Y_GATED Y_FLOAT Y_ACTIVATED")
SILU, GELU_TANH, GELU_ERF, SWIGLU_OAI = _values("SILU GELU_TANH GELU_ERF SWIGLU_OAI")
NORM_NONE, NORM_RMS, NORM_LAYER = _values("NORM_NONE NORM_RMS NORM_LAYER")
CACHE_HALF, CACHE_FLOAT8, CACHE_CODES8, CACHE_CODES4 = _values("CACHE_HALF CACHE_FLOAT8 CACHE_CODES8 CACHE_CODES4")
GEMM_BLOCK_BYTES, GEMM_MAX_ROWS, GEMM_WARPS = _values("GEMM_BLOCK_BYTES GEMM_MAX_ROWS GEMM_WARPS")
(GEMM_PAIRED_ROWS,) = _values("GEMM_PAIRED_ROWS")
SETTLE_WIDTH, SETTLE_SLOTS = _values("SETTLE_WIDTH SETTLE_SLOTS")
MAX_VOCAB, SAMPLE_SCRATCH_BYTES = _values("MAX_VOCAB SAMPLE_SCRATCH_BYTES")
DRY_MOST, CHAIN_BLOCKS, ADJUST_IDS = _values("DRY_MOST CHAIN_BLOCKS ADJUST_IDS")
ROW_PLAIN, ROW_ADJUSTED, ROW_CHAIN, ROW_NONE = _values("ROW_PLAIN ROW_ADJUSTED ROW_CHAIN ROW_NONE")
(CHAIN_SCRATCH_BYTES,) = _values("CHAIN_SCRATCH_BYTES")
MAX_EXPERTS, MAX_CHOSEN, MAX_SLOTS = _values("MAX_EXPERTS MAX_CHOSEN MAX_SLOTS")
(MAX_DENSE_INPUTS,) = _values("MAX_DENSE_INPUTS")
(MOST_ROUNDED_ROWS,) = _values("MOST_ROUNDED_ROWS")
MAX_CARDS, MAX_SENT = _values("MAX_CARDS MAX_SENT")
HEAD_INPUTS = 32
CHAIN_SCRATCH_BYTES_A_TOKEN = 24


def _type(kind: str) -> type[Any]:
    """Of C's word for it; a structure comes before what holds it, here as in the header."""
    found: type[Any] = _TYPES.get(kind) or globals()[f"C{kind.removeprefix('Exl')}"]
    return found


def _fields(name: str) -> list[tuple[str, Any]]:
    (body,) = re.findall(rf"typedef struct \{{([^}}]*)\}} {name};", _TEXT)
    fields = []
    for declaration in body.split(";")[:-1]:
        kind, names = re.findall(r"(?:const )?(\w+) (.*)", " ".join(declaration.split()))[0]
        for star, field, count in re.findall(r"(\*?)(\w+)(?:\[(\w+)\])?", names):
            of = c_void_p if star else _type(kind)
            many = CONSTANTS.get(count.removeprefix("EXL_")) or int(count or 0)
            fields.append((field, of * many if many else of))
    return fields


class CSection(Structure):
    _fields_ = _fields("ExlSection")


class CMatrix(Structure):
    _fields_ = _fields("ExlMatrix")


class CPeers(Structure):
    _fields_ = _fields("ExlPeers")


class CNormCopy(Structure):
    _fields_ = _fields("ExlNormCopy")


class CResidual(Structure):
    _fields_ = _fields("ExlResidual")


class CGemv(Structure):
    _fields_ = _fields("ExlGemv")


class CGemm(Structure):
    _fields_ = _fields("ExlGemm")


class CAddNorm(Structure):
    _fields_ = _fields("ExlAddNorm")


class CEmbed(Structure):
    _fields_ = _fields("ExlEmbed")


class CHead(Structure):
    _fields_ = _fields("ExlHead")


class CSettleCopy(Structure):
    _fields_ = _fields("ExlSettleCopy")


class CSettle(Structure):
    _fields_ = _fields("ExlSettle")


class CNormHeads(Structure):
    _fields_ = _fields("ExlNormHeads")


class CScaleLogits(Structure):
    _fields_ = _fields("ExlScaleLogits")


class CAttention(Structure):
    _fields_ = _fields("ExlAttention")


class CPromptAttention(Structure):
    _fields_ = _fields("ExlPromptAttention")


class CPages(Structure):
    _fields_ = _fields("ExlPages")


class CDraw(Structure):
    _fields_ = _fields("ExlDraw")


class CSample(Structure):
    _fields_ = _fields("ExlSample")


class CChain(Structure):
    _fields_ = _fields("ExlChain")


class CAdjust(Structure):
    _fields_ = _fields("ExlAdjust")


class CChainJob(Structure):
    _fields_ = _fields("ExlChainJob")


class CRowDraw(Structure):
    _fields_ = _fields("ExlRowDraw")


class CDrawRows(Structure):
    _fields_ = _fields("ExlDrawRows")


class CRoute(Structure):
    _fields_ = _fields("ExlRoute")


class CExpert(Structure):
    _fields_ = _fields("ExlExpert")


class CChoice(Structure):
    _fields_ = _fields("ExlChoice")


class CExpertProduct(Structure):
    _fields_ = _fields("ExlExpertProduct")


class CExpertSum(Structure):
    _fields_ = _fields("ExlExpertSum")


class CDenseProduct(Structure):
    _fields_ = _fields("ExlDenseProduct")


class CExchange(Structure):
    _fields_ = _fields("ExlExchange")


class CCount(Structure):
    _fields_ = _fields("ExlCount")


class CSend(Structure):
    _fields_ = _fields("ExlSend")


class CHandOn(Structure):
    _fields_ = _fields("ExlHandOn")


class CImprove(Structure):
    _fields_ = _fields("ExlImprove")


def _functions() -> Iterator[tuple[str, list[type[Any]]]]:
    for name, arguments in re.findall(r"^int (exl_\w+)\(([^)]*\w \*?\w[^)]*)\);", _TEXT, re.MULTILINE):
        types = []
        for kind, star in re.findall(r"(?:const )?(\w+) (\*?)\w+", arguments):
            of_ours = POINTER(_type(kind)) if kind.startswith("Exl") else c_void_p
            types.append(of_ours if star else _type(kind))
        yield name, types


FUNCTIONS: dict[str, list[type[Any]]] = dict(_functions())


def address(structure: Structure) -> Any:
    return ctypes.byref(structure)
