"""One linear layer of a checkpoint, whichever format its tensor names say it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from exlchat.engine.decode.kernels import ModelKernels
from exlchat.engine.formats import awq, dense, exl2, gptq, grouped, mxfp4
from exlchat.engine.formats.awq import AwqSettings
from exlchat.engine.formats.gptq import GptqSettings
from exlchat.engine.formats.grouped import GroupedLayer
from exlchat.engine.formats.head import pack_head
from exlchat.engine.formats.inventory import QUANTIZED, is_awq
from exlchat.engine.formats.packing import pack_exl2, pack_grouped
from exlchat.engine.formats.quantization_config import read_quantization
from exlchat.engine.layers.linear import Linear
from exlchat.engine.layers.quantized_linear import QuantizedLinear, Scratch
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.ext.layout import PackedMatrix
from exlchat.llm.info import ModelError


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
        head_bits: with kernels, a float output head is rounded to so many; it stays float unless given.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype,
        kernels: ModelKernels | None = None,
        *,
        head_bits: int | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._device = device
        self._dtype = dtype
        self._kernels = kernels
        self._head_bits = head_bits
        self._scratch = Scratch(device)
        self._quantization: GptqSettings | AwqSettings | None = None
        self._quantization_read = False

    @property
    def kernels(self) -> ModelKernels | None:
        return self._kernels

    @property
    def device(self) -> torch.device:
        return self._device

    def on(self, device: torch.device) -> LayerLoader:
        """The same for another device."""
        return LayerLoader(self._checkpoint, device, self._dtype, self._kernels, head_bits=self._head_bits)

    def has(self, key: str) -> bool:
        return any(f"{key}.{kind}" in self._checkpoint.names for kind in ("weight", *QUANTIZED))

    def linear(
        self, key: str, features: int, outputs: int, *, bias: bool, transposed: bool = False
    ) -> Linear | QuantizedLinear:
        """The layer `key` with `features` inputs and `outputs` outputs.

        Args:
            transposed: float weights are stored `[features, outputs]`, as GPT-2's are.

        Raises:
            ModelError: no format fits, sizes disagree, or a bias is there that should not be (or the reverse).
        """
        how = self._format(key, outputs)
        if how is None:
            return self._as_stored(key, features, outputs, bias=bias, transposed=transposed)
        stored_bias = self._bias(key, outputs, declared=bias)
        with self._named(key, how):
            tensors = self._tensors(key, how)
            packed = self._packed(tensors, how, features, outputs, stored_bias)
            return packed or self._written_out(tensors, how, features, outputs, stored_bias)

    def float_linear(self, key: str, features: int, outputs: int, *, bias: bool, transposed: bool = False) -> Linear:
        """A layer that is used as floats, however it is stored; arguments and errors as of `linear`."""
        how = self._format(key, outputs)
        if how is None:
            return self._as_stored(key, features, outputs, bias=bias, transposed=transposed)
        stored_bias = self._bias(key, outputs, declared=bias)
        with self._named(key, how):
            return self._written_out(self._tensors(key, how), how, features, outputs, stored_bias)

    def _as_stored(self, key: str, features: int, outputs: int, *, bias: bool, transposed: bool = False) -> Linear:
        """A layer of float weights."""
        stored_bias = self._bias(key, outputs, declared=bias)
        shape = (features, outputs) if transposed else (outputs, features)
        stored = dense.load_tensor(self._checkpoint, f"{key}.weight", shape)
        weight = stored.to(self._device, self._dtype)
        if transposed:
            weight = weight.T.contiguous()
        return Linear(weight, stored_bias, weight is stored)

    def stacked(self, key: str, count: int, features: int, outputs: int) -> list[Linear]:
        """Layers of one shape that share a tensor `[count, features, outputs]`, floats or MXFP4, with biases.

        Raises:
            ModelError: a tensor is missing, or its shape or dtype disagrees.
        """
        names = self._checkpoint.names
        if f"{key}_blocks" in names and key not in names:
            weights = mxfp4.load_stacked(self._checkpoint, key, (count, features, outputs), self._dtype)
        else:
            weights = dense.load_tensor(self._checkpoint, key, (count, features, outputs)).transpose(1, 2)
        biases = self.tensor(f"{key}_bias", (count, outputs))
        return [
            Linear(weight.to(self._device, self._dtype).contiguous(), bias)
            for weight, bias in zip(weights, biases, strict=True)
        ]

    def float_head(self, head: Linear) -> Linear | QuantizedLinear:
        """A float output head as it will be used: quantized if that is wanted, else in whole rows on a GPU.

        Raises:
            ModelError: its weights are not all numbers, or too many for one output.
        """
        if self._head_bits is not None and self._kernels is not None:
            try:
                matrix = pack_head(head.weight, self._head_bits)
            except ModelError as error:
                raise ModelError(f"{self._checkpoint.path}: the output head: {error}") from error
            return QuantizedLinear((matrix,), (len(head.weight),), self._kernels, self._scratch)
        return head.in_whole_rows() if head.weight.is_cuda else head

    def tensor(self, name: str, *shapes: tuple[int, ...]) -> Tensor:
        """A float tensor of exactly one of these shapes, on the device and in the dtype."""
        return dense.load_tensor(self._checkpoint, name, *shapes).to(self._device, self._dtype)

    def _bias(self, key: str, outputs: int, *, declared: bool) -> Tensor | None:
        names = self._checkpoint.names
        stored = self.tensor(f"{key}.bias", (outputs,)) if f"{key}.bias" in names else None
        if stored is not None and not declared and f"{key}.qweight" in names and not bool(stored.any()):
            # Some GPTQ and AWQ writers add a bias of zeros to every layer.
            stored = None
        if (stored is not None) != declared:
            raise ModelError(self._bias_problem(key, declared=declared))
        return stored

    def _bias_problem(self, key: str, *, declared: bool) -> str:
        bias = self._checkpoint.name_in_file(f"{key}.bias")
        shown = bias.removesuffix(".bias")
        if not declared:
            file = self._checkpoint.file_of(f"{key}.bias")
            return f"{file}: {shown} has a bias that config.json does not declare; take config.json from the same model"
        parts = (name for name in sorted(self._checkpoint.names) if name.startswith(f"{key}."))
        where = next((self._checkpoint.file_of(name) for name in parts), self._checkpoint.path)
        return f"{where}: {shown} lacks the bias of config.json ({bias} is missing); download the model again"

    def _format(self, key: str, outputs: int) -> _Format | None:
        """By the names of the tensors; `None` for float weights."""
        if f"{key}.q_weight" in self._checkpoint.names:
            padded = -(-outputs // 32) * 32
            return _Format("q_weight", exl2.TENSORS, padded, exl2.dequantize, pack_exl2)
        if f"{key}.qweight" not in self._checkpoint.names:
            self._check_no_part(key)
            return None
        read = self._grouped_reader(key)
        names = (*grouped.TENSORS, grouped.GROUP_INDEX)

        def dequantize(tensors: Mapping[str, Tensor]) -> Tensor:
            return grouped.dequantize(read(tensors))

        def pack(tensors: Mapping[str, Tensor], bias: Tensor | None) -> PackedMatrix:
            return pack_grouped(read(tensors), bias)

        return _Format("qweight", names, outputs, dequantize, pack)

    def _check_no_part(self, key: str) -> None:
        """That a layer without codes has nothing else of a quantized one, unless it has float weights."""
        names = self._checkpoint.names
        if f"{key}.weight" in names:
            return
        for main, parts in (("q_weight", exl2.TENSORS), ("qweight", (*grouped.TENSORS, grouped.GROUP_INDEX))):
            for part in (f"{key}.{short}" for short in parts if f"{key}.{short}" in names):
                shown = self._checkpoint.name_in_file(part)
                raise ModelError(
                    f"{self._checkpoint.file_of(part)}: {shown.rpartition('.')[0]}: {main} is missing, though {shown} "
                    "is there; download the model again"
                )

    def _grouped_reader(self, key: str) -> Callable[[Mapping[str, Tensor]], GroupedLayer]:
        """By `config.json`; where that says nothing, by which side of the matrix words run along."""
        if not self._quantization_read:
            where = str(self._checkpoint.path / "config.json")
            self._quantization = read_quantization(self._checkpoint.config, where)
            self._quantization_read = True
        settings = self._quantization
        if settings is None:
            settings = AwqSettings() if is_awq(self._checkpoint, key) else GptqSettings()
        if isinstance(settings, AwqSettings):
            return partial(awq.read_layer, settings=settings)
        return partial(gptq.read_layer, settings=settings)

    @contextmanager
    def _named(self, key: str, how: _Format) -> Iterator[None]:
        """Errors name the file and the layer."""
        try:
            yield
        except ModelError as error:
            main = f"{key}.{how.main}"
            shown = self._checkpoint.name_in_file(main).removesuffix(f".{how.main}")
            raise ModelError(f"{self._checkpoint.file_of(main)}: {shown}: {error}") from error

    def _tensors(self, key: str, how: _Format) -> dict[str, Tensor]:
        stored = self._checkpoint.tensors(key, how.tensors)
        return {name: tensor.to(self._device) for name, tensor in stored.items()}

    def _packed(
        self, tensors: Mapping[str, Tensor], how: _Format, features: int, outputs: int, bias: Tensor | None
    ) -> QuantizedLinear | None:
        """A quantized layer for the kernels; `None` without any, and where they cannot hold it.

        Those are EXL2 groups of 16 rows, and GPTQ of 8 bits.
        """
        if self._kernels is None:
            return None
        filled = None if bias is None else functional.pad(bias, (0, how.columns - outputs))
        try:
            matrix = how.pack(tensors, filled)
        except ValueError:
            return None
        _check_sizes(how.main, matrix.features, matrix.outputs, features, how.columns)
        return QuantizedLinear((matrix,), (outputs,), self._kernels, self._scratch)

    def _written_out(
        self, tensors: Mapping[str, Tensor], how: _Format, features: int, outputs: int, bias: Tensor | None
    ) -> Linear:
        """A quantized layer as floats."""
        weight = how.dequantize(tensors)
        _check_sizes(how.main, weight.shape[0], weight.shape[1], features, how.columns)
        return Linear(weight[:, :outputs].T.to(self._dtype).contiguous(), bias)


def _check_sizes(main: str, rows: int, columns: int, features: int, outputs: int) -> None:
    if (rows, columns) != (features, outputs):
        raise ModelError(f"{main} holds {rows} x {columns} weights, but config.json makes it {features} x {outputs}")
