"""The commands of the app in lines: what each writes, and what it does."""

from __future__ import annotations

import asyncio
import base64
import re
from pathlib import Path

import pytest

from exlchat.app import live_themes
from exlchat.app.chat.drafts import Drafts
from exlchat.app.generation_settings import GenerationSettings
from exlchat.chat.store.conversations import ConversationStore
from exlchat.llm.sampling import SamplingSettings
from exlchat.ui.line.completion import CommandCompleter
from tests.ui.line.harness import Line, line_mode, plain_mode, until
from tests.ui.scripted_engine import ScriptedEngine


def warm(line_or_plain: object) -> None:
    """Have answers drawn, not always the same."""
    line_or_plain.chat.session.draw_by(GenerationSettings(SamplingSettings(temperature=0.7)))  # type: ignore[attr-defined]


async def two_turns(line: Line) -> None:
    await line.say("What is a buoy?")
    await line.idle()
    await line.say("And a lighthouse?")
    await line.idle()


async def completions(line: Line, typed: str) -> list[str]:
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    return [one.text for one in CommandCompleter(line.chat).get_completions(Document(typed), CompleteEvent())]


# Messages


async def test_messages_are_listed_by_the_numbers_that_commands_take(tmp_path: Path) -> None:
    async with line_mode(tmp_path, ScriptedEngine("It floats.", "It stands.", "It stands high.")) as line:
        line.chat.submit("/system Be short.")
        await two_turns(line)
        await line.say("/retry")
        await line.idle()
        await line.say("/pin 4")
        await line.say("/messages")
        await line.sees(
            "     system: Be short.\n"
            "  4  you: What is a buoy? (pinned)\n"
            "  3  answer: It floats.\n"
            "  2  you: And a lighthouse?\n"
            "  1  answer: It stands high. (alternative 2 of 2)\n"
        )
        await line.say("/alternative 1 1")
        await line.sees("Alternative 1 1 is shown")
        assert line.chat.session.branch[-1].text == "It stands."
        assert await completions(line, "/edit ") == ["1", "2", "3", "4"]
        assert await completions(line, "/alternative ") == ["1", "2"]


async def test_any_message_is_copied_and_answered_again_by_its_number(tmp_path: Path) -> None:
    async with line_mode(tmp_path, ScriptedEngine("It floats.", "It stands.", "It is moored.")) as line:
        await two_turns(line)
        await line.say("/copy 4")
        await line.sees("Copied “What is a buoy?”")
        sent = re.findall(r"\x1b\]52;c;([A-Za-z0-9+/=]+)\x07", line.out.getvalue())
        assert base64.b64decode(sent[-1]) == b"What is a buoy?"
        await line.say("/retry 3")
        await line.sees("It is moored.\n")
        await line.idle()
        assert "Answered again: answer: It floats." in line.text
        assert [one.text for one in line.chat.session.branch] == ["What is a buoy?", "It is moored."]
        await line.say("/retry 9")
        await line.sees("there is no message 9 counted from the end; there are 2")


async def test_a_text_is_found_where_it_stands_and_marked(tmp_path: Path) -> None:
    async with line_mode(tmp_path, ScriptedEngine("First line.\nThe BUOY floats, a buoy!", "No.")) as line:
        await two_turns(line)
        await line.say("/find buoy")
        await line.sees(
            "2 messages with “buoy”, numbered from the end; /source N writes one of them:\n"
            "  4  you, line 1 of 1: What is a buoy?\n"
            "  3  answer, line 2 of 2: The BUOY floats, a buoy! (2 places)\n"
        )
        marked = [text for one in line.screen.written for style, text in one if "reverse" in style]
        assert marked == ["buoy", "BUOY"]
        await line.say("/source 3")
        await line.sees("Message 3 from the end, as it was written:\nFirst line.\nThe BUOY floats")
        await line.say("/find submarine")
        await line.sees("no message of this conversation has “submarine”")


async def test_code_is_saved_and_nothing_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with line_mode(tmp_path, ScriptedEngine("```python\nx = 1\n```", "It stands.")) as line:
        await two_turns(line)
        await line.say("/code")
        await line.sees("Saved code-1.py")
        assert (tmp_path / "code-1.py").read_text() == "x = 1\n"
        await line.say("/code 3 mine.py")
        await line.sees("Saved mine.py")
        await line.say("/code 3 mine.py")
        await line.sees("mine.py is there already; choose another name")
        await line.until(lambda: line.message == "/code 3 mine.py")
        line.type("\x15")
        await line.say("/code 1")
        await line.sees("there is no code in message 1 from the end")
        assert await completions(line, "/code ") == ["3"]


# Branches


async def test_all_branches_are_numbered_and_one_is_shown_by_its_number(tmp_path: Path) -> None:
    async with line_mode(tmp_path, ScriptedEngine("First.", "Second.", "Third.")) as line:
        await line.say("go")
        await line.idle()
        await line.say("/retry")
        await line.idle()
        await line.say("/tree")
        await line.sees("  1  you, shown: go\n  2    answer: First.\n  3    answer, shown, the end: Second.\n")
        await line.say("/tree 2")
        await line.sees("Message 1 from the end is the one — answer: First. (alternative 1 of 2)")
        assert line.chat.session.branch[-1].text == "First."
        await line.say("/tree 4")
        await line.sees("4 is no number of a message of the branches, 1 to 3")
        assert await completions(line, "/tree ") == ["1", "2", "3"]


async def test_what_a_search_found_is_gone_to_by_number_wherever_it_is(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path / "conversations.db")
    one = store.create_conversation()
    wanted = store.add_message(one.id, "user", "the hidden walrus")
    for number in range(30):
        store.add_message(one.id, "user", f"later {number}")
    store.add_message(store.create_conversation().id, "user", "something else")
    async with line_mode(tmp_path, store=store) as line:
        await line.say("/search walrus")
        await line.sees("Found in all conversations; /search #N goes to one of these:\n")
        number = next(at for at, hit in enumerate(line.chat.commands.looking.hits, 1) if hit.message_id == wanted.id)
        assert f"#{number}" in await completions(line, "/search ")
        await line.say(f"/search #{number}")
        # It stands too far above the end to be among the messages that are written when a conversation is opened.
        await line.sees("Message 31 from the end:\nyou> the hidden walrus\n")
        assert line.chat.session.conversation_id == one.id
        await line.say("/search #9")
        await line.sees("the last search found #1 to #")


async def test_the_sidebar_is_the_list_of_conversations(tmp_path: Path) -> None:
    async with line_mode(tmp_path) as line:
        await line.say("hi")
        await line.idle()
        await line.say("/sidebar")
        await line.sees("/open N opens one of these:\n  1  hi (2 messages")


# Editing


async def test_a_message_is_changed_in_the_line_and_answered_beside_the_old_one(tmp_path: Path) -> None:
    engine = ScriptedEngine("It floats.", "It stands.", "It turns.")
    async with line_mode(tmp_path, engine) as line:
        await two_turns(line)
        line.chat.console.set_text("half typed")
        line.chat.commands.run("edit", "2")
        assert line.message == "And a lighthouse?"
        await line.until(lambda: "edit> " in line.out.getvalue() and "Editing your message" in line.out.getvalue())
        line.type("\x15/stats of it?\r")  # no command while a message is changed
        await line.sees("you> /stats of it?\n")
        await line.sees("It turns.")
        await line.idle()
        assert line.message == "half typed"
        last = line.chat.session.branch[-2]
        assert (last.text, line.chat.session.places[last.id]) == ("/stats of it?", (2, 2))
        # The draft on disk is what is typed, not what was changed.
        drafts = Drafts(line.chat.session.store, tmp_path / "drafts.json")
        line.chat.unsent.keep()
        assert drafts.get(line.chat.session.draft_id) == "half typed"


@pytest.mark.parametrize("key", ["\x1b", "\x03"])
async def test_escape_and_ctrl_c_leave_a_message_as_it_is(tmp_path: Path, key: str) -> None:
    async with line_mode(tmp_path, ScriptedEngine("It floats.")) as line:
        await line.say("What is a buoy?")
        await line.idle()
        line.chat.console.set_text("half typed")
        line.chat.commands.run("edit", "")
        await line.until(lambda: line.message == "It floats.")
        line.chat.unsent.keep()
        assert Drafts(line.chat.session.store, tmp_path / "drafts.json").get(line.chat.session.draft_id) == "half typed"
        line.type(key)
        await line.sees("The message stays as it is")
        assert line.message == "half typed"
        assert line.chat.session.places == {}
        assert not line.task.done()


async def test_a_changed_answer_is_kept_and_an_unchanged_one_goes_on_being_changed(tmp_path: Path) -> None:
    async with line_mode(tmp_path, ScriptedEngine("It floats.")) as line:
        await line.say("What is a buoy?")
        await line.idle()
        await line.say("/edit")
        line.type("\r")
        await line.sees("nothing was changed; the message stays as it is")
        assert line.message == "It floats."
        line.type(" Mostly.\r")
        await line.sees(
            "The changed answer is kept beside the old one; /continue goes on from it:\nIt floats. Mostly.\n"
        )
        assert line.chat.session.branch[-1].text == "It floats. Mostly."


async def test_an_answer_that_was_cut_in_its_code_can_be_changed_and_kept(tmp_path: Path) -> None:
    async with line_mode(tmp_path, ScriptedEngine("```python\nx = 1\n")) as line:
        await line.say("Code?")
        await line.idle()
        await line.say("/edit")
        line.type("y = 2\r")
        await line.sees("The changed answer is kept")
        assert line.chat.session.branch[-1].text == "```python\nx = 1\ny = 2"


async def test_in_plain_lines_a_message_is_typed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)
    async with plain_mode(tmp_path, ScriptedEngine("It floats.", "It sinks.")) as plain:
        plain.type("What is a buoy?\n")
        await plain.sees("It floats.\n")
        await plain.idle()
        plain.type("/edit 2\n")
        await plain.sees(
            "Note: Your message is:\nWhat is a buoy?\nType it anew as it shall be; an empty line leaves it"
        )
        await plain.sees("Anew: ")
        plain.type("\n")
        await plain.sees("Note: The message stays as it is\n")
        plain.type("/edit 2\n")
        await until(lambda: plain.chat.editing.active)
        plain.type("What is an anchor?\n")
        await plain.sees("You said: What is an anchor?\n")
        await plain.sees("It sinks.\n")
        await plain.idle()
        assert [one.text for one in plain.chat.session.branch] == ["What is an anchor?", "It sinks."]


async def test_in_plain_lines_the_editor_takes_a_message_where_one_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i "s/buoy/raft/" "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.delenv("VISUAL", raising=False)
    async with plain_mode(tmp_path, ScriptedEngine("It floats.", "It drifts.")) as plain:
        plain.type("What is a buoy?\n")
        await plain.sees("It floats.\n")
        await plain.idle()
        plain.type("/edit 2\n")
        await plain.sees("You said: What is a raft?\n")
        await plain.sees("It drifts.\n")
        await plain.idle()
        monkeypatch.setenv("EDITOR", "false")
        plain.type("/edit 2\n")
        await plain.sees("Warning: false ended with exit code 1; the message stays as it is\n")
        await plain.sees("Note: The message stays as it is\n")
        plain.type("and now?\n")
        await until(lambda: len(plain.chat.session.branch) > 2)


# Comparing


async def test_answers_are_compared_by_their_numbers_and_one_is_kept(tmp_path: Path) -> None:
    async with line_mode(tmp_path, ScriptedEngine("First.", "Second.", "Third.")) as line:
        warm(line)
        await line.say("go")
        await line.idle()
        await line.say("/compare 3")
        await line.sees("Alternative 3 is shown now; /alternative N keeps another one\n")
        at = [line.text.index(f"Alternative {number}:\n{text}") for number, text in ((1, "F"), (2, "S"), (3, "T"))]
        assert at == sorted(at)
        await line.idle()
        await line.say("/alternative 2")
        await line.sees("Alternative 2 is shown")
        assert line.chat.session.branch[-1].text == "Second."
        await line.say("/compare 1")
        await line.sees("1 answers cannot be compared; give a number from 2 to 8")


async def test_escape_ends_a_comparison_and_a_prompt_that_waits_does_too(tmp_path: Path) -> None:
    engine = ScriptedEngine("First.", "Second.", "Third.", "Fourth.")
    async with line_mode(tmp_path, engine) as line:
        warm(line)
        await line.say("go")
        await line.idle()
        engine.hold()
        await line.say("/compare 4")
        engine.step(8)
        await line.until(lambda: "Sec" in line.out.getvalue())
        line.type("\x1b")
        await line.sees("Alternative 4 is shown now")
        await line.idle()
        # All that had begun are kept and written, one after the other.
        texts = [one.text for one in line.chat.session.store.alternatives(line.chat.session.branch[-1].id)]
        assert texts == ["First.", "Sec", "Thi", "Fo"]
        assert line.text.index("Alternative 3:\nThi") < line.text.index("Alternative 4:\nFo")
        engine.answers[:] = ["Fifth.", "Sixth."]
        await line.say("/compare 2")
        engine.step(2)
        await line.until(lambda: "Alternative 5:" in line.text)
        await line.say("something else")
        engine.release()
        await line.idle()
        await asyncio.sleep(0.1)
        assert [one.text for one in line.chat.session.branch][-2:] == ["something else", "Sixth."]


# The prompt


async def test_the_prompt_is_written_with_counts_and_in_the_colours_of_who_speaks(tmp_path: Path) -> None:
    async with line_mode(tmp_path, ScriptedEngine("It floats.")) as line:
        await line.say("buoy?")
        await line.idle()
        await line.say("/prompt")
        # A token is a character here, and half of the prompt is cached: "<|im_start|>user\n" has 17.
        await line.sees("  1  user: 5 tokens, 17 to 21, in the cache\n  2  assistant: 10 tokens, ")
        await line.sees("<|im_start|>user\nbuoy?<|im_end|>\n")
        whose = {text: style for one in line.screen.written for style, text in one}
        assert whose["b"] != whose["<"]
        await line.sees("The prompt ends here.")


async def test_a_long_prompt_is_written_from_its_end_with_a_way_to_see_all(tmp_path: Path) -> None:
    async with plain_mode(tmp_path, ScriptedEngine("It floats.")) as plain:
        await plain.idle()
        plain.chat.submit("x" * 1500)
        await until(lambda: plain.chat.session.last_answer is not None)
        await plain.idle()
        plain.type("/prompt\n")
        await plain.sees("Note: The prompt ends here.\n")
        conversation_id = plain.chat.session.conversation_id or ""
        shown = plain.text.partition("Note: Prompt by the format")[2]
        assert (
            f"The last 1,000 tokens; all are printed by exlchat template show --conversation {conversation_id[:8]}"
            in shown
        )
        assert 900 < shown.count("x") < 1000
        assert "\x1b" not in plain.text


# Settings, keys and themes


async def test_settings_are_listed_with_where_they_are_from_and_a_changed_one_holds(tmp_path: Path, home: Path) -> None:
    async with line_mode(tmp_path) as line:
        await line.say("/settings temperature 0.3")
        await line.sees("temperature = 0.3; it holds now\n")
        assert line.chat.session.generation.sampling.temperature == 0.3
        assert "temperature = 0.3" in (home / "config" / "settings.toml").read_text()
        await line.say("/settings")
        await line.sees("  temperature = 0.3 (file)\n")
        await line.sees("  sidebar = true (default)\n")
        await line.say("/settings temperature")
        await line.sees("temperature = 0.3 (file)\nHow freely tokens are drawn")
        await line.say("/settings temperature default")
        await line.sees("temperature = (")
        assert "0.3" not in (home / "config" / "settings.toml").read_text()
        for wrong, said in (
            ("temperature hot", "temperature is 'hot'; it must be a number"),
            ("temprature 1", "there is no setting temprature; did you mean temperature?"),
            ("theme nosuch", "there is no theme nosuch; there are "),
            ("keys.help ctrl+c", "keys.help: ctrl+c is needed for typing"),
        ):
            line.chat.submit(f"/settings {wrong}")
            await line.sees(said)
        assert {"theme", "temperature"} <= set(
            await completions(line, "/settings te") + await completions(line, "/settings th")
        )
        assert await completions(line, "/settings context_policy s") == [
            f"context_policy {one}" for one in ("summarise", "stop")
        ]


async def test_what_stands_over_a_setting_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXLCHAT_TEMPERATURE", "0.9")
    async with plain_mode(tmp_path) as plain:
        plain.type("/settings temperature 0.3\n")
        await plain.sees(
            "Note: temperature = 0.9; The environment variable EXLCHAT_TEMPERATURE beats the file. In the file: 0.3\n"
        )


async def test_templates_presets_personas_and_themes_are_listed(tmp_path: Path) -> None:
    async with plain_mode(tmp_path) as plain:
        for typed, said in (
            ("/template\n", "  chatml: "),
            ("/preset\n", "/preset NAME chooses one of these:"),
            ("/persona\n", "interviewer"),
            ("/theme\n", "exlchat-light"),
        ):
            plain.type(typed)
            await plain.sees(said)


async def test_a_theme_file_that_changes_colours_new_lines_and_a_broken_one_is_told_once(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_themes, "LOOK_SECONDS", 0.05)
    file = home / "config" / "themes" / "dusk.toml"
    file.parent.mkdir(parents=True)
    file.write_text('[roles]\nuser = "#102030"\n')
    async with line_mode(tmp_path) as line:
        await line.say("/theme dusk")
        await line.sees("Theme: dusk")

        def colour() -> str:
            return dict(line.screen._style.style_rules)["prompt"]

        assert "#102030" in colour()
        file.write_text('[roles]\nuser = "#405060"\n')
        await line.until(lambda: "#405060" in colour())
        file.write_text('[roles]\nuser = "blue"\n')
        await line.sees("dusk.toml: line 2: roles.user: 'blue'")
        await asyncio.sleep(0.3)
        assert line.text.count("roles.user") == 1
        assert "#405060" in colour()
        file.write_text('[roles]\nuser = "#708090"\n')
        await line.sees("dusk.toml can be used again")
        await line.until(lambda: "#708090" in colour())


async def test_what_keeps_nothing_is_said_where_it_cannot_be_had(tmp_path: Path) -> None:
    async with line_mode(tmp_path, ScriptedEngine("one")) as line:
        await line.say("1?")
        await line.idle()
        await line.say("/incognito")
        await line.sees("exlchat --incognito --line keeps nothing")
        await line.say("/keep")
        await line.sees("this conversation is kept")
