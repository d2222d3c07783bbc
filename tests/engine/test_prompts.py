"""Short prompts in passes that are filled up to a size, as they are computed before they are captured."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from exlchat.engine.decode.fit import why_no_prompts
from exlchat.engine.decode.prompts import PromptGraphs
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.sequence import KVSequence
from tests.engine.decoding import logits_in_steps, open_transformer, relative_error
from tests.engine.family_models import CASES, save_case

# Sizes that differ, each once: the second time they would be captured.
STEPS = [10, 50, 20, 1]
IDS = torch.randint(90, (sum(STEPS),), generator=torch.Generator().manual_seed(3)).tolist()


@torch.inference_mode()
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.context is None])
def test_a_filled_pass_gives_what_the_transformer_does(name: str, tmp_path: Path) -> None:
    save_case(CASES[name], tmp_path)
    transformer = open_transformer(tmp_path)
    wanted = logits_in_steps(transformer, IDS, STEPS)
    sequence = KVSequence(KVCache(transformer.spec, "fp32", transformer.dtype, transformer.device, len(IDS)))
    prompts, found = PromptGraphs(transformer), []
    for step in STEPS:
        start = len(sequence)
        sequence.reserve(start + step)
        ids = IDS[start : start + step]
        found.append(transformer.logits(prompts.features(torch.tensor(ids), sequence, start=start)))
        sequence.extend(ids)
    assert relative_error(torch.cat(found), wanted) < 1e-5


@torch.inference_mode()
def test_a_prompt_before_leaves_nothing_behind(tmp_path: Path) -> None:
    save_case(CASES["llama"], tmp_path)
    transformer = open_transformer(tmp_path)

    def last(prompts: PromptGraphs, ids: list[int]) -> torch.Tensor:
        sequence = KVSequence(KVCache(transformer.spec, "fp32", transformer.dtype, transformer.device, 64))
        sequence.reserve(len(ids))
        return prompts.forward(torch.tensor(ids), sequence, start=0)

    used = PromptGraphs(transformer)
    last(used, IDS[:64])
    assert torch.equal(last(used, IDS[:20]), last(PromptGraphs(transformer), IDS[:20]))


def test_mixtures_go_through_the_transformer(tmp_path: Path) -> None:
    save_case(CASES["mixtral"], tmp_path)
    assert why_no_prompts(open_transformer(tmp_path)) == "the host asks which experts compute a prompt"
    save_case(CASES["llama"], tmp_path)
    assert why_no_prompts(open_transformer(tmp_path)) is None
