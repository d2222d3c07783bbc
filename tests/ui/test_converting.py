"""`exlchat convert` and `exlchat evaluate` from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from exlchat.cli import main as cli
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
    out_folder, plot = tmp_path / "out", tmp_path / "plot.svg"
    arguments = ["evaluate", str(out_folder), "--reference", str(source), *_SHORT, "--plot", str(plot)]
    assert cli.main(arguments) == 0
    table = capsys.readouterr().out
    assert "EXL2" in table
    assert "divergence" in table
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")
    assert cli.main([*arguments[:-2], "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["models"][0]["figures"]["divergence"]["mean"] > 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--bits", "four"], "'four' is no list of numbers such as 4 or 6,4,3"),
        (["--size", "much"], "'much' is no size such as 5.5GB or 24GiB"),
        (["--bits", "4", "--size", "1GB"], "not allowed with argument"),
    ],
)
def test_what_was_typed_wrongly_is_said(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["convert", str(source), str(tmp_path / "out"), *arguments])
    assert line in capsys.readouterr().err


def test_a_card_that_is_too_small(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["convert", str(source), str(tmp_path / "out"), "--fits", "0.1GB", *_SHORT]) == 1
    assert "ask for more" in capsys.readouterr().err
