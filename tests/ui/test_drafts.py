"""What was typed and not sent outlives the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from exlchat.paths import FolderError
from exlchat.ui.drafts import Drafts


def test_a_draft_is_there_in_the_next_run(tmp_path: Path) -> None:
    Drafts(tmp_path / "drafts.json").put("c1", (), "half a thought")
    again = Drafts(tmp_path / "drafts.json")
    assert again.get("c1") == "half a thought"
    assert again.get("c2") == ""


def test_prompts_that_wait_come_before_what_is_being_typed(tmp_path: Path) -> None:
    drafts = Drafts(tmp_path / "drafts.json")
    drafts.put(None, ("first", "second"), "third\nline")
    assert drafts.get(None) == "first\n\nsecond\n\nthird\nline"


def test_two_programs_keep_each_others_drafts(tmp_path: Path) -> None:
    path = tmp_path / "drafts.json"
    one, other = Drafts(path), Drafts(path)
    one.put("c1", (), "of the one")
    other.put("c2", (), "of the other")
    one.put(None, (), "also of the one")
    other.put(None, (), "")
    one.put(None, (), "also of the one")
    other.put("c2", (), "")
    later = Drafts(path)
    assert [later.get("c1"), later.get("c2"), later.get(None)] == ["of the one", "", "also of the one"]


def test_a_draft_that_could_not_be_written_is_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.write_text("in the way")
    drafts = Drafts(folder / "drafts.json")
    with pytest.raises(FolderError):
        drafts.put("c1", (), "precious")
    folder.unlink()
    drafts.put("c1", (), "precious")
    assert Drafts(folder / "drafts.json").get("c1") == "precious"


def test_an_empty_draft_is_forgotten(tmp_path: Path) -> None:
    drafts = Drafts(tmp_path / "drafts.json")
    drafts.put("c1", (), "text")
    drafts.put("c1", (), "  ")
    assert Drafts(tmp_path / "drafts.json").get("c1") == ""


@pytest.mark.parametrize("content", [b"", b"[1, 2]", b"{", b'{"c1": 3}', b"\xff\xfe", b"[" * 100_000])
def test_a_broken_file_counts_as_empty_and_is_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "drafts.json"
    path.write_bytes(content)
    drafts = Drafts(path)
    assert drafts.get("c1") == ""
    drafts.put("c1", (), "new")
    assert Drafts(path).get("c1") == "new"


def test_a_draft_that_cannot_be_written_stays_in_memory(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    drafts = Drafts(blocked / "drafts.json")
    with pytest.raises(FolderError):
        drafts.put("c1", (), "precious")
    assert drafts.get("c1") == "precious"


def test_without_a_file_drafts_live_in_memory() -> None:
    drafts = Drafts(None)
    drafts.put("c1", (), "text")
    assert drafts.get("c1") == "text"
