"""`exlchat config`, as a program of its own: the real file, the real environment, a script for an editor."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from exlchat.cli.config import new_file
from exlchat.config.files import load_settings
from exlchat.config.schema import SETTINGS, Settings


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def file(home: Path) -> Path:
    file = home / "config" / "settings.toml"
    file.parent.mkdir(parents=True)
    return file


def config(home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("EDITOR", "VISUAL")}
    return subprocess.run(
        [sys.executable, "-m", "exlchat", "config", *arguments],
        env={**clean, "EXLCHAT_HOME": str(home), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_show_says_every_value_and_where_it_comes_from(home: Path, file: Path) -> None:
    file.write_text('theme = "exlchat-light"\ntop_k = 9\n')
    result = config(home, "show", EXLCHAT_TOP_K="4", EXLCHAT_KEYS="retry=f12")
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert 'theme = "exlchat-light"  [file]' in lines
    assert "top_k = 4  [environment]" in lines
    assert "min_p = 0.05" in lines
    assert 'keys = {retry = "f12"}  [environment]' in lines
    for setting in SETTINGS.values():
        assert any(line.startswith(f"{setting.key} = ") for line in lines)
        assert f"    {setting.help}" in lines


def test_list_is_another_name_of_show(home: Path, file: Path) -> None:
    for arguments in ((), ("theme",), ("--json",)):
        assert config(home, "list", *arguments).stdout == config(home, "show", *arguments).stdout != ""


def test_show_of_one_key_says_what_beats_it(home: Path, file: Path) -> None:
    file.write_text("top_k = 9\n")
    text = config(home, "show", "top_k", EXLCHAT_TOP_K="4").stdout
    for part in ("top_k = 4  [environment, EXLCHAT_TOP_K]", "--top-k", "at once", "The file says 9."):
        assert part in text


def test_show_as_json(home: Path, file: Path) -> None:
    file.write_text('model_folders = ["/m"]\n')
    found = {one["key"]: one for one in json.loads(config(home, "show", "--json").stdout)}
    assert found.keys() == SETTINGS.keys()
    assert (found["model_folders"]["value"], found["model_folders"]["source"]) == (["/m"], "file")
    assert found["temperature"]["value"] is None
    assert found["kv_cache"]["takes_effect"] == "next load"
    one = json.loads(config(home, "show", "theme", "--json").stdout)
    assert (one["variable"], one["options"]) == ("EXLCHAT_THEME", ["--theme"])


def test_what_is_wrong_is_said_and_the_rest_shown(home: Path, file: Path) -> None:
    file.write_text("them = 1\n")
    result = config(home, "show", EXLCHAT_TOP_K="4", EXLCHAT_THEMEE="x", EXLCHAT_MIN_P="9")
    assert result.returncode == 1
    assert "did you mean theme? (line 1)" in result.stderr
    assert "EXLCHAT_THEMEE is no setting; did you mean EXLCHAT_THEME?" in result.stderr
    assert "EXLCHAT_MIN_P is 9.0" in result.stderr
    assert "top_k = 4" in result.stdout
    assert config(home, "show", "them").stderr.strip() == "exlchat: unknown key 'them'; did you mean theme?"


def test_the_text_of_a_setting_cannot_steer_the_terminal(home: Path, file: Path) -> None:
    file.write_text('system = "a\\u001b[2Jb"\nuser_name = "b\\u202ec"\n')
    result = config(home, "show")
    assert "\x1b" not in result.stdout + result.stderr
    assert "\u202e" not in result.stdout + result.stderr


def test_path(home: Path) -> None:
    assert config(home, "path").stdout.strip() == str(home / "config" / "settings.toml")


def test_set_and_unset_keep_the_rest(home: Path, file: Path) -> None:
    file.write_text("# mine\nmin_p = 0.1  # why\n")
    result = config(home, "set", "temperature", "0.4")
    assert (result.returncode, result.stdout) == (0, "temperature = 0.4\n")
    assert file.read_text() == "# mine\nmin_p = 0.1  # why\ntemperature = 0.4\n"
    assert config(home, "set", "sidebar", "off").stdout == "sidebar = false\n"
    assert config(home, "set", "model_folders", "/a:/b").returncode == 0
    assert load_settings(file) == Settings(min_p=0.1, temperature=0.4, sidebar=False, model_folders=("/a", "/b"))
    config(home, "unset", "sidebar")
    config(home, "unset", "model_folders")
    assert config(home, "set", "temperature", "none").stdout == "temperature = (0.7, and 0 for the bundled guide)\n"
    assert file.read_text() == "# mine\nmin_p = 0.1  # why\n"


def test_set_makes_the_file(home: Path) -> None:
    config(home, "set", "theme", "exlchat-light")
    assert (home / "config" / "settings.toml").read_text() == 'theme = "exlchat-light"\n'


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("set", "top_k", "many"), "top_k is 'many'; it must be a whole number"),
        (("set", "top_p", "2"), "top_p is 2.0; it must be a number above 0 and at most 1"),
        (("set", "themee", "x"), "unknown key 'themee'; did you mean theme?"),
        (("unset", "themee"), "unknown key 'themee'; did you mean theme?"),
        (("set", "kv_cache", "q5"), "one of auto, fp32"),
        (("set", "cache_gb", "2"), "cache_gb and cache_tokens are both there"),
        (("set", "keys.retry", "ctrl+n"), "ctrl+n is a key of new"),
        (("set", "keys.retry", "ctrl+i"), "cannot be told from tab"),
        (("set", "keys.rety", "f3"), "did you mean retry?"),
    ],
)
def test_what_cannot_be_is_refused_and_the_file_stays(
    home: Path, file: Path, arguments: tuple[str, ...], said: str
) -> None:
    file.write_text("cache_tokens = 512\n")
    result = config(home, *arguments)
    assert result.returncode == 1
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert file.read_text() == "cache_tokens = 512\n"


def test_keys_are_set_one_by_one(home: Path, file: Path) -> None:
    assert config(home, "set", "keys.retry", "ctrl+g, f12").stdout == "keys.retry = ctrl+g, f12\n"
    assert config(home, "set", "keys.new", "ctrl+t").returncode == 0
    assert tomllib.loads(file.read_text()) == {"keys": {"retry": ["ctrl+g", "f12"], "new": "ctrl+t"}}
    assert config(home, "unset", "keys.new").stdout == "keys.new = ctrl+n\n"


def test_set_says_that_the_environment_wins(home: Path) -> None:
    result = config(home, "set", "theme", "b", EXLCHAT_THEME="a")
    assert result.stdout == 'theme = "a"\n'
    assert "EXLCHAT_THEME is set in the environment and beats the file" in result.stderr


def editor(folder: Path, script: str) -> str:
    path = folder / "my editor"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return f"'{path}' --wait"


def test_edit_makes_a_file_of_comments_that_changes_nothing(home: Path, tmp_path: Path) -> None:
    result = config(home, "edit", EDITOR=editor(tmp_path, 'test "$1" = --wait && cat "$2"'))
    assert result.returncode == 0, result.stderr
    text = (home / "config" / "settings.toml").read_text()
    assert result.stdout == text == new_file()
    assert tomllib.loads(text) == {}


def test_every_line_of_the_comments_can_be_used() -> None:
    text = re.sub(r"^# (?=[\w-]+ = |\[keys\])", "", new_file(), flags=re.MULTILINE)
    table = tomllib.loads(text)
    assert table.keys() == SETTINGS.keys()
    table["keys"].clear()
    del table["cache_gb"]
    values = {key: SETTINGS[key].from_toml(value) for key, value in table.items()}
    assert Settings(**values).theme == Settings().theme


def test_visual_goes_before_editor_and_a_wrong_edit_is_kept_and_named(home: Path, file: Path, tmp_path: Path) -> None:
    file.write_text("# mine\n")
    script = 'printf "top_k = -1\\nthem = 2\\n[keys]\\nretry = \\"ctrl+i\\"\\n" >> "$2"'
    result = config(home, "edit", VISUAL=editor(tmp_path, script), EDITOR="false")
    assert result.returncode == 1
    assert "top_k is -1; it must be a whole number, at least 0 and at most 1000000000 (line 2)" in result.stderr
    assert "did you mean theme? (line 3)" in result.stderr
    assert "your edit is kept" in result.stderr
    assert file.read_text() == '# mine\ntop_k = -1\nthem = 2\n[keys]\nretry = "ctrl+i"\n'


def test_keys_that_cannot_be_are_named_after_an_edit(home: Path, file: Path, tmp_path: Path) -> None:
    result = config(home, "edit", EDITOR=editor(tmp_path, 'printf "[keys]\\nretry = \\"ctrl+i\\"\\n" > "$2"'))
    assert "keys.retry: ctrl+i cannot be told from tab in terminals; ctrl+t stays" in result.stderr


def test_an_editor_that_fails_or_is_not_there_is_named(home: Path, tmp_path: Path) -> None:
    result = config(home, "edit", EDITOR=editor(tmp_path, "exit 3"))
    assert (result.returncode, "ended with exit code 3" in result.stderr) == (1, True)
    assert "no-such-editor cannot be started" in config(home, "edit", EDITOR="no-such-editor").stderr
    assert "EDITOR is" in config(home, "edit", EDITOR="'open").stderr
