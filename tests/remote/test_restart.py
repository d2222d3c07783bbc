"""A server that is killed while it answers, and begun again: the text so far stays, and goes on."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from exlchat import paths
from exlchat.app.chat.session import ChatSession
from exlchat.remote.address import Address, Level, Remote
from exlchat.remote.engine import connect
from exlchat.ui.tui.app import ChatApp
from tests.patience import PATIENCE
from tests.remote.peer import llama_server, write_guide
from tests.remote.programs import ServeProgram, free_port, serve_programs
from tests.ui.app_harness import idle, say, services, shown, until

END = 3
"""Id of the guide's token that ends an answer."""
pytestmark = pytest.mark.skipif(not paths.bundled_model().is_dir(), reason="the bundled model has not been made yet")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServeProgram]:
    with serve_programs(tmp_path) as (one,):
        yield one


def chat_over(url: str, folder: Path, level: Level | None = None) -> ChatApp:
    return ChatApp(services(folder, load=lambda _: connect(Remote("there", Address.parse(url), level=level))))


def words(chat: ChatApp) -> str:
    """The screen as one line, without frames and edges, so that wrapping does not matter."""
    return " ".join(re.sub("[│▌·]", " ", shown(chat)).split())


async def test_an_answer_that_a_kill_has_cut_is_kept_and_goes_on_with_the_next_server(
    server: ServeProgram, tmp_path: Path
) -> None:
    chat = chat_over(server.url, tmp_path)
    async with chat.run_test(size=(120, 40)) as pilot:
        session = chat.session
        await until(pilot, lambda: chat.chat_screen.model.info is not None, 4 * PATIENCE)
        # Long, and never the same over and over, so that no machine is through with it before the kill.
        for setting in ("min_tokens 1500", "temperature 1.5", "seed 7"):
            await say(pilot, f"/set {setting}")
        await say(pilot, "What is EXL2?")
        await until(pilot, lambda: (one := session.answering) is not None and len("".join(one.answer)) > 40)
        server.kill()
        await idle(pilot)
        cut = session.branch[-1]
        assert (cut.role, cut.status) == ("assistant", "partial")
        assert len(cut.text) > 40
        broken = f"{server.url}: breaks off before the answer has ended; what has come is kept"
        await until(pilot, lambda: broken in words(chat))
        assert words(chat).count(server.url) == 1

        # While it is away, that is said in a line as well, and nothing is lost.
        await say(pilot, "/continue")
        await until(pilot, lambda: f"{server.url}: nobody answers there" in words(chat))
        await idle(pilot)
        assert session.branch[-1].text == cut.text

        server.start()
        for setting in ("min_tokens 0", "max_tokens 30", "temperature 0"):
            await say(pilot, f"/set {setting}")
        await say(pilot, "/continue")
        await until(pilot, lambda: session.answering is not None or session.branch[-1].status == "complete")
        await idle(pilot)
        last = session.branch[-1]
        assert last.text.startswith(cut.text)
        assert len(last.text) > len(cut.text)
        # The last ones may be of a character that was not whole, and was never shown.
        shown_ids = cut.token_ids[:-4]
        assert last.token_ids[: len(shown_ids)] == shown_ids
        assert [one.role for one in session.branch] == ["user", "assistant"]
        kept = session.store.branch(last.id)[-1]
        assert (kept.text, kept.status) == (last.text, last.status)


async def test_a_server_that_was_begun_again_between_two_turns_answers(server: ServeProgram, tmp_path: Path) -> None:
    chat = chat_over(server.url, tmp_path)
    async with chat.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: chat.chat_screen.model.info is not None, 4 * PATIENCE)
        await say(pilot, "/set max_tokens 20")
        await say(pilot, "What is EXL2?")
        await idle(pilot)
        server.kill()
        server.start()
        await say(pilot, "And GPTQ?")
        await idle(pilot)
        assert [one.role for one in chat.session.branch] == ["user", "assistant", "user", "assistant"]
        assert all(one.text for one in chat.session.branch)
        assert server.url not in words(chat)


@pytest.mark.xdist_group("llama-server")
@pytest.mark.parametrize("level", ["ids", "text", "messages"])
async def test_llama_cpps_server_that_was_killed_goes_on_from_the_kept_text(level: Level, tmp_path: Path) -> None:
    model, port = write_guide(tmp_path / "guide.gguf"), free_port()
    with contextlib.ExitStack() as first:
        url = first.enter_context(llama_server(model, port))
        chat = chat_over(url, tmp_path, level)
        async with chat.run_test(size=(120, 40)) as pilot:
            session = chat.session
            await until(pilot, lambda: chat.chat_screen.model.info is not None)
            # It may not end by itself, so that no machine is through with it before the kill.
            for setting in (f"banned_tokens {END}", "temperature 1.5", "seed 7"):
                await say(pilot, f"/set {setting}")
            # Between two looks of the pilot this server says all that it may.
            killer = threading.Thread(target=_close_behind, args=(first, session, 40), daemon=True)
            killer.start()
            await say(pilot, "What is EXL2?")
            await idle(pilot)
            killer.join(PATIENCE)
            cut = session.branch[-1]
            assert (cut.role, cut.status) == ("assistant", "partial")
            assert bool(cut.token_ids) == (level == "ids")
            await until(pilot, lambda: f"{url}: breaks off" in words(chat))
            # Nor may it end at once there, where the text happens to be whole.
            for setting in ("max_tokens 20", "temperature 0"):
                await say(pilot, f"/set {setting}")
            with llama_server(model, port):
                await say(pilot, "/continue")
                await until(pilot, lambda: session.answering is not None or session.branch[-1].status == "complete")
                await idle(pilot)
                last = session.branch[-1]
                assert last.status == "complete"
                assert last.text.startswith(cut.text)
                assert len(last.text) > len(cut.text)


def _close_behind(server: contextlib.ExitStack, session: ChatSession, letters: int) -> None:
    """As soon as so much has been said."""
    while (one := session.answering) is None or len("".join(one.answer)) <= letters:
        time.sleep(0.001)
    server.close()
