"""The prepared GPTQ layers and what they stand for."""

from __future__ import annotations

import functools

import numpy as np
import torch
from safetensors.torch import load_file

from exlchat.engine.formats import gptq, grouped
from exlchat.engine.formats.gptq import GptqSettings
from tests.shared_data import DATA

DEVICE_CASES = ("g32", "g64", "g128", "g32_act", "g128_act", "gall")
NAMES = (*grouped.TENSORS, grouped.GROUP_INDEX)


@functools.cache
def device_vectors() -> dict[str, torch.Tensor]:
    return load_file(DATA / "dequantize_vectors.safetensors")


@functools.cache
def format_vectors() -> dict[str, torch.Tensor]:
    with np.load(DATA / "format_vectors.npz") as file:
        return {name: torch.from_numpy(file[name]) for name in file.files if name.startswith("gptq_")}


def device_case(case: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    vectors = device_vectors()
    tensors = {name: vectors[f"gptq.{case}.{name}"] for name in NAMES if f"gptq.{case}.{name}" in vectors}
    return tensors, vectors[f"gptq.{case}.dequantized"]


def format_case(case: int) -> tuple[dict[str, torch.Tensor], GptqSettings, torch.Tensor]:
    vectors, prefix = format_vectors(), f"gptq_{case}_"
    tensors = {name: vectors[prefix + name] for name in NAMES if prefix + name in vectors}
    return tensors, GptqSettings(exact_zeros=bool(vectors[f"{prefix}v2"])), vectors[f"{prefix}W"]


def weights_of(tensors: dict[str, torch.Tensor], settings: GptqSettings) -> torch.Tensor:
    """As a model's layer is read."""
    return grouped.dequantize(gptq.read_layer(tensors, settings))
