"""The one opener: plain files alone, without waiting, within a bound."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from exlchat.untrusted import files
from exlchat.untrusted.files import NoSuchFileError, UntrustedFileError
from exlchat.untrusted.json_reader import read_json_file
from tests.untrusted.no_files import HUGE, NOT_PLAIN


def text_of(path: Path) -> str:
    return files.read_text(path, largest=10, kind="note")


@pytest.mark.parametrize("make", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_what_is_no_plain_file_is_refused_at_once(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "note")
    line = f"{tmp_path}/note: not a plain file; give one"
    readers: list[Callable[[Path], object]] = [text_of, files.open_plain, files.check_plain, files.open_to_append]
    for read in readers:
        with pytest.raises(UntrustedFileError) as error:
            read(tmp_path / "note")
        assert str(error.value) == line


def test_one_that_becomes_a_pipe_between_look_and_opening_is_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "note"
    note.write_text("plain")
    looked = files.check_plain

    def swapped(path: Path) -> None:
        looked(path)
        path.unlink()
        os.mkfifo(path)

    monkeypatch.setattr(files, "check_plain", swapped)
    with pytest.raises(UntrustedFileError, match="not a plain file"):
        files.open_plain(note)


def test_a_link_to_a_plain_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "blob").write_text("plain")
    (tmp_path / "note").symlink_to("blob")
    assert text_of(tmp_path / "note") == "plain"


@pytest.mark.parametrize("lost", ["nothing", "file/inside"])
def test_one_that_is_not_there_is_told_apart(lost: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("nothing")
    for path in (tmp_path / lost, tmp_path / "link"):
        with pytest.raises(NoSuchFileError, match="there is no such file"):
            text_of(path)


@pytest.mark.parametrize("size", [11, HUGE])
def test_one_that_is_too_large_is_not_read(size: int, tmp_path: Path) -> None:
    with (tmp_path / "note").open("wb") as file:
        file.truncate(size)
    with pytest.raises(UntrustedFileError, match="larger than 10 bytes, which no note is; give another"):
        text_of(tmp_path / "note")


def test_one_of_just_that_size_is_read(tmp_path: Path) -> None:
    (tmp_path / "note").write_text("0123456789")
    assert text_of(tmp_path / "note") == "0123456789"


def test_one_whose_size_is_not_told_is_bounded_as_well() -> None:
    """The kernel says that its files are empty."""
    assert Path("/proc/self/maps").stat().st_size == 0
    with pytest.raises(UntrustedFileError, match="larger than 10 bytes"):
        text_of(Path("/proc/self/maps"))


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_name_that_none_can_have(name: str, tmp_path: Path) -> None:
    with pytest.raises(UntrustedFileError, match="no file can have this name"):
        text_of(tmp_path / name)


def test_a_name_forges_no_second_line(tmp_path: Path) -> None:
    with pytest.raises(UntrustedFileError) as error:
        text_of(tmp_path / "a\nexlchat: all is well\r\x1b[2J")
    assert "\n" not in str(error.value)
    assert error.value.clause == "there is no such file"


def test_a_mark_of_byte_order_is_no_text_and_other_encodings_are_told(tmp_path: Path) -> None:
    (tmp_path / "note").write_bytes(b"\xef\xbb\xbfplain")
    assert text_of(tmp_path / "note") == "plain"
    (tmp_path / "note").write_bytes(b"caf\xe9")
    with pytest.raises(UntrustedFileError, match="byte 3 is not UTF-8; save the file as UTF-8"):
        text_of(tmp_path / "note")


@pytest.mark.parametrize(
    ("content", "words"),
    [("[" * 100_000, "nested deeper"), ("{", "not JSON"), ("NaN", "not JSON"), ("1e999", "not JSON")],
)
def test_json_that_is_none_is_told_with_its_file(content: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "note").write_text(content)
    with pytest.raises(UntrustedFileError, match=rf"/note: .*{words}.*; mend it$"):
        read_json_file(tmp_path / "note", largest=10**6, kind="note")


def test_what_python_writes_for_numbers_without_end_is_taken_where_python_writes_them(tmp_path: Path) -> None:
    (tmp_path / "note").write_text('{"a": [0.0, Infinity, -Infinity, 1e999]}')
    endless = float("inf")
    found = read_json_file(tmp_path / "note", largest=100, kind="note", endless=True)
    assert found == {"a": [0.0, endless, -endless, endless]}


def test_what_is_appended_to_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    for text in (b"one ", b"two"):
        with files.open_to_append(tmp_path / "note") as out:
            out.write(text)
    assert (tmp_path / "note").read_bytes() == b"one two"
    assert (tmp_path / "note").stat().st_mode & 0o777 == 0o600
