"""Several tokens in one step, with the references in the kernels' place: each comes to what it does in a step alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from exlchat.engine.decode.fit import why_not
from exlchat.engine.decode.plan import DecodePlan
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.transformer import Transformer
from tests.engine.decoding import relative_error
from tests.engine.reference_kernels import ReferenceKernels
from tests.engine.test_kv_cache import table_of
from tests.engine.test_quantized_linear import open_quantized
from tests.engine.test_step_chain import new_cache, one_order_for_gate_and_up, written
from tests.ext.reference_pages import cached_rows

IDS = torch.randint(391, (300,), generator=torch.Generator().manual_seed(3)).tolist()
PROMPT = 250


@pytest.fixture(scope="module", params=["exl2", "gptq"])
def transformer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Transformer:
    """Queries, keys and values of the EXL2 file have orders of their own; the head of the GPTQ file is in float16."""
    path: Path = written(request.param, tmp_path_factory.mktemp("model"), tied=False)
    one_order_for_gate_and_up(path)
    return open_quantized(path)


def fed(transformer: Transformer, sizes: list[int], most: int) -> tuple[Tensor, Tensor]:
    """What follows the prompt, so many tokens a step: logits of each, and what layer 1 has in its cache then."""
    cache: KVSequence = new_cache(transformer, 300, "q8")
    transformer.forward(torch.tensor(IDS[:PROMPT]), cache, start=0)
    chain = DecodePlan(transformer, cache.cache, ReferenceKernels(), splits=3, rows=most)
    chain.tables.show(cache.cache.tables, [cache.row])
    found, start = [], PROMPT
    for size in sizes:
        chain.token[:size] = torch.tensor(IDS[start : start + size])
        chain.position[:size] = torch.arange(start, start + size)
        for job in chain.jobs(size):
            job.launch(dependent=False)
        found.append(chain.logits[:size].clone())
        start += size
    return torch.cat(found), torch.stack(cached_rows(cache.cache.layer(1), table_of(cache, 1), 0, start, torch.float32))


@pytest.mark.usefixtures("decoded_once")
@torch.inference_mode()
def test_every_token_comes_to_what_it_does_alone(transformer: Transformer) -> None:
    assert why_not(transformer, new_cache(transformer, 1).cache) is None
    wanted, wanted_rows = fed(transformer, [1] * 16, 1)
    # Across the edge of a page at 256, by tensors that are made for more tokens.
    found, rows = fed(transformer, [3, 8, 1, 4], 8)
    assert relative_error(found, wanted) < 1e-3
    assert relative_error(rows, wanted_rows) < 1e-3
