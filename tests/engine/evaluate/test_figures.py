"""Figures of two models, against what `transformers` and numpy make of the same tokens."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from exlchat.engine import ModelError
from exlchat.engine.evaluate.compare import figures_of, read
from exlchat.engine.evaluate.measures import Places
from exlchat.engine.evaluate.run import Wishes, evaluate
from exlchat.engine.weights.checkpoint import Checkpoint
from tests.engine.convert.sources import CPU, converted, save_source
from tests.engine.family_models import CASES, save_case

ROWS = torch.randint(2, 380, (3, 50), generator=torch.Generator().manual_seed(3))


def logits(model: torch.nn.Module, row: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(model(row[None]).logits[0].double())


def log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


@pytest.mark.parametrize("name", ["llama", "gemma2", "mixtral"])
def test_they_are_those_of_the_definitions(name: str, tmp_path: Path) -> None:
    models = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = save_case(CASES[name], tmp_path / str(seed))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.02 * seed * torch.randn_like(parameter))
        model.save_pretrained(tmp_path / str(seed))
        models.append(model)
    reads = [read(Checkpoint(tmp_path / str(seed)), ROWS, CPU) for seed in (1, 2)]
    found = figures_of(reads[1], ROWS, reads[0])
    nlls, theirs, divergences, same, by_window = [], [], [], [], []
    for row in ROWS:
        p, q = (log_softmax(logits(model, row)) for model in models)
        nexts = np.asarray(row[1:])
        nlls.append(-q[np.arange(49), nexts])
        theirs.append(-p[np.arange(49), nexts])
        divergence = (np.exp(p) * (p - q)).sum(-1)
        divergences.append(divergence)
        by_window.append(divergence.mean())
        same.append(p.argmax(-1) == q.argmax(-1))
    own, other = np.concatenate(nlls), np.concatenate(theirs)
    all_divergences = np.concatenate(divergences)
    assert found.divergence is not None
    assert found.log_ratio is not None
    assert found.perplexity == pytest.approx(math.exp(own.mean()), rel=1e-4)
    assert found.log_ratio.mean == pytest.approx(own.mean() - other.mean(), abs=1e-4)
    assert found.divergence.mean == pytest.approx(all_divergences.mean(), rel=1e-3)
    # Windows of one length: the error of the mean of their means.
    assert found.divergence.error == pytest.approx(np.std(by_window, ddof=1) / math.sqrt(3), rel=1e-3)
    assert found.quantiles == pytest.approx(np.quantile(all_divergences, [0.5, 0.9, 0.99, 0.999]), rel=1e-3)
    assert found.same == pytest.approx(np.concatenate(same).mean())
    assert found.probability_error == pytest.approx(np.sqrt(np.square(np.exp(-own) - np.exp(-other)).mean()), rel=1e-3)


def test_a_model_does_not_differ_from_itself(tmp_path: Path) -> None:
    source = save_source("llama", tmp_path / "source")
    report = evaluate(Wishes((source,), CPU, reference=source, tokens=600, context=200), lambda *_: None)
    figures = report.entries[0].figures
    assert figures.divergence is not None
    assert abs(figures.divergence.mean) < 1e-6
    assert figures.same == 1.0


def test_caches_of_few_bits_cost_something_and_fewer_cost_more(tmp_path: Path) -> None:
    source = save_source("qwen3", tmp_path / "source", max_position_embeddings=512)
    wishes = Wishes((source,), CPU, reference=source, tokens=1024, context=512, kv_caches=("fp16", "q8", "q4"))
    found = {entry.kv_cache: entry.figures.divergence for entry in evaluate(wishes, lambda *_: None).entries}
    lost = [entry.mean for kind in ("fp16", "q8", "q4") if (entry := found[kind]) is not None]
    assert len(lost) == 3
    assert 0 <= lost[0] < lost[1] < lost[2]


def test_places_where_the_reference_gives_nothing_are_no_trouble() -> None:
    places = Places()
    reference = torch.tensor([[0.0, -torch.inf, 1.0]]).expand(3, 3)
    places.add(0, torch.tensor([[0.0, 5.0, 1.0]]).expand(3, 3), torch.tensor([0, 2]), reference)
    figures = places.figures()
    assert figures.divergence is not None
    assert 0 < figures.divergence.mean < 10


def test_a_model_that_gives_the_text_no_likelihood_is_told(tmp_path: Path) -> None:
    source = save_source("llama", tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    tensors["lm_head.weight"] *= 1e6
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(ModelError, match=r"gives the text no likelihood \(\d+ nats a token\)"):
        evaluate(Wishes((source,), CPU, tokens=512), lambda *_: None)


def test_models_of_other_tokens_are_refused(tmp_path: Path) -> None:
    one, other = save_source("llama", tmp_path / "one"), save_source("llama", tmp_path / "other")
    save_case(CASES["llama"], other)
    with pytest.raises(ModelError, match="makes other tokens of the text than"):
        evaluate(Wishes((one,), CPU, reference=other, tokens=512), lambda *_: None)


def test_what_a_conversion_says_is_what_is_measured(tmp_path: Path) -> None:
    source = save_source("llama", tmp_path / "source")
    written = converted(source, tmp_path / "out", 4)[0]
    wishes = Wishes((written.folder,), CPU, reference=source, tokens=512, context=1024)
    figures = evaluate(wishes, lambda *_: None).entries[0].figures
    assert figures.divergence is not None
    assert written.figures.divergence is not None
    assert figures.divergence.mean == pytest.approx(written.figures.divergence.mean, rel=1e-6)
