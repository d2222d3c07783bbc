"""Sidebar, slash commands, command palette, themes and help in the running app."""

from __future__ import annotations

import datetime
import tomllib
import unicodedata
from pathlib import Path

import pytest
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input

from exlchat.app.commands.actions import ACTIONS
from exlchat.chat.model import ConversationSummary
from exlchat.chat.store.conversations import ConversationStore
from exlchat.ui.tui.app import ChatApp
from tests.patience import within
from tests.ui.app_harness import app, idle, say, shown, told, until
from tests.ui.scripted_engine import ScriptedEngine


def filled(folder: Path, *prompts: str) -> ConversationStore:
    """A database with one conversation for each prompt, the last the newest."""
    store = ConversationStore(folder / "conversations.db")
    for prompt in prompts:
        store.add_message(store.create_conversation().id, "user", prompt)
    return store


def listed(chat: ChatApp) -> list[str]:
    """Titles in the sidebar, top to bottom."""
    return [str(option.prompt).lstrip("▌ ") for option in chat.chat_screen.sidebar.options if option.id]


async def choose(pilot: Pilot[int], title: str) -> None:
    """Highlight a conversation in the sidebar."""
    chat = pilot.app
    assert isinstance(chat, ChatApp)
    sidebar = chat.chat_screen.sidebar
    await pilot.press("ctrl+b")
    ids = [option.id for option in sidebar.options]
    wanted = next(one.id for one in chat.session.store.list_conversations() if one.title == title)
    sidebar.highlighted = ids.index(wanted)
    await pilot.pause()


async def test_newest_first_and_the_open_one_marked(tmp_path: Path) -> None:
    chat = app(tmp_path, store=filled(tmp_path, "old", "new"), continue_last=True)
    async with chat.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        assert listed(chat) == ["new", "old"]
        assert "▌new" in shown(chat)
        assert "▌old" not in shown(chat)


async def test_enter_opens_and_goes_back_to_the_composer(tmp_path: Path) -> None:
    chat = app(tmp_path, store=filled(tmp_path, "old", "new"))
    async with chat.run_test(size=(100, 30)) as pilot:
        await choose(pilot, "old")
        await pilot.press("enter")
        await pilot.pause()
        assert [one.text for one in chat.session.branch] == ["old"]
        assert chat.focused is chat.chat_screen.composer
        assert "no answer yet" in shown(chat)
        await pilot.press("ctrl+t")
        await idle(pilot)
        assert [one.text for one in chat.session.branch] == ["old", "ok"]
        assert "no answer yet" not in shown(chat)


async def test_rename_in_the_sidebar(tmp_path: Path) -> None:
    chat = app(tmp_path, store=filled(tmp_path, "old"))
    async with chat.run_test(size=(100, 30)) as pilot:
        await choose(pilot, "old")
        await pilot.press("r")
        await pilot.pause()
        field = chat.screen.query_one(Input)
        assert field.value == "old"
        field.value = "A better title"
        await pilot.press("enter")
        await pilot.pause()
        assert listed(chat) == ["A better title"]


async def test_escape_keeps_the_old_title(tmp_path: Path) -> None:
    chat = app(tmp_path, store=filled(tmp_path, "old"))
    async with chat.run_test(size=(100, 30)) as pilot:
        await choose(pilot, "old")
        await pilot.press("r", "x", "escape")
        await pilot.pause()
        assert listed(chat) == ["old"]


async def test_delete_and_undo_in_the_sidebar(tmp_path: Path) -> None:
    chat = app(tmp_path, store=filled(tmp_path, "one", "two"))
    async with chat.run_test(size=(120, 30), notifications=True) as pilot:
        await choose(pilot, "one")
        await pilot.press("d", "e", "y", "enter")
        await pilot.pause()
        assert sorted(listed(chat)) == ["one", "two"]
        await pilot.press("d", "down", "enter")
        await pilot.pause()
        assert listed(chat) == ["two"]
        assert told(chat) == "Deleted “one”; /undo brings it back"
        await pilot.press("u")
        await pilot.pause()
        assert sorted(listed(chat)) == ["one", "two"]
        assert chat.session.branch[0].text == "one"


async def test_deleting_the_open_conversation_in_mid_answer_loses_nothing(tmp_path: Path) -> None:
    engine = ScriptedEngine("half of it")
    engine.hold()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "go")
        engine.step(4)
        await until(pilot, lambda: "half" in shown(chat))
        await say(pilot, "/delete")
        await idle(pilot)
        assert listed(chat) == []
        assert len(chat.session.branch) == 0
        await say(pilot, "/undo")
        await until(pilot, lambda: "half" in shown(chat))
        answer = chat.session.last_answer
        assert answer is not None
        assert (answer.text, answer.status) == ("half", "partial")


async def test_titles_follow_what_is_said(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "what is a cache?")
        await idle(pilot)
        assert listed(chat) == ["what is a cache?"]
        await say(pilot, "/rename Caches")
        await pilot.pause()
        assert listed(chat) == ["Caches"]


async def test_the_sidebar_is_hidden_where_there_is_no_room(tmp_path: Path) -> None:
    chat = app(tmp_path, store=filled(tmp_path, "old"))
    async with chat.run_test(size=(60, 20)) as pilot:
        states = [(chat.chat_screen.side.display, chat.focused)]
        for key in ("ctrl+b", "enter"):
            await pilot.press(key)
            await pilot.pause()
            states.append((chat.chat_screen.side.display, chat.focused))
        composer, sidebar = chat.chat_screen.composer, chat.chat_screen.sidebar
    assert states == [(False, composer), (True, sidebar), (False, composer)]


async def test_ctrl_b_focuses_hides_and_shows(tmp_path: Path) -> None:
    chat = app(tmp_path, store=filled(tmp_path, "old"))
    async with chat.run_test(size=(100, 20)) as pilot:
        states = []
        for _ in range(3):
            await pilot.press("ctrl+b")
            await pilot.pause()
            states.append((chat.chat_screen.side.display, chat.focused is chat.chat_screen.sidebar))
    assert states == [(True, True), (False, False), (True, True)]


async def test_five_thousand_conversations_are_no_burden(tmp_path: Path) -> None:
    chat = app(tmp_path, store=filled(tmp_path, "one"))
    now = datetime.datetime.now()
    summaries = [
        ConversationSummary(f"c{n}", f"conversation {n}", 0.0, (now - datetime.timedelta(hours=n)).timestamp(), 2)
        for n in range(5000)
    ]
    async with chat.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: "of 4,096" in shown(chat))
        with within(3):
            chat.chat_screen.sidebar.show(summaries, "c1", (), now.date())
            await pilot.pause()
        assert "conversation 0" in shown(chat)


async def test_the_system_prompt_goes_before_the_first_message(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "/system You are a pirate.")
        await say(pilot, "hi")
        await idle(pilot)
    assert engine.prompts[0].startswith("<|im_start|>system\nYou are a pirate.<|im_end|>\n<|im_start|>user\nhi")


async def test_set_changes_how_the_next_answer_is_drawn(tmp_path: Path) -> None:
    engine = ScriptedEngine("0123456789")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        for line in ("/set temperature 0.5", "/set seed 42", "/set max_tokens 4"):
            await say(pilot, line)
        await say(pilot, "count")
        await idle(pilot)
        assert "cut at the answer limit" in shown(chat)
    request = engine.requests[0]
    assert (request.sampling.temperature, request.seed, request.max_new_tokens) == (0.5, 42, 4)


async def test_the_template_can_be_chosen_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(120, 30), notifications=True) as pilot:
        await until(pilot, lambda: "of 4,096" in shown(chat))
        await say(pilot, "/template plian")
        await until(pilot, lambda: "plain" in told(chat))
        await say(pilot, "/template plain")
        await say(pilot, "hi")
        await idle(pilot)
    assert "<|im_start|>" not in engine.prompts[0]


async def test_stats_and_model_tell_what_is_recorded(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("Four"))
    async with chat.run_test(size=(120, 40)) as pilot:
        await say(pilot, "hi")
        await idle(pilot)
        await say(pilot, "/stats")
        await until(pilot, lambda: "Seed" in shown(chat))
        stats = " ".join(shown(chat).split())
        await pilot.press("escape")
        await say(pilot, "/model")
        await pilot.pause(0.1)
        screen = " ".join(shown(chat).split())
    assert "Seed 7" in stats
    assert "LlamaForCausalLM" in screen


async def test_the_answer_is_copied_whole(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("copy **me**"))
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "hi")
        await idle(pilot)
        await pilot.press("ctrl+y")
        await pilot.pause()
        assert chat.clipboard == "copy **me**"


async def test_help_lists_every_key_and_command(tmp_path: Path) -> None:
    chat = app(tmp_path)
    # As high as the whole list, which does not scroll then.
    async with chat.run_test(size=(120, 330)) as pilot:
        await pilot.press("f1")
        await until(pilot, lambda: "First of all" in shown(chat))
        screen = shown(chat)
        for action in ACTIONS:
            for word in (*action.keys, *action.usage.split()[:1]):
                assert word in screen
        await pilot.press("escape")
        assert chat.screen is chat.chat_screen


async def test_a_theme_is_chosen_and_remembered(tmp_path: Path, home: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "/theme exlchat-light")
        await pilot.pause()
        assert chat.theme == "exlchat-light"
        assert chat.chat_screen.background_colors[1].hex.lower() == "#fbf8f1"
    assert tomllib.loads((home / "config" / "settings.toml").read_text())["theme"] == "exlchat-light"


async def test_the_palette_previews_a_theme_and_escape_brings_the_old_one_back(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        await pilot.press("ctrl+p")
        await pilot.press(*"theme: exlchat-light")
        await until(pilot, lambda: chat.theme == "exlchat-light")
        await until(pilot, lambda: chat.screen.styles.background.rgb == (0xFB, 0xF8, 0xF1))
        await pilot.press("escape")
        await until(pilot, lambda: chat.theme == "exlchat-dark")
        await pilot.press("ctrl+p")
        await pilot.press(*"theme: exlchat-light")
        await until(pilot, lambda: chat.theme == "exlchat-light")
        await pilot.press("enter")
        await until(pilot, lambda: chat.screen is chat.chat_screen)
        await pilot.pause(0.1)
        assert chat.theme == "exlchat-light"


async def test_the_palette_opens_a_conversation(tmp_path: Path) -> None:
    chat = app(tmp_path, store=filled(tmp_path, "about [lisp]", "other"))
    async with chat.run_test(size=(100, 30)) as pilot:
        await pilot.press("ctrl+p")
        await pilot.press(*"lisp")
        await until(pilot, lambda: "about [lisp]" in shown(chat))
        await pilot.press("enter")
        await until(pilot, lambda: len(chat.session.branch) == 1)
        assert chat.session.branch[0].text == "about [lisp]"


async def test_the_palette_opens_a_conversation_in_a_tab_and_nothing_else(tmp_path: Path) -> None:
    chat = app(tmp_path, store=filled(tmp_path, "about [lisp]", "other"))
    async with chat.run_test(size=(120, 30)) as pilot:
        await pilot.press("ctrl+p", *"lisp")
        await until(pilot, lambda: "1 message · ctrl+t opens it in a tab" in shown(chat))
        await pilot.press("ctrl+t")
        await until(pilot, lambda: len(chat.session.branch) == 1)
        assert chat.session.branch[0].text == "about [lisp]"
        assert [one is None for one in chat.services.tabs.idents] == [True, False]
        await pilot.press("ctrl+p", *"theme: exlchat-light")
        await until(pilot, lambda: chat.theme == "exlchat-light")
        await pilot.press("ctrl+t")
        await pilot.pause()
        assert told(chat) == "Only a conversation opens in a tab"
        assert chat.screen is not chat.chat_screen


@pytest.mark.parametrize("keys", [("ctrl+p",), ("ctrl+b", "r")])
async def test_no_pasted_control_character_reaches_a_one_line_field(tmp_path: Path, keys: tuple[str, ...]) -> None:
    chat = app(tmp_path, store=filled(tmp_path, "old"))
    async with chat.run_test(size=(100, 30)) as pilot:
        await pilot.press(*keys)
        await until(pilot, lambda: isinstance(chat.focused, Input))
        for pasted in ("\x1b[31mred", "one\x9b2J", "\u202eright to left", "plain"):
            chat.post_message(events.Paste(pasted))
            await pilot.pause()
            screen = shown(chat)
            assert not any(unicodedata.category(one) in ("Cc", "Cf") for one in screen.replace("\n", ""))
        assert "plain" in screen


async def test_a_theme_file_of_the_user_is_found_and_a_broken_one_is_named(tmp_path: Path, home: Path) -> None:
    themes = home / "config" / "themes"
    themes.mkdir(parents=True)
    (themes / "dusk.toml").write_text('[colors]\nbackground = "#102030"\n')
    chat = app(tmp_path)
    async with chat.run_test(size=(140, 30), notifications=True) as pilot:
        await say(pilot, "/theme dusk")
        await pilot.pause()
        assert chat.theme == "dusk"
        (themes / "dusk.toml").write_text('[colors]\nbackground = "blue"\n')
        await say(pilot, "/theme dusk")
        await until(pilot, lambda: "dusk.toml: line 2: colors.background" in told(chat))
        assert chat.theme == "dusk"
        assert chat.theme_variables["background"].lower() == "#102030"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("/continue", "the last answer was not cut; there is nothing to continue"),
        ("/retry", "there is nothing to answer yet"),
        ("/undo", "this conversation is new"),
        ("/copy", "there is no answer to copy yet"),
        ("/delete", "this conversation is new and has nothing to delete"),
        ("/rename Harbour", "a new conversation has no title yet; write in it first"),
    ],
)
async def test_what_cannot_be_done_now_says_why(tmp_path: Path, command: str, why: str) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(140, 30), notifications=True) as pilot:
        await say(pilot, command)
        await until(pilot, lambda: why in told(chat))


@pytest.mark.parametrize("command", ["/continue", "/retry"])
async def test_an_answer_that_is_being_written_is_named_as_the_reason(tmp_path: Path, command: str) -> None:
    engine = ScriptedEngine()
    engine.hold()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(140, 30), notifications=True) as pilot:
        await say(pilot, "hello")
        await say(pilot, command)
        await until(pilot, lambda: "an answer is on its way; Esc or ctrl+c stops it" in told(chat))
        engine.release()


async def test_a_list_of_nothing_takes_no_room_until_there_is_something(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("one"))
    async with chat.run_test(size=(100, 30), notifications=True) as pilot:
        await pilot.pause()
        assert not chat.chat_screen.side.display
        assert chat.chat_screen.composer.region.x < 3
        await pilot.press("ctrl+b")
        await until(pilot, lambda: "there is no conversation yet" in told(chat))
        assert chat.chat_screen.composer.has_focus
        await say(pilot, "1?")
        await idle(pilot)
        assert chat.chat_screen.side.display
        await pilot.press("ctrl+b", "d")
        await pilot.pause()
        await pilot.press("down", "enter")
        await until(pilot, lambda: not chat.session.store.list_conversations())
        assert chat.chat_screen.side.display
        await pilot.press("u")
        await until(pilot, lambda: len(chat.session.store.list_conversations()) == 1)


async def test_on_a_wide_terminal_what_is_typed_and_told_ends_where_the_text_does(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("word " * 200))
    async with chat.run_test(size=(220, 40)) as pilot:
        await say(pilot, "1?")
        await idle(pilot)
        screen = chat.chat_screen
        row = next(line for line in shown(chat).splitlines() if "word word" in line)
        assert abs(screen.composer.region.right - len(row.rstrip())) <= 4
        assert screen.status.region.right <= screen.composer.region.right + 2
