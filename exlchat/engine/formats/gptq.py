"""GPTQ of 4 bits: codes with a scale and a zero point per group of input rows -> float16 weights, bit for bit.

Letters: K input features, N output features, G groups. The facts of the format below are those of the files that
AutoGPTQ and its successors write, checked against vectors of an independent reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from exlchat.engine.architecture import ConfigReader
from exlchat.engine.events import ModelError

TENSORS = ("qweight", "qzeros", "scales")
GROUP_INDEX = "g_idx"
CODES_PER_WORD = 8

_SCALE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# Eight equal zero points in one word: what a symmetric file stores in the first version (7 for 8) and in the second.
_ALL_SEVEN, _ALL_EIGHT = 0x77777777, 0x88888888 - (1 << 32)


@dataclass(frozen=True, slots=True)
class GptqSettings:
    """What `quantization_config` says about every layer of a model.

    Args:
        exact_zeros: files of version 2 store a zero point as it is, those of version 1 store one less.
        symmetric: whether every zero point is 8; `None` where the file does not say.
        group_size: input rows of a group, -1 for all rows in one; `None` where the file does not say.
    """

    exact_zeros: bool = False
    symmetric: bool | None = None
    group_size: int | None = None


def read_settings(config: Mapping[str, Any], where: str) -> GptqSettings:
    """The settings in `config.json`; the defaults where it has no `quantization_config`.

    Args:
        config: the content of `config.json`.
        where: the file's name, for error lines.

    Raises:
        ModelError: the model is not GPTQ, or not of 4 bits.
    """
    section = ConfigReader(config, where).section("quantization_config")
    if section is None:
        return GptqSettings()
    method = section.text("quant_method", "gptq")
    if method != "gptq":
        raise section.error(
            "quant_method", f"is {method!r}, which exlchat does not read; get the model as EXL2 or GPTQ"
        )
    bits = section.integer("bits", 4)
    if bits != 4:
        raise section.error("bits", f"is {bits}; exlchat reads GPTQ of 4 bits; get that or EXL2")
    size = section.get("group_size")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or (size != -1 and size < 1)):
        raise section.error("group_size", f"is {size!r}; it must be a positive whole number or -1")
    symmetric = section.get("sym")
    return GptqSettings(
        exact_zeros=section.text("checkpoint_format", "gptq") == "gptq_v2",
        symmetric=symmetric if isinstance(symmetric, bool) else None,
        group_size=size,
    )


def dequantize(tensors: Mapping[str, Tensor], settings: GptqSettings) -> Tensor:
    """The weights of one layer.

    Args:
        tensors: `qweight` int32 `[K / 8, N]`, `qzeros` int32 `[G, N / 8]`, `scales` float `[G, N]` and perhaps
            `g_idx` int32 `[K]`, all on one device.
        settings: of the model.

    Returns:
        float16 `[K, N]`.

    Raises:
        ModelError: the tensors do not fit together or do not fit the settings.
    """
    groups = row_groups(tensors, settings)
    qweight = tensors["qweight"]
    zeros, scales = decode_zeros(tensors["qzeros"], settings), tensors["scales"].half().float()
    weights = torch.empty(len(groups), qweight.shape[1], dtype=torch.float16, device=qweight.device)
    # An eighth of the rows at a time: the copies in int32 and float32 stay smaller than the result.
    for code in range(CODES_PER_WORD):
        of_row = groups[code::CODES_PER_WORD]
        codes = (qweight >> (4 * code)) & 15
        # Exact in float32: at most 5 bits times an 11-bit significand; one rounding to float16 remains.
        weights[code::CODES_PER_WORD] = (codes - zeros[of_row]).float() * scales[of_row]
    return weights


def row_groups(tensors: Mapping[str, Tensor], settings: GptqSettings) -> Tensor:
    """int64 `[K]`: the group of every input row, checked against the shapes of the layer.

    With act-order `g_idx` says it. Without, groups are consecutive and of the size that the settings give.

    Raises:
        ModelError: naming the tensor that does not fit.
    """
    _check_shapes(tensors)
    features, groups = tensors["qweight"].shape[0] * CODES_PER_WORD, len(tensors["scales"])
    index = tensors.get(GROUP_INDEX)
    # One group for all rows together with act-order leaves an index of zeros, and so do writers that do not fill it.
    if index is not None and bool(index.any()):
        low, high = int(index.min()), int(index.max())
        if low < 0 or high >= groups:
            raise ModelError(f"g_idx names group {low if low < 0 else high}, but scales has {groups}")
        return index.long()
    size = group_size(features, groups) if settings.group_size is None else settings.group_size
    if size == -1:
        size = features
    if -(-features // size) != groups:
        declared = "" if settings.group_size is None else " of config.json"
        raise ModelError(
            f"scales has {groups} groups, but {features} rows in groups of {size}{declared} make another number"
        )
    return torch.arange(features, device=tensors["qweight"].device) // size


def group_size(features: int, groups: int) -> int:
    """The smallest power of two that spans the rows with so many groups: what a file means that does not say it."""
    size = 1
    while size * groups < features:
        size *= 2
    return size


def decode_zeros(qzeros: Tensor, settings: GptqSettings) -> Tensor:
    """int32 `[G, N]`, 0 to 16, from int32 `[G, N / 8]`.

    Some writers of version 2 call their files version 1. A symmetric layer shows which it is: all its stored zeros
    are 8 in version 2 and 7 in version 1 (vllm-project/vllm, pull request 38966).
    """
    exact = settings.exact_zeros
    if settings.symmetric is not False:
        if bool((qzeros == _ALL_EIGHT).all()):
            exact = True
        elif bool((qzeros == _ALL_SEVEN).all()):
            exact = False
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=qzeros.device)
    stored = ((qzeros.unsqueeze(-1) >> shifts) & 15).flatten(1)
    # Version 1 wraps a zero point of 16 to nothing: 15 + 1 is not cut to 4 bits.
    return stored if exact else stored + 1


def _check_shapes(tensors: Mapping[str, Tensor]) -> None:
    for name in TENSORS:
        if name not in tensors:
            raise ModelError(f"{name} is missing")
    for name, tensor in tensors.items():
        dtypes, dims = (_SCALE_DTYPES, 2) if name == "scales" else ((torch.int32,), 1 if name == GROUP_INDEX else 2)
        if tensor.dtype not in dtypes or tensor.dim() != dims:
            found = f"{tensor.dtype} with {tensor.dim()} dimensions"
            raise ModelError(f"{name} is {found}; GPTQ has {dtypes[0]} with {dims}".replace("torch.", ""))
    qweight, qzeros, scales = (tensors[name] for name in TENSORS)
    outputs = qweight.shape[1]
    if outputs * CODES_PER_WORD == scales.shape[1]:
        raise ModelError("qweight is packed along the outputs, as AWQ does, which exlchat does not read")
    if outputs != CODES_PER_WORD * qzeros.shape[1]:
        raise ModelError(
            f"qweight has {outputs} columns but qzeros holds {CODES_PER_WORD * qzeros.shape[1]} at 4 bits; "
            "exlchat reads GPTQ of 4 bits"
        )
    if tuple(scales.shape) != (len(qzeros), outputs):
        raise ModelError(
            f"scales is {scales.shape[0]} x {scales.shape[1]}, but qweight and qzeros make it {len(qzeros)} x {outputs}"
        )
    index = tensors.get(GROUP_INDEX)
    if index is not None and len(index) != CODES_PER_WORD * len(qweight):
        raise ModelError(f"g_idx has {len(index)} rows but qweight {CODES_PER_WORD * len(qweight)}")
    if scales.numel() == 0 or qweight.numel() == 0:
        raise ModelError("the layer is empty")
