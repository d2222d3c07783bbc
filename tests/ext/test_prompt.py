"""What the prompt's operations refuse, and that their references are what plain torch computes."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from transformers.activations import ACT2FN

from exlchat.engine.layers.norms import Norm
from exlchat.engine.layers.operations import TorchOperations
from exlchat.ext.library import Library
from exlchat.ext.products import Activation
from exlchat.ext.prompt import PromptKernels
from tests.ext import reference_prompt
from tests.ext.never_called import NeverCalled

HALF = torch.float16


@pytest.fixture
def kernels() -> PromptKernels:
    return PromptKernels(cast(Library, NeverCalled()))


def test_wrong_tensors_are_refused(kernels: PromptKernels) -> None:
    hidden, weight = torch.zeros(3, 8), torch.zeros(8, dtype=HALF)
    with pytest.raises(ValueError, match="hidden is on the cpu"):
        kernels.add_norm(hidden, None, weight, 1e-5)
    with pytest.raises(ValueError, match=r"weight is torch.float16 \(7,\)"):
        kernels.add_norm(hidden, None, weight[:7], 1e-5)
    with pytest.raises(ValueError, match=r"hidden is torch\.float16"):
        kernels.add_norm(hidden.half(), None, weight, 1e-5)
    with pytest.raises(ValueError, match=r"x is torch\.float32"):
        kernels.gate(torch.zeros(3, 16))
    with pytest.raises(ValueError, match="not contiguous"):
        kernels.gate(torch.zeros(16, 3, dtype=HALF).T)
    with pytest.raises(ValueError, match="turns is"):
        kernels.turn(torch.zeros(3, 4, 8, dtype=HALF), torch.zeros(2, 4, 2), 3)
    for pairs in (0, 1, 3, 6):
        with pytest.raises(ValueError, match="an even number of at most 4 pairs"):
            kernels.turn(torch.zeros(3, 4, 8, dtype=HALF), torch.zeros(3, pairs, 2), 3)


def test_plain_torch_computes_what_the_references_say() -> None:
    operations = TorchOperations(torch.float32)
    hidden, added, weight = torch.randn(5, 48), torch.randn(5, 48), torch.rand(48)
    other = hidden.clone()
    found = operations.add_norm(hidden, added, Norm(weight, 1e-5))
    assert torch.allclose(found.double(), reference_prompt.add_norm(other, added, weight, 1e-5), atol=1e-5)
    assert torch.equal(hidden, other)
    x = torch.randn(5, 24)
    wanted = reference_prompt.gate(x)
    assert torch.allclose(operations.gate(x, "silu").double(), wanted, atol=1e-6)
    angles = torch.rand(5, 6)
    heads, turns = torch.randn(5, 4, 12), torch.stack((angles.cos(), angles.sin()), dim=-1)
    wanted = reference_prompt.turn(heads, turns, 3)
    operations.turn(heads, turns, 3)
    assert torch.allclose(heads.double(), wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("activation", "theirs"), [("silu", "silu"), ("gelu_tanh", "gelu_pytorch_tanh"), ("gelu_erf", "gelu")]
)
def test_activations_are_those_of_transformers(activation: Activation, theirs: str) -> None:
    x = torch.randn(5, 24)
    wanted = ACT2FN[theirs](x[:, :12]) * x[:, 12:]
    assert torch.allclose(reference_prompt.gate(x, activation).float(), wanted, atol=1e-6)
