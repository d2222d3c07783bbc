"""AWQ of 4 bits in the layout that AutoAWQ calls GEMM -> float16 weights, bit for bit.

Letters: K input features, N output features, G groups. Eight neighbouring outputs share a word, in the order in which
the kernels of AWQ took them apart; zero points are stored as they are, in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from exlchat.engine.formats import grouped
from exlchat.engine.formats.grouped import TENSORS, GroupedLayer
from exlchat.llm.info import ModelError

BITS = 4
CODES_PER_WORD = 8
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of a word's eight outputs each four bits hold, the lowest first."""


@dataclass(frozen=True, slots=True)
class AwqSettings:
    """What `quantization_config` says: input rows of a group, -1 for all in one, `None` where it does not say."""

    group_size: int | None = None


def dequantize(tensors: Mapping[str, Tensor]) -> Tensor:
    """The weights of one layer.

    Args:
        tensors: `qweight` int32 `[K, N / 8]`, `qzeros` int32 `[G, N / 8]`, `scales` float `[G, N]`, all on one device.

    Returns:
        float16 `[K, N]`.

    Raises:
        ModelError: the tensors do not fit together.
    """
    return grouped.dequantize(read_layer(tensors, AwqSettings()))


def read_layer(tensors: Mapping[str, Tensor], settings: AwqSettings) -> GroupedLayer:
    """One layer of a model, for `grouped.dequantize` and for the kernels' layout.

    Args:
        tensors: as for `dequantize`.
        settings: of the model.

    Raises:
        ModelError: the tensors do not fit together or do not fit the settings.
    """
    grouped.check_tensors(tensors, "AWQ")
    qweight, qzeros, scales = (tensors[name] for name in TENSORS)
    features, outputs = len(qweight), CODES_PER_WORD * qweight.shape[1]
    if qweight.shape[1] == scales.shape[1]:
        raise ModelError("qweight is packed along the inputs, as GPTQ does, but quant_method of config.json says AWQ")
    if scales.shape[1] != outputs or tuple(qzeros.shape) != (len(scales), qweight.shape[1]):
        shapes = ", ".join(f"{name} {tensors[name].shape[0]} x {tensors[name].shape[1]}" for name in TENSORS)
        raise ModelError(f"{shapes} do not fit together; exlchat reads AWQ in its GEMM layout of 4 bits")
    return GroupedLayer(
        features=features,
        outputs=outputs,
        bits=BITS,
        codes=lambda first, last: unpack(qweight[:, first // CODES_PER_WORD : last // CODES_PER_WORD]),
        zeros=unpack(qzeros),
        scales=scales.half(),
        groups=grouped.consecutive_groups(features, len(scales), settings.group_size, qweight.device),
    )


def unpack(words: Tensor) -> Tensor:
    """int32 codes `[rows, N]` from int32 words `[rows, N / 8]`."""
    shifts = [4 * ORDER.index(output) for output in range(CODES_PER_WORD)]
    return ((words.unsqueeze(-1) >> torch.tensor(shifts, dtype=torch.int32, device=words.device)) & 15).flatten(1)
