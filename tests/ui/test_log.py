"""What the program has said: in this run, and in a file where it was a warning or nobody expected it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from exlchat.app.log import Log, UnwrittenLog
from exlchat.app.runtime.errors import told_error
from exlchat.chat.store.conversations import StoreError


def test_warnings_stand_in_a_private_file_and_the_rest_in_this_run_only(tmp_path: Path) -> None:
    path = tmp_path / "state" / "exlchat.log"
    log = Log(path)
    log.say("Copied", warning=False)
    assert not path.exists()
    log.say("the disk is full", warning=True)
    assert "WARNING the disk is full" in path.read_text()
    assert "Copied" not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    rows = list(log.rows())
    assert [right for left, right in rows if ":" in left] == ["! the disk is full", "Copied"]
    assert (rows[-1][1]) == str(path)


def test_only_errors_that_nobody_expected_leave_a_traceback(tmp_path: Path) -> None:
    Log(tmp_path / "log")
    with pytest.raises(ZeroDivisionError) as raised:
        _ = 1 / 0
    assert told_error(raised.value) == "ZeroDivisionError: division by zero"
    assert told_error(StoreError("no room")) == "no room"
    written = (tmp_path / "log").read_text()
    assert "Traceback (most recent call last)" in written
    assert "test_log.py" in written
    assert "no room" not in written


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = Log(tmp_path / "file" / "log")
    log.say("told all the same", warning=True)
    assert any("told all the same" in right for _, right in log.rows())


def test_where_nothing_is_kept_no_file_is_written(tmp_path: Path) -> None:
    Log(tmp_path / "log")
    log = Log(None)
    log.say("told", warning=True)
    assert not (tmp_path / "log").exists()
    assert "nothing of this run is kept" in list(log.rows())[-1][1]


def test_what_a_stranger_wrote_steers_no_terminal_that_shows_the_file(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.say("a model called \x1b]52;c;aGk=\x07", warning=True)
    assert not set((tmp_path / "log").read_text()) & set("\x1b\x07")


def test_lines_of_what_is_kept_nowhere_stay_out_of_the_file_that_goes_on(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    beside = UnwrittenLog()
    beside.say("told beside", warning=True)
    told_error(ZeroDivisionError("beside"), logged=False)
    log.say("told after", warning=True)
    assert "beside" not in (tmp_path / "log").read_text()
    assert "told after" in (tmp_path / "log").read_text()
    assert any("told beside" in right for _, right in beside.rows())
