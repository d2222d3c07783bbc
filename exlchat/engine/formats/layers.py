"""One linear layer of a checkpoint -> a `Linear`, whichever format its tensor names say it has."""

from __future__ import annotations

import torch
from torch import Tensor

from exlchat.engine.checkpoint import Checkpoint
from exlchat.engine.events import ModelError
from exlchat.engine.formats import dense, exl2
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
            raise ModelError(
                f"{checkpoint.file_of(f'{key}.qweight')}: {key} is GPTQ or AWQ, which this version does not read; "
                "get the model as EXL2 or as plain safetensors"
            )
        else:
            stored = dense.load_tensor(checkpoint, f"{key}.weight", (outputs, features))
            weight = stored.to(self._device, self._dtype)
            mapped = weight is stored
        has_bias = f"{key}.bias" in checkpoint.names
        if has_bias != bias:
            problem = "has a bias that config.json does not declare" if has_bias else "lacks the bias of config.json"
            raise ModelError(f"{checkpoint.path}: {key} {problem}")
        return Linear(weight, self.tensor(f"{key}.bias", (outputs,)) if bias else None, mapped)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A float tensor of exactly this shape, on the device and in the dtype."""
        return dense.load_tensor(self._checkpoint, name, shape).to(self._device, self._dtype)

    def _exl2(self, key: str, features: int, outputs: int) -> Tensor:
        """`[outputs, features]`; the format pads its columns to a multiple of 32 and stores `[in, out]`."""
        tensors = self._checkpoint.tensors(key, exl2.TENSORS)
        file = self._checkpoint.file_of(f"{key}.q_weight")
        try:
            weight = exl2.dequantize({name: tensor.to(self._device) for name, tensor in tensors.items()})
        except ModelError as error:
            raise ModelError(f"{file}: {key}: {error}") from error
        padded = -(-outputs // 32) * 32
        if tuple(weight.shape) != (features, padded):
            found = f"{weight.shape[0]} x {weight.shape[1]}"
            raise ModelError(f"{file}: {key} is {found}, but config.json makes it {features} x {padded}")
        return weight[:, :outputs].T.to(self._dtype).contiguous()


def parameter_count(checkpoint: Checkpoint) -> int:
    """Weights of the model as the transformer will hold them, from shapes alone."""
    total = 0
    for name in checkpoint.names:
        key, _, kind = name.rpartition(".")
        if kind == "q_weight":
            total += checkpoint.shape(f"{key}.q_invperm")[0] * checkpoint.shape(name)[1]
        elif kind in ("weight", "bias"):
            size = 1
            for length in checkpoint.shape(name):
                size *= length
            total += size
    return total


def describe_format(checkpoint: Checkpoint) -> str:
    """`EXL2 4.1 bpw` or the dense dtype, of the decoder layers."""
    weights = bits = 0
    dtypes: set[str] = set()
    for name in checkpoint.names:
        key, _, kind = name.rpartition(".")
        if not key.startswith("model.layers."):
            continue
        if kind == "q_weight":
            features, outputs = checkpoint.shape(f"{key}.q_invperm")[0], checkpoint.shape(name)[1]
            weights += features * outputs
            rows, groups = checkpoint.shape(name)[0], checkpoint.shape(f"{key}.q_scale")[0]
            bits += 32 * rows * outputs + groups * (4 * outputs + 48) + 32 * features
        elif kind == "weight":
            dtypes.add(checkpoint.dtype(name))
    if weights:
        return f"EXL2 {bits / weights:.1f} bpw"
    return "/".join(sorted(dtypes)) or "unknown"
