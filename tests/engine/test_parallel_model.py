"""Whole decoders on several logical cards, against the same on one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from exlchat.engine.cards.split import LayerSplit
from exlchat.engine.formats import awq_writer, exl2, exl2_writer, gptq_writer
from exlchat.engine.formats.exl2_writer import Section
from exlchat.engine.formats.gptq_writer import GptqRecipe
from exlchat.engine.formats.layers import LayerLoader
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.assembly import load_transformer
from exlchat.engine.layers.experts import Mlp
from exlchat.engine.layers.linear import Linear, SideBySide
from exlchat.engine.layers.quantized_linear import QuantizedLinear
from exlchat.engine.layers.transformer import Stream, Transformer
from exlchat.engine.model.architecture import read_spec
from exlchat.engine.parallel.cut import cut_layer, split_model, why_not
from exlchat.engine.parallel.loading import parallel_transformer
from exlchat.engine.parallel.transformer import ParallelTransformer
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.ext.layout import decode
from exlchat.llm.info import ModelError
from tests.engine.decoding import logits_in_steps, open_transformer, relative_error
from tests.engine.family_models import CASES, save_case
from tests.engine.reference_kernels import ReferenceKernels
from tests.engine.test_quantized_linear import CPU, open_quantized
from tests.random_models import save_random_llama

# Weights whose products do not grow, so that rounding is not made more of than in a trained model.
SCALE = {"initializer_range": 0.05}
# Larger ones say more than one token over and over.
LIVELY = {"initializer_range": 0.08}
# Ten heads over five, which no number of cards divides, and a vocabulary of no whole tiles.
LLAMA: dict[str, Any] = {
    **SCALE,
    "num_attention_heads": 10,
    "num_key_value_heads": 5,
    "head_dim": 16,
    "hidden_size": 160,
    "intermediate_size": 608,
    "vocab_size": 391,
}
IDS = torch.randint(384, (120,), generator=torch.Generator().manual_seed(3)).tolist()
STEPS = [40, 27, 50, 1, 1, 1]


pytestmark = pytest.mark.usefixtures("one_thread")


def cut(transformer: Transformer, speeds: Sequence[float], context: int | None = None) -> ParallelTransformer:
    spec, parts = transformer.spec, split_model(transformer.spec, speeds)
    split = LayerSplit.in_parts((CPU,) * len(speeds), spec.num_layers, parts.kv_heads)
    return parallel_transformer(spec, transformer.ends, transformer.layers, parts, split, context=context)


def new_cache(transformer: Transformer, length: int, kind: str = "fp32") -> KVSequence:
    spec, dtype = transformer.spec, transformer.dtype
    return KVSequence(KVCache(spec, kind, dtype, CPU, length, split=transformer.split))


def greedy(step: Any, count: int) -> list[int]:
    """step: ids -> logits of the last."""
    ids = IDS[:20]
    new = ids
    for _ in range(count):
        new = [int(step(new).argmax())]
        ids = [*ids, *new]
    return ids


def greedy_tokens(transformer: Transformer, count: int) -> list[int]:
    cache = new_cache(transformer, 20 + count)

    def step(ids: Sequence[int]) -> Tensor:
        start = len(cache)
        cache.reserve(start + len(ids))
        logits = transformer.forward(torch.tensor(ids), cache, start=start)
        cache.extend(ids)
        return logits

    return greedy(step, count)


# With norms of heads, windows, norms behind what is added, both halves at once, joint matrices, heads group by group,
# no gate and learned positions, factors, and positions that depend on the context.
FAMILIES = (
    "llama",
    "llama, heads of their own, tied",
    "llama, dynamic positions",
    "qwen3, a norm of each head",
    "qwen3, biases, tied",
    "mistral",
    "gemma2",
    "gemma3, a norm of each head",
    "cohere, head norms",
    "phi3, part of a head, window, tied",
    "internlm2, biases",
    "starcoder2",
    "granite, tied, biases",
    "gpt2, another width inside",
)


def wide(name: str, path: Path, **others: Any) -> Path:
    """A case with four key-value heads."""
    case = CASES[name]
    heads = {**SCALE, "num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 128, **others}
    save_case(replace(case, changes={**case.changes, **(SCALE if "gpt2" in name else heads)}), path)
    return path


@pytest.mark.parametrize("name", FAMILIES)
def test_every_architecture_comes_to_its_logits(name: str, tmp_path: Path) -> None:
    context = CASES[name].context
    transformer = open_transformer(wide(name, tmp_path), context=context)
    expected = logits_in_steps(transformer, IDS, STEPS)
    for cards in (2, 3, 4):
        assert relative_error(logits_in_steps(cut(transformer, [1.0] * cards, context), IDS, STEPS), expected) < 1e-6


MIXES = {
    **{f"exl2-{bits}": (Section(bits, 1.0, 128),) for bits in exl2.BIT_WIDTHS},
    "exl2-8-5-4": (Section(8, 0.05, 32), Section(5, 0.10, 128), Section(4, 0.85, 128)),
    "exl2-6-5-3-2": (Section(6, 0.1, 32), Section(5, 0.2, 64), Section(3, 0.3, 32), Section(2, 0.4, 64)),
    "exl2-16-rows": (Section(4, 1.0, 16),),
}
RECIPES = {
    "gptq": GptqRecipe(32),
    "gptq-act-order": GptqRecipe(32, act_order=True, symmetric=False),
    "gptq-one-group": GptqRecipe(-1),
    "gptq-8-bits": GptqRecipe(32, act_order=True, bits=8),
}


def written(kind: str, path: Path, **changes: Any) -> Path:
    """A model whose every matrix has a bias."""
    model = save_random_llama(path / "float", **{**LLAMA, "attention_bias": True, "mlp_bias": True, **changes})
    source, config = model.state_dict(), model.config.to_dict()
    files = [path / "float" / name for name in ("tokenizer.json", "tokenizer_config.json")]
    if kind in MIXES:
        exl2_writer.write_model(source, config, path / kind, body=MIXES[kind], extra_files=files)
    elif kind in RECIPES:
        gptq_writer.write_model(source, config, path / kind, RECIPES[kind], extra_files=files)
    else:
        awq_writer.write_model(source, config, path / kind, 32, extra_files=files)
    return path / kind


def open_packed(path: Path) -> Transformer:
    """Quantized layers as the kernels read them, all else in float32."""
    checkpoint = Checkpoint(path)
    loader = LayerLoader(checkpoint, CPU, torch.float32, ReferenceKernels())
    return load_transformer(read_spec(checkpoint.config, "config.json"), loader, True, lambda: None)


def as_floats(part: Any) -> Any:
    """What a layer's codes stand for, in float32."""
    if isinstance(part, SideBySide):
        return SideBySide(tuple(map(as_floats, part.parts)))
    if isinstance(part, Linear):
        return part
    pairs = list(zip(part.matrices, part.outputs, strict=True))
    weight = torch.cat([decode(matrix)[:, :count].T.float() for matrix, count in pairs])
    biases = [matrix.bias[:count].float() for matrix, count in pairs if matrix.bias is not None]
    return Linear(weight, torch.cat(biases) if biases else None)


def decoded(rank: Transformer) -> Transformer:
    layers = []
    for layer in rank.layers:
        assert isinstance(layer.mlp, Mlp)
        mlp = replace(layer.mlp, gate_up=as_floats(layer.mlp.gate_up), down=as_floats(layer.mlp.down))
        layers.append(replace(layer, qkv=as_floats(layer.qkv), output=as_floats(layer.output), mlp=mlp))
    return Transformer(rank.spec, replace(rank.ends, head=as_floats(rank.head)), layers, part=rank.part)


def decoded_parts(whole: ParallelTransformer) -> ParallelTransformer:
    return ParallelTransformer(whole.spec, [decoded(rank) for rank in whole.ranks], whole.split)


@pytest.mark.parametrize("kind", [*MIXES, *RECIPES, "awq"])
def test_every_format_comes_to_its_logits(kind: str, tmp_path: Path) -> None:
    path = written(kind, tmp_path)
    packed = open_packed(path)
    assert isinstance(packed.layers[0].output, Linear) == (kind in ("exl2-16-rows", "gptq-8-bits"))
    expected = logits_in_steps(open_transformer(path), IDS, STEPS)
    for cards in (2, 3, 4):
        several = decoded_parts(cut(packed, [1.0] * cards))
        assert relative_error(logits_in_steps(several, IDS, STEPS), expected) < 1e-6


@torch.inference_mode()
@pytest.mark.parametrize("name", ["llama", "qwen3, a norm of each head", "mistral", "gemma2", "cohere, head norms"])
@pytest.mark.parametrize("cards", [2, 3, 4])
def test_residual_streams_are_equal_behind_every_exchange(name: str, cards: int, tmp_path: Path) -> None:
    several = cut(open_transformer(wide(name, tmp_path)), [1.0] * cards)
    streams = [Stream(rank.embed(torch.tensor(IDS), 0)) for rank in several.ranks]
    before, exchanges = streams[0].hidden.clone(), 0
    for _ in several.exchanges(streams):
        for rank, stream in zip(several.ranks, streams, strict=True):
            rank.settle(stream)
            assert torch.equal(stream.hidden, streams[0].hidden)
        assert not torch.equal(streams[0].hidden, before)
        before = streams[0].hidden.clone()
        exchanges += 1
    # Halves that read the same are added at once.
    assert exchanges == (3 if "cohere" in name else 6)


@pytest.mark.usefixtures("decoded_once")
@pytest.mark.parametrize("kind", ["exl2-6-5-3-2", "gptq-act-order", "awq"])
def test_the_parts_of_cards_go_through_the_kernels_like_whole_layers(kind: str, tmp_path: Path) -> None:
    path = written(kind, tmp_path)
    packed = open_quantized(path)
    several = cut(packed, [1.0, 1.0, 1.0])
    assert all(isinstance(layer.output, QuantizedLinear) for rank in several.ranks for layer in rank.layers)
    expected = logits_in_steps(open_transformer(path), IDS, STEPS)
    assert relative_error(logits_in_steps(several, IDS, STEPS, "fp16"), expected) < 5e-3
    assert relative_error(logits_in_steps(packed, IDS, STEPS, "fp16"), expected) < 5e-3


@pytest.mark.parametrize(("kind", "cards"), [("exl2-8-5-4", 2), ("gptq-act-order", 3), ("awq", 4)])
def test_tokens_of_every_format_are_the_same(kind: str, cards: int, tmp_path: Path) -> None:
    path = written(kind, tmp_path, **LIVELY)
    several = decoded_parts(cut(open_packed(path), [1.0] * cards))
    check_tokens(several, open_transformer(path))


@pytest.mark.parametrize("name", ["qwen3, a norm of each head", "mistral", "gemma2"])
def test_tokens_of_architectures_are_the_same(name: str, tmp_path: Path) -> None:
    # With a tied head random weights say the same token again and again.
    transformer = open_transformer(wide(name, tmp_path, tie_word_embeddings=False, **LIVELY))
    check_tokens(cut(transformer, [1.0] * 3), transformer)


def check_tokens(several: ParallelTransformer, transformer: Transformer) -> None:
    wanted = greedy_tokens(transformer, 230)
    assert greedy_tokens(several, 230) == wanted
    # Random weights end in a circle, which is to be a long one.
    assert len(set(wanted)) > 30


@pytest.mark.parametrize(
    ("speeds", "kv_heads"),
    [((1, 1), (3, 2)), ((1, 1, 1), (2, 2, 1)), ((3, 1), (4, 1)), ((1, 1, 1, 1, 1), (1, 1, 1, 1, 1))],
)
def test_mlps_make_up_for_what_heads_leave(
    speeds: tuple[float, ...], kv_heads: tuple[int, ...], tmp_path: Path
) -> None:
    # Half of a layer is attention, so that a head more or less is a tenth of it.
    save_random_llama(tmp_path, **{**LLAMA, "head_dim": 64})
    transformer = open_transformer(tmp_path)
    split, whole = split_model(transformer.spec, speeds), transformer.layers[0]
    assert split.kv_heads == kv_heads
    for part, share in zip(cut_layer(transformer.spec, whole, split), split.shares, strict=True):
        assert part.bytes / whole.bytes == pytest.approx(share, abs=0.02)


def test_cards_of_unlike_speed(tmp_path: Path) -> None:
    path = written("exl2-6-5-3-2", tmp_path)
    several = decoded_parts(cut(open_packed(path), [1.0, 3.0, 1.5]))
    expected = logits_in_steps(open_transformer(path), IDS, STEPS)
    assert relative_error(logits_in_steps(several, IDS, STEPS), expected) < 1e-6
    pages = [new_cache(several, 512).cache.layer(0, card).keys for card in range(3)]
    assert [len(keys) for keys in pages] == [1, 3, 1]


def test_sinks_go_with_their_heads(tmp_path: Path) -> None:
    save_random_llama(tmp_path, **LLAMA)
    plain = open_transformer(tmp_path)
    layers = [replace(layer, sinks=torch.randn(10)) for layer in plain.layers]
    transformer = Transformer(replace(plain.spec, sinks=True), plain.ends, layers)
    expected = logits_in_steps(transformer, IDS, STEPS)
    assert relative_error(logits_in_steps(cut(transformer, [1.0] * 3), IDS, STEPS), expected) < 1e-6
    assert relative_error(logits_in_steps(plain, IDS, STEPS), expected) > 1e-3


def test_a_tied_head_is_not_copied(tmp_path: Path) -> None:
    save_random_llama(tmp_path, tie_word_embeddings=True)
    transformer = open_transformer(tmp_path)
    memory = transformer.embedding.untyped_storage().data_ptr()
    heads = [rank.head for rank in cut(transformer, [1.0, 1.0]).ranks]
    assert all(isinstance(head, Linear) and head.weight.untyped_storage().data_ptr() == memory for head in heads)


@pytest.mark.parametrize(
    ("name", "cards", "words"),
    [
        (
            "llama",
            3,
            r"--tensor-parallel 3: this model has 2 key-value heads, and each card needs one; take 2 cards at most",
        ),
        (
            "mixtral",
            2,
            "MixtralForCausalLM cannot be computed by several cards together: it is a mixture of experts",
        ),
        ("olmo2", 2, "it norms the queries of all heads together; leave --tensor-parallel out"),
    ],
)
def test_what_is_refused(name: str, cards: int, words: str, tmp_path: Path) -> None:
    save_case(CASES[name], tmp_path)
    spec = open_transformer(tmp_path).spec
    with pytest.raises(ModelError, match=words):
        split_model(spec, [1.0] * cards)
    assert (why_not(spec) is None) == (name == "llama")


def test_an_mlp_of_too_few_groups_is_refused(tmp_path: Path) -> None:
    packed = open_packed(written("exl2-4", tmp_path, intermediate_size=384))
    with pytest.raises(ModelError, match=r"has 3 groups of weights, and each card needs one; take 3 cards at most"):
        cut(packed, [1.0] * 4)
