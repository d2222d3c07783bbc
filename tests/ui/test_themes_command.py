"""`exlchat themes`: the list, previews in the theme's own colours, new files."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from exlchat import paths
from exlchat.cli import main as cli
from exlchat.config.themes import load_themes

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(autouse=True)
def themes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the user's themes, not there yet."""
    monkeypatch.setenv(paths.HOME_VARIABLE, str(tmp_path / "home"))
    return tmp_path / "home" / "config" / "themes"


def on_terminal(*arguments: str, **environment: str) -> str:
    """What the real program writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    taken_away = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
    env = {key: value for key, value in os.environ.items() if key not in taken_away}
    env |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", **environment}
    command = [sys.executable, "-m", "exlchat", "themes", *arguments]
    with subprocess.Popen(command, stdout=theirs, stdin=theirs, env=env) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:
                break
            shown += piece
            if not piece:
                break
    os.close(ours)
    assert process.returncode == 0
    return shown.decode().replace("\r\n", "\n")


def test_the_list_in_a_pipe_is_a_line_for_each(themes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    themes.mkdir(parents=True)
    (themes / "dusk.toml").write_text('description = "Late"\n')
    (themes / "bad.toml").write_text("[colors]\nline = 1\n")
    for words in (["themes"], ["themes", "list"]):
        assert cli.main(words) == 0
        shown = capsys.readouterr()
        assert "\x1b" not in shown.out
        rows = {row.split()[0]: row.split(None, 1)[1] for row in shown.out.splitlines()}
        shipped = load_themes(paths.shipped_themes(), Path("/nowhere"))[0]
        assert rows == {"dusk": "Late", **{name: theme.description for name, theme in shipped.items()}}
        assert f"{themes / 'bad.toml'}: line 2: colors.line: 1 must be text in quotes" in shown.err


def test_json_says_where_each_comes_from(themes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    themes.mkdir(parents=True)
    (themes / "dusk.toml").write_text("dark = false\n")
    assert cli.main(["themes", "list", "--json"]) == 0
    listed = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert listed["dusk"]["path"] == str(themes / "dusk.toml")
    assert listed["dusk"]["shipped"] is False
    assert listed["dusk"]["dark"] is False
    assert listed["tide"]["shipped"] is True
    assert [name for name, one in listed.items() if one["terminal_colors"]] == ["ansi", "mono"]
    assert cli.main(["themes", "show", "tide", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["colors"]["roles.user"] == shown["colors"]["foam"]
    assert shown["styles"]["heading"] == "bold"


def test_on_a_terminal_each_is_shown_in_its_own_colours() -> None:
    shown = on_terminal("list")
    plain = ESCAPES.sub("", shown)
    assert plain.count("▌ How do I sort words by their length?") == 10
    assert plain.count("def by_length") == 10
    assert max(map(len, plain.splitlines())) <= 80
    for theme in load_themes(paths.shipped_themes(), Path("/nowhere"))[0].values():
        at = shown.index(f" {theme.name} ")
        part = shown[at : at + 4000]
        for key in ("roles.assistant", "text.link", "text.code", "syntax.keyword"):
            color = theme.colors[key]
            if color.startswith("#"):
                assert f"38;2;{';'.join(str(int(color[i : i + 2], 16)) for i in (1, 3, 5))}" in part
    mono = shown[shown.index(" mono ") : shown.index(" moss ")].rpartition("\n\n")[0]
    codes = {int(code) for found in ESCAPES.findall(mono) for code in found[2:-1].split(";")}
    assert codes <= {0, 1, 2, 3, 4, 39, 49}


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_without_colours_gets_plain_lines(environment: dict[str, str]) -> None:
    shown = on_terminal("list", **environment)
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 10


def test_show_names_every_colour_and_no_name_of_one_steers_the_terminal(themes: Path) -> None:
    themes.mkdir(parents=True)
    (themes / "dusk.toml").write_text('[colors]\n"\\u001b]52;c;aGk=\\u0007" = "#123456"\n')
    shown = on_terminal("show", "dusk")
    assert "roles.assistant" in shown
    assert "#123456" in shown
    assert "⋮ They want" in ESCAPES.sub("", shown)
    assert "\x1b]" not in shown
    assert "\x07" not in shown


def test_a_new_theme_is_a_file_that_can_be_used(themes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["themes", "new", "dawn"]) == 0
    assert capsys.readouterr().out == f"{themes / 'dawn.toml'}\n"
    loaded, errors = load_themes(paths.shipped_themes(), themes)
    assert errors == []
    assert loaded["dawn"].colors == loaded["exlchat-dark"].colors
    assert cli.main(["themes", "path", "dawn"]) == 0
    assert capsys.readouterr().out == f"{themes / 'dawn.toml'}\n"


def test_a_copy_has_the_colours_and_comments_of_the_other_and_a_name_of_its_own(
    themes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["themes", "new", "deep", "--from", "tide"]) == 0
    assert cli.main(["themes", "new", "deeper", "--from", "deep"]) == 0
    loaded, errors = load_themes(paths.shipped_themes(), themes)
    assert errors == []
    for name in ("deep", "deeper"):
        assert loaded["tide"].colors.items() <= loaded[name].colors.items()
        assert "# Deep water under a clear night" in (themes / f"{name}.toml").read_text()


def test_nothing_is_overwritten_and_no_path_is_a_name(themes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    themes.mkdir(parents=True)
    (themes / "dusk.toml").write_text("dark = true\n")
    (themes / "link.toml").symlink_to(themes / "elsewhere.toml")
    assert cli.main(["themes", "new", "dusk"]) == 1
    assert cli.main(["themes", "new", "link"]) == 1
    assert capsys.readouterr().err.count("is there already") == 2
    assert (themes / "dusk.toml").read_text() == "dark = true\n"
    for name in ("../x", "A", "", "a b", "x" * 65):
        assert cli.main(["themes", "new", name]) == 1
        assert "cannot name a theme" in capsys.readouterr().err
    assert sorted(path.name for path in themes.iterdir()) == ["dusk.toml", "link.toml"]


def test_a_theme_that_is_not_there_or_broken_is_said_in_one_line(
    themes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    themes.mkdir(parents=True)
    (themes / "bad.toml").write_text("[colors\n")
    assert cli.main(["themes", "show", "mosss"]) == 1
    assert capsys.readouterr().err == "exlchat: there is no theme 'mosss'; did you mean moss?\n"
    assert cli.main(["themes", "new", "good", "--from", "bad"]) == 1
    assert "bad.toml: not valid TOML" in capsys.readouterr().err
    assert cli.main(["themes", "path"]) == 0
    assert capsys.readouterr().out == f"{themes}\n"


def test_a_theme_of_a_shipped_name_takes_its_place_and_says_so(
    themes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["themes", "new", "moss"]) == 0
    assert "moss takes the place of another theme of that name" in capsys.readouterr().err
