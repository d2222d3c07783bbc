"""GPTQ of 2, 3, 4 or 8 bits: codes with a scale and a zero point per group of input rows -> float16, bit for bit.

Letters: K input features, N output features, G groups. The facts of the format below are those of the files that
AutoGPTQ and its successors write, of 4 bits checked against vectors of an independent reader. Codes of every width are
one little-endian stream of bits, down the columns of `qweight` and along the rows of `qzeros`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from exlchat.engine.formats import grouped
from exlchat.engine.formats.exl2 import unpack
from exlchat.engine.formats.grouped import GROUP_INDEX, TENSORS, GroupedLayer
from exlchat.llm.info import ModelError

BIT_WIDTHS = (2, 3, 4, 8)
CHECKPOINT_FORMATS = ("gptq", "gptq_v2")


@dataclass(frozen=True, slots=True)
class GptqSettings:
    """What `quantization_config` says about every layer of a model.

    Args:
        exact_zeros: files of version 2 store a zero point as it is, those of version 1 store one less.
        symmetric: whether every zero point is in the middle; `None` where the file does not say.
        group_size: input rows of a group, -1 for all rows in one; `None` where the file does not say.
        bits: width of a code; `None` where the file does not say, or layers differ.
        act_order: whether rows of a group lie apart, so that only `g_idx` says which belong together.
    """

    exact_zeros: bool = False
    symmetric: bool | None = None
    group_size: int | None = None
    bits: int | None = None
    act_order: bool = False


def dequantize(tensors: Mapping[str, Tensor], *, checkpoint_format: str = "gptq", bits: int = 4) -> Tensor:
    """The weights of one layer, exactly as the format defines them.

    Args:
        tensors: `qweight` int32 `[K * bits / 32, N]`, `qzeros` int32 `[G, N * bits / 32]`, `scales` float `[G, N]` and
            perhaps `g_idx` int32 `[K]`, all on one device. Without `g_idx` groups are of the smallest power of two
            that spans the rows.
        checkpoint_format: `gptq` (zero points less one) or `gptq_v2`, taken at its word.
        bits: 2, 3, 4 or 8.

    Returns:
        float16 `[K, N]`.

    Raises:
        ModelError: the tensors do not fit together, or there is no such format or width.
    """
    if checkpoint_format not in CHECKPOINT_FORMATS or bits not in BIT_WIDTHS:
        known = f"{' and '.join(CHECKPOINT_FORMATS)} of {', '.join(map(str, BIT_WIDTHS))} bits"
        raise ModelError(f"{checkpoint_format!r} of {bits!r} bits is not known; exlchat reads {known}")
    settings = GptqSettings(exact_zeros=checkpoint_format == "gptq_v2", symmetric=False, bits=bits)
    return grouped.dequantize(read_layer(tensors, settings))


def read_layer(tensors: Mapping[str, Tensor], settings: GptqSettings) -> GroupedLayer:
    """One layer of a model, for `grouped.dequantize` and for the kernels' layout.

    Args:
        tensors: as for `dequantize`.
        settings: of the model.

    Raises:
        ModelError: the tensors do not fit together or do not fit the settings.
    """
    grouped.check_tensors(tensors, "GPTQ")
    qweight, scales = tensors["qweight"], tensors["scales"]
    bits = _check_shapes(tensors, settings)
    features = len(qweight) * 32 // bits
    return GroupedLayer(
        features=features,
        outputs=qweight.shape[1],
        bits=bits,
        codes=lambda first, last: unpack(qweight[:, first:last].contiguous(), bits),
        zeros=decode_zeros(tensors["qzeros"], settings, bits),
        scales=scales.half(),
        groups=_row_groups(tensors, features, settings),
    )


def decode_zeros(qzeros: Tensor, settings: GptqSettings, bits: int) -> Tensor:
    """int32 `[G, N]`, 0 to `1 << bits`, from int32 `[G, N * bits / 32]`.

    Some writers of version 2 call their files version 1. A symmetric layer shows which it is: all its stored zeros
    are the middle, 8 of 4 bits, in version 2 and one less in version 1 (vllm-project/vllm, pull request 38966).
    """
    stored = unpack(qzeros.T.contiguous(), bits).T.to(torch.int32)
    exact = settings.exact_zeros
    if settings.symmetric is not False:
        middle, low, high = 1 << (bits - 1), int(stored.min()), int(stored.max())
        if low == high in (middle - 1, middle):
            exact = low == middle
    # Version 1 wraps a zero point of 16 to nothing: 15 + 1 is not cut to 4 bits.
    return stored if exact else stored + 1


def _row_groups(tensors: Mapping[str, Tensor], features: int, settings: GptqSettings) -> Tensor:
    """int64 `[K]`: the group of every input row.

    With act-order `g_idx` says it. Without, groups are consecutive and of the size that the settings give.
    """
    index, groups = tensors.get(GROUP_INDEX), len(tensors["scales"])
    if index is not None and len(index) != features:
        raise ModelError(f"g_idx has {len(index)} rows but qweight {features}")
    if index is None and settings.act_order and groups > 1:
        raise ModelError("g_idx is missing, and desc_act of config.json says that only it tells which row is where")
    # One group for all rows together with act-order leaves an index of zeros, and so do writers that do not fill it.
    if index is None or not bool(index.any()):
        return grouped.consecutive_groups(features, groups, settings.group_size, tensors["qweight"].device)
    low, high = int(index.min()), int(index.max())
    if low < 0 or high >= groups:
        raise ModelError(f"g_idx names group {low if low < 0 else high}, but scales has {groups}")
    return index.long()


def _check_shapes(tensors: Mapping[str, Tensor], settings: GptqSettings) -> int:
    """The width of a code."""
    qweight, qzeros, scales = (tensors[name] for name in TENSORS)
    words, outputs = qweight.shape
    if outputs * 8 == scales.shape[1]:
        raise ModelError("qweight is packed along the outputs, as AWQ does, but quant_method of config.json says GPTQ")
    bits = settings.bits or 32 * qzeros.shape[1] // outputs
    if bits not in BIT_WIDTHS or outputs * bits != 32 * qzeros.shape[1]:
        held = f"qweight has {outputs} columns but qzeros holds {32 * qzeros.shape[1] // (bits or 1)} at {bits} bits"
        disagree = "config.json and the tensors disagree" if settings.bits else "exlchat reads GPTQ of 2, 3, 4 or 8"
        raise ModelError(f"{held}; {disagree}")
    if words * 32 % bits:
        raise ModelError(f"qweight has {words} rows of words, which codes of {bits} bits do not fill")
    if tuple(scales.shape) != (len(qzeros), outputs):
        raise ModelError(
            f"scales is {scales.shape[0]} x {scales.shape[1]}, but qweight and qzeros make it {len(qzeros)} x {outputs}"
        )
    return bits
