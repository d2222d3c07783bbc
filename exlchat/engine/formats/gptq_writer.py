"""float weights -> GPTQ tensors and a whole GPTQ model directory, by rounding to the nearest code.

No error compensation, which is what a real quantizer is for: this serves tests and benchmarks.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from exlchat.engine.formats.exl2 import pack
from exlchat.engine.formats.exl2_writer import is_quantized


@dataclass(frozen=True, slots=True)
class GptqRecipe:
    """How a model is written.

    Args:
        group_size: input rows of a group, or -1 for all in one.
        act_order: rows with the largest mean square share the first groups; `g_idx` then says which row is where.
        symmetric: every zero point is in the middle; else a group's range decides.
        exact_zeros: zero points as version 2 stores them.
        bits: 2, 3, 4 or 8.
    """

    group_size: int = 128
    act_order: bool = False
    symmetric: bool = True
    exact_zeros: bool = False
    bits: int = 4

    def config(self) -> dict[str, object]:
        """The `quantization_config` of a model written so."""
        return {
            "quant_method": "gptq",
            "bits": self.bits,
            "group_size": self.group_size,
            "desc_act": self.act_order,
            "sym": self.symmetric,
            "checkpoint_format": "gptq_v2" if self.exact_zeros else "gptq",
        }


def quantize_matrix(weight: Tensor, recipe: GptqRecipe) -> dict[str, Tensor]:
    """`qweight`, `qzeros`, `scales` and `g_idx` of `weight`.

    Args:
        weight: float `[K, N]` (input features first), K and N multiples of 8 (of 16 or 32 for 2 or 3 bits).

    Raises:
        ValueError: a size the format cannot hold.
    """
    features, outputs = weight.shape
    whole = 32 // math.gcd(32, recipe.bits)
    if features % whole or outputs % whole:
        raise ValueError(f"GPTQ needs both sizes to be multiples of {whole}, not {features} x {outputs}")
    size = features if recipe.group_size == -1 else recipe.group_size
    place = torch.arange(features, device=weight.device)
    if recipe.act_order:
        place = weight.float().square().mean(1).argsort(descending=True).argsort()
    groups = place // size
    # Version 1 cannot store a zero point of 0.
    count, least = -(-features // size), 0 if recipe.exact_zeros else 1
    ranges = [
        group_range(weight[groups == group].float(), recipe.bits, least, symmetric=recipe.symmetric)
        for group in range(count)
    ]
    scales, zeros = torch.stack([scale for scale, _ in ranges]), torch.stack([zero for _, zero in ranges])
    codes = ((weight.float() / scales[groups].float()).round() + zeros[groups]).clamp(0, (1 << recipe.bits) - 1)
    return {
        "qweight": pack(codes, recipe.bits),
        "qzeros": pack((zeros - (0 if recipe.exact_zeros else 1)).T, recipe.bits).T.contiguous(),
        "scales": scales,
        "g_idx": groups.to(torch.int32),
    }


def write_model(
    source: Mapping[str, Tensor],
    config: Mapping[str, object],
    out_dir: Path,
    recipe: GptqRecipe,
    *,
    extra_files: Sequence[Path] = (),
) -> None:
    """Writes a complete GPTQ model directory: decoder layers quantized, everything else float16, as is usual.

    Args:
        source: float tensors of a model by their Hugging Face names, `[out, in]`.
        config: becomes `config.json`, with `quantization_config` added.
        extra_files: tokenizer and generation files, copied under their names.
    """
    write_layers(
        source,
        {**config, "quantization_config": recipe.config()},
        out_dir,
        lambda weight: quantize_matrix(weight, recipe),
        extra_files=extra_files,
    )


def write_layers(
    source: Mapping[str, Tensor],
    config: Mapping[str, object],
    out_dir: Path,
    quantize: Callable[[Tensor], dict[str, Tensor]],
    *,
    extra_files: Sequence[Path] = (),
) -> None:
    """Writes a model directory whose decoder layers are quantized and everything else is float16.

    Args:
        source, extra_files: as for `write_model`.
        config: becomes `config.json`.
        quantize: float `[in, out]` -> the tensors of a layer by their short names.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    for name, tensor in source.items():
        if is_quantized(name, tensor):
            key = name.removesuffix(".weight")
            tensors |= {f"{key}.{part}": value for part, value in quantize(tensor.T).items()}
        else:
            tensors[name] = tensor.half().contiguous()
    save_file(tensors, out_dir / "model.safetensors")
    (out_dir / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for file in extra_files:
        shutil.copyfile(file, out_dir / file.name)


def group_range(rows: Tensor, bits: int, least_zero: int, *, symmetric: bool) -> tuple[Tensor, Tensor]:
    """float16 scales and integer zero points, both `[N]`, of the rows of one group.

    Args:
        rows: float32 `[rows, N]`.
        bits: width of a code.
        least_zero: the smallest zero point that can be stored.
        symmetric: every zero point is in the middle.
    """
    top_code = (1 << bits) - 1
    low, high = rows.amin(0).clamp_max(0), rows.amax(0).clamp_min(0)
    if symmetric:
        high = torch.maximum(-low, high)
        low = -high
    scales = ((high - low) / top_code).clamp_min(1e-4).half()
    if symmetric:
        return scales, torch.full_like(low, 1 << (bits - 1)).to(torch.int32)
    return scales, (-low / scales.float()).round().clamp(least_zero, top_code).to(torch.int32)
