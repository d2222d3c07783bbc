"""The matrices of a model that become EXL2, under their names in the new file, and the tensors that stay."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from exlchat.engine.convert.observing import GREATEST, HEAD, Observed
from exlchat.engine.formats.dense import FLOAT_DTYPES
from exlchat.engine.model.spec import ModelSpec
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.llm.info import ModelError

_WHOLE = 32
"""Both sizes of an EXL2 matrix are multiples of it."""
_MOST_FEATURES = 65536
"""The original's reader narrows the order of rows to 16 bits."""
_QUANTIZED_PARTS = ("qweight", "qzeros", "scales", "g_idx")
_JOINT = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


@dataclass(frozen=True, slots=True)
class Matrix:
    """One projection.

    Args:
        name: in the new file.
        key: of the layer that it is a part of, as `tensor_names` calls it.
        weight: float `[N, K]`, its rows of that layer's weight.
        rows: which those are, int64 `[N]`, where they are not all.
        bias: `[N]`.
    """

    name: str
    key: str
    weight: Tensor
    rows: Tensor | None = None
    bias: Tensor | None = None

    @property
    def features(self) -> int:
        return self.weight.shape[1]

    @property
    def outputs(self) -> int:
        """As stored."""
        return -(-self.weight.shape[0] // _WHOLE) * _WHOLE

    @property
    def fits(self) -> bool:
        """Whether EXL2 can hold it. Readers do not fill up biases, so a matrix with one must be whole as it is."""
        whole = self.bias is None or self.outputs == len(self.weight)
        return whole and self.features % _WHOLE == 0 and self.features <= _MOST_FEATURES

    def columns(self) -> Tensor:
        """float32 `[K, N]`, filled up with columns of zeros."""
        return functional.pad(self.weight.float(), (0, 0, 0, self.outputs - len(self.weight))).T.contiguous()

    def of_outputs(self, values: Tensor) -> Tensor:
        """This matrix's part of a value for each output of its layer, filled up with zeros."""
        own = values if self.rows is None else values[self.rows]
        return functional.pad(own, (0, self.outputs - len(own)))


def matrices_of(held: Mapping[str, Observed], spec: ModelSpec, checkpoint: Checkpoint) -> list[Matrix]:
    """Of the layers that are loaded: those that EXL2 can hold. Joined projections are taken apart, as it has them.

    Where one of an attention block or of an MLP does not fit, none of the block is taken: readers want them alike.
    """
    found: list[Matrix] = []
    for key, layer in held.items():
        parts = _parts(key, layer, spec)
        if parts is None:
            found.append(Matrix(_stored_name(key, checkpoint), key, layer.weight, bias=layer.bias))
            continue
        for name, rows in parts:
            bias = None if layer.bias is None else layer.bias[rows]
            found.append(Matrix(f"{key.rpartition('.')[0]}.{name}", key, layer.weight[rows], rows, bias))
    unfit = {_block(matrix.key) for matrix in found if not matrix.fits}
    return [matrix for matrix in found if _block(matrix.key) not in unfit]


def _block(key: str) -> str:
    return key.rpartition(".")[0] or key


def _parts(key: str, layer: Observed, spec: ModelSpec) -> list[tuple[str, Tensor]] | None:
    name = key.rpartition(".")[2]
    if name not in _JOINT or (name == "gate_up_proj" and not spec.gated):
        return None
    names, rows = _JOINT[name], torch.arange(len(layer.weight), device=layer.weight.device)
    if name == "gate_up_proj":
        return list(zip(names, rows.chunk(2), strict=True))
    sizes = [spec.num_heads * spec.head_dim, *[spec.num_kv_heads * spec.head_dim] * 2]
    if not spec.heads_by_group:
        return list(zip(names, torch.split(rows, sizes), strict=True))
    each = spec.num_heads // spec.num_kv_heads
    by_group = rows.view(spec.num_kv_heads, each + 2, spec.head_dim)
    return list(
        zip(
            names,
            (by_group[:, :each].flatten(), by_group[:, each].flatten(), by_group[:, each + 1].flatten()),
            strict=True,
        )
    )


def _stored_name(key: str, checkpoint: Checkpoint) -> str:
    for part in ("weight", "qweight"):
        if f"{key}.{part}" in checkpoint.names:
            return checkpoint.name_in_file(f"{key}.{part}").removesuffix(f".{part}")
    return HEAD


def check_floats(checkpoint: Checkpoint) -> None:
    """Sees that float16 holds all norms, biases and embeddings, before hours are spent on the rest.

    Raises:
        ModelError: as of `stays`.
    """
    for name in sorted(checkpoint.names):
        alone = len(checkpoint.shape(name)) == 1 and checkpoint.dtype(name) in FLOAT_DTYPES
        if alone or name.startswith("model.embed_"):
            stays(checkpoint, name)


def stays(checkpoint: Checkpoint, name: str) -> dict[str, Tensor]:
    """A tensor that stays float, in float16 and under its name in the file.

    Raises:
        ModelError: it is no float, or float16 cannot hold it.
    """
    shown = checkpoint.name_in_file(name)
    tensor = checkpoint.tensor(name)
    if checkpoint.dtype(name) not in FLOAT_DTYPES:
        if re.search(rf"\.({'|'.join(_QUANTIZED_PARTS)})$", name):
            raise ModelError(f"{checkpoint.file_of(name)}: {shown} is of a quantized layer that EXL2 cannot hold")
        raise ModelError(
            f"{checkpoint.file_of(name)}: {shown} is {checkpoint.dtype(name)}, which EXL2 files do not hold"
        )
    values = tensor.float()
    wrong = int((~values.isfinite()).sum())
    if wrong:
        raise ModelError(f"{checkpoint.file_of(name)}: {shown} holds {wrong} that are no numbers; get the model again")
    greatest = float(values.abs().max()) if values.numel() else 0.0
    if greatest > GREATEST:
        raise ModelError(
            f"{checkpoint.file_of(name)}: {shown} holds {greatest:g}; float16, which EXL2 files are in, ends at 65504"
        )
    return {shown: tensor.half().contiguous()}
