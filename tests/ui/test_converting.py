"""`exlchat convert` and `exlchat evaluate` from the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from exlchat.cli import main as cli
from exlchat.engine import model_card
from tests.engine.convert.sources import save_source

_SHORT = ("--tokens", "768", "--device", "cpu")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_source("llama", tmp_path_factory.mktemp("source") / "llama")


def test_a_file_is_made_and_measured(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["convert", str(source), str(tmp_path / "out"), "--bits", "4", *_SHORT]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{tmp_path / 'out'}: ")
    assert "divergence" in out
    assert "perplexity" in out
    assert "model.layers.0.mlp.down_proj: " in err
    assert "4 bits, the best widths: predicted divergence 0." in err
    out_folder, plot = tmp_path / "out", tmp_path / "plot.svg"
    arguments = ["evaluate", str(out_folder), "--reference", str(source), *_SHORT, "--plot", str(plot)]
    assert cli.main(arguments) == 0
    table = capsys.readouterr().out
    assert "EXL2" in table
    assert "divergence" in table
    assert re.search(r"to 0\.25 +to 0\.5 +to 0\.75 +to 0\.95 +above", table)
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")
    assert cli.main([*arguments[:-2], "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["models"][0]["figures"]["divergence"]["mean"] > 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--bits", "four"], "'four' is no list of numbers such as 4 or 6,4,3"),
        (["--size", "much"], "'much' is no size such as 5.5GB or 24GiB"),
        (["--bits", "4", "--size", "1GB"], "only one can be kept"),
        (["--advise", "--size", "1GB"], "--advise shows sizes for --fits and --bits, not for --size"),
    ],
)
def test_what_was_typed_wrongly_is_said(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["convert", str(source), str(tmp_path / "out"), *arguments])
    assert line in capsys.readouterr().err


def test_a_card_that_is_too_small(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        cli.main(["convert", str(source), str(tmp_path / "out"), "--fits", "0.1GB", "--context", "128", *_SHORT]) == 1
    )
    assert "0.10 GB are too small: a fp16 cache of 128 tokens" in capsys.readouterr().err


def test_advice_for_a_card_that_is_not_here(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["convert", str(source), "--advise", "--fits", "0.65GB", "--context", "256"]
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert out.startswith("llama on a card with 0.65 GB free, context 256\n")
    assert "most bits that fit" in out
    assert "What is lost is not known" in out
    assert cli.main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["widths"][0]["bits"] == 8
    # A card is never guessed.
    assert cli.main(["convert", str(source), "--advise", "--device", "cpu"]) == 1
    assert "say what one has free, such as --fits 24GB" in capsys.readouterr().err


def test_advice_with_what_a_conversion_measured(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert cli.main(["convert", str(source), str(out), "--bits", "4", *_SHORT]) == 0
    capsys.readouterr()
    # So small a card that only the tables' own bits fit, where the most bits of a tiny model would be 8.
    assert cli.main(["convert", str(source), str(out), "--advise", "--fits", "0.65GB", "--context", "256"]) == 0
    table = capsys.readouterr().out
    assert "divergence, nats a token" in table
    assert "8, 6, 5 bits are not in the tables of that conversion" in table


def test_a_folder_to_write_to_is_needed(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["convert", str(source)])
    assert "OUT is missing" in capsys.readouterr().err


def test_the_list_of_models_points_to_advice(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["models", "--device", "cpu", "--folder", str(source.parent)]
    assert cli.main(arguments) == 0
    assert "--advise" not in capsys.readouterr().out
    monkeypatch.setattr(model_card, "room_without_models", lambda _: 1000)
    assert cli.main(arguments) == 0
    assert "exlchat convert MODEL --advise says which bits of it would fit" in capsys.readouterr().out
