from __future__ import annotations

from pathlib import Path

import pytest

from exlchat.config.state import State, load_state, save_state


def test_what_was_saved_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path))
    assert load_state() == (State(), None)
    save_state(State(last_model="/models/möwe"))
    assert load_state() == (State(last_model="/models/möwe"), None)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b'{"last_model": 3}', b"[" * 100_000])
def test_a_broken_state_file_is_ignored_with_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)
    state, notice = load_state(path)
    assert state == State()
    assert notice is not None
    assert str(path) in notice
    assert "\n" not in notice
    save_state(State(last_model="m"), path)
    assert load_state(path) == (State(last_model="m"), None)


def test_keys_of_a_newer_program_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text('{"last_model": "m", "later": 1}')
    assert load_state(path) == (State(last_model="m"), None)
