"""Several rows at once are the same to the last bit as one by one: products, attention, and the whole captured step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from exlchat.engine.bench.mixes import parse_mix
from exlchat.engine.bench.random_checkpoint import RandomCheckpoint
from exlchat.engine.bench.shapes import Shape
from exlchat.engine.decode.fit import why_not
from exlchat.engine.decode.graphs import DecodeGraphs
from exlchat.engine.formats.layers import LayerLoader
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.assembly import load_transformer
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.model.architecture import read_spec
from exlchat.ext.attention import AttentionRules, AttentionScratch, LayerPages
from exlchat.ext.build import ensure_library
from exlchat.ext.functions import FUNCTIONS
from exlchat.ext.kv_formats import KINDS, PAGE_TOKENS, encode
from exlchat.ext.library import open_library
from exlchat.ext.ops import Kernels
from exlchat.ext.products import Deferred, NormCopy, Normed, Products, Residual
from tests.ext import reference
from tests.gpu.test_products import GPTQ, RECIPES, packed, poisoned, relative_error

CUDA = torch.device("cuda")
BOTH_EDGES = pytest.mark.parametrize("dependent", [False, True], ids=["plain", "dependent"])
QUANTIZED = ("fp8", "q8", "q6", "q4")


def same_bits(found: Tensor, wanted: Tensor) -> bool:
    return torch.equal(found.contiguous().view(torch.uint8), wanted.contiguous().view(torch.uint8))


def stream(rows: int, width: int, stored: int, scatter: Tensor, *, defers: bool) -> Residual:
    """One that `defers` has a norm behind what is added."""
    torch.manual_seed(5)
    weight = (torch.randn(width, device="cuda") * 0.1 + 1).half()
    pair, sums = ((2,), (4,)) if defers else ((), ())
    copy = NormCopy(torch.zeros(rows, stored, *pair, device="cuda"), scatter, weight)
    hidden, squares = (
        poisoned(rows, width, dtype=torch.float32),
        poisoned(rows, width // 16, *sums, dtype=torch.float32),
    )
    deferred = Deferred(torch.zeros_like(hidden), poisoned(rows, dtype=torch.float32)) if defers else None
    return Residual(hidden, squares, (copy,), deferred=deferred, post_norm=weight if defers else None)


def mlp(
    kernels: Products, rows: int, tokens: list[int], recipe: str, *, dependent: bool, defers: bool = False
) -> list[Tensor]:
    """What an embedding, a gated product behind a norm and one that is added to the residual leave."""
    torch.manual_seed(7)
    gate = packed(1536, 608, recipe)
    up = replace(packed(1536, 608, recipe), gather=gate.gather)
    down = packed(608, 1536, recipe)
    table = torch.randn(50, 1536, device="cuda").half()
    left: list[list[Tensor]] = []
    for start in range(0, len(tokens), rows):
        fed = torch.tensor(tokens[start : start + rows], device="cuda")
        residual = stream(len(fed), 1536, gate.stored, gate.scatter, defers=defers)
        inner = torch.zeros(len(fed), down.stored, dtype=torch.float16, device="cuda")
        x = Normed(residual.copies[0].values, residual.squares, 1e-5, residual.deferred)
        logits = poisoned(len(fed), 608, dtype=torch.float32)
        for job in (
            kernels.embed(table, fed, residual),
            kernels.product([gate, up], x, inner, "gated", scatter=down.scatter),
            kernels.add_product(down, inner, residual),
            kernels.product([gate], x, logits, "float"),
        ):
            job.launch(dependent=dependent)
        left.append([residual.hidden, residual.squares, residual.copies[0].values, inner, logits])
    return [torch.cat(parts) for parts in zip(*left, strict=True)]


@BOTH_EDGES
@pytest.mark.parametrize("defers", [False, True], ids=["norms before", "norms behind, too"])
@pytest.mark.parametrize("recipe", [*RECIPES, *GPTQ])
def test_products(kernels: Kernels, recipe: str, defers: bool, dependent: bool) -> None:
    tokens = [37, 3, 11, 49, 0, 8, 25, 37]
    alone = mlp(kernels, 1, tokens, recipe, dependent=dependent, defers=defers)
    assert not any(bool(part.isnan().any()) for part in alone)
    for rows in range(2, 9):
        for name, found, wanted in zip(
            ("hidden", "squares", "copy", "inner", "logits"),
            mlp(kernels, rows, tokens[:rows], recipe, dependent=dependent, defers=defers),
            alone,
            strict=True,
        ):
            assert same_bits(found, wanted[:rows]), f"{name} of {rows} rows"


@pytest.mark.parametrize("room", [40960, 65536, 102400])
@pytest.mark.parametrize("recipe", ["8, 5, 4", "GPTQ 128"])
def test_products_where_a_block_has_little_memory(build_cache: Path, recipe: str, room: int) -> None:
    kernels = Products(open_library(ensure_library(build_cache), FUNCTIONS), room=room)
    tokens = list(range(8))
    alone = mlp(kernels, 1, tokens, recipe, dependent=True)
    for rows in (2, 5, 8):
        found = mlp(kernels, rows, tokens[:rows], recipe, dependent=True)
        assert all(same_bits(one, wanted[:rows]) for one, wanted in zip(found, alone, strict=True)), f"{rows} rows"


@pytest.mark.parametrize(("features", "outputs"), [(14336, 512), (28672, 96), (4096, 20000), (96, 2080)])
def test_wide_inputs_and_large_vocabularies(kernels: Kernels, features: int, outputs: int) -> None:
    torch.manual_seed(3)
    matrix = packed(features, outputs, "4 in groups of 32")
    x = torch.zeros(8, matrix.stored, dtype=torch.float16, device="cuda")
    x[:, matrix.scatter.long() & 0xFFFF] = torch.randn(8, features, device="cuda").half()
    alone = poisoned(8, outputs, dtype=torch.float32)
    for row in range(8):
        kernels.product([matrix], x[row : row + 1], alone[row : row + 1], "float").launch(dependent=True)
    for rows in range(2, 9):
        y = poisoned(rows, outputs, dtype=torch.float32)
        kernels.product([matrix], x[:rows].contiguous(), y, "float").launch(dependent=True)
        assert same_bits(y, alone[:rows]), f"{rows} rows"


@BOTH_EDGES
@pytest.mark.parametrize(("width", "outputs"), [(32, 1), (96, 50), (4096, 32003), (8192, 4000), (16384, 100)])
def test_heads_in_float16(kernels: Kernels, width: int, outputs: int, dependent: bool) -> None:
    torch.manual_seed(2)
    weight = torch.randn(outputs, width, device="cuda").half() * 0.05
    values, squares = torch.randn(8, width, device="cuda"), torch.rand(8, width // 16, device="cuda") * 16
    wanted = reference.head_product(weight, Normed(values, squares, 1e-5))
    alone = poisoned(8, outputs, dtype=torch.float32)
    for row in range(8):
        x = Normed(values[row : row + 1], squares[row : row + 1], 1e-5)
        kernels.head_product(weight, x, alone[row : row + 1]).launch(dependent=dependent)
    assert relative_error(alone, wanted) < 1e-3
    for rows in range(2, 9):
        y = poisoned(rows, outputs, dtype=torch.float32)
        kernels.head_product(weight, Normed(values[:rows], squares[:rows], 1e-5), y).launch(dependent=dependent)
        assert same_bits(y, alone[:rows]), f"{rows} rows"


def random_pages(kind: str, head_dim: int, count: int) -> LayerPages:
    """Of two key-value heads, all full."""
    rows = torch.randn(2, 2, count, PAGE_TOKENS, head_dim, device="cuda").half()
    keys, key_scales = encode(rows[0], KINDS[kind].key)
    values, value_scales = encode(rows[1], KINDS[kind].value)
    return LayerPages(KINDS[kind], keys, values, key_scales, value_scales)


def of_pages(pages: LayerPages) -> list[Tensor]:
    parts = (pages.keys, pages.values, pages.key_scales, pages.value_scales)
    return [part for part in parts if part is not None]


@pytest.mark.parametrize("window", [0, 300])
@pytest.mark.parametrize(
    ("kind", "head_dim"), [("fp16", 80), *((kind, 128) for kind in ("fp16", *QUANTIZED)), ("q4", 64)]
)
@pytest.mark.parametrize("heads", [6, 20])
def test_attention(kernels: Kernels, kind: str, head_dim: int, heads: int, window: int) -> None:
    """Across pages, and where the ranges of blocks and warps end elsewhere for the next token."""
    torch.manual_seed(11)
    pages = random_pages(kind, head_dim, 24)
    table = torch.randperm(24, device="cuda").to(torch.int32)
    angles = torch.rand(24 * PAGE_TOKENS, head_dim // 2, device="cuda") * 6
    norm = torch.randn(head_dim, device="cuda").half()
    rules = AttentionRules(head_dim**-0.5, window=window, key_norm=norm, query_norm=norm, eps=1e-5)
    turns = torch.stack((angles.cos(), angles.sin()), dim=-1).contiguous()
    scratch = AttentionScratch(heads, 2, head_dim, 16, CUDA, rows=8)
    before = [part.clone() for part in of_pages(pages)]

    def run(qkv: Tensor, position: int) -> tuple[Tensor, list[Tensor]]:
        out = poisoned(len(qkv), heads * head_dim, dtype=torch.float16)
        places = torch.arange(position, position + len(qkv), device="cuda", dtype=torch.int32)
        scratch.partial.fill_(float("nan"))
        kernels.attention(
            qkv, out, pages=pages, page_table=table, position=places, turns=turns, rules=rules, scratch=scratch
        ).launch(dependent=True)
        return out, [part.clone() for part in of_pages(pages)]

    for position in (0, 1, 15, 251, 255, 256, 507, 1000, 2045, 5000):
        qkv = torch.randn(8, heads + 4, head_dim, device="cuda").half()
        for part, old in zip(of_pages(pages), before, strict=True):
            part.copy_(old)
        alone = torch.cat([run(qkv[row : row + 1], position + row)[0] for row in range(8)])
        stored = [part.clone() for part in of_pages(pages)]
        for rows in (2, 5, 8):
            for part, old in zip(of_pages(pages), before, strict=True):
                part.copy_(old)
            out, left = run(qkv[:rows], position)
            assert same_bits(out, alone[:rows]), f"{rows} rows at {position}"
            if rows == 8:
                assert all(same_bits(one, other) for one, other in zip(left, stored, strict=True)), f"at {position}"


def test_attention_of_several_sequences(kernels: Kernels) -> None:
    """Each row has pages and a position of its own."""
    pages = random_pages("q4", 128, 24)
    tables = torch.randperm(24, device="cuda").to(torch.int32).view(3, 8)
    places = torch.tensor([1500, 3, 700], dtype=torch.int32, device="cuda")
    qkv, turns = torch.randn(3, 12, 128, device="cuda").half(), torch.randn(2048, 64, 2, device="cuda")
    scratch, rules = AttentionScratch(8, 2, 128, 16, CUDA, rows=3), AttentionRules(128**-0.5)
    found, alone = (poisoned(3, 1024, dtype=torch.float16) for _ in range(2))
    for row in range(3):
        kernels.attention(
            qkv[row],
            alone[row],
            pages=pages,
            page_table=tables[row],
            position=places[row : row + 1],
            turns=turns,
            rules=rules,
            scratch=scratch,
        ).launch(dependent=False)
    kernels.attention(
        qkv, found, pages=pages, page_table=tables, position=places, turns=turns, rules=rules, scratch=scratch
    ).launch(dependent=True)
    assert same_bits(found, alone)


def random_model(mix: str, kernels: Kernels) -> Transformer:
    shape = Shape("small", 512, 1408, 2, 8, 2, 64, vocab=2080, positions=8192, rope_factor=1.0)
    checkpoint = RandomCheckpoint(shape, parse_mix(mix), device="cuda")
    spec = read_spec(checkpoint.config, "config.json")
    return load_transformer(spec, LayerLoader(checkpoint, CUDA, torch.float16, kernels), True, lambda: None)


class Both:
    """A model, one cache with a random beginning, and both ways to go on behind any part of it."""

    def __init__(self, transformer: Transformer, kind: str, kernels: Kernels, length: int, *, dependent: bool) -> None:
        self.transformer = transformer
        self.vocab = transformer.spec.vocab_size
        self.cache = KVCache(transformer.spec, kind, torch.float16, CUDA, length)
        assert why_not(transformer, self.cache) is None
        self.graphs = DecodeGraphs(transformer, self.cache, kernels, dependent=dependent)
        ids = torch.randint(self.vocab, (length - 8,), generator=torch.Generator().manual_seed(1))
        self.sequence = KVSequence(self.cache)
        self.sequence.reserve(length)
        for start in range(0, len(ids), 512):
            self.transformer.forward(ids[start : start + 512].cuda(), self.sequence, start=start)
        self.sequence.extend(ids.tolist())

    def stored(self) -> list[Tensor]:
        pages = [of_pages(self.cache.layer(layer)) for layer in range(self.transformer.spec.num_layers)]
        return [part.clone() for layer in pages for part in layer]

    def alone(self, ids: list[int], position: int) -> Tensor:
        steps = [self.graphs.forward(self.sequence, token, place).clone() for place, token in enumerate(ids, position)]
        return torch.stack(steps)

    def check(self, rows: int, position: int) -> None:
        ids = torch.randint(self.vocab, (rows,)).tolist()
        wanted = self.alone(ids, position)
        stored = self.stored()
        self.graphs.verify(self.sequence, [5] * rows, position)  # something else in the same place, and the capture
        found = self.graphs.verify(self.sequence, ids, position).clone()
        assert same_bits(found, wanted), f"logits of {rows} rows at {position}"
        assert all(same_bits(one, other) for one, other in zip(self.stored(), stored, strict=True)), (
            f"cache of {rows} rows at {position}"
        )
        assert self.graphs.greedy(self.sequence, ids, position) == wanted.argmax(1).tolist()
        assert not wanted.isnan().any()


@pytest.mark.parametrize("kind", ["fp16", *QUANTIZED])
@torch.inference_mode()
def test_steps_at_all_positions(kernels: Kernels, kind: str) -> None:
    both = Both(random_model("4.1bpw", kernels), kind, kernels, 5120, dependent=True)
    for position in (0, 1, 254, 255, 258, 1000, 5000):
        for rows in range(1, 9):
            both.check(rows, position)


@BOTH_EDGES
@pytest.mark.parametrize(
    "mix",
    [
        *(f"{bits}:1g{group}" for bits, group in ((2, 64), (3, 128), (4, 32), (5, 128), (6, 64), (8, 128))),
        "6:0.1g32,5:0.2g64,3:0.3g32,2:0.4g64",
        "gptq-g128",
        "gptq-g128-actorder",
    ],
)
@torch.inference_mode()
def test_steps_of_every_format(kernels: Kernels, mix: str, dependent: bool) -> None:
    both = Both(random_model(mix, kernels), "q8", kernels, 512, dependent=dependent)
    for rows in (2, 3, 4, 7, 8):
        both.check(rows, 253)


@torch.inference_mode()
def test_drafts_change_nothing_of_what_is_written(kernels: Kernels) -> None:
    """Drafts that are right up to a place that changes from pass to pass: the same 400 tokens as one by one."""
    both = Both(random_model("4.1bpw", kernels), "q6", kernels, 1024, dependent=True)
    start, cache = 600, both.sequence
    assert cache.cut(start) == start
    cache.reserve(1024)
    token, plain = 9, []
    for position in range(start, start + 400):
        token = int(both.alone([token], position).argmax())
        plain.append(token)
    fed, written, turn = 9, list[int](), 0
    while len(written) < 390:
        count, right = turn % 7 + 1, turn % 5
        truth = plain[len(written) : len(written) + count]
        draft = [token if place < right else (token + 1) % 2080 for place, token in enumerate(truth)]
        best = both.graphs.greedy(cache, [fed, *draft], len(cache))
        taken = next((i for i, one in enumerate(draft) if best[i] != one), len(draft))
        cache.extend([fed, *draft[:taken]])
        written += best[: taken + 1]
        fed, turn = best[taken], turn + 1
    assert written == plain[: len(written)]
