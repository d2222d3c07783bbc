"""Codes with a scale and a zero point per group of input rows -> float16 weights, bit for bit: GPTQ and AWQ alike.

Letters: K input features, N output features, G groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from exlchat.llm.info import ModelError

TENSORS = ("qweight", "qzeros", "scales")
GROUP_INDEX = "g_idx"

_SCALE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# Weights that are unpacked at once, so that the transient copies of a large layer stay small beside the layer.
_WEIGHTS_AT_ONCE = 2**23


@dataclass(frozen=True, slots=True)
class GroupedLayer:
    """`W[k, n] = fp16((code[k, n] - zero[g, n]) * scale[g, n])`, g being the group of row k.

    Args:
        features, outputs: K and N.
        bits: width of a code.
        codes: of the columns from the first number up to, without, the second: integers `[K, columns]`.
        zeros: int32 `[G, N]`, 0 to `1 << bits`.
        scales: float16 `[G, N]`, finite.
        groups: int64 `[K]`.
    """

    features: int
    outputs: int
    bits: int
    codes: Callable[[int, int], Tensor]
    zeros: Tensor
    scales: Tensor
    groups: Tensor

    def column_ranges(self, multiple: int = 1) -> Iterator[tuple[int, int]]:
        """First and last of the columns to unpack at once; all but the last range begin and end at multiples."""
        step = max(_WEIGHTS_AT_ONCE // self.features // multiple, 1) * multiple
        for start in range(0, self.outputs, step):
            yield start, min(start + step, self.outputs)


def dequantize(layer: GroupedLayer) -> Tensor:
    """float16 `[K, N]`."""
    weights = torch.empty(layer.features, layer.outputs, dtype=torch.float16, device=layer.scales.device)
    # Unpacking works on whole words, of which AWQ has one for 8 columns.
    for first, last in layer.column_ranges(8):
        codes, columns = layer.codes(first, last), slice(first, last)
        # Exact in float32: at most 9 bits times an 11-bit significand; one rounding to float16 remains.
        values = (codes - layer.zeros[layer.groups, columns]).float()
        weights[:, columns] = values.mul_(layer.scales[layer.groups, columns])
    return weights


def check_tensors(tensors: Mapping[str, Tensor], name: str) -> None:
    """That all tensors are there, of the right kind and with scales that are numbers.

    Args:
        tensors: of one layer.
        name: of the format, for errors.

    Raises:
        ModelError: naming the tensor that is wrong.
    """
    for missing in (tensor for tensor in TENSORS if tensor not in tensors):
        raise ModelError(f"{missing} is missing")
    for key, tensor in tensors.items():
        dtypes, dims = (_SCALE_DTYPES, 2) if key == "scales" else ((torch.int32,), 1 if key == GROUP_INDEX else 2)
        if tensor.dtype not in dtypes or tensor.dim() != dims:
            found = f"{tensor.dtype} with {tensor.dim()} dimensions"
            raise ModelError(f"{key} is {found}; {name} has {dtypes[0]} with {dims}".replace("torch.", ""))
    for empty in (key for key in TENSORS if tensors[key].numel() == 0):
        raise ModelError(f"{empty} is empty")
    if not bool(tensors["scales"].half().isfinite().all()):
        raise ModelError("scales holds what is no number in float16; download the model again")


def consecutive_groups(features: int, count: int, size: int | None, device: torch.device) -> Tensor:
    """int64 `[features]`: the group of every row, where groups follow each other.

    Args:
        features: how many rows.
        count: how many groups.
        size: rows of a group, -1 for all in one; `None` where the file does not say.
        device: where the result belongs.

    Raises:
        ModelError: rows in groups of that size make another number of groups.
    """
    rows = group_size(features, count) if size is None else features if size == -1 else size
    if -(-features // rows) != count:
        declared = "" if size is None else " of config.json"
        raise ModelError(
            f"scales has {count} groups, but {features} rows of qweight in groups of {rows}{declared} make another "
            "number"
        )
    return torch.arange(features, device=device) // rows


def group_size(features: int, groups: int) -> int:
    """The smallest power of two that spans the rows with so many groups: what a file means that does not say it."""
    size = 1
    while size * groups < features:
        size *= 2
    return size
