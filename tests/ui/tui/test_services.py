"""What a start is made of, and what happens when a part of it is broken."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from exlchat import paths
from exlchat.app import services
from exlchat.app.options import AppOptions
from exlchat.app.runtime import model_loading
from exlchat.app.runtime.cache_sizes import CacheSizes
from exlchat.app.services import open_services
from exlchat.chat.store.conversations import ConversationStore, StoreError
from exlchat.config.files import save_setting
from exlchat.config.layers import typed
from exlchat.config.state import State, load_state, save_state
from exlchat.llm.info import ModelError
from exlchat.llm.sampling import SamplingSettings
from exlchat.ui.tui.app import ChatApp
from tests.ui.app_harness import drawn, say, shown
from tests.ui.scripted_engine import ScriptedEngine

SOME = Path("models/some")


def test_a_first_start_has_defaults_and_nothing_to_say() -> None:
    opened = open_services(AppOptions(SOME))
    assert opened.notices == ()
    assert opened.kept
    assert opened.theme == "exlchat-dark"
    assert drawn(opened).sampling == SamplingSettings(temperature=0.7, min_p=0.05)
    assert opened.model_name == "some"


def test_the_guide_answers_greedily_unless_told_otherwise() -> None:
    guide = paths.bundled_model()
    assert drawn(open_services(AppOptions(guide))).sampling.temperature == 0.0
    warm = AppOptions(guide, layers=(typed(temperature=0.9),))
    assert drawn(open_services(warm)).sampling.temperature == 0.9


def test_what_is_typed_beats_the_settings() -> None:
    save_setting("max_tokens", 100)
    save_setting("template", "plain")
    save_setting("system", "from the file")
    opened = open_services(AppOptions(SOME, layers=(typed(max_tokens=7, system="typed"),)))
    assert (drawn(opened).max_tokens, opened.defaults.held.value("template"), opened.defaults.system) == (
        7,
        "plain",
        "typed",
    )


def test_closing_removes_for_good_what_was_deleted_a_month_ago() -> None:
    file = open_services(AppOptions(SOME)).store.path
    month_ago = ConversationStore(file, clock=lambda: time.time() - 31 * 86400)
    old, kept = month_ago.create_conversation().id, month_ago.create_conversation().id
    for ident in (old, kept):
        month_ago.add_message(ident, "user", "hello")
    month_ago.delete(old)
    month_ago.close()
    open_services(AppOptions(SOME)).close()
    later = ConversationStore(file)
    assert [one.id for one in later.list_conversations()] == [kept]
    with pytest.raises(StoreError, match="there is no conversation"):
        later.undo_delete(old)


def test_a_broken_settings_file_is_named_and_defaults_hold() -> None:
    file = paths.folders().settings_file
    paths.ensure_folder(file.parent)
    file.write_text("theem = 3\n")
    opened = open_services(AppOptions(SOME))
    assert len(opened.notices) == 1
    assert "theem" in opened.notices[0]
    assert opened.theme == "exlchat-dark"


def test_an_unknown_theme_is_named() -> None:
    opened = open_services(AppOptions(SOME, layers=(typed(theme="solarized"),)))
    assert opened.theme == "exlchat-dark"
    assert "solarized" in opened.notices[0]


@pytest.mark.parametrize("kind", ["newer", "not a database", "a folder"])
def test_a_database_that_cannot_be_used_leaves_a_line_and_a_chat_in_memory(kind: str) -> None:
    path = paths.folders().conversations
    paths.ensure_folder(path.parent)
    if kind == "newer":
        ConversationStore(path).close()
        with sqlite3.connect(path) as database:
            database.execute("PRAGMA user_version = 99")
    elif kind == "not a database":
        path.write_bytes(b"something else entirely, and long enough to be looked at" * 100)
    else:
        path.mkdir()
    before = path.read_bytes() if path.is_file() else None
    opened = open_services(AppOptions(SOME))
    assert not opened.kept
    assert len(opened.notices) == 1
    assert str(path) in opened.notices[0]
    assert "nothing of this session is kept" in opened.notices[0]
    opened.store.add_message(opened.store.create_conversation().id, "user", "works")
    assert (path.read_bytes() if path.is_file() else None) == before


def test_a_model_that_loaded_is_opened_next_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(services, "load_wanted", lambda *_, **__: ScriptedEngine())
    open_services(AppOptions(tmp_path)).load_engine(lambda _: None)
    assert load_state()[0].last_model == str(tmp_path)


def test_a_model_that_does_not_load_is_not_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ModelError("broken")

    monkeypatch.setattr(services, "load_wanted", fail)
    with pytest.raises(ModelError):
        open_services(AppOptions(tmp_path)).load_engine(lambda _: None)
    assert load_state()[0].last_model is None


def test_a_model_on_a_drive_that_is_away_is_not_forgotten_for_the_guide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "load_wanted", lambda *_, **__: ScriptedEngine())
    save_state(State(last_model="/media/away/model"))
    open_services(AppOptions(paths.bundled_model())).load_engine(lambda _: None)
    assert load_state()[0].last_model == "/media/away/model"


def test_without_any_model_loading_says_what_to_do() -> None:
    opened = open_services(AppOptions(None))
    with pytest.raises(ModelError, match="exlchat MODEL_DIR"):
        opened.load_engine(lambda _: None)


NOT_ON_THE_FIRST_SCREEN = (
    "torch",
    "markdown_it",
    "pygments.lexers",
    "exlchat.ui.render.markdown.render",
    "exlchat.chat.turn",
    "exlchat.chat.prompt_format",
    "exlchat.ui.tui.screens.help",
    "filelock",
    "ctypes",
)
"""Modules that a new conversation's first screen does not wait for."""


def test_the_app_is_imported_and_painted_without_what_its_first_screen_does_not_show(tmp_path: Path) -> None:
    code = f"""
import asyncio, sys
from pathlib import Path
from exlchat.app import services
from exlchat.app.options import AppOptions
from exlchat.ui.tui.app import ChatApp
loaded, seen = [], []
painted = ChatApp._painted
def _painted(self):
    loaded.extend(name for name in {NOT_ON_THE_FIRST_SCREEN} if name in sys.modules)
    painted(self)
ChatApp._painted = _painted
def load(*_, **__):
    seen.append("torch" in sys.modules)
    raise RuntimeError("no engine here")
services.load_wanted = load
async def main():
    chat = ChatApp(services.open_services(AppOptions(model_path=Path("m"))))
    async with chat.run_test() as pilot:
        while not seen:
            await pilot.pause(0.01)
asyncio.run(main())
print(loaded, seen)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[] [False]\n"


@pytest.mark.parametrize(("kept", "disk"), [(True, 4.0), (False, None)])
def test_what_is_not_kept_leaves_no_pages_either(monkeypatch: pytest.MonkeyPatch, kept: bool, disk: object) -> None:
    asked = []

    def load(*_: object, cache_sizes: CacheSizes, **__: object) -> ScriptedEngine:
        asked.append(cache_sizes.disk_gigabytes)
        return ScriptedEngine()

    monkeypatch.setattr(model_loading, "load_model", load)
    if not kept:
        path = paths.folders().conversations
        paths.ensure_folder(path.parent)
        path.mkdir()
    opened = open_services(AppOptions(SOME))
    assert opened.kept == kept
    opened.load_engine(lambda _: None)
    assert asked == [disk]


async def test_incognito_keeps_nothing_and_shows_nothing_of_before(home: Path) -> None:
    other = paths.folders().conversations
    paths.ensure_folder(other.parent)
    store = ConversationStore(other)
    store.add_message(store.create_conversation().id, "user", "said before")
    store.close()
    before = {file: file.read_bytes() for file in home.rglob("*") if file.is_file()}
    chat = ChatApp(open_services(AppOptions(None, incognito=True)))
    async with chat.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        assert "nothing is kept" in shown(chat)
        assert "said before" not in shown(chat)
        await say(pilot, "a secret word")
        await pilot.press("ctrl+n", *"a secret draft")
        await pilot.pause()
        assert "a secret word" in shown(chat)
        chat.leave()
    chat.session.store.close()
    now = {file: file.read_bytes() for file in home.rglob("*") if file.is_file()}
    assert not [file for file, said in now.items() if b"secret" in said]
    assert now.keys() == before.keys()
