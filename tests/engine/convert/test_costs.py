"""What errors cost, against gradients that `transformers` and autograd give of the whole model at once."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from exlchat.engine.convert.observing import open_observed
from exlchat.engine.convert.passes import Passes
from exlchat.engine.model.architecture import read_spec
from exlchat.engine.weights.checkpoint import Checkpoint
from tests.engine.convert.sources import CPU
from tests.engine.family_models import CASES, save_case

NAMES = ["llama", "gemma2", "cohere", "mixtral", "phi3", "qwen3", "granite", "olmo2"]
ROWS = torch.randint(2, 380, (2, 40), generator=torch.Generator().manual_seed(3))
PARTS = ("q_proj", "o_proj", "down_proj", "w2")


def test_a_model_that_is_let_go_leaves_its_memory_at_once(tmp_path: Path) -> None:
    save_case(CASES["llama"], tmp_path)
    checkpoint = Checkpoint(tmp_path)
    gc.collect()
    gc.disable()
    try:
        transformer, loader = open_observed(checkpoint, read_spec(checkpoint.config, "config.json"), CPU, 40)
        passes = Passes(transformer, loader, ROWS)
        passes.forward(0, moments=True)
        held = [weakref.ref(layer.weight) for layer in loader.held.values()]
        assert len(held) > 6
        del transformer, loader, passes
        assert [one() for one in held] == [None] * len(held)
    finally:
        gc.enable()


@pytest.mark.sweep(5)
@pytest.mark.parametrize("name", NAMES)
def test_squared_gradients_are_those_of_the_whole_model(name: str, tmp_path: Path) -> None:
    model = save_case(CASES[name], tmp_path)
    checkpoint = Checkpoint(tmp_path)
    spec = read_spec(checkpoint.config, "config.json")
    transformer, loader = open_observed(checkpoint, spec, CPU, 40)
    found = Passes(transformer, loader, ROWS).costs(lambda: None)
    draws = torch.Generator().manual_seed(20260)
    wanted: dict[str, torch.Tensor] = {}

    def note(key: str, output: torch.Tensor) -> None:
        def add(gradient: torch.Tensor) -> None:
            squares = gradient.flatten(0, -2).square().sum(0)
            wanted[key] = wanted[key] + squares if key in wanted else squares

        output.register_hook(add)

    for key, module in model.named_modules():
        if key.rpartition(".")[2] in PARTS and isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda _, __, output, key=key: note(key, output))
    for row in ROWS:
        logits = model(row[None]).logits[0]
        labels = torch.multinomial(logits.detach().softmax(-1), 1, generator=draws).squeeze(1)
        functional.cross_entropy(logits, labels, reduction="sum").backward()
    compared = 0
    for key, squares in wanted.items():
        own = key if key in found else key.replace("block_sparse_moe", "mlp").replace("w2", "down_proj")
        if own in found:
            assert torch.allclose(found[own].total, squares, rtol=1e-3, atol=1e-3 * float(squares.mean())), key
            compared += 1
    assert compared >= spec.num_layers
