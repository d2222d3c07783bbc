"""The app as a person meets it: the real app, a real database, a scripted engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual import events

from exlchat.app.runtime.jobs import JobEvent, Report
from exlchat.chat.model import Conversation
from exlchat.chat.store.conversations import ConversationStore, StoreError
from exlchat.config.schema import Settings
from exlchat.llm.events import Event, PrefillProgress
from exlchat.llm.info import CLOSE_SECONDS, LoadProgress, ModelError
from exlchat.llm.port import Capabilities, Engine
from exlchat.llm.request import GenerationRequest, Rank
from tests.patience import PATIENCE
from tests.ui.app_harness import app, idle, say, shown, told, until
from tests.ui.scripted_engine import CHATML, ScriptedEngine

OnProgress = Callable[[LoadProgress], None]


def conversation_text(folder: Path) -> list[tuple[str, str, str]]:
    """Role, text and status of the newest conversation, as another program would read it."""
    store = ConversationStore(folder / "conversations.db")
    try:
        newest = store.list_conversations()[0]
        return [(one.role, one.text, one.status) for one in store.load(newest.id).branch]
    finally:
        store.close()


async def test_a_prompt_is_answered_and_both_are_on_disk(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("Hello **you**."))
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "hi there")
        await idle(pilot)
        screen = shown(chat)
        assert "hi there" in screen
        assert "Hello you." in screen
        assert chat.chat_screen.composer.text == ""
    assert conversation_text(tmp_path) == [
        ("user", "hi there", "complete"),
        ("assistant", "Hello **you**.", "complete"),
    ]


async def test_a_model_without_a_template_is_told_of_in_the_first_run_only(tmp_path: Path) -> None:
    for first in (True, False):
        chat = app(tmp_path, ScriptedEngine("one", "two", chat_template=None))
        async with chat.run_test(size=(140, 30)) as pilot:
            for prompt in ("1?", "2?"):
                await say(pilot, prompt)
                await idle(pilot)
            assert shown(chat).count("no chat template of its own") == first


async def test_the_status_line_tells_the_figures(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("Four"))
    async with chat.run_test(size=(140, 30)) as pilot:
        await say(pilot, "2 + 2?")
        await idle(pilot)
        line = shown(chat).splitlines()[-1]
    # ChatML of the one message is 55 characters (Jinja drops the last newline), each a token; half of them are cached.
    assert "scripted" in line
    assert "59 of 4,096" in line
    assert "3.0 tokens/s" in line
    assert "27 remembered + 28 read" in line
    assert "began after 0.25 s" in line


class _Reading(ScriptedEngine):
    """Has read a third of a prompt, and waits."""

    def __init__(self) -> None:
        super().__init__("read")
        self.go = threading.Event()

    def _events(self, request: GenerationRequest, cancelled: threading.Event) -> Iterator[Event]:
        yield PrefillProgress(30, 90, 0)
        assert self.go.wait(PATIENCE)
        yield from super()._events(request, cancelled)


async def test_the_status_line_tells_how_much_of_a_long_prompt_is_read(tmp_path: Path) -> None:
    engine = _Reading()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "A long one")
        await until(pilot, lambda: "reading 33%" in shown(chat))
        engine.go.set()
        await idle(pilot)
        assert "reading" not in shown(chat)


async def test_the_status_line_never_tells_the_figures_of_the_answer_before(tmp_path: Path) -> None:
    engine = ScriptedEngine("Four", "Five")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(140, 30)) as pilot:
        await say(pilot, "2 + 2?")
        await idle(pilot)
        assert chat.chat_screen.status.facts.rate is not None
        engine.hold()
        await say(pilot, "2 + 3?")
        await until(pilot, lambda: chat.session.being_written is not None)
        await until(pilot, lambda: chat.chat_screen.status.facts.rate is None)
        facts = chat.chat_screen.status.facts
        assert (facts.cached, facts.new, facts.first_token) == (None, None, None)
        engine.release()
        await idle(pilot)


async def test_the_first_screen_is_there_while_the_model_loads_and_a_prompt_waits_on_disk(tmp_path: Path) -> None:
    loading = threading.Event()

    def load(on_progress: OnProgress) -> Engine:
        on_progress(LoadProgress(3, 4, "reading weights"))
        loading.wait(20)
        return ScriptedEngine("At last.")

    chat = app(tmp_path, load=load)
    async with chat.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: "reading weights 75%" in shown(chat))
        await say(pilot, "are you there?")
        await until(pilot, lambda: "Waiting for the model" in shown(chat))
        assert conversation_text(tmp_path) == [("user", "are you there?", "complete")]
        loading.set()
        await until(pilot, lambda: "At last." in shown(chat))
        await idle(pilot)
        assert "Waiting for the model" not in shown(chat)


async def test_the_engine_is_not_loaded_before_the_first_paint(tmp_path: Path) -> None:
    painted_first: list[bool] = []

    def load(_: OnProgress) -> Engine:
        painted_first.append("Write a message" in shown(chat))
        return ScriptedEngine()

    chat = app(tmp_path, load=load)
    async with chat.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: bool(painted_first))
    assert painted_first == [True]


async def test_a_model_that_does_not_load_leaves_a_line_and_a_living_app(tmp_path: Path) -> None:
    def load(_: OnProgress) -> Engine:
        raise ModelError("models/x/config.json: missing; download the model again")

    chat = app(tmp_path, load=load)
    async with chat.run_test(size=(120, 30), notifications=True) as pilot:
        await until(pilot, lambda: "no model" in shown(chat))
        assert "models/x/config.json: missing; download the model again" in shown(chat)
        assert told(chat) == ""
        await say(pilot, "hello?")
        await until(pilot, lambda: "download the model again" in shown(chat))
        await idle(pilot)
        assert "hello?" in shown(chat)
    assert conversation_text(tmp_path) == [("user", "hello?", "complete")]


async def test_escape_stops_and_keeps_the_text(tmp_path: Path) -> None:
    engine = ScriptedEngine("a very long answer", "short")
    engine.hold()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "go")
        engine.step(6)
        await until(pilot, lambda: "a very" in shown(chat))
        await pilot.press("escape")
        await idle(pilot)
        assert "stopped" in shown(chat)
        engine.release()
        await say(pilot, "again")
        await until(pilot, lambda: "short" in shown(chat))
        await idle(pilot)
    assert conversation_text(tmp_path)[1] == ("assistant", "a very", "partial")


async def test_a_conversation_opened_before_its_answer_is_known_to_have_begun_shows_it_once(tmp_path: Path) -> None:
    engine = ScriptedEngine("A whole answer")
    engine.hold()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: chat.chat_screen.status.facts.context_max is not None)
        on_the_way: list[Report] = []
        chat.engine_jobs._post = on_the_way.append
        await say(pilot, "hi there")
        await until(pilot, lambda: any(isinstance(one, JobEvent) for one in on_the_way))
        assert chat.session.conversation_id is not None
        chat.chat_screen.open_conversation(chat.session.conversation_id)
        await pilot.pause()
        chat.engine_jobs._post = chat._post
        for report in on_the_way:
            chat._post(report)
        engine.release()
        await idle(pilot)
        assert shown(chat).count("A whole answer") == 1


async def test_an_answer_on_a_branch_that_another_program_left_disturbs_nothing(tmp_path: Path) -> None:
    engine = ScriptedEngine("first", "second answer")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "hi there")
        await idle(pilot)
        engine.hold()
        await say(pilot, "and then?")
        await until(pilot, lambda: chat.session.being_written is not None)
        conversation_id, first = chat.session.conversation_id, chat.session.branch[1]
        assert conversation_id is not None
        other = ConversationStore(tmp_path / "conversations.db")
        other.set_tip(conversation_id, first.id)
        other.close()
        chat.chat_screen.open_conversation(conversation_id)
        engine.release()
        await idle(pilot)
        assert "second answer" not in shown(chat)
        assert chat.is_running
    store = ConversationStore(tmp_path / "conversations.db")
    asked = store.alternatives(first.id)[0]
    assert asked.text == "first"
    store.close()


async def test_a_database_that_fails_under_a_stopped_answer_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ScriptedEngine("not shown", "shown")
    engine.hold()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30), notifications=True) as pilot:
        await say(pilot, "hi there")
        await until(pilot, lambda: chat.session.being_written is not None)

        def busy(_: str) -> Conversation:
            raise StoreError("conversations.db: another program has kept it busy")

        with monkeypatch.context() as patch:
            patch.setattr(chat.session.store, "load", busy)
            await pilot.press("escape")
            await until(pilot, lambda: "kept it busy" in told(chat))
            await until(pilot, lambda: chat.session.answering is None)
        engine.release()
        await say(pilot, "still there?")
        await idle(pilot)
        assert "still there?" in shown(chat)
        assert chat.session.last_answer is not None
        assert chat.session.last_answer.text == "shown"


async def test_a_cut_answer_goes_on(tmp_path: Path) -> None:
    engine = ScriptedEngine("one two three", " three four")
    engine.hold()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "count")
        engine.step(7)
        await until(pilot, lambda: "one two" in shown(chat))
        await pilot.press("escape")
        await idle(pilot)
        engine.release()
        await say(pilot, "/continue")
        await until(pilot, lambda: "one two three four" in shown(chat))
        await idle(pilot)
        assert shown(chat).count("one two") == 1
    assert conversation_text(tmp_path) == [
        ("user", "count", "complete"),
        ("assistant", "one two three four", "complete"),
    ]


async def test_retry_shows_the_new_answer_and_keeps_the_old_in_the_tree(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("first try", "second try"))
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "try")
        await idle(pilot)
        await pilot.press("ctrl+t")
        await until(pilot, lambda: "second try" in shown(chat))
        await idle(pilot)
        assert "first try" not in shown(chat)
        answer = chat.session.last_answer
        assert answer is not None
        texts = [one.text for one in chat.session.store.alternatives(answer.id)]
    assert texts == ["first try", "second try"]


async def test_prompts_typed_meanwhile_wait_their_turn(tmp_path: Path) -> None:
    engine = ScriptedEngine("one", "two", "three")
    engine.hold()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        for prompt in ("1?", "2?", "3?"):
            await say(pilot, prompt)
        await until(pilot, lambda: "waits  3?" in shown(chat))
        assert [text for _, text, _ in conversation_text(tmp_path) if text] == ["1?"]
        assert chat.services.drafts.get(chat.session.conversation_id) == "2?\n\n3?"
        engine.release()
        await until(pilot, lambda: "three" in shown(chat))
        await idle(pilot)
        assert "waits" not in shown(chat)
    assert [text for _, text, _ in conversation_text(tmp_path)] == ["1?", "one", "2?", "two", "3?", "three"]


async def test_prompts_that_wait_stay_with_their_conversation(tmp_path: Path) -> None:
    engine = ScriptedEngine("one", "two", "three")
    engine.hold()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        for prompt in ("1?", "2?"):
            await say(pilot, prompt)
        chat.chat_screen.composer.set_text("typing")
        first = chat.session.conversation_id
        assert first is not None
        await pilot.press("ctrl+n")
        assert "waits" not in shown(chat)
        assert chat.chat_screen.composer.text == ""
        chat.chat_screen.open_conversation(first)
        await pilot.pause()
        assert shown(chat).count("2?") == 1
        assert chat.chat_screen.composer.text == "typing"
        assert chat.services.drafts.get(first) == "2?\n\ntyping"
        await pilot.press("ctrl+n")
        engine.release()
        await idle(pilot)
        assert chat.services.drafts.get(first) == "typing"
    assert [text for _, text, _ in conversation_text(tmp_path)] == ["1?", "one", "2?", "two"]


async def test_quitting_in_mid_answer_keeps_the_text_and_the_waiting_prompts(tmp_path: Path) -> None:
    engine = ScriptedEngine("half an answer")
    engine.hold()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "go")
        await say(pilot, "and then?")
        engine.step(4)
        await until(pilot, lambda: "half" in shown(chat))
        chat.chat_screen.composer.set_text("and last")
        await pilot.press("ctrl+q")
        await pilot.pause()
    assert chat.return_value == 0
    chat.services.store.close()
    assert conversation_text(tmp_path) == [("user", "go", "complete"), ("assistant", "half", "partial")]
    again = app(tmp_path, continue_last=True)
    async with again.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        assert "half" in shown(again)
        assert again.chat_screen.composer.text == "and then?\n\nand last"


async def test_quitting_lets_the_cache_get_to_the_disk(tmp_path: Path) -> None:
    class Writing(ScriptedEngine):
        def close(self) -> None:
            # Half as long as an engine may take.
            time.sleep(CLOSE_SECONDS / 2)
            super().close()

    engine = Writing("an answer")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: chat.engine_jobs.engine is not None)
    assert engine.closed


async def test_quitting_is_instant_where_nothing_is_being_written(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: chat.engine_jobs.engine is not None)
        began = time.monotonic()
        assert chat.engine_jobs.close(PATIENCE)
        assert time.monotonic() - began < PATIENCE / 2  # an answer being written would be waited for to the end


async def test_an_answer_goes_on_in_its_own_conversation_while_another_is_open(tmp_path: Path) -> None:
    engine = ScriptedEngine("alpha beta", "gamma")
    engine.hold()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "first talk")
        engine.step(5)
        await until(pilot, lambda: "alpha" in shown(chat))
        first = chat.session.conversation_id
        assert first is not None
        await pilot.press("ctrl+n")
        assert "alpha" not in shown(chat)
        await say(pilot, "second talk")
        second = chat.session.conversation_id
        assert second is not None
        # It is answered beside the first, and both are marked as that.
        await until(pilot, lambda: chat.session.being_answered == {first, second})
        engine.release()
        await idle(pilot)
        assert "gamma" in shown(chat)
        assert "beta" not in shown(chat)
        chat.chat_screen.open_conversation(first)
        await pilot.pause()
        assert "alpha beta" in shown(chat)


async def test_a_prompt_that_does_not_fit_comes_back_into_the_composer(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("fine", max_seq_len=200))
    async with chat.run_test(size=(100, 40)) as pilot:
        await say(pilot, "short")
        await idle(pilot)
        long = "long " * 60
        await say(pilot, long)
        await idle(pilot)
        assert "the context holds 200" in " ".join(shown(chat).split())
        assert chat.chat_screen.composer.text == long.strip()
        assert [one.text for one in chat.session.branch] == ["short", "fine"]


async def test_an_engine_that_fails_in_mid_answer_keeps_the_text(tmp_path: Path) -> None:
    engine = ScriptedEngine("abcdef", "well")
    engine.fail_after = 3
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "go")
        await idle(pilot)
        assert "abc" in shown(chat)
        assert "RuntimeError: the script says: fail" in shown(chat)
        engine.fail_after = None
        await say(pilot, "more")
        await idle(pilot)
        assert "well" in shown(chat)
    assert conversation_text(tmp_path)[1] == ("assistant", "abc", "partial")


@pytest.mark.parametrize(
    "text", ["[bold]not markup[/bold] [/]", "esc \x1b[31mred\x07 bell", "bidi \u202eevil", "$primary [$x]"]
)
async def test_text_is_never_taken_for_markup_or_control(tmp_path: Path, text: str) -> None:
    chat = app(tmp_path, ScriptedEngine(text))
    async with chat.run_test(size=(100, 30), notifications=True) as pilot:
        await say(pilot, text)
        await idle(pilot)
        await say(pilot, "/rename " + text)
        await pilot.pause()
        await pilot.press("ctrl+p")
        await pilot.pause(0.2)
        await pilot.press("escape")
        screen = shown(chat)
    assert not {"\x1b", "\x07", "\u202e"} & set(screen)
    if text.startswith("["):
        assert screen.count("[bold]not markup[/bold] [/]") >= 2


async def test_a_tiny_terminal_is_usable(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("tiny answer"))
    async with chat.run_test(size=(20, 5)) as pilot:
        await pilot.press(*"hey", "enter")
        await idle(pilot)
        assert "tiny answer" in shown(chat)
        for key in ("f1", "escape", "ctrl+b", "escape", "ctrl+p", "escape", "/", "escape", "pageup", "pagedown"):
            await pilot.press(key)
        await pilot.resize_terminal(100, 30)
        await pilot.pause()
        assert "tiny answer" in shown(chat)
        await pilot.resize_terminal(1, 1)
        await pilot.resize_terminal(20, 5)
        await pilot.pause()
        assert chat.is_running


async def test_without_a_writable_database_one_can_still_chat(tmp_path: Path) -> None:
    chat = app(
        tmp_path,
        ScriptedEngine("in memory"),
        store=ConversationStore(None),
        notices=("conversations.db: is read-only",),
    )
    async with chat.run_test(size=(100, 30), notifications=True) as pilot:
        await until(pilot, lambda: "is read-only" in shown(chat))
        await say(pilot, "hi")
        await idle(pilot)
        assert "in memory" in shown(chat)


async def test_a_prompt_that_cannot_be_written_stays_in_the_composer(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(120, 30), notifications=True) as pilot:
        chat.services.store.close()
        await say(pilot, "precious words")
        await until(pilot, lambda: "Not sent" in shown(chat))
        assert chat.chat_screen.composer.text == "precious words"


async def test_ctrl_c_stops_first_and_quits_the_second_time(tmp_path: Path) -> None:
    engine = ScriptedEngine("long answer")
    engine.hold()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "go")
        engine.step(4)
        await until(pilot, lambda: "long" in shown(chat))
        await pilot.press("ctrl+c")
        await idle(pilot)
        assert chat.is_running
        await pilot.press("ctrl+c")
        await pilot.pause()
    assert chat.return_value == 0


async def test_ctrl_c_copies_what_is_selected_and_stops_nothing(tmp_path: Path) -> None:
    engine = ScriptedEngine("an answer to select from, still going on")
    engine.hold()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "go")
        engine.step(24)
        await until(pilot, lambda: "select from" in shown(chat))
        row, column = next(
            (y, line.index("answer")) for y, line in enumerate(shown(chat).splitlines()) if "an answer" in line
        )
        await pilot.mouse_down(offset=(column, row))
        await pilot.hover(offset=(column + 6, row))
        await pilot.mouse_up(offset=(column + 6, row))
        await pilot.press("ctrl+c")
        await pilot.pause()
        assert chat.clipboard.startswith("answer")
        assert chat.session.answering is not None
        engine.release()
        await idle(pilot)
        assert "still going on" in shown(chat)


async def test_the_model_titles_a_conversation_when_it_is_idle(tmp_path: Path) -> None:
    engine = ScriptedEngine("Flour.", "Baking bread", "Water.")
    chat = app(tmp_path, engine, titles=True)
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "How?")
        await until(pilot, lambda: "Baking bread" in shown(chat))
        assert chat.session.conversation is not None
        assert chat.session.conversation.title == "Baking bread"
        await say(pilot, "And then?")
        await until(pilot, lambda: "Water." in shown(chat))
        await idle(pilot)
        assert len(engine.prompts) == 3
    (row,) = chat.session.store.list_conversations()
    assert row.title == "Baking bread"


async def test_a_prompt_does_not_wait_for_a_title(tmp_path: Path) -> None:
    engine = ScriptedEngine("Flour.", "Baking bread", "Water.", "Bread and water")
    chat = app(tmp_path, engine, titles=True)
    async with chat.run_test(size=(100, 30)) as pilot:
        engine.hold()
        await say(pilot, "How?")
        engine.step(6)
        await until(pilot, lambda: len(engine.prompts) == 2)
        await say(pilot, "And then?")
        await until(pilot, lambda: len(engine.prompts) == 3)
        assert [one.title for one in chat.session.store.list_conversations()] == ["How?"]
        engine.release()
        await until(pilot, lambda: "Bread and water" in shown(chat))


class Ranked(ScriptedEngine):
    """Has titles wait for as long as one likes, as an engine does that has something more urgent to do."""

    def __init__(self, *answers: str) -> None:
        super().__init__(*answers)
        self.titles = 0
        self.time_for_titles = threading.Event()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(draft_model=False, ranks=True)

    def _events(self, request: GenerationRequest, cancelled: threading.Event) -> Iterator[Event]:
        if request.rank is Rank.IDLE:
            self.titles += 1
            self.time_for_titles.wait(60)
        yield from super()._events(request, cancelled)


async def test_with_an_engine_that_has_ranks_one_title_is_made_beside_all_answers(tmp_path: Path) -> None:
    engine = Ranked("Flour.", "Water.", "Salt.", "Baking bread")
    chat = app(tmp_path, engine, titles=True)
    async with chat.run_test(size=(100, 30)) as pilot:
        for question, answered in (("How?", "Flour."), ("And?", "Water."), ("And then?", "Salt.")):
            await say(pilot, question)
            await until(pilot, lambda answered=answered: answered in shown(chat))  # type: ignore[misc]
            await idle(pilot)
        assert engine.titles == 1
        engine.time_for_titles.set()
        await until(pilot, lambda: "Baking bread" in shown(chat))
        assert engine.titles == 1


THINKING = CHATML + "{# thoughts: <think> </think> #}"


async def test_thoughts_stand_above_the_answer_without_their_marks(tmp_path: Path) -> None:
    engine = ScriptedEngine("<think>\nLet me see.\n</think>\n\nYes.", chat_template=THINKING)
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        engine.hold()
        await say(pilot, "Well?")
        engine.step(20)
        await until(pilot, lambda: "Let me see." in shown(chat))
        first = chat.session.conversation_id
        assert first is not None
        await pilot.press("ctrl+n")
        chat.chat_screen.open_conversation(first)
        await pilot.pause()
        assert shown(chat).count("Let me see.") == 1
        engine.release()
        await idle(pilot)
        for _ in range(2):
            screen = shown(chat)
            assert "⋮ ▸ thought for" in screen
            assert "│ Yes." in screen
            assert "think>" not in screen
            chat.chat_screen.open_conversation(first)
            await pilot.pause()
        await pilot.press("ctrl+y")
        assert chat.clipboard == "Yes."
    assert conversation_text(tmp_path)[-1][1] == "<think>\nLet me see.\n</think>\n\nYes."


async def test_an_answer_of_a_thinking_model_without_thoughts_is_shown_alone(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("<b>Yes.", chat_template=THINKING))
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "Well?")
        await idle(pilot)
        assert "│ <b>Yes." in shown(chat)
        assert "⋮" not in shown(chat)


@pytest.mark.parametrize(("after", "away", "told_of"), [(1, True, True), (1, False, False), (0, True, False)])
async def test_the_desktop_is_told_when_a_long_answer_ends_out_of_sight(
    tmp_path: Path, after: int, away: bool, told_of: bool
) -> None:
    engine = ScriptedEngine("done")
    engine.hold()
    chat = app(tmp_path, engine, settings=Settings(temperature=0.0, notify_after=after))
    async with chat.run_test(size=(100, 30)) as pilot:
        written: list[str] = []
        assert chat._driver is not None
        chat._driver.write = written.append  # type: ignore[method-assign]
        await say(pilot, "Well?")
        await until(pilot, lambda: chat.session.being_written is not None)
        if away:
            chat.post_message(events.AppBlur())
        await pilot.pause(1.1)
        engine.release()
        await idle(pilot)
        assert ("\x1b]9;exlchat: the answer has ended\x07" in written) == told_of
