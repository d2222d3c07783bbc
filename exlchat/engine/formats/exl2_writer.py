"""float weights -> EXL2 tensors and a whole EXL2 model directory, by rounding to the nearest code.

No error compensation: that is the converter's trade. At 6 and 8 bits rounding alone is good enough for the bundled
guide, and tests make their EXL2 models with it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from exlchat.engine.formats import exl2
from exlchat.engine.formats.sections import EIGHT_BITS, Section, group_sizes

__all__ = ["EIGHT_BITS", "Section", "is_quantized", "quantize_group", "quantize_matrix", "write_model"]

_IN_LAYER = re.compile(r"(^|\.)(layers|h)\.\d+\.")
# What chooses experts or weighs them stays float, as in all published files.
_STAYS_FLOAT = re.compile(r"norm|router|(mlp|block_sparse_moe)\.gate\.|shared_expert_gate")


def is_quantized(name: str, tensor: Tensor) -> bool:
    """Whether a tensor of a float model is what formats quantize: the matrix of a projection of a decoder layer."""
    inside = _IN_LAYER.search(name) is not None and name.endswith(".weight")
    return inside and tensor.ndim == 2 and _STAYS_FLOAT.search(name) is None


def quantize_matrix(
    weight: Tensor, sections: Sequence[Section], *, permutation: Tensor | None = None
) -> dict[str, Tensor]:
    """The five EXL2 tensors of `weight`.

    Args:
        weight: float `[K, N]` (input features first), K and N multiples of 32.
        sections: widths in descending order; the proportions sum to 1.
        permutation: int `[K]`, stored row -> input feature; rows that matter most come first, where the bits are.
            Without one the rows with the largest mean square come first.

    Raises:
        ValueError: a size or section the format cannot hold.
    """
    features, columns = weight.shape
    if features % 32 or columns % 32:
        raise ValueError(f"EXL2 needs both sizes to be multiples of 32, not {features} x {columns}")
    order = weight.float().square().mean(1).argsort(descending=True) if permutation is None else permutation.long()
    rows = weight.float()[order]
    words: list[Tensor] = []
    indices: list[Tensor] = []
    maxima: list[Tensor] = []
    table: list[int] = []
    word_row = start = 0
    for bits, size in group_sizes(features, sections):
        codes, index, maximum = quantize_group(rows[start : start + size], bits)
        words.append(exl2.pack(codes, bits))
        indices.append(index)
        maxima.append(maximum)
        table += [bits, word_row]
        word_row += size * bits // 32
        start += size
    return {
        "q_weight": torch.cat(words),
        "q_invperm": order.argsort().to(torch.int32),
        "q_scale": exl2.pack_scale_indices(torch.stack(indices)),
        "q_scale_max": torch.stack(maxima),
        "q_groups": torch.tensor(table, dtype=torch.int16),
    }


def quantize_group(rows: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes `[rows, N]`, scale indices `[N]` (0 to 15) and the float16 maximum of one group of rows.

    The scale search is the format's own: one shrink factor for the whole group, the one of 97 that gives the least
    sum of |error|^3.5.
    """
    top_code, zero = (1 << bits) - 1, 1 << (bits - 1)
    base = (rows.abs().amax(0) + 1e-12) / (top_code / 2)
    largest = base.max()
    step = (16 * (base / largest).sqrt()).round().clamp(1, 16)
    scale = (step / 16).square() * largest
    factors = torch.arange(97, dtype=torch.float32, device=rows.device) / 96
    factors = 0.70 * (1 - factors) + 1.2 * factors
    errors = torch.stack([_rounding_error(rows, scale * factor, zero, top_code) for factor in factors])
    maximum = (largest * factors[errors.argmin()]).half()
    stored = (step.square() * (maximum.float() / 256).half().float()).half().float()
    # A group of zeros, or one too small for float16, has scale 0: every code is then the zero point.
    codes = torch.where(stored > 0, (rows / stored.clamp_min(1e-30)).round() + zero, zero).clamp(0, top_code)
    return codes.to(torch.int32), (step - 1).to(torch.int32), maximum


def write_model(
    source: Mapping[str, Tensor],
    config: Mapping[str, object],
    out_dir: Path,
    *,
    body: Sequence[Section] = EIGHT_BITS,
    head: Sequence[Section] = EIGHT_BITS,
    extra_files: Sequence[Path] = (),
) -> None:
    """Writes a complete EXL2 model directory.

    Args:
        source: float tensors of a model by their Hugging Face names, `[out, in]` as usual.
            Without `lm_head.weight` the head is made from the embedding.
        config: becomes `config.json`, with `quantization_config` added.
        body, head: bit widths of the decoder layers and of the output head.
        extra_files: tokenizer and generation files, copied under their names.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    for name, tensor in source.items():
        if is_quantized(name, tensor):
            _add_linear(tensors, name.removesuffix(".weight"), tensor, body)
        elif name != "lm_head.weight":
            tensors[name] = tensor.half().contiguous()
    last = "lm_head.weight" if "lm_head.weight" in source else "model.embed_tokens.weight"
    _add_linear(tensors, "lm_head", source[last], head)
    save_file(tensors, out_dir / "output.safetensors")
    quantization = {"quant_method": "exl2", "version": "0.3.2", "bits": _mean_bits(body), "head_bits": head[-1].bits}
    (out_dir / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}, indent=2) + "\n")
    for file in extra_files:
        shutil.copyfile(file, out_dir / file.name)


def _add_linear(tensors: dict[str, Tensor], key: str, weight: Tensor, sections: Sequence[Section]) -> None:
    padding = -weight.shape[0] % 32
    padded = torch.nn.functional.pad(weight.float(), (0, 0, 0, padding)).T
    for name, tensor in quantize_matrix(padded, sections).items():
        tensors[f"{key}.{name}"] = tensor.contiguous()


def _rounding_error(rows: Tensor, scale: Tensor, zero: int, top_code: int) -> Tensor:
    rounded = (rows / scale).round().clamp(-zero, top_code - zero) * scale
    return (rounded - rows).abs().pow(3.5).sum()


def _mean_bits(sections: Sequence[Section]) -> float:
    return round(sum(section.bits * section.proportion for section in sections), 2)
