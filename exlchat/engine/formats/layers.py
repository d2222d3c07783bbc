"""One linear layer of a checkpoint -> a `Linear`, whichever format its tensor names say it has."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from exlchat.engine.checkpoint import Checkpoint
from exlchat.engine.events import ModelError
from exlchat.engine.formats import dense, exl2, gptq
from exlchat.engine.linear import Linear


class LayerLoader:
    """Loads layers of one checkpoint onto one device in one dtype.

    Args:
        checkpoint: where the tensors are.
        device: where the weights go.
        dtype: what they become; a dense tensor that already has it stays memory-mapped on the CPU.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        self._checkpoint = checkpoint
        self._device = device
        self._dtype = dtype
        self._gptq_settings: gptq.GptqSettings | None = None

    def linear(self, key: str, features: int, outputs: int, *, bias: bool) -> Linear:
        """The layer `key` with `features` inputs and `outputs` outputs.

        Raises:
            ModelError: no format fits, sizes disagree, or a bias is there that should not be (or the reverse).
        """
        checkpoint = self._checkpoint
        mapped = False
        if f"{key}.q_weight" in checkpoint.names:
            weight = self._exl2(key, features, outputs)
        elif f"{key}.qweight" in checkpoint.names:
            weight = self._gptq(key, features, outputs)
        else:
            stored = dense.load_tensor(checkpoint, f"{key}.weight", (outputs, features))
            weight = stored.to(self._device, self._dtype)
            mapped = weight is stored
        return Linear(weight, self._bias(key, outputs, declared=bias), mapped)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A float tensor of exactly this shape, on the device and in the dtype."""
        return dense.load_tensor(self._checkpoint, name, shape).to(self._device, self._dtype)

    def _bias(self, key: str, outputs: int, *, declared: bool) -> Tensor | None:
        names = self._checkpoint.names
        stored = self.tensor(f"{key}.bias", (outputs,)) if f"{key}.bias" in names else None
        if stored is not None and not declared and f"{key}.qweight" in names and not bool(stored.any()):
            # Some GPTQ writers add a bias of zeros to every layer.
            stored = None
        if (stored is not None) != declared:
            problem = "lacks the bias of config.json" if declared else "has a bias that config.json does not declare"
            raise ModelError(f"{self._checkpoint.path}: {key} {problem}")
        return stored

    def _exl2(self, key: str, features: int, outputs: int) -> Tensor:
        """`[outputs, features]`; the format pads its columns to a multiple of 32 and stores `[in, out]`."""
        tensors = self._checkpoint.tensors(key, exl2.TENSORS)
        padded = -(-outputs // 32) * 32
        with self._naming(key, "q_weight"):
            weight = exl2.dequantize({name: tensor.to(self._device) for name, tensor in tensors.items()})
            check_sizes(weight, features, padded)
        return weight[:, :outputs].T.to(self._dtype).contiguous()

    def _gptq(self, key: str, features: int, outputs: int) -> Tensor:
        """`[outputs, features]`."""
        tensors = self._checkpoint.tensors(key, (*gptq.TENSORS, gptq.GROUP_INDEX))
        if self._gptq_settings is None:
            self._gptq_settings = gptq.read_settings(
                self._checkpoint.config, str(self._checkpoint.path / "config.json")
            )
        with self._naming(key, "qweight"):
            on_device = {name: tensor.to(self._device) for name, tensor in tensors.items()}
            weight = gptq.dequantize(on_device, self._gptq_settings)
            check_sizes(weight, features, outputs)
        return weight.T.to(self._dtype).contiguous()

    @contextmanager
    def _naming(self, key: str, tensor: str) -> Iterator[None]:
        """Puts the file and the layer before what a format says is wrong."""
        try:
            yield
        except ModelError as error:
            raise ModelError(f"{self._checkpoint.file_of(f'{key}.{tensor}')}: {key}: {error}") from error


def check_sizes(weight: Tensor, features: int, outputs: int) -> None:
    """Raises `ModelError` unless `weight` is `[features, outputs]`."""
    if tuple(weight.shape) != (features, outputs):
        found = f"{weight.shape[0]} x {weight.shape[1]}"
        raise ModelError(f"the weights are {found}, but config.json makes them {features} x {outputs}")


def parameter_count(checkpoint: Checkpoint) -> int:
    """Weights of the model as the transformer will hold them, from shapes alone."""
    total = 0
    for name in checkpoint.names:
        key, _, kind = name.rpartition(".")
        if kind == "q_weight":
            total += checkpoint.shape(f"{key}.q_invperm")[0] * checkpoint.shape(name)[1]
        elif kind == "qweight":
            total += gptq.CODES_PER_WORD * math.prod(checkpoint.shape(name))
        elif kind in ("weight", "bias"):
            total += math.prod(checkpoint.shape(name))
    return total


def describe_format(checkpoint: Checkpoint) -> str:
    """`EXL2 4.1 bpw`, `GPTQ 4-bit g128` or the dense dtype, of the decoder layers."""
    keys_kinds = [name.rpartition(".")[::2] for name in checkpoint.names if name.startswith("model.layers.")]
    if keys := [key for key, kind in keys_kinds if kind == "q_weight"]:
        return f"EXL2 {_exl2_bits(checkpoint, keys):.1f} bpw"
    if keys := [key for key, kind in keys_kinds if kind == "qweight"]:
        sizes = []
        for key in keys:
            groups = checkpoint.shape(f"{key}.scales")[0]
            rows = gptq.CODES_PER_WORD * checkpoint.shape(f"{key}.qweight")[0]
            # One group spans whatever the layer has: that is no size to speak of.
            sizes.append(gptq.group_size(rows, groups) if groups > 1 else 0)
        return f"GPTQ 4-bit g{max(sizes)}" if max(sizes) else "GPTQ 4-bit"
    return (
        "/".join(sorted({checkpoint.dtype(f"{key}.weight") for key, kind in keys_kinds if kind == "weight"}))
        or "unknown"
    )


def _exl2_bits(checkpoint: Checkpoint, keys: list[str]) -> float:
    """Bits a weight of these layers, tables and all."""
    weights = bits = 0
    for key in keys:
        rows, outputs = checkpoint.shape(f"{key}.q_weight")
        features, groups = checkpoint.shape(f"{key}.q_invperm")[0], checkpoint.shape(f"{key}.q_scale")[0]
        weights += features * outputs
        bits += 32 * rows * outputs + groups * (4 * outputs + 48) + 32 * features
    return bits / weights
