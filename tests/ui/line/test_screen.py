"""The line mode in a terminal: typing, streaming, stopping, quitting."""

from __future__ import annotations

import asyncio
import base64
import re
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exlchat.app.commands.actions import ACTIONS
from exlchat.app.composer.history import TypedHistory
from exlchat.app.runtime.jobs import Load
from exlchat.chat.personas.frozen import FrozenPersona
from exlchat.chat.store.conversations import ConversationStore
from exlchat.llm.info import LoadProgress, ModelError
from exlchat.ui.line.history import LineHistory
from tests.ui.line.harness import CONTROL, Line, line_mode
from tests.ui.scripted_engine import ScriptedEngine

SHIFT_ENTER = ("\x1b[13;2u", "\x1b[27;2;13~", "\x1b\r", "\x1b[13;3u", "\n")


async def test_a_message_is_sent_and_the_answer_is_written(tmp_path: Path) -> None:
    engine = ScriptedEngine("Lighthouses **stand** by the sea.\n\n- one\n- two")
    async with line_mode(tmp_path, engine) as line:
        await line.say("Tell me about lighthouses")
        await line.idle()
        assert "you> Tell me about lighthouses\n" in line.text
        assert "Lighthouses stand by the sea.\n" in line.text
        assert line.message == ""
        assert line.chat.session.branch[0].text == "Tell me about lighthouses"
    assert line.task.done()


async def test_what_is_finished_is_written_once_while_the_rest_still_grows(tmp_path: Path) -> None:
    engine = ScriptedEngine("First paragraph.\n\nSecond paragraph.\n\nThird.")
    engine.hold()
    async with line_mode(tmp_path, engine) as line:
        await line.say("go")
        engine.step(len("First paragraph.\n\nSecond paragraph.\n"))
        await line.sees("First paragraph.\n")
        assert "Second" not in line.text
        await line.until(lambda: "Second" in line.out.getvalue())
        engine.release()
        await line.sees("Third.")
        await line.idle()
        assert line.text.count("First paragraph.") == 1
        assert line.text.count("Second paragraph.") == 1


async def test_what_underscores_are_holds_from_the_next_answer_on(tmp_path: Path) -> None:
    async with line_mode(tmp_path, ScriptedEngine("call _this_ my_name", "call _that_ my_name")) as line:
        await line.say("1?")
        await line.idle()
        await line.say("/settings underscores emphasis")
        await line.sees("underscores = emphasis; it holds now")
        await line.say("2?")
        await line.idle()
        assert "call _this_ my_name\n" in line.text
        assert "call that my_name\n" in line.text


async def test_thoughts_are_marked_and_stand_before_the_answer(tmp_path: Path) -> None:
    template = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}{# <think> </think> #}"
    engine = ScriptedEngine("<think>Hm, five.</think>It is five.", chat_template=template)
    async with line_mode(tmp_path, engine) as line:
        await line.say("2 + 3?")
        await line.idle()
        await line.sees("┊ scripted thinks:\n┊ Hm, five.\n")
        assert line.text.index("┊ Hm, five.") < line.text.index("\nIt is five.\n")


async def test_ctrl_c_stops_and_keeps_the_text_and_twice_quits(tmp_path: Path) -> None:
    engine = ScriptedEngine("A very long story")
    engine.hold()
    async with line_mode(tmp_path, engine) as line:
        await line.say("go")
        engine.step(6)
        await line.until(lambda: "A very" in line.out.getvalue())
        line.type("\x03")
        await line.sees("(stopped · /continue goes on)")
        assert line.screen._below() == "Stopped; ctrl+c again quits"
        assert "A very\n" in line.text
        assert line.chat.session.branch[-1].text == "A very"
        line.type("\x03")
        await line.until(line.task.done)


@pytest.mark.parametrize("escape", ["\x1b", "\x1b[27u"])
async def test_escape_stops_the_answer(tmp_path: Path, escape: str) -> None:
    engine = ScriptedEngine("A very long story")
    engine.hold()
    async with line_mode(tmp_path, engine) as line:
        await line.say("go")
        engine.step(3)
        await line.until(lambda: "A v" in line.out.getvalue())
        line.type(escape)
        await line.sees("(stopped · /continue goes on)")
        assert not line.task.done()


@pytest.mark.parametrize("key", ["\x04", "\x1b[100;5u", "\x11"])
async def test_ctrl_d_on_an_empty_line_and_ctrl_q_quit(tmp_path: Path, key: str) -> None:
    async with line_mode(tmp_path) as line:
        line.type(key)
        await line.until(line.task.done)


async def test_ctrl_d_in_a_text_deletes_and_does_not_quit(tmp_path: Path) -> None:
    async with line_mode(tmp_path) as line:
        line.type("abc\x01\x04")
        await line.until(lambda: line.message == "bc")
        assert not line.task.done()


@pytest.mark.parametrize("key", SHIFT_ENTER)
async def test_every_form_of_a_new_line_makes_one_and_sends_nothing(tmp_path: Path, key: str) -> None:
    async with line_mode(tmp_path) as line:
        line.type(f"one{key}two")
        await line.until(lambda: line.message == "one\ntwo")
        line.type("\r")
        await line.idle()
        assert line.chat.session.branch[0].text == "one\ntwo"


async def test_enter_goes_on_after_a_backslash_and_in_an_open_fence(tmp_path: Path) -> None:
    async with line_mode(tmp_path) as line:
        line.type("one\\\rtwo\r")
        await line.until(lambda: len(line.chat.session.branch) > 0)
        assert line.chat.session.branch[0].text == "one\ntwo"
        await line.idle()
        line.type("```\rcode\r")
        await line.until(lambda: line.message == "```\ncode\n")
        line.type("```\r")
        await line.until(lambda: len(line.chat.session.branch) > 2)
        assert line.chat.session.branch[2].text == "```\ncode\n```"


async def test_a_paste_is_text_and_never_keys(tmp_path: Path) -> None:
    async with line_mode(tmp_path) as line:
        line.type("\x1b[200~one\r\x1b[31mtwo\x03\rthree\x1b[201~")
        await line.until(lambda: line.message == "one\n␛[31mtwo␃\nthree")
        assert not line.task.done()
        assert list(line.chat.session.branch) == []


async def test_prompts_typed_during_an_answer_wait_and_are_sent_in_turn(tmp_path: Path) -> None:
    engine = ScriptedEngine("first answer", "second answer")
    engine.hold()
    async with line_mode(tmp_path, engine) as line:
        await line.say("one")
        engine.step(3)
        await line.until(lambda: line.chat.session.being_written is not None)
        await line.say("two")
        await line.until(lambda: "waits  two" in line.out.getvalue())
        assert "you> two" not in line.text
        engine.release()
        await line.sees("second answer")
        at = [line.text.index(text) for text in ("you> one", "first answer", "you> two", "second answer")]
        assert at == sorted(at)


async def test_what_is_typed_while_the_model_loads_is_saved_and_answered_then(tmp_path: Path) -> None:
    go = asyncio.Event()
    engine = ScriptedEngine("Here.")
    loop = asyncio.get_running_loop()

    def load(progress: object) -> ScriptedEngine:
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result(20)
        return engine

    async with line_mode(tmp_path, load=load) as line:
        await line.say("Hello?")
        await line.until(lambda: "Waiting for the model to be loaded" in line.out.getvalue())
        assert line.chat.session.branch[0].text == "Hello?"
        go.set()
        await line.sees("Here.")
        assert "Waiting for the model" not in line.text


async def test_loading_shows_its_progress_in_the_toolbar(tmp_path: Path) -> None:
    go = asyncio.Event()
    loop = asyncio.get_running_loop()

    def load(progress: object) -> ScriptedEngine:
        assert callable(progress)
        progress(LoadProgress(45, 100, "loading weights"))
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result(20)
        return ScriptedEngine()

    async with line_mode(tmp_path, load=load) as line:
        await line.until(lambda: line.screen._below() == "scripted · loading weights 45%")
        go.set()
        await line.until(lambda: line.screen._below() == "scripted · context 0% of 4.1k")


async def test_the_toolbar_tells_context_rate_cache_and_branch(tmp_path: Path) -> None:
    async with line_mode(tmp_path, ScriptedEngine("one", "two")) as line:
        await line.say("hi")
        await line.idle()
        await line.say("/retry")
        await line.until(lambda: line.chat.place == (2, 2))
        await line.idle()
        # The engine reports a quarter second to the first token, half of the prompt cached, one second of writing.
        assert re.fullmatch(
            r"scripted · context \d+% of 4\.1k · 2\.0 tokens/s · (49|50)% remembered · answer 2 of 2",
            line.screen._below(),
        )


async def test_a_mistyped_command_is_refused_in_one_line_and_stays(tmp_path: Path) -> None:
    async with line_mode(tmp_path) as line:
        await line.say("/hlep me")
        await line.sees("did you mean /help?")
        assert line.message == "/hlep me"


async def test_the_beginning_of_a_command_is_completed_by_enter(tmp_path: Path) -> None:
    async with line_mode(tmp_path) as line:
        line.type("/sta\r")
        await line.until(lambda: line.message == "/stats ")
        line.type("\r")
        await line.sees("There are no figures for the last answer")


async def test_a_model_that_cannot_be_loaded_is_told_and_another_one_can_be(tmp_path: Path) -> None:
    def fail(progress: object) -> ScriptedEngine:
        raise ModelError("config.json: missing; download the model again")

    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text("{}")
    engine = ScriptedEngine("I am the other one.", name="other")
    async with line_mode(tmp_path, load=fail, loader=lambda _: lambda _: engine) as line:
        await line.sees("config.json: missing; download the model again")
        assert line.screen._below() == "scripted · no model"
        line.chat.engine_jobs.load(Load("other", lambda _: engine))
        await line.sees("other answers from here on.")
        await line.say("Who are you?")
        await line.sees("I am the other one.")


async def test_retry_and_continue_write_only_what_is_new(tmp_path: Path) -> None:
    engine = ScriptedEngine("First block.\n\nCut he and never said", "re.", "Another answer.")
    engine.hold()
    async with line_mode(tmp_path, engine) as line:
        await line.say("go")
        engine.step(len("First block.\n\nCut he"))
        await line.until(lambda: "Cut he" in line.out.getvalue())
        line.type("\x03")
        await line.sees("(stopped · /continue goes on)")
        engine.release()
        await line.idle()
        await line.say("/continue")
        await line.sees("Cut here.\n")
        assert line.text.count("First block.") == 1
        await line.idle()
        await line.say("/retry")
        await line.sees("Another answer.\n")
        assert line.text.count("you> go") == 1


async def test_branches_are_walked_by_number_and_cuts_undone(tmp_path: Path) -> None:
    async with line_mode(tmp_path, ScriptedEngine("First.", "Second.")) as line:
        await line.say("go")
        await line.idle()
        await line.say("/retry")
        await line.sees("Second.")
        await line.idle()
        await line.say("/alternative 1")
        await line.sees("Alternative 1 is shown")
        assert line.chat.session.branch[-1].text == "First."
        assert line.text.endswith("First.\n(‹1/2›)\n\nAlternative 1 is shown\n")
        await line.say("/alternative 3")
        await line.sees("there are alternatives 1 to 2 of this message")
        await line.until(lambda: line.message == "/alternative 3")
        line.type("\x15")
        await line.say("/cut")
        await line.sees("Deleted from there on; /undo brings it back")
        await line.say("/undo")
        await line.sees("Undone: ")
        assert line.chat.session.branch[-1].text == "First."


async def test_opening_another_conversation_during_an_answer_and_coming_back(tmp_path: Path) -> None:
    engine = ScriptedEngine("A long answer.\n\nIts end.")
    engine.hold()
    async with line_mode(tmp_path, engine) as line:
        await line.say("go")
        engine.step(8)
        await line.until(lambda: "A long a" in line.out.getvalue())
        await line.say("/new")
        await line.sees("A long a\n(the answer goes on)\n\nA new conversation begins.")
        await line.say("/open 1")
        await line.sees("— go —\n\nyou> go\n")
        engine.release()
        await line.sees("A long answer.\n\nIts end.\n")


async def test_a_persona_greets_at_the_start_and_when_it_is_chosen(tmp_path: Path) -> None:
    ada = FrozenPersona("Ada", "Ada", "User", 0, system="You are Ada.", greetings=("Come in.", "Hello."))
    engine = ScriptedEngine("Sit down.")
    async with line_mode(tmp_path, engine, persona=ada) as line:
        await line.sees("system> You are Ada.\n\nCome in.\n")
        await line.say("Thank you.")
        await line.sees("Sit down.\n")
        await line.idle()
        assert "· Ada" in line.screen._below()
        await line.say("/persona interviewer")
        await line.sees("speaks from here on")
        assert line.text.count("Come in.") == 1
        await line.say("/new")
        await line.until(lambda: line.text.count("Come in.") == 2)
        await line.say("/persona interviewer")
        await line.sees("Hello, and thank you for coming.")


@pytest.mark.parametrize("streamed", [1, 40])
async def test_many_tokens_are_written_in_few_paintings(tmp_path: Path, streamed: int) -> None:
    engine = ScriptedEngine("A paragraph of some length that is written.\n\n" * streamed)
    async with line_mode(tmp_path, engine) as line:
        await line.say("go")
        await line.idle()
        assert line.text.count("A paragraph of some length") == streamed
        paintings = line.out.getvalue().count("\x1b[?25l")
        assert paintings < 150  # 1,800 tokens


@pytest.mark.parametrize("no_color", ["", "1"])
async def test_no_color_turns_colours_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_color: str) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("COLORTERM", "truecolor")
    async with line_mode(tmp_path, ScriptedEngine("# Head\n\n```python\nx = 1\n```")) as line:
        await line.say("go")
        await line.sees("x = 1")
        colours = re.findall(r"\x1b\[[0-9;]*[34]8;[25];", line.out.getvalue())
        assert bool(colours) is not bool(no_color)


async def test_copy_hands_the_last_answer_to_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("WAYLAND_DISPLAY", "DISPLAY", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path))
    async with line_mode(tmp_path, ScriptedEngine("The **answer**.")) as line:
        await line.say("go")
        await line.idle()
        await line.say("/copy")
        await line.sees("Copied the last answer")
        sent = re.search(r"\x1b\]52;c;([A-Za-z0-9+/=]+)\x07", line.out.getvalue())
        assert sent is not None
        assert base64.b64decode(sent[1]) == b"The **answer**."


async def test_every_slash_command_does_something_or_says_why_not(tmp_path: Path) -> None:
    async with line_mode(tmp_path) as line:
        await line.idle()
        for action in ACTIONS:
            if action.slash is None or action.id in ("quit", "editor"):
                # The editor wants a real terminal: tests/e2e/test_line.py.
                continue
            before = len(line.screen.written)
            line.chat.submit(f"{action.slash} x" if action.argument_required else action.slash)
            await line.until(lambda before=before: len(line.screen.written) > before)
        assert "needs the screen" not in line.text
        assert not line.chat.commands.run("palette")
        await line.sees("Command palette needs the screen of the app, which exlchat without --line has")
        assert "there is no answer to copy yet" in line.text
        assert "/rename TITLE: Give this conversation a title." in line.text


async def test_open_lists_conversations_and_opens_one_by_number(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path / "conversations.db")
    for title in ("older", "newer"):
        one = store.create_conversation()
        store.add_message(one.id, "user", f"about {title}")
        store.rename(one.id, title)
    async with line_mode(tmp_path, store=store) as line:
        await line.say("/open")
        await line.sees("  2  older (1 messages")
        await line.say("/open 2")
        await line.sees("you> about older")
        await line.sees("This message has no answer yet; /retry has it answered.")
        await line.say("/open 7")
        await line.sees("7 is no number of a conversation, from 1, the first of the list, to 2")


async def test_a_draft_is_kept_and_comes_back(tmp_path: Path) -> None:
    async with line_mode(tmp_path) as line:
        line.type("not yet sent")
        await line.until(lambda: line.message == "not yet sent")
    async with line_mode(tmp_path) as line:
        await line.until(lambda: line.message == "not yet sent")


async def test_going_on_with_the_last_conversation_shows_its_end(tmp_path: Path) -> None:
    async with line_mode(tmp_path, ScriptedEngine("The answer.")) as line:
        await line.say("A question")
        await line.idle()
    async with line_mode(tmp_path, continue_last=True) as line:
        await line.sees("you> A question\n\nThe answer.\n")
        assert "This is" not in line.text


async def test_a_prompt_that_does_not_fit_comes_back_into_the_line(tmp_path: Path) -> None:
    async with line_mode(tmp_path, ScriptedEngine(max_seq_len=64)) as line:
        await line.idle()
        await line.say("x" * 100)
        await line.until(lambda: line.message == "x" * 100)
        assert "64" in line.text


async def test_history_lies_in_a_private_file_and_outlives_the_run(tmp_path: Path) -> None:
    path = tmp_path / "state" / "line_history"
    async with line_mode(tmp_path, history=LineHistory(TypedHistory(path), pytest.fail)) as line:
        await line.say("remember me")
        await line.idle()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    async with line_mode(tmp_path, history=LineHistory(TypedHistory(path), pytest.fail)) as line:
        await line.until(lambda: line.screen.buffer._working_lines[0] == "remember me")  # read on a thread
        line.type("\x1b[A")
        await line.until(lambda: line.message == "remember me")
    async with line_mode(tmp_path, history=LineHistory(TypedHistory(path), pytest.fail)) as line:
        await line.until(lambda: line.screen.buffer._working_lines[0] == "remember me")
        line.type("\x12emb")
        await line.until(lambda: "remember me" in line.out.getvalue())
        line.type("\r")
        await line.until(lambda: line.message == "remember me")


def test_a_long_history_loses_its_older_half(tmp_path: Path) -> None:
    path = tmp_path / "line_history"
    path.write_text("".join(f"\n# exlchat\n+prompt {number} {'x' * 100}\n" for number in range(20_000)))
    strings = list(LineHistory(TypedHistory(path), pytest.fail).load_history_strings())
    assert strings[0].startswith("prompt 19999 ")
    assert 1000 < len(strings) < 10_000
    assert path.stat().st_size < 1 << 20


async def completions(line: Line, typed: str) -> list[str]:
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    from exlchat.ui.line.completion import CommandCompleter

    return [one.text for one in CommandCompleter(line.chat).get_completions(Document(typed), CompleteEvent())]


async def test_completion_knows_commands_and_their_arguments_as_of_now(tmp_path: Path) -> None:
    async with line_mode(tmp_path) as line:
        assert not {"/rename ", "/retry"} & set(await completions(line, "/re"))  # there is nothing to rename yet
        assert "/help" in await completions(line, "/")
        assert "/sidebar" in await completions(line, "/")
        assert await completions(line, "/theme exlchat-l") == ["exlchat-light"]
        assert "chatml" in await completions(line, "/template ")
        assert "temperature" in await completions(line, "/set temp")
        assert await completions(line, "hello /re") == []
        await line.say("hi")
        await line.idle()
        assert {"/rename ", "/retry "} <= set(await completions(line, "/re"))
        assert await completions(line, "/open ") == await completions(line, "/tab ") == ["1"]
        await line.say("/tag work later")
        await line.say("/folder Letters")
        assert set(await completions(line, "/tag ")) == {"work", "later"}
        assert await completions(line, "/tag new w") == ["new work"]
        assert set(await completions(line, "/tag -")) == {"-work", "-later"}
        assert await completions(line, "/folder ") == ["Letters", "-"]


async def test_sampling_is_told_in_lines_with_what_each_value_does(tmp_path: Path) -> None:
    async with line_mode(tmp_path, size=(200, 40)) as line:
        await line.say("/set top_k 4")
        await line.say("/sampling")
        await line.sees(
            "top_k: 4 (conversation). At the start: 0. It changes nothing while the most likely token is always taken."
        )
        await line.sees("taken. Draw from so many likeliest tokens; 0 is all.")
        await line.sees("temperature: 0 (default). How freely tokens are drawn")
        await line.sees("/set NAME VALUE changes one, /preset NAME takes a preset")


async def test_the_theme_is_changed_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))
    async with line_mode(tmp_path) as line:
        await line.say("/theme exlchat-light")
        await line.sees("Theme: exlchat-light")
        assert "exlchat-light" in (tmp_path / "home" / "config" / "settings.toml").read_text()


@pytest.mark.parametrize("size", [(20, 5), (400, 120), (10, 3)])
async def test_terminals_of_any_size_are_enough(tmp_path: Path, size: tuple[int, int]) -> None:
    engine = ScriptedEngine("A long line of words that has to be wrapped, and code:\n\n```python\n" + "x = 1\n" * 60)
    async with line_mode(tmp_path, engine, size=size) as line:
        await line.say("hi")
        await line.idle()
        assert line.text.count("x = 1") == 60
        assert "too small" not in line.out.getvalue()


HOSTILE = st.text(
    st.one_of(
        st.sampled_from(
            "\x1b\x07\x9b\x9d\x90\u202e\u2066\u200f\x00\r\x08\x7f\ud800\ufeff\U000e0041[]52;c`*_#-\n\t 日👩\u200d"
        ),
        st.characters(),
    ),
    max_size=60,
)


@given(text=HOSTILE, asked=HOSTILE)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_nothing_that_is_said_steers_the_terminal(
    tmp_path_factory: pytest.TempPathFactory, text: str, asked: str
) -> None:
    engine = ScriptedEngine(text.replace("\ud800", "") + "\x1b]52;c;AAAA\x07\x9b31m\u202e")
    async with line_mode(tmp_path_factory.mktemp("hostile"), engine) as line:
        line.chat.submit(f"q {asked}")
        await line.until(lambda: line.chat.session.last_answer is not None)
        await line.idle()
        line.chat.submit(f"/rename t {asked}")
        line.chat.submit("/open")
        for command in ("/messages", "/tree", "/search q", "/find q", "/source 2", "/prompt", "/compare", "/settings"):
            line.chat.submit(command)
        await line.idle()
    shown = CONTROL.sub("", line.out.getvalue())
    left = {character for character in shown if ord(character) < 32 or 0x7F <= ord(character) < 0xA0}
    assert left <= {"\r", "\n", "\x08"}  # prompt_toolkit moves the cursor back by \b
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c\ufeff")
    assert "\x1b]" not in line.out.getvalue()
