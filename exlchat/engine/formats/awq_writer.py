"""float weights -> AWQ tensors in the GEMM layout and a whole AWQ model directory, by rounding to the nearest code.

Without the scaling of salient channels that AWQ is named for: this serves tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from exlchat.engine.formats.awq import BITS, CODES_PER_WORD, ORDER
from exlchat.engine.formats.gptq_writer import group_range, write_layers


def quantize_matrix(weight: Tensor, group_size: int = 128) -> dict[str, Tensor]:
    """`qweight`, `qzeros` and `scales` of `weight`.

    Args:
        weight: float `[K, N]` (input features first), N a multiple of 8.
        group_size: input rows of a group, or -1 for all in one.

    Raises:
        ValueError: a size the format cannot hold.
    """
    features, outputs = weight.shape
    if outputs % CODES_PER_WORD:
        raise ValueError(f"AWQ needs outputs in multiples of {CODES_PER_WORD}, not {outputs}")
    size = features if group_size == -1 else group_size
    ranges = [group_range(rows.float(), BITS, 0, symmetric=False) for rows in torch.split(weight, size)]
    scales, zeros = torch.stack([scale for scale, _ in ranges]), torch.stack([zero for _, zero in ranges])
    groups = torch.arange(features, device=weight.device) // size
    codes = ((weight.float() / scales[groups].float()).round() + zeros[groups]).clamp(0, (1 << BITS) - 1)
    return {"qweight": _pack(codes), "qzeros": _pack(zeros), "scales": scales}


def write_model(
    source: Mapping[str, Tensor],
    config: Mapping[str, object],
    out_dir: Path,
    group_size: int = 128,
    *,
    extra_files: Sequence[Path] = (),
) -> None:
    """Writes a complete AWQ model directory: decoder layers quantized, everything else float16, as is usual.

    Args:
        source: float tensors of a model by their Hugging Face names, `[out, in]`.
        config: becomes `config.json`, with `quantization_config` added.
        group_size: input rows of a group, or -1 for all in one.
        extra_files: tokenizer and generation files, copied under their names.
    """
    quantization = {
        "quant_method": "awq",
        "bits": BITS,
        "group_size": group_size,
        "version": "gemm",
        "zero_point": True,
        "modules_to_not_convert": None,
    }
    write_layers(
        source,
        {**config, "quantization_config": quantization},
        out_dir,
        lambda weight: quantize_matrix(weight, group_size),
        extra_files=extra_files,
    )


def _pack(codes: Tensor) -> Tensor:
    """int32 `[rows, N / 8]` from codes `[rows, N]`."""
    ordered = codes.to(torch.int64).reshape(len(codes), -1, CODES_PER_WORD)[:, :, list(ORDER)]
    return (ordered << torch.arange(0, 32, BITS, device=codes.device)).sum(-1).to(torch.int32)
