"""Attention of a prompt's chunk without a GPU: its kernels run on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch

from exlchat.ext import prompt_attention
from exlchat.ext.job import Job
from exlchat.ext.kv_formats import PAGE_TOKENS
from exlchat.ext.library import Library
from exlchat.ext.prompt_attention import PromptAttention
from tests.ext.chain_cases import Functions
from tests.ext.emulation import emulated_library
from tests.ext.never_called import NeverCalled
from tests.ext.prompt_attention_cases import CASES, Chunk
from tests.ext.test_pages import empty_pages

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return emulated_library(tmp_path_factory.mktemp("emulated"), ["prompt_attention"])


@pytest.fixture
def check(functions: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Callable[[Chunk], None]:
    monkeypatch.setattr(prompt_attention, "check_on_gpu", lambda **_tensors: None)

    def launch(job: Job) -> None:
        assert job._function(job._argument, False, None) == 0

    return lambda chunk: chunk.check(PromptAttention(Functions(functions).library), launch)


@pytest.mark.parametrize("processors", [1, 16], ids=["one block a tile", "several"])
@pytest.mark.parametrize("case", CASES)
def test_a_chunk_comes_to_its_definition(check: Callable[[Chunk], None], case: str, processors: int) -> None:
    start, tokens, rows, rules = CASES[case]
    check(Chunk(CPU, start, tokens, rows, processors=processors, **rules))


@pytest.mark.parametrize("head_dim", [80, 96, 128, 256])
def test_heads_of_every_length(check: Callable[[Chunk], None], head_dim: int) -> None:
    check(Chunk(CPU, 270, 30, 32, head_dim=head_dim, heads=(4, 2)))


@pytest.mark.parametrize("heads", [(3, 3), (6, 2), (7, 1), (12, 1)])
def test_any_number_of_heads_a_key(check: Callable[[Chunk], None], heads: tuple[int, int]) -> None:
    check(Chunk(CPU, 260, 30, 48, heads=heads, window=40))


@pytest.mark.parametrize(
    ("name", "wrong", "match"),
    [
        ("qkv", torch.zeros(32, 11, 64, dtype=torch.float16), "11 heads, which do not fit"),
        ("qkv", torch.zeros(31, 12, 64, dtype=torch.float16), r"qkv is torch.float16 \(31, 12, 64\)"),
        ("out", torch.zeros(32, 512), "out is torch.float32"),
        ("place", torch.zeros(2, dtype=torch.int64), "place is torch.int64"),
        ("table", torch.zeros(1, 2, dtype=torch.int32), "page_table is"),
        ("pages", empty_pages("q4", 2), "pages are q4"),
        ("place", torch.zeros(2, dtype=torch.int32), "is on the cpu"),
    ],
)
def test_wrong_tensors_are_refused(name: str, wrong: object, match: str) -> None:
    chunk = Chunk(CPU, 2 * PAGE_TOKENS, 20, 32)
    setattr(chunk, name, wrong)
    with pytest.raises(ValueError, match=match):
        chunk.check(PromptAttention(cast(Library, NeverCalled())), lambda _job: None)
