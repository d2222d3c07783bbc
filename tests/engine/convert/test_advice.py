"""What advice says of files that are still to be made, against those files, and what a card says of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from exlchat.engine import ModelError
from exlchat.engine.convert.advice import Advice, advise, bits_that_fit
from exlchat.engine.convert.run import Written
from exlchat.engine.evaluate.run import Wishes, evaluate
from exlchat.engine.formats.inventory import weight_sizes
from exlchat.engine.model_card import Here, describe
from exlchat.engine.placement import WORKING_ON_GPU
from exlchat.engine.weights.checkpoint import Checkpoint
from tests.engine.convert.sources import CPU, converted, save_source

CARD = torch.device("cuda", 0)
CONTEXT = 512


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_source("qwen3", tmp_path_factory.mktemp("source") / "model", max_position_embeddings=512)


@pytest.fixture(scope="module")
def made(source: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Written]:
    """Files of 6, 4 and 3 bits, whose tables lie in `made.work`."""
    return converted(source, tmp_path_factory.mktemp("made") / "made", 6, 4, 3)


@pytest.fixture(scope="module")
def work(made: list[Written]) -> Path:
    out = made[0].folder.parent
    return out.with_name(f"{out.name}.work")


@pytest.fixture(scope="module")
def four(source: Path, work: Path) -> Advice:
    """On a card on which anything fits."""
    return advise(source, 10**9, CONTEXT, work=work, widths=(4,))


def tensor_bytes(folder: Path) -> int:
    checkpoint = Checkpoint(folder)
    return sum(checkpoint.tensor(name).nbytes for name in checkpoint.names)


def test_bytes_and_losses_are_those_of_the_files(source: Path, made: list[Written], work: Path) -> None:
    advice = advise(source, 10**9, CONTEXT, work=work, widths=(6, 4, 3))
    for written, width in zip(made, advice.widths, strict=True):
        assert width.file == tensor_bytes(written.folder)
        held = weight_sizes(Checkpoint(written.folder), stay_quantized=True)
        assert width.weights == held.bytes(torch.float16)
        assert width.loss == pytest.approx(written.predicted)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", ["mixtral", "phi3", "gemma2", "gpt2", "internlm2, biases", "cohere", "qwen3_moe"])
def test_bytes_are_those_of_every_kind_of_model(name: str, tmp_path: Path) -> None:
    source = save_source(name, tmp_path / "source")
    written = converted(source, tmp_path / "out", 4)[0]
    width = advise(source, 10**9, 128, work=tmp_path / "out.work", widths=(4,)).widths[0]
    assert width.file == tensor_bytes(written.folder)
    # Before anything was measured, as much as it may be at most.
    bound = advise(source, 10**9, 128, widths=(4,)).widths[0]
    assert bound.loss is None
    assert width.file <= bound.file < 1.1 * width.file
    assert width.weights <= bound.weights


@pytest.mark.parametrize("kind", ["fp16", "q8", "q4"])
def test_what_fits_is_what_the_model_card_says_fits(
    source: Path, made: list[Written], work: Path, four: Advice, kind: str
) -> None:
    for spare in (-1, 0):
        card = cell(four, kind).needed + spare
        advice = advise(source, card, CONTEXT, work=work, widths=(4,))
        found = cell(advice, kind)
        here = Here(CARD, (card - WORKING_ON_GPU,), True)
        fit = describe(made[1].folder, here, context=CONTEXT, kv_cache=kind).fit
        assert fit is not None
        assert (found.needed <= card) == (fit.problem is None) == (spare == 0)
        # And the context that it says would fit does.
        assert (found.context >= CONTEXT) == (spare == 0)
        if found.context:
            shorter = describe(made[1].folder, here, context=found.context, kv_cache=kind).fit
            assert shorter is not None
            assert shorter.problem is None


def cell(advice: Advice, kind: str):  # type: ignore[no-untyped-def]
    place = [cache.kind for cache in advice.caches].index(kind)
    return advice.cells[0][place]


def test_what_caches_lose_is_what_evaluating_says(source: Path, work: Path) -> None:
    caches = json.loads((work / "caches.json").read_text())
    assert 0 <= caches["fp16"] < caches["q8"] < caches["q4"]
    wishes = Wishes((source,), CPU, reference=source, tokens=512, context=512, kv_caches=("q4",))
    entry = next(one for one in evaluate(wishes, lambda *_: None).entries if one.kv_cache == "q4")
    assert entry.figures.divergence is not None
    assert entry.figures.divergence.mean == pytest.approx(caches["q4"], rel=1e-5)


def test_the_most_that_fits_fits(source: Path, work: Path, four: Advice, tmp_path: Path) -> None:
    """What a conversion makes of `--fits` is loaded by a card of that size."""
    card = cell(four, "q4").needed + 2000
    advice = advise(source, card, CONTEXT, work=work)
    best = advice.best
    assert best is not None
    assert best.widest is not None
    bits = bits_that_fit(source, card, CONTEXT, best.kind)
    assert bits == best.widest.bits
    written = converted(source, tmp_path / "out", bits)[0]
    assert tensor_bytes(written.folder) > 0.95 * best.widest.file
    here = Here(CARD, (card - WORKING_ON_GPU,), True)
    fit = describe(written.folder, here, context=CONTEXT, kv_cache=best.kind).fit
    assert fit is not None
    assert fit.problem is None
    # Among what fits nothing loses less, by what was measured.
    totals = [
        cache.widest.loss + cache.loss
        for cache in advice.caches
        if cache.widest is not None and cache.widest.loss is not None and cache.loss is not None
    ]
    assert best.widest.loss is not None
    assert best.loss is not None
    assert best.widest.loss + best.loss == min(totals)


def test_bits_that_the_tables_do_not_have_have_no_loss(source: Path, tmp_path: Path) -> None:
    converted(source, tmp_path / "out", 3)
    advice = advise(source, 10**9, CONTEXT, work=tmp_path / "out.work", widths=(8, 3))
    assert [width.loss is None for width in advice.widths] == [True, False]
    assert advice.best is None


@pytest.mark.parametrize(
    ("part", "line"),
    [
        (("tables/00001.json", "[1]"), "is damaged"),
        (("tables/00001.json", "{"), "is damaged"),
        (("tables/00001.json", '{"x": {"features": 64}}'), "is damaged"),
        (("caches.json", '{"q4": "much"}'), "is damaged"),
        (("job.json", '{"source": "another"}'), "belongs to a conversion of another model"),
    ],
)
def test_a_work_folder_that_says_something_else(
    source: Path, work: Path, tmp_path: Path, part: tuple[str, str], line: str
) -> None:
    shutil.copytree(work, tmp_path / "work")
    (tmp_path / "work" / part[0]).write_text(part[1])
    with pytest.raises(ModelError, match=line):
        advise(source, 10**9, CONTEXT, work=tmp_path / "work")


def test_a_context_that_the_model_does_not_have(source: Path) -> None:
    with pytest.raises(ModelError, match="a context of 4,096 tokens was asked for; this model has 1 to 512"):
        advise(source, 10**9, 4096)


def test_a_model_that_is_in_exl2_already(made: list[Written]) -> None:
    with pytest.raises(ModelError, match="is in EXL2 already"):
        advise(made[0].folder, 10**9, CONTEXT)
