"""What every reader of EXL2 counts on, the original one included: checked in a finished folder.

The rules were read in the original's source and stand in the description of the format; the original itself is not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from exlchat.engine.convert.shapes import check_headers
from exlchat.engine.formats import exl2
from exlchat.engine.model.architecture import read_spec
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.llm.info import ModelError

_BLOCK = 32
_MOST_FEATURES = 65536
# Readers take word rows for signed 16-bit numbers.
_MOST_WORD_ROWS = 32768
_BLOCKS = (("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj"))
_EXTRA = ("q_perm", "q_group_map")


def check_folder(folder: Path) -> list[str]:
    """What is wrong with an EXL2 folder, a line for each matrix or tensor; nothing where all is well.

    Raises:
        ModelError: it is no model folder.
    """
    checkpoint = Checkpoint(folder)
    return list(_problems(checkpoint))


def _problems(checkpoint: Checkpoint) -> Iterator[str]:
    section = checkpoint.config.get("quantization_config")
    if not isinstance(section, dict) or section.get("quant_method") != "exl2":
        yield "config.json: quantization_config does not say exl2"
    keys = sorted(name.removesuffix(".q_weight") for name in checkpoint.names if name.endswith(".q_weight"))
    if not keys:
        yield "no matrix is in EXL2"
    for key in keys:
        shown = checkpoint.name_in_file(f"{key}.q_weight").removesuffix(".q_weight")
        for extra in (name for name in _EXTRA if f"{key}.{name}" in checkpoint.names):
            yield f"{shown}: holds {extra}, which readers make themselves"
        if f"{key}.weight" in checkpoint.names:
            yield f"{shown}: holds float weights beside codes"
        try:
            yield from (f"{shown}: {problem}" for problem in matrix_problems(checkpoint.tensors(key, exl2.TENSORS)))
        except ModelError as error:
            yield f"{shown}: {error}"
    yield from _mixed_blocks(checkpoint, set(keys))
    try:
        check_headers(checkpoint, read_spec(checkpoint.config, str(checkpoint.path / "config.json")))
    except ModelError as error:
        yield str(error)
    for name in sorted(checkpoint.names):
        if name.rpartition(".")[0] not in keys or name.endswith(".bias"):
            yield from _float_problems(checkpoint, name)


def matrix_problems(tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """What a reader could not take of one matrix.

    Raises:
        ModelError: its tensors do not fit together at all.
    """
    groups = exl2.read_groups(tensors)
    features, outputs = len(tensors["q_invperm"]), tensors["q_weight"].shape[1]
    if features % _BLOCK or outputs % _BLOCK:
        yield f"is {features} x {outputs}, and both must be multiples of {_BLOCK}"
    if features > _MOST_FEATURES:
        yield f"has {features} inputs, and readers number {_MOST_FEATURES}"
    yield from _group_problems(groups)
    largest = tensors["q_scale_max"].float()
    if not bool((largest > 0).all()):
        yield "q_scale_max is not above 0 everywhere"
    unit = (largest / 256).half()
    if not bool((unit > 0).all()):
        yield "q_scale_max is so small that its 256th part is 0 in float16"
    if not bool(exl2.dequantize(tensors).isfinite().all()):
        yield "some weights are beyond float16"


def _group_problems(groups: Sequence[exl2.Group]) -> Iterator[str]:
    widths = [group.bits for group in groups]
    if widths != sorted(widths, reverse=True):
        yield "widths do not descend from group to group"
    for group in groups:
        if group.rows % _BLOCK:
            yield f"group {group.index} has {group.rows} rows, no multiple of {_BLOCK}"
        if group.word_row >= _MOST_WORD_ROWS:
            yield f"group {group.index} begins at word row {group.word_row}, and readers count to {_MOST_WORD_ROWS - 1}"


def _mixed_blocks(checkpoint: Checkpoint, quantized: set[str]) -> Iterator[str]:
    modules = {name.rpartition(".")[0] for name in checkpoint.names}
    for names in _BLOCKS:
        for prefix in sorted({module.rpartition(".")[0] for module in modules if module.rpartition(".")[2] in names}):
            there = [f"{prefix}.{name}" for name in names if f"{prefix}.{name}" in modules]
            if len({module in quantized for module in there}) > 1:
                yield f"{prefix}: some of {', '.join(names)} are in EXL2 and some are not"


def _float_problems(checkpoint: Checkpoint, name: str) -> Iterator[str]:
    shown = checkpoint.name_in_file(name)
    if checkpoint.dtype(name) != "F16":
        yield f"{shown}: is {checkpoint.dtype(name)}, and the original writes F16"
        return
    tensor = checkpoint.tensor(name)
    if not bool(tensor.isfinite().all()):
        yield f"{shown}: holds what is no number"
