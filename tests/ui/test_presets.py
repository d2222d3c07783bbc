"""`exlchat presets` and `--preset`."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exlchat import paths
from exlchat.app.generation_settings import at_start
from exlchat.chat.store.conversations import ConversationStore
from exlchat.cli import main as cli
from exlchat.cli.chat import build_parser as chat_parser
from exlchat.cli.typed_options import app_options
from exlchat.config.layers import resolve
from exlchat.llm.sampling import SamplingSettings
from tests.endless_model import save_endless_llama

ENIGMA = "temperature: 0.98\ntop_p: 0.37\ntop_k: 100\nrepetition_penalty: 1.18\npenalty_alpha: 0.6\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(paths.HOME_VARIABLE, str(tmp_path / "home"))
    return tmp_path / "home" / "config" / "presets"


@pytest.fixture
def enigma(tmp_path: Path) -> Path:
    file = tmp_path / "Midnight Enigma.yaml"
    file.write_text(ENIGMA)
    return file


def test_the_list_has_those_that_come_along_and_ones_own(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.mkdir(parents=True)
    (home / "mine.toml").write_text('description = "For maps \\u001b[2J"\ntop_k = 3\nmax_tokens = 2000000\n')
    (home / "bad.toml").write_text("temprature = 1\n")
    assert cli.main(["presets", "list"]) == 0
    shown = capsys.readouterr()
    rows = shown.out.splitlines()
    assert rows[:2] == ["mine           For maps [2J", "               top_k 3 · max_tokens 2000000"]
    assert len(rows) == 20
    assert "bad.toml: unknown key 'temprature'; did you mean temperature?" in shown.err
    assert cli.main(["presets", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["shipped"] for one in listed] == [False, *[True] * 9]
    assert listed[0]["top_k"] == 3
    assert "temperature" not in listed[0]


def test_an_import_is_shown_and_found_by_its_old_name(
    home: Path, enigma: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["presets", "import", str(enigma)]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{home / 'midnight-enigma.toml'} (preset of text-generation-webui)\n"
    assert shown.err == "exlchat: Midnight Enigma.yaml: kept, not applied: penalty_alpha 0.6\n"
    assert cli.main(["presets", "show", "Midnight Enigma"]) == 0
    out = capsys.readouterr().out
    assert (
        "temperature 0.98 · top_k 100 · top_p 0.37 · repetition_penalty 1.18 · penalty_range 1024 · all else off\n"
        in out
    )
    assert "kept of webui, not applied:\n  penalty_alpha 0.6\n" in out
    assert cli.main(["presets", "show", "midnight-enigma", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["preset"]["foreign"] == {"webui": {"penalty_alpha": 0.6}}
    assert cli.main(["presets", "path", "midnight-enigma"]) == 0
    assert capsys.readouterr().out == f"{home / 'midnight-enigma.toml'}\n"
    assert cli.main(["presets", "path"]) == 0
    assert capsys.readouterr().out == f"{home}\n"


def test_nothing_is_overwritten_unless_it_is_asked_for(
    home: Path, enigma: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["presets", "import", str(enigma)]) == 0
    before = (home / "midnight-enigma.toml").read_bytes()
    enigma.write_text("temperature: 0.5\n")
    assert cli.main(["presets", "import", str(enigma)]) == 1
    assert "is there already" in capsys.readouterr().err
    assert (home / "midnight-enigma.toml").read_bytes() == before
    assert cli.main(["presets", "import", str(enigma), "--name", "Other one"]) == 0
    assert cli.main(["presets", "import", str(enigma), "--force"]) == 0
    assert {file.name for file in home.iterdir()} == {"midnight-enigma.toml", "other-one.toml"}
    assert (home / "midnight-enigma.toml").read_bytes() != before


def test_one_damaged_file_does_not_stop_the_others(
    home: Path, enigma: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = enigma.parent / "evil.yaml"
    evil.write_text("a: &a [1]\ntemperature: *a\n")
    assert cli.main(["presets", "import", str(evil), str(enigma), "--json"]) == 1
    shown = capsys.readouterr()
    assert [one["id"] for one in json.loads(shown.out)] == ["midnight-enigma"]
    assert [line.split(":")[1].strip() for line in shown.err.splitlines()] == ["evil.yaml", "Midnight Enigma.yaml"]
    assert [file.name for file in home.iterdir()] == ["midnight-enigma.toml"]


def test_a_name_cannot_lead_out_of_the_folder(home: Path, enigma: Path) -> None:
    assert cli.main(["presets", "import", str(enigma), "--name", "../../../x"]) == 0
    assert [file.name for file in home.iterdir()] == ["x.toml"]


def test_taking_the_place_of_one_that_comes_along_is_said(enigma: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["presets", "import", str(enigma), "--name", "wild"]) == 0
    assert "takes the place of the preset that comes along" in capsys.readouterr().err
    assert cli.main(["presets", "show", "wild"]) == 0
    assert "temperature 0.98" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["presets", "show", "creativ"], 1, "did you mean creative?"),
        (["presets", "import", "/nowhere.yaml"], 1, "there is no such file"),
        (["presets", "import", "/dev/zero"], 1, "/dev/zero: not a plain file; give one"),
        (["presets", "import", "/"], 1, "/: not a plain file; give one"),
        (["presets", "import", "a", "b", "--name", "c"], 2, "--name goes with one FILE"),
        (["presets", "dance"], 2, "invalid choice: 'dance'"),
        (["presets"], 2, "COMMAND"),
        (["ask", "--preset", "creativ", "hello"], 1, "did you mean creative?"),
        (["--preset", "creativ"], 1, "did you mean creative?"),
        (
            ["ask", "--sample", "xtc=1", "hello"],
            2,
            "there is no sampling control 'xtc'; did you mean xtc_probability or xtc_threshold?",
        ),
        (["ask", "--sample", "xtc_treshold=0.1", "hello"], 2, "did you mean xtc_threshold?"),
        (["ask", "--sample", "xtc_threshold=0.6", "hello"], 2, "it must be a number above 0, up to 0.5"),
        (["ask", "--sample", "skew", "hello"], 2, "'skew' is not like NAME=VALUE"),
        (["ask", "--sample", "top_k=4", "hello"], 2, "top_k has an option of its own; say --top-k 4"),
        (["ask", "--sample", "skew=1", "--sample", "skew=2", "hello"], 2, "--sample names skew twice"),
        (["ask", "--sample", "dynatemp_high=1", "--temperature", "0", "hello"], 2, "temperature 0 takes the likeliest"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        got = cli.main(arguments)
    except SystemExit as stopped:
        got = int(str(stopped.code))
    line = capsys.readouterr().err
    assert got == code
    assert line.count("\n") == 1
    assert said in line


# Answers


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_endless_llama(tmp_path_factory.mktemp("models") / "endless")


@pytest.fixture
def ask_as(home: Path, endless: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Asks with options, where there are settings, a preset and a persona: the record of the answer on disk."""
    home.mkdir(parents=True)
    (home.parent / "settings.toml").write_text("min_p = 0.25\ntemperature = 0.1\n")
    (home / "mine.toml").write_text("temperature = 0.98\ntop_p = 0.37\ntop_k = 100\nmax_tokens = 6\n")
    (home.parent / "personas").mkdir()
    (home.parent / "personas" / "warm.toml").write_text("[sampling]\ntemperature = 1.9\nmin_p = 0.5\nmax_tokens = 9\n")

    def ask(*arguments: str) -> Any:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
        assert cli.main(["ask", "-m", str(endless), "--device", "cpu", *arguments, "hello"]) == 0
        store = ConversationStore(paths.folders().conversations)
        answer = store.load(store.list_conversations()[0].id).branch[-1]
        store.close()
        return answer.record

    return ask


def test_the_app_knows_which_values_are_of_the_preset_and_which_of_the_persona(
    home: Path,
) -> None:
    home.mkdir(parents=True)
    (home / "mine.toml").write_text("temperature = 0.98\ntop_k = 100\n")
    (home.parent / "personas").mkdir()
    (home.parent / "personas" / "warm.toml").write_text("[sampling]\ntemperature = 1.9\nmin_p = 0.5\n")
    parser = chat_parser()
    typed = parser.parse_args(["--preset", "mine", "--persona", "warm", "--top-k", "7"])
    start = at_start(resolve(*app_options(parser, typed, None).layers), None)
    sources = {name: start.source(name) for name in ("temperature", "top_k", "top_p", "min_p")}
    assert sources == {"temperature": "preset mine", "top_k": "typed", "top_p": "default", "min_p": "persona warm"}


@pytest.mark.parametrize(
    ("arguments", "expected", "tokens"),
    [
        (["--preset", "mine"], SamplingSettings(0.98, 100, 0.37, 0.25), 6),
        (["--preset", "mine", "--top-k", "7", "--max-tokens", "3"], SamplingSettings(0.98, 7, 0.37, 0.25), 3),
        # The persona is a way of speaking, a preset was named for this start.
        (["--preset", "mine", "--persona", "warm"], SamplingSettings(0.98, 100, 0.37, 0.5), 6),
        (
            ["--preset", "mine", "--sample", "top-a=0.1", "--sample", 'logit_bias=5=-1, "x"=2'],
            SamplingSettings(0.98, 100, 0.37, 0.25, top_a=0.1, logit_bias=((5, -1.0), ("x", 2.0))),
            6,
        ),
        # What a preset switches off is off, whatever the settings and the persona say.
        (["--preset", "steady", "--persona", "warm"], SamplingSettings(top_n_sigma=1.0), 9),
        (["--persona", "warm", "--max-tokens", "2"], SamplingSettings(1.9, 0, 1.0, 0.5), 2),
    ],
)
def test_what_is_typed_wins_then_the_preset_then_the_persona_then_the_settings(
    ask_as: Callable[..., Any], arguments: list[str], expected: SamplingSettings, tokens: int
) -> None:
    record = ask_as(*arguments)
    assert record.sampling == expected
    assert record.stats.new_tokens == tokens
