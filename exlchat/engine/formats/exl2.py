"""EXL2: packed codes of 2 to 8 bits in mixed groups -> float16 weights, bit for bit.

Letters as in the format's description: K input features, N output features (padded to a multiple of 32), G groups.
A layer's rows are permuted, then cut into groups; every group has one bit width and, per column, one scale.
The numbers in the docstrings below are facts of the format (its version 0.3.2), checked against its own output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from exlchat.llm.info import ModelError

TENSORS = ("q_weight", "q_invperm", "q_scale", "q_scale_max", "q_groups")
BIT_WIDTHS = (2, 3, 4, 5, 6, 8)


@dataclass(frozen=True, slots=True)
class Group:
    """Group number `index`: rows `[row, row + rows)` of the stored order, packed at `bits` from `word_row` on."""

    index: int
    bits: int
    row: int
    rows: int
    word_row: int


def dequantize(tensors: Mapping[str, Tensor]) -> Tensor:
    """The weights of one layer.

    Args:
        tensors: `q_weight` int32 `[R, N]`, `q_invperm` int32 `[K]`, `q_scale` int32 `[G, N/8]`,
            `q_scale_max` float16 `[G]`, `q_groups` int16 `[2G]`, all on one device.

    Returns:
        float16 `[K, N]`, rows in the order of the input features.

    Raises:
        ModelError: the tensors do not fit together.
    """
    groups = read_groups(tensors)
    q_weight = tensors["q_weight"]
    scales = decode_scales(tensors["q_scale"], tensors["q_scale_max"])
    stored = torch.empty(len(tensors["q_invperm"]), q_weight.shape[1], dtype=torch.float16, device=q_weight.device)
    for index, group in enumerate(groups):
        words = q_weight[group.word_row : group.word_row + group.rows * group.bits // 32]
        signed = unpack(words, group.bits).sub_(1 << (group.bits - 1))
        # Exact in float32: 8-bit integer times 11-bit significand; one rounding to float16 remains.
        stored[group.row : group.row + group.rows] = signed.float() * scales[index].float()
    return stored[tensors["q_invperm"].long()]


def read_groups(tensors: Mapping[str, Tensor]) -> list[Group]:
    """The layout of one layer, checked against the shapes of its tensors.

    Raises:
        ModelError: naming the tensor that does not fit.
    """
    _check_shapes(tensors)
    features = len(tensors["q_invperm"])
    word_rows = tensors["q_weight"].shape[0]
    # Unsigned on disk.
    numbers = [value & 0xFFFF for value in tensors["q_groups"].tolist()]
    bits, starts = numbers[0::2], numbers[1::2]
    groups: list[Group] = []
    row = 0
    for index, (width, start) in enumerate(zip(bits, starts, strict=True)):
        end = starts[index + 1] if index + 1 < len(starts) else word_rows
        if width not in BIT_WIDTHS:
            raise ModelError(f"q_groups: group {index} has {width} bits; EXL2 knows {BIT_WIDTHS}")
        if end <= start or (end - start) * 32 % width or (index == 0 and start != 0):
            raise ModelError(f"q_groups: group {index} of {width} bits cannot span word rows {start} to {end}")
        rows = (end - start) * 32 // width
        groups.append(Group(index, width, row, rows, start))
        row += rows
    if row != features:
        raise ModelError(f"q_groups: the groups hold {row} rows of q_weight, but q_invperm has {features}")
    return groups


def _check_shapes(tensors: Mapping[str, Tensor]) -> None:
    for name in TENSORS:
        if name not in tensors:
            raise ModelError(f"{name} is missing")
    q_weight, q_scale = tensors["q_weight"], tensors["q_scale"]
    q_invperm, q_scale_max, q_groups = tensors["q_invperm"], tensors["q_scale_max"], tensors["q_groups"]
    for name, dtype, dims in (
        ("q_weight", torch.int32, 2),
        ("q_scale", torch.int32, 2),
        ("q_invperm", torch.int32, 1),
        ("q_scale_max", torch.float16, 1),
        ("q_groups", torch.int16, 1),
    ):
        if tensors[name].dtype != dtype or tensors[name].dim() != dims:
            found = f"{tensors[name].dtype} with {tensors[name].dim()} dimensions"
            raise ModelError(f"{name} is {found}; EXL2 has {dtype} with {dims}".replace("torch.", ""))
    if 0 in (len(q_invperm), q_weight.numel()):
        raise ModelError(f"{'q_weight' if len(q_invperm) else 'q_invperm'} is empty")
    if q_weight.shape[1] != 8 * q_scale.shape[1]:
        raise ModelError(f"q_weight has {q_weight.shape[1]} columns but q_scale has scales for {8 * q_scale.shape[1]}")
    if not len(q_groups) == 2 * len(q_scale_max) == 2 * q_scale.shape[0] or len(q_groups) == 0:
        counts = f"q_groups {len(q_groups) / 2:g}, q_scale {q_scale.shape[0]}, q_scale_max {len(q_scale_max)}"
        raise ModelError(f"the tensors disagree on the number of groups: {counts}")
    if not bool(q_scale_max.isfinite().all()):
        raise ModelError("q_scale_max holds what is no number; download the model again")
    present = torch.bincount(q_invperm.clamp(0, len(q_invperm) - 1).long(), minlength=len(q_invperm))
    if int(q_invperm.min()) < 0 or int(q_invperm.max()) >= len(q_invperm) or int(present.max()) > 1:
        raise ModelError("q_invperm is not a permutation of the input features")


def decode_scales(q_scale: Tensor, q_scale_max: Tensor) -> Tensor:
    """float16 `[G, N]` from 4-bit indices `[G, N/8]` and one maximum a group `[G]`.

    The scale is quadratic in the index and rounded twice: `m = fp16(q_scale_max / 256)`, which is often subnormal,
    then `fp16((index + 1)^2 * m)`.
    """
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=q_scale.device)
    index = (q_scale.unsqueeze(-1) >> shifts) & 15
    steps = (index.flatten(1) + 1).square().float()
    unit = (q_scale_max.float() / 256).half().float()
    return (steps * unit.unsqueeze(-1)).half()


def pack_scale_indices(indices: Tensor) -> Tensor:
    """int32 `[G, N/8]` from indices `[G, N]` of 0 to 15, the lowest column in the lowest four bits."""
    shifts = torch.arange(0, 32, 4, device=indices.device)
    words = indices.to(torch.int64).view(len(indices), -1, 8) << shifts
    return words.sum(-1).to(torch.int32)


def unpack(words: Tensor, bits: int) -> Tensor:
    """int16 codes `[rows, N]` from int32 words `[rows * bits / 32, N]`.

    Every column is a little-endian bit stream down the rows; codes of 3, 5 and 6 bits may straddle two words.
    """
    words_per_period, codes_per_period = _period(bits)
    periods = words.view(-1, words_per_period, words.shape[1])
    codes = torch.empty(periods.shape[0], codes_per_period, words.shape[1], dtype=torch.int16, device=words.device)
    mask = (1 << bits) - 1
    for code in range(codes_per_period):
        word, shift = divmod(code * bits, 32)
        # The shift is arithmetic; the mask cuts the sign bits that it drags in.
        value = periods[:, word] >> shift
        in_this_word = 32 - shift
        if in_this_word < bits:
            upper = periods[:, word + 1] & ((1 << (bits - in_this_word)) - 1)
            value = (value & ((1 << in_this_word) - 1)) | (upper << in_this_word)
        codes[:, code] = value & mask
    return codes.flatten(0, 1)


def pack(codes: Tensor, bits: int) -> Tensor:
    """int32 words `[rows * bits / 32, N]` from integer codes `[rows, N]`: the inverse of `unpack`."""
    words_per_period, codes_per_period = _period(bits)
    periods = codes.to(torch.int64).view(-1, codes_per_period, codes.shape[1])
    words = torch.zeros(periods.shape[0], words_per_period, codes.shape[1], dtype=torch.int64, device=codes.device)
    for code in range(codes_per_period):
        word, shift = divmod(code * bits, 32)
        words[:, word] |= (periods[:, code] << shift) & 0xFFFFFFFF
        if shift + bits > 32:
            words[:, word + 1] |= periods[:, code] >> (32 - shift)
    return words.flatten(0, 1).to(torch.int32)


def _period(bits: int) -> tuple[int, int]:
    """Words and codes after which the packing repeats."""
    codes = next(count for count in (4, 8, 16, 32) if count * bits % 32 == 0)
    return codes * bits // 32, codes
