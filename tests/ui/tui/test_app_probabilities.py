"""The probabilities of an answer's tokens on the screen, and an answer that goes on from another one."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import OptionList

from exlchat.chat.store.conversations import ConversationStore
from exlchat.llm.info import ModelError
from exlchat.ui.tui.app import ChatApp
from exlchat.ui.tui.screens.probabilities import ProbabilitiesScreen
from exlchat.ui.tui.widgets.token_text import TokenText
from tests.ui.app_harness import app, idle, say, shown, told, until
from tests.ui.scripted_engine import ScriptedEngine
from tests.ui.tui.test_app import THINKING
from tests.ui.tui.test_app_messages import branch, talked


async def opened(pilot: Pilot[int], chat: ChatApp, *keys: str) -> TokenText:
    """Go to the last message, or to one by keys, and have its tokens shown."""
    await pilot.press("ctrl+up", *keys, "i")
    await until(pilot, lambda: isinstance(chat.screen, ProbabilitiesScreen) and bool(chat.screen._offered))
    assert isinstance(chat.screen, ProbabilitiesScreen)
    return chat.screen.tokens


def line(chat: ChatApp) -> str:
    """What is said of the token under the cursor."""
    assert isinstance(chat.screen, ProbabilitiesScreen)
    return str(chat.screen.about.content)


async def test_the_cursor_goes_over_tokens_and_tells_what_else_was_likely(tmp_path: Path) -> None:
    engine = ScriptedEngine("one\ntwO 3 four")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 40)) as pilot:
        await talked(pilot, "1?")
        tokens = await opened(pilot, chat)
        asked = engine.requests[-1].prompt_ids
        assert tuple(engine.scored[-1].ids[: engine.scored[-1].start]) == tuple(asked)
        assert line(chat) == "o · 80.0 % · rank 1 · 1 of 14"
        page = shown(chat)
        assert "temperature 1" in page
        assert "80.0 % ━━━━━━━━━━   o  ● stands there" in page
        assert "5.0 % ━            ␀ (ends the answer)" in page
        await pilot.press("right", "l", "right")
        assert line(chat) == "⏎ · 80.0 % · rank 1 · 4 of 14"
        await pilot.press("h", "left")
        assert tokens.place == 1
        await pilot.press("down")
        assert (tokens.place, "w" in line(chat)) == (5, True)
        await pilot.press("up")
        assert tokens.place == 1
        await pilot.press("n")
        assert line(chat) == "O · 10.0 % · rank 3 · 7 of 14"
        await pilot.press("n")
        await pilot.pause()
        assert line(chat) == "3 · 0.01 % · rank 100 · 9 of 14"
        await pilot.press("n")
        assert line(chat) == "3 · 0.01 % · rank 100 · 9 of 14 · none below 50 % behind it"
        assert "0.01 % " in shown(chat)
        await pilot.press("N", "end")
        assert line(chat).startswith("behind the last token")
        await pilot.press("home")
        assert tokens.place == 0
        await pilot.press("escape")
        assert chat.screen is chat.chat_screen
        assert branch(chat) == ["1?", "one\ntwO 3 four"]


async def test_another_token_is_taken_beside_the_old_answer_and_undone(tmp_path: Path) -> None:
    engine = ScriptedEngine("one Two", "later", " more")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 40)) as pilot:
        await talked(pilot, "1?", "2?")
        await opened(pilot, chat, "home", "down")
        await pilot.press("n", "1")
        await until(pilot, lambda: branch(chat) == ["1?", "one X more"])
        await idle(pilot)
        assert engine.prompts[-1].endswith("<|im_start|>assistantone X")
        assert engine.requests[-1].begun == len("one X")
        taken = chat.session.branch[-1]
        assert taken.token_ids == tuple(engine.encode("one X more"))
        assert taken.status == "complete"
        await pilot.pause()
        assert "‹2/2›" in shown(chat)
        assert chat.chat_screen.transcript.cursor == taken.id, "the keys go on with the new answer"
        await say(pilot, "/undo")
        await pilot.pause()
        assert branch(chat) == ["1?", "one Two", "2?", "later"]
        assert "Undone: another token" in told(chat)
        await say(pilot, "/redo")
        await pilot.pause()
        assert branch(chat) == ["1?", "one X more"]
        await pilot.press("ctrl+up", "end", "left")
        await pilot.pause()
        assert branch(chat) == ["1?", "one Two", "2?", "later"]


async def test_an_alternative_is_chosen_in_the_list(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("abc", "!"))
    async with chat.run_test(size=(100, 40)) as pilot:
        await talked(pilot, "1?")
        await opened(pilot, chat)
        await pilot.press("right", "enter", "down", "down", "escape")
        assert isinstance(chat.screen, ProbabilitiesScreen), "escape goes back to the answer first"
        await pilot.press("enter", "enter")
        await until(pilot, lambda: branch(chat) == ["1?", "aY!"])


async def test_the_token_that_ends_an_answer_ends_it_there(tmp_path: Path) -> None:
    engine = ScriptedEngine("abc", "never said")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 40)) as pilot:
        await talked(pilot, "1?")
        await opened(pilot, chat)
        await pilot.press("right", "right")
        assert isinstance(chat.screen, ProbabilitiesScreen)
        place = next(at for at, one in enumerate(chat.screen._offered) if one.token_id == 0)
        await pilot.press(str(place + 1))
        await until(pilot, lambda: branch(chat) == ["1?", "ab"])
        await idle(pilot)
        ended = chat.session.branch[-1]
        assert (ended.status, ended.token_ids) == ("complete", tuple(engine.encode("ab")))
        assert len(engine.requests) == 1
        assert "/continue" not in shown(chat)
        await say(pilot, "/undo")
        await pilot.pause()
        assert branch(chat) == ["1?", "abc"]


async def test_a_taken_token_is_kept_when_it_is_stopped_at_once(tmp_path: Path) -> None:
    engine = ScriptedEngine("abc", "xyz")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 40)) as pilot:
        await talked(pilot, "1?")
        await opened(pilot, chat)
        engine.hold()
        await pilot.press("right", "2")
        await until(pilot, lambda: len(engine.requests) == 2)
        await pilot.press("i")
        await say(pilot, "/probabilities")
        await until(pilot, lambda: "an answer is on its way" in told(chat))
        assert chat.screen is chat.chat_screen
        await pilot.press("escape")
        await idle(pilot)
        assert branch(chat) == ["1?", "aX"]
        assert chat.session.branch[-1].status == "partial"
        await pilot.pause()
        assert "stopped · /continue goes on" in shown(chat)


async def test_a_long_pass_says_so_and_can_be_given_up(tmp_path: Path) -> None:
    engine = ScriptedEngine("abc", "more")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 40)) as pilot:
        await talked(pilot, "1?")
        engine.hold()
        await say(pilot, "/probabilities")
        await until(pilot, lambda: "Computing the probabilities… 50%" in shown(chat))
        await pilot.press("right", "n", "1", "enter", "escape")
        assert chat.screen is chat.chat_screen
        engine.release()
        await say(pilot, "2?")
        await idle(pilot)
        assert chat.screen is chat.chat_screen
        assert branch(chat)[-1] == "more"


async def test_without_a_model_a_line_says_so(tmp_path: Path) -> None:
    def refuse(_: object) -> ScriptedEngine:
        raise ModelError("no weights there")

    store = ConversationStore(tmp_path / "conversations.db")
    ident = store.create_conversation().id
    store.add_message(ident, "user", "1?")
    store.close_answer(store.begin_answer(ident, store.load(ident).tip_id).id, "abc", [97, 98, 99], "complete")
    chat = app(tmp_path, load=refuse, store=store, continue_last=True)
    async with chat.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: chat.chat_screen.model.failure is not None)
        await pilot.press("ctrl+up", "i")
        await until(pilot, lambda: "there is no model to compute probabilities" in told(chat))
        assert chat.screen is chat.chat_screen
        await pilot.press("home", "i")
        await until(pilot, lambda: "only answers have probabilities" in told(chat))


async def test_the_answer_of_another_model_is_computed_with_this_one_and_says_so(tmp_path: Path) -> None:
    engine = ScriptedEngine("abc")
    first = app(tmp_path, engine)
    async with first.run_test(size=(100, 40)) as pilot:
        await talked(pilot, "1?")
    other = ScriptedEngine(" and so on", name="other")
    chat = app(tmp_path, other, continue_last=True)
    async with chat.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: chat.chat_screen.model.info is not None)
        await opened(pilot, chat)
        assert "This is an answer of scripted; the probabilities are those of other." in shown(chat)
        await pilot.press("1")
        await until(pilot, lambda: branch(chat) == ["1?", "a and so on"])
        await idle(pilot)
        record = chat.session.branch[-1].record
        assert record is not None
        assert record.model == "other"


async def test_it_waits_for_the_model_on_the_screen(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path / "conversations.db")
    ident = store.create_conversation().id
    store.add_message(ident, "user", "1?")
    store.close_answer(store.begin_answer(ident, store.load(ident).tip_id).id, "abc", [97, 98, 99], "complete")
    ready = threading.Event()

    def slow(_: object) -> ScriptedEngine:
        ready.wait(20)
        return ScriptedEngine()

    chat = app(tmp_path, load=slow, store=store, continue_last=True)
    async with chat.run_test(size=(100, 40)) as pilot:
        await pilot.press("ctrl+up", "i")
        await until(pilot, lambda: "They are computed when the model is loaded." in shown(chat))
        ready.set()
        await until(pilot, lambda: "a · 80.0 % · rank 1 · 1 of 3" in shown(chat))
        assert "how this answer came to be was not kept".capitalize() in shown(chat)


@pytest.mark.parametrize("size", [(40, 24), (40, 10), (20, 5)])
async def test_it_is_usable_in_a_small_terminal(tmp_path: Path, size: tuple[int, int]) -> None:
    chat = app(tmp_path, ScriptedEngine("one two three four five six seven eigHt", "!"))
    async with chat.run_test(size=size) as pilot:
        await talked(pilot, "1?")
        tokens = await opened(pilot, chat)
        assert "one" in shown(chat)
        assert "o · 80.0 % · ran" in shown(chat)
        await pilot.press("n")
        await pilot.pause()
        assert tokens.place == 37
        assert "eigHt" in shown(chat)
        assert "60.0 %" in shown(chat)
        assert chat.screen.query_one(OptionList).size.height >= 2
        await pilot.press("enter", "down", "enter")
        await until(pilot, lambda: branch(chat)[-1] == "one two three four five six seven eigY!")


async def test_a_token_within_thoughts_is_taken(tmp_path: Path) -> None:
    engine = ScriptedEngine("<think>Hm.</think>\n\nYes.", "y.</think>\n\nno.", chat_template=THINKING)
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 40)) as pilot:
        await talked(pilot, "1?")
        await opened(pilot, chat)
        assert "<think>Hm.</think>⏎" in shown(chat)
        await pilot.press("n", "1")
        await until(pilot, lambda: branch(chat) == ["1?", "<think>Xy.</think>\n\nno."])
        await idle(pilot)
        assert engine.prompts[-1].endswith("<think>X")
        await pilot.pause()
        assert "thought in 1 words" in shown(chat)
        assert "│ no." in shown(chat)


async def test_by_numbers_it_is_taken_at_once(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("abc", "!"))
    async with chat.run_test(size=(100, 40)) as pilot:
        await talked(pilot, "1?")
        await say(pilot, "/probabilities 1 2 3")
        await until(pilot, lambda: branch(chat) == ["1?", "aY!"])
        await idle(pilot)
        await say(pilot, "/probabilities 2")
        await until(pilot, lambda: "only answers have probabilities" in told(chat))
        await say(pilot, "/probabilities 1 9 1")
        await until(pilot, lambda: "there is no place 9; there are 4" in told(chat))
        assert chat.screen is chat.chat_screen
