"""Packed matrices of every width, mix and kind of scales."""

from __future__ import annotations

import torch

from exlchat.engine.formats.exl2_writer import Section, quantize_matrix
from exlchat.engine.formats.packing import pack_exl2
from exlchat.ext import layout
from exlchat.ext.layout import PackedMatrix
from exlchat.ext.tiles import pack_tiles

RECIPES = {
    **{str(bits): (Section(bits, 1.0, 128),) for bits in (2, 3, 4, 5, 6, 8)},
    "4 in groups of 32": (Section(4, 1.0, 32),),
    "6 in groups of 64": (Section(6, 1.0, 64),),
    "8, 5, 4": (Section(8, 0.05, 32), Section(5, 0.10, 128), Section(4, 0.85, 128)),
    "6, 5, 3, 2": (Section(6, 0.1, 32), Section(5, 0.2, 64), Section(3, 0.3, 32), Section(2, 0.4, 64)),
}
GPTQ = {"GPTQ 128": 128, "GPTQ 64": 64, "GPTQ 32": 32}


def packed(features: int, outputs: int, recipe: str, device: str = "cuda") -> PackedMatrix:
    if recipe in GPTQ:
        return plain(features, outputs, GPTQ[recipe], device)
    return pack_exl2(quantize_matrix(torch.randn(features, outputs, device=device) * 0.05, RECIPES[recipe]))


def plain(features: int, outputs: int, group: int, device: str = "cuda") -> PackedMatrix:
    """4-bit codes with float16 scales and zero points of their own, rows permuted."""
    pieces = -(-features // 128)
    section = layout.LayoutSection(4, "plain", min(group, 128), 0, 0, pieces, 0, 0)
    count = pieces * 128 // section.rows_per_scale
    codes = torch.randint(16, (pieces * 128, outputs), device=device)
    scale = (torch.rand(count, outputs, device=device) * 0.01 + 0.001).half()
    zero = torch.randint(16, (count, outputs), device=device, dtype=torch.uint8)
    words, scales = pack_tiles(codes, 4), layout.plain_scales(scale, zero, section)
    gather = torch.randperm(features, device=device).to(torch.int32).to(torch.int16)
    return PackedMatrix(features, outputs, (section,), words, scales, gather)


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())
