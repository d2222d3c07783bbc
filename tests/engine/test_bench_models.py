"""Random models for benchmarks: the sizes, the bits and the tensors of real ones, and activations of ordinary size."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from exlchat.engine import Finished, GenerationRequest, ModelError, load
from exlchat.engine.bench.mixes import (
    Gptq,
    LayerRecipes,
    MeanBits,
    Mix,
    OneRecipe,
    converter_options,
    layer_recipes,
    matrix_sizes,
    parse_mix,
)
from exlchat.engine.bench.random_checkpoint import RandomCheckpoint
from exlchat.engine.bench.shapes import named_shape
from exlchat.engine.formats import exl2
from exlchat.engine.formats.sections import HEAD_RECIPES, Section, stored_bits
from exlchat.engine.weights.checkpoint import Checkpoint

# Weights of Llama 3.2 1B, Llama 3.1 8B and 70B without the embedding, from the sizes in their config.json.
PUBLISHED = {"llama-1b": 973_078_528, "llama-8b": 6_979_321_856, "llama-70b": 68_451_041_280}
# Bits a weight of a Llama 3 8B layer with each recipe, from the description of the converter.
ATTENTION_BPW = [2.138, 2.199, 2.283, 2.677, 3.169, 3.170, 4.044, 4.047, 4.082, 4.138, 4.170, 4.190, 4.274, 4.329]
ATTENTION_BPW += [5.256, 5.329, 6.044, 6.338, 8.044]
MLP_BPW = [2.245, 2.323, 2.596, 2.912, 3.283, 3.366, 3.619, 4.137, 4.198, 4.266, 4.348, 5.249, 5.331, 6.071, 6.303]
MLP_BPW += [6.869, 8.035]
HEAD_BPW = {2: 2.735, 3: 3.282, 4: 4.438, 5: 5.188, 6: 6.344, 8: 8.032}

TINY = named_shape("tiny")
MIXES = ["2.5bpw", "4.1bpw", "8bpw", "8:0.05g32,5:0.1g128,4:0.85g128", "gptq-g128", "gptq-g128-actorder"]


def mean_bits(recipes: list[LayerRecipes], name: str) -> float:
    shape = named_shape(name)
    sizes = matrix_sizes(shape)
    bits = sum(stored_bits(*sizes[key], recipe[key]) for recipe in recipes for key in sizes)
    return bits / (shape.layers * sum(math.prod(size) for size in sizes.values()))


@pytest.mark.parametrize(("name", "weights"), PUBLISHED.items())
def test_shapes_have_the_weights_of_the_published_models(name: str, weights: int) -> None:
    shape = named_shape(name)
    in_layers = shape.layers * sum(math.prod(size) for size in matrix_sizes(shape).values())
    assert in_layers == pytest.approx(weights, rel=2e-4)
    assert shape.vocab == 128256


def test_a_shape_can_be_cut() -> None:
    assert named_shape("llama-70b-10layers").layers == 10
    assert named_shape("llama-70b-10layers").hidden == named_shape("llama-70b").hidden
    with pytest.raises(ValueError, match=r"'llama-2b' is no shape; there are tiny, llama-1b"):
        named_shape("llama-2b")
    with pytest.raises(ValueError, match="is no shape"):
        named_shape("llama-8b-0layers")


@pytest.mark.parametrize(
    ("text", "mix"),
    [
        ("4.1bpw", MeanBits(4.1)),
        ("3bpw", MeanBits(3.0)),
        ("gptq-g128", Gptq(128, act_order=False)),
        ("gptq-g128-actorder", Gptq(128, act_order=True)),
        ("8:0.05g32,4:.95g128", OneRecipe((Section(8, 0.05, 32), Section(4, 0.95, 128)))),
        ("4:1g64", OneRecipe((Section(4, 1.0, 64),))),
    ],
)
def test_mixes(text: str, mix: Mix) -> None:
    assert parse_mix(text) == mix


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("four", "is no mix; examples: 4.1bpw"),
        ("7:1g128", "is no mix"),
        ("4:1g48", "is no mix"),
        ("1bpw", "give 2.3 to 8.0 bits"),
        ("4:0.5g128,3:0.4g128", "must add up to 1"),
        ("4:0.5g128,5:0.5g128", "must descend"),
    ],
)
def test_a_wrong_mix_is_one_line(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_mix(text)


def test_the_recipes_take_the_bits_that_the_converter_counts() -> None:
    shape = named_shape("llama-8b")
    sizes = matrix_sizes(shape)
    for options, expected in zip(converter_options(shape), (ATTENTION_BPW, MLP_BPW), strict=True):
        weights = sum(math.prod(sizes[name]) for name in options[0].recipes)
        assert [option.bits / weights for option in options] == pytest.approx(expected, abs=6e-4)
    for head_bits, bpw in HEAD_BPW.items():
        bits = stored_bits(4096, 128256, HEAD_RECIPES[head_bits])
        assert bits / (4096 * 128256) == pytest.approx(bpw, abs=6e-4)


@pytest.mark.parametrize("name", ["llama-1b", "llama-8b", "llama-70b-10layers"])
@pytest.mark.parametrize("bits", [2.5, 4.1, 6.0])
def test_a_budget_is_used_up_and_not_exceeded(name: str, bits: float) -> None:
    recipes = layer_recipes(MeanBits(bits), named_shape(name))
    assert bits - 0.01 < mean_bits(recipes, name) <= bits
    # As in real files, layers differ, and the projections that read one input need not be alike.
    assert len({tuple(recipe.items()) for recipe in recipes}) > 2


def test_more_bits_go_to_the_ends_of_a_model() -> None:
    recipes = layer_recipes(MeanBits(4.1), named_shape("llama-8b"))
    assert mean_bits([recipes[0], recipes[-1]] * 16, "llama-8b") > mean_bits(recipes, "llama-8b") + 0.3


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.sweep(2)
def test_activations_stay_of_ordinary_size_through_many_layers(mix: str) -> None:
    checkpoint = RandomCheckpoint(named_shape("tiny-32layers"), parse_mix(mix))
    logits = load(checkpoint, device="cpu").logits([number * 7 % TINY.vocab for number in range(200)])
    assert bool(logits.isfinite().all())
    assert 1.5 < logits.std().item() < 6.0


@pytest.mark.parametrize("mix", ["4.1bpw", "gptq-g128-actorder"])
def test_it_generates_as_long_as_asked_and_twice_the_same(mix: str) -> None:
    request = GenerationRequest(list(range(40)), max_new_tokens=60)
    answers = []
    for _ in range(2):
        engine = load(RandomCheckpoint(TINY, parse_mix(mix)), device="cpu", kv_cache="fp32")
        last = list(engine.generate(request))[-1]
        assert isinstance(last, Finished)
        answers.append(last)
    assert len(answers[0].token_ids) == 60
    assert answers[0].token_ids == answers[1].token_ids
    assert answers[0].reason == "max_new_tokens"


def test_matrices_with_one_input_share_its_order() -> None:
    checkpoint = RandomCheckpoint(TINY, parse_mix("4.1bpw"))
    layer = "model.layers.1"

    def order(key: str) -> list[int]:
        found: list[int] = checkpoint.tensor(f"{layer}.{key}.q_invperm").tolist()
        return found

    query = order("self_attn.q_proj")
    assert order("self_attn.k_proj") == order("self_attn.v_proj") == query
    assert sorted(query) == list(range(TINY.hidden))
    assert query != list(range(TINY.hidden))
    assert order("mlp.gate_proj") == order("mlp.up_proj")
    assert order("mlp.gate_proj") != query
    assert checkpoint.tensor("model.layers.0.self_attn.q_proj.q_invperm").tolist() != query


def test_its_tensors_have_the_recipe_that_was_asked_for() -> None:
    checkpoint = RandomCheckpoint(TINY, parse_mix("8:0.05g32,5:0.1g128,4:0.85g128"), head_bits=6)
    down = checkpoint.tensors("model.layers.0.mlp.down_proj", exl2.TENSORS)
    groups = [(group.bits, group.rows) for group in exl2.read_groups(down)]
    # 5 % of 512 rows in groups of 32, then 10 % in a group of 128, the rest in groups of 128.
    assert groups == [(8, 32), (5, 128), (4, 128), (4, 128), (4, 96)]
    head = checkpoint.tensors("lm_head", exl2.TENSORS)
    assert [group.bits for group in exl2.read_groups(head)] == [8, 6]
    with pytest.raises(ValueError, match="EXL2 heads have 2, 3, 4, 5, 6, 8"):
        RandomCheckpoint(TINY, MeanBits(4.0), head_bits=7)


def test_shapes_and_dtypes_are_told_before_tensors_are_made() -> None:
    names = {torch.int32: "I32", torch.int16: "I16", torch.float16: "F16"}
    for mix in ("4.1bpw", "gptq-g128"):
        checkpoint = RandomCheckpoint(named_shape("tiny-1layers"), parse_mix(mix))
        for name in checkpoint.names:
            tensor = checkpoint.tensor(name)
            assert tuple(tensor.shape) == checkpoint.shape(name)
            assert names[tensor.dtype] == checkpoint.dtype(name)


@pytest.mark.parametrize("mix", ["3bpw", "gptq-g128-actorder"])
def test_a_written_model_is_the_same_model(mix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exlchat.engine.bench.random_checkpoint._SHARD_BYTES", 300_000)
    checkpoint = RandomCheckpoint(TINY, parse_mix(mix))
    checkpoint.write(tmp_path / "model")
    assert len(list((tmp_path / "model").glob("output-0000*-of-*.safetensors"))) > 2
    written = Checkpoint(tmp_path / "model")
    assert written.names == checkpoint.names
    made, read = (load(source, device="cpu") for source in (checkpoint, written))
    assert torch.equal(made.logits(range(20)), read.logits(range(20)))
    assert json.loads((tmp_path / "model" / "config.json").read_text())["hidden_size"] == TINY.hidden
    with pytest.raises(ModelError, match="is there already; give a new folder"):
        checkpoint.write(tmp_path / "model")


def test_its_text_is_made_of_bytes_and_words() -> None:
    engine = load(RandomCheckpoint(TINY, MeanBits(4.1)), device="cpu")
    text = "Zwölf Boxkämpfer: 漢字 😀"
    assert engine.decode(engine.encode(text)) == text
    assert len(engine.encode(text)) == len(text.encode())
    assert len(engine.decode([300])) == 4
    assert engine.info.stop_ids == ()
