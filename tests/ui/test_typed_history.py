"""What was typed, over runs: one file for the app and the line mode, in prompt_toolkit's form."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.history import FileHistory

from exlchat.app.composer.history import TypedHistory
from exlchat.app.composer.recall import Recall


def test_it_outlives_the_run_in_a_private_file_that_prompt_toolkit_reads(tmp_path: Path) -> None:
    path = tmp_path / "state" / "line_history"
    first = TypedHistory(path)
    for text in ("one", "two\n\n+lines # of it", "one"):
        assert first.add(text) is None
    assert first.texts() == TypedHistory(path).texts() == ["two\n\n+lines # of it", "one"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(FileHistory(str(path)).load_history_strings()) == ["one", "two\n\n+lines # of it", "one"]


@given(st.lists(st.text(st.characters(exclude_characters="\r"), max_size=20)))
def test_any_texts_come_back(texts: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kept = TypedHistory(Path(folder) / "typed")
        for text in texts:
            kept.add(text)
        assert TypedHistory(Path(folder) / "typed").texts() == kept.texts()


def test_what_cannot_be_kept_is_told_once_and_stays_for_this_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = TypedHistory(tmp_path / "file" / "below")
    line = kept.add("a")
    assert "what you type is not kept for other runs" in (line or "")
    assert kept.add("b") is None
    assert TypedHistory(None).texts() == []


def test_a_text_too_long_for_the_file_is_left_out(tmp_path: Path) -> None:
    kept = TypedHistory(tmp_path / "typed")
    kept.add("x" * 100_000)
    assert kept.texts() == []


def test_going_back_passes_this_conversation_first_and_commands_never() -> None:
    recall = Recall(lambda: ["old", "/retry", "here too"])
    recall.set_here(["here", "here too"])
    assert [recall.before("draft"), recall.before("x"), recall.before("x"), recall.before("x")] == [
        "here too",
        "here",
        "old",
        None,
    ]
    assert recall.draft_behind("old") == "draft"
    assert recall.draft_behind("old, changed") == "old, changed"
    assert [recall.after(), recall.after(), recall.after()] == ["here", "here too", "draft"]
    assert not recall.begun
