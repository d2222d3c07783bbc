"""An answer that ends on a full disk: nothing of it is lost while the program runs, and no quit loses it quietly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from textual.pilot import Pilot

from exlchat.chat.store.conversations import ConversationStore
from exlchat.ui.tui.app import ChatApp
from tests.ui.app_harness import app, idle, say, told, until
from tests.ui.scripted_engine import ScriptedEngine

LONG = "all of it " * 1000  # more than the pages that the database has left over


@contextmanager
def full_disk(store: ConversationStore) -> Iterator[None]:
    """SQLite reports a database at its page limit as it reports a full disk."""
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    yield
    store._db.execute("PRAGMA max_page_count = 1000000")


def texts(folder: Path) -> list[str]:
    store = ConversationStore(folder / "conversations.db")
    (summary,) = store.list_conversations()
    found = [message.text for message in store.load(summary.id).branch]
    store.close()
    return found


async def begin(pilot: Pilot[int], chat: ChatApp) -> None:
    await say(pilot, "hello")
    await until(pilot, lambda: chat.session.being_written is not None)


def held() -> ScriptedEngine:
    engine = ScriptedEngine(LONG, "second", max_seq_len=100_000)
    engine.hold()
    return engine


async def test_an_answer_from_a_full_disk_is_written_when_there_is_room_again(tmp_path: Path) -> None:
    engine = held()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(140, 30), notifications=True) as pilot:
        await begin(pilot, chat)
        with full_disk(chat.session.store):
            engine.release()
            await until(pilot, lambda: "the answer is not on disk" in told(chat))
            await pilot.press("ctrl+q")
            await until(pilot, lambda: "quit again to lose its end" in told(chat))
            assert chat.is_running
        await until(pilot, lambda: "The answer is on disk now" in told(chat))
        assert texts(tmp_path) == ["hello", LONG]


async def test_the_next_message_brings_the_answer_before_it_to_disk(tmp_path: Path) -> None:
    engine = held()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(140, 30), notifications=True) as pilot:
        await begin(pilot, chat)
        with full_disk(chat.session.store):
            engine.release()
            await until(pilot, lambda: "the answer is not on disk" in told(chat))
            chat.session.reload()
            assert [message.text for message in chat.session.branch] == ["hello", LONG]
        await say(pilot, "and now?")
        await until(pilot, lambda: len(chat.session.branch) == 4)
        await idle(pilot)
    assert texts(tmp_path) == ["hello", LONG, "and now?", "second"]


async def test_quitting_twice_leaves_an_answer_that_cannot_be_kept(tmp_path: Path) -> None:
    engine = held()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(140, 30), notifications=True) as pilot:
        await begin(pilot, chat)
        with full_disk(chat.session.store):
            engine.release()
            await until(pilot, lambda: "the answer is not on disk" in told(chat))
            await pilot.press("ctrl+q", "ctrl+q")
            await until(pilot, lambda: not chat.is_running)
    assert chat.return_code == 0


async def test_quitting_in_mid_answer_on_a_full_disk_is_not_silent(tmp_path: Path) -> None:
    engine = held()
    chat = app(tmp_path, engine)
    limit = ExitStack()
    async with chat.run_test(size=(140, 30)) as pilot:
        await begin(pilot, chat)
        limit.enter_context(full_disk(chat.session.store))
        engine.step(9000)
        written = chat.session.being_written
        assert written is not None
        await until(pilot, lambda: len("".join(written.answer)) == 9000)
        await pilot.press("ctrl+q")
    limit.close()
    assert "the disk is full" in (chat.not_kept or "")
