"""Dense float16, bfloat16 and float32 weights."""

from __future__ import annotations

import torch
from torch import Tensor

from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.llm.info import ModelError

FLOAT_DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}


def load_tensor(checkpoint: Checkpoint, name: str, *shapes: tuple[int, ...]) -> Tensor:
    """A float tensor, still memory-mapped and in the file's dtype, of one of these shapes.

    Raises:
        ModelError: it is missing, of another shape or not a float.
    """
    found = checkpoint.shape(name)
    file, shown = checkpoint.file_of(name), checkpoint.name_in_file(name)
    if found not in shapes:
        wanted = " or ".join(map(_times, shapes))
        raise ModelError(f"{file}: {shown} is {_times(found)}, but config.json makes it {wanted}")
    if checkpoint.dtype(name) not in FLOAT_DTYPES:
        raise ModelError(f"{file}: {shown} is {checkpoint.dtype(name)}; float weights are {', '.join(FLOAT_DTYPES)}")
    return checkpoint.tensor(name)


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a single number"
