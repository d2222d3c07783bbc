"""One linear layer of a checkpoint, whichever format its tensor names say it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from exlchat.engine.checkpoint import Checkpoint
from exlchat.engine.events import ModelError
from exlchat.engine.formats import dense, exl2, gptq
from exlchat.engine.formats.exl2_tiles import pack_exl2
from exlchat.engine.formats.gptq_tiles import pack_gptq
from exlchat.engine.linear import Linear
from exlchat.engine.quantized_linear import MatrixKernels, QuantizedLinear, Scratch
from exlchat.ext.layout import PackedMatrix


@dataclass(frozen=True, slots=True)
class _Format:
    """How one quantized layer is read.

    Args:
        main: the tensor that errors about the layer are pinned to.
        tensors: short names of all of them.
        columns: outputs as the format stores them.
        dequantize: tensors -> float16 `[in, out]`.
        pack: tensors and bias -> the kernels' layout; `ValueError` where that cannot hold them.
    """

    main: str
    tensors: tuple[str, ...]
    columns: int
    dequantize: Callable[[Mapping[str, Tensor]], Tensor]
    pack: Callable[[Mapping[str, Tensor], Tensor | None], PackedMatrix]


class LayerLoader:
    """Loads layers of one checkpoint onto one device in one dtype, one tensor after the other.

    Args:
        checkpoint: where the tensors are.
        device: where the weights go.
        dtype: what they become; a dense tensor that already has it stays memory-mapped on the CPU.
        kernels: with them, quantized layers stay quantized.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype,
        kernels: MatrixKernels | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._device = device
        self._dtype = dtype
        self._kernels = kernels
        self._scratch = Scratch(device)
        self._gptq_settings: gptq.GptqSettings | None = None

    def linear(self, key: str, features: int, outputs: int, *, bias: bool) -> Linear | QuantizedLinear:
        """The layer `key` with `features` inputs and `outputs` outputs.

        Raises:
            ModelError: no format fits, sizes disagree, or a bias is there that should not be (or the reverse).
        """
        stored_bias = self._bias(key, outputs, declared=bias)
        how = self._format(key, outputs)
        if how is None:
            stored = dense.load_tensor(self._checkpoint, f"{key}.weight", (outputs, features))
            weight = stored.to(self._device, self._dtype)
            return Linear(weight, stored_bias, weight is stored)
        try:
            return self._quantized(key, how, features, outputs, stored_bias)
        except ModelError as error:
            raise ModelError(f"{self._checkpoint.file_of(f'{key}.{how.main}')}: {key}: {error}") from error

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

    def _format(self, key: str, outputs: int) -> _Format | None:
        """By the names of the tensors; `None` for float weights."""
        if f"{key}.q_weight" in self._checkpoint.names:
            padded = -(-outputs // 32) * 32
            return _Format("q_weight", exl2.TENSORS, padded, exl2.dequantize, pack_exl2)
        if f"{key}.qweight" not in self._checkpoint.names:
            return None
        if self._gptq_settings is None:
            where = str(self._checkpoint.path / "config.json")
            self._gptq_settings = gptq.read_settings(self._checkpoint.config, where)
        names = (*gptq.TENSORS, gptq.GROUP_INDEX)
        dequantize = partial(gptq.dequantize, settings=self._gptq_settings)
        return _Format("qweight", names, outputs, dequantize, partial(pack_gptq, settings=self._gptq_settings))

    def _quantized(
        self, key: str, how: _Format, features: int, outputs: int, bias: Tensor | None
    ) -> Linear | QuantizedLinear:
        stored = self._checkpoint.tensors(key, how.tensors)
        tensors = {name: tensor.to(self._device) for name, tensor in stored.items()}
        if self._kernels is not None:
            filled = None if bias is None else functional.pad(bias, (0, how.columns - outputs))
            # What the layout cannot hold (EXL2 groups of 16 rows, GPTQ zero points of 0) is multiplied in float16.
            with suppress(ValueError):
                matrix = how.pack(tensors, filled)
                _check_sizes(matrix.features, matrix.outputs, features, how.columns)
                return QuantizedLinear((matrix,), (outputs,), self._kernels, self._scratch)
        weight = how.dequantize(tensors)
        _check_sizes(weight.shape[0], weight.shape[1], features, how.columns)
        return Linear(weight[:, :outputs].T.to(self._dtype).contiguous(), bias)


def _check_sizes(rows: int, columns: int, features: int, outputs: int) -> None:
    if (rows, columns) != (features, outputs):
        raise ModelError(f"the weights are {rows} x {columns}, but config.json makes them {features} x {outputs}")
