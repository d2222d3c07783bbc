"""Files named in a message: which they are, what of them goes with it, which names are offered."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat.app.commands.code_files import code_blocks
from exlchat.app.composer.file_mentions import (
    BegunMention,
    MentionError,
    begun_mention,
    mention_of,
    mentioned_files,
    with_files,
    without_files,
)
from exlchat.app.composer.file_names import FileNames


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("notes.txt", "my file.md", "src/app/main.py", "src/app/model.py", ".hidden", "node_modules/x/main.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"text of {name}\n")
    return tmp_path


def test_only_names_of_files_that_are_there_count(folder: Path) -> None:
    text = 'Compare @notes.txt, @"my file.md" and (@src/app/main.py? with @you, @src, me@notes.txt. Also @notes.txt!'
    assert mentioned_files(text, folder) == ["notes.txt", "my file.md"]
    assert mentioned_files(f"@{folder}/notes.txt", Path("/")) == [f"{folder}/notes.txt"]


def test_the_text_of_a_file_goes_below_the_message_once(folder: Path) -> None:
    sent = with_files("Why does @src/app/main.py fail?", folder)
    assert sent == "Why does @src/app/main.py fail?\n\nsrc/app/main.py:\n\n```py\ntext of src/app/main.py\n```"
    assert with_files(sent, folder) == sent
    assert without_files(sent) == "Why does @src/app/main.py fail?"
    both = 'Is @notes.txt, @"my file.md" the same?'
    assert without_files(with_files(both, folder)) == both
    assert without_files("@notes.txt:\n\n```\nmine\n```") == "@notes.txt:\n\n```\nmine\n```"


@given(st.text("`~ab\n ", max_size=60))
def test_a_file_of_fences_stays_one_block(tmp_path_factory: pytest.TempPathFactory, content: str) -> None:
    folder = tmp_path_factory.getbasetemp() / "fences"
    folder.mkdir(exist_ok=True)
    (folder / "f.md").write_text(f"x{content}")
    (block,) = code_blocks(with_files("see @f.md", folder))
    assert block.code.rstrip("\n") == f"x{content}".rstrip("\n")


@pytest.mark.parametrize(
    ("data", "said"), [(b"\xff\xfe\x00", "not text in UTF-8"), (b"a\0b", "not text"), (b"x" * 2_000_001, "2 MB")]
)
def test_what_is_no_text_is_refused_in_one_line(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "odd").write_bytes(data)
    with pytest.raises(MentionError) as error:
        with_files("@odd", tmp_path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_device_or_a_name_that_no_file_can_have_is_plain_text(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    text = "@pipe @/dev/zero @~nobody/x @a\x00b @" + "x" * 5000
    assert with_files(text, tmp_path) == text


@pytest.mark.parametrize(
    ("before", "mention"),
    [
        ("see @no", BegunMention(4, "no")),
        ("@", BegunMention(0, "")),
        ('@"my f', BegunMention(0, "my f")),
        ("me@no", None),
        ("@no ", None),
        ("", None),
    ],
)
def test_a_mention_is_begun_behind_a_space(before: str, mention: BegunMention | None) -> None:
    assert begun_mention(before) == mention


def test_names_are_found_by_their_letters_and_folders_of_others_are_left_out(folder: Path) -> None:
    names = FileNames(folder)
    assert names.having("", 9) == ["notes.txt", "my file.md", "src/app/main.py", "src/app/model.py"]
    assert names.having("mo", 9) == ["src/app/model.py"]
    assert names.having("sapm", 9) == ["src/app/main.py", "src/app/model.py"]
    assert names.having("node_modules/x/", 9) == ["node_modules/x/main.py"]
    assert names.having(f"{folder}/.h", 9) == [f"{folder}/.hidden"]
    assert names.having(f"{folder}/s", 9) == [f"{folder}/src/"]
    assert names.having("zzz", 9) == []


@given(st.text("abc \"'.!", min_size=1, max_size=8).filter(lambda name: '"' not in name and name.strip(" ") == name))
def test_a_name_that_is_offered_is_found_again(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    folder = tmp_path_factory.getbasetemp() / "names"
    folder.mkdir(exist_ok=True)
    if name in (".", ".."):
        return
    (folder / name).write_text("x")
    assert name in mentioned_files(f"see {mention_of(name)} and", folder)
