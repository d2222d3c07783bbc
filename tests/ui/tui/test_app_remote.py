"""What a server cannot do steps back everywhere and says why; the real engine over a server of messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.command import CommandList
from textual.pilot import Pilot

from exlchat import paths
from exlchat.app.commands.actions import ACTIONS, BY_ID
from exlchat.app.options import AppOptions
from exlchat.app.services import open_services
from exlchat.chat.personas.frozen import FrozenPersona
from exlchat.config.schema import SETTINGS
from exlchat.remote.address import Address, Remote
from exlchat.remote.engine import connect
from exlchat.ui.tui.app import ChatApp
from exlchat.ui.tui.palette import Palette
from exlchat.ui.tui.screens.sampling import SamplingScreen
from exlchat.ui.tui.screens.settings import SettingsScreen
from tests.patience import PATIENCE
from tests.remote.stub import DONE, Stub, delta, listed, serving, streamed
from tests.ui.app_harness import idle, say, services, shown, told, transcript, until
from tests.ui.line.harness import line_mode
from tests.ui.scripted_engine import ScriptedEngine

CHAT = "/v1/chat/completions"
REGEX = "this server (openai) cannot hold an answer to a regex; load a model here"
TOP_K = "this server (openai) does not know top_k"


@pytest.fixture
def stub() -> Iterator[Stub]:
    routes = {"GET /v1/models": listed("m"), f"POST {CHAT}": streamed(delta("Cut"), delta(reason="length"), DONE)}
    with serving(routes) as found:
        yield found


def app(folder: Path, stub: Stub) -> ChatApp:
    return ChatApp(services(folder, load=lambda _: connect(Remote("stub", Address.parse(stub.url)))))


async def talked(pilot: Pilot[int], chat: ChatApp) -> None:
    await until(pilot, lambda: chat.chat_screen.model.info is not None)
    await say(pilot, "/set max_tokens 3")
    await say(pilot, "Hi")
    await idle(pilot)


def words(chat: ChatApp) -> str:
    return " ".join(shown(chat).replace("│", " ").replace("▎", " ").split())


async def test_a_command_that_the_server_cannot_do_says_why_and_sends_nothing(tmp_path: Path, stub: Stub) -> None:
    chat = app(tmp_path, stub)
    async with chat.run_test(size=(120, 40)) as pilot:
        await talked(pilot, chat)
        session, before = chat.session, chat.session.generation
        for typed, reason in {
            "/regex a+": f"/regex: {REGEX}",
            "/regex a+ :: Hello": f"/regex: {REGEX}",
            "/ban no": "/ban: this server (openai) bans no texts; take exlchat serve or TabbyAPI, or load a model",
            "/continue": "/continue: this server (openai) cannot go on with an answer that was begun; have it given",
            "/cache": "/cache: this server (openai) does not tell what it keeps of prompts",
            "/template chatml": "/template: this server (openai) takes messages and has the prompt format itself",
            "/think on": "/think: this server (openai) cannot be told whether to think",
            "/serve": f"/serve: this model is a server's already; point programs to {stub.url}",
        }.items():
            await say(pilot, typed)
            await until(pilot, lambda reason=reason: reason in told(chat))
        assert session.generation == before
        assert session.template is None
        assert len(stub.bodies(CHAT)) == 1
        # What lets go of what another model was asked for asks nothing of this one.
        await say(pilot, "/regex off")
        await until(pilot, lambda: "constraint: " in shown(chat))
        # What every server can do is as ever.
        await say(pilot, "/schema {}")
        await until(pilot, lambda: session.generation.speech.constraint is not None)


async def test_its_keys_say_the_same(tmp_path: Path, stub: Stub) -> None:
    chat = app(tmp_path, stub)
    async with chat.run_test(size=(120, 40)) as pilot:
        await talked(pilot, chat)
        await pilot.press("f8")
        await until(pilot, lambda: "has the prompt format itself" in told(chat))
        assert chat.screen is chat.chat_screen
        transcript(pilot).focus()
        await pilot.press("i")
        await until(pilot, lambda: "/probabilities: this server (openai), asked by messages, tells no" in told(chat))
        await pilot.press("n")
        await until(pilot, lambda: "/continue: this server (openai) cannot go on" in told(chat))
        assert len(stub.bodies(CHAT)) == 1


async def test_menu_palette_and_help_list_it_quietly_with_the_reason(tmp_path: Path, stub: Stub) -> None:
    chat = app(tmp_path, stub)
    async with chat.run_test(size=(160, 40)) as pilot:
        await talked(pilot, chat)
        menu = chat.chat_screen.prompt.menu
        chat.chat_screen.composer.set_text("/regex")
        await until(pilot, lambda: bool(menu.display))
        assert REGEX in words(chat)
        assert color_at(chat, "/regex") == color_at(chat, "this server") == quiet(chat)
        chat.chat_screen.composer.set_text("/sampling")
        await until(pilot, lambda: REGEX not in words(chat))
        assert color_at(chat, "/sampling") != quiet(chat)
        chat.chat_screen.composer.set_text("")
        await pilot.press("ctrl+p")
        await until(pilot, lambda: isinstance(chat.screen, Palette))
        await pilot.press(*"regular")
        await until(pilot, lambda: REGEX in words(chat) and chat.screen.query_one(CommandList).option_count == 1)
        await pilot.press("enter")
        await until(pilot, lambda: f"/regex: {REGEX}" in told(chat))
        assert chat.chat_screen.composer.text == ""
        await pilot.press("f1", *"regex")
        await until(pilot, lambda: f"Not now: {REGEX}." in words(chat))
        assert color_at(chat, "[RE|off]") == quiet(chat)


def color_at(chat: ChatApp, text: str) -> str:
    """The colour in which the first line that has it draws it."""
    for strip in chat.screen._compositor.render_strips():
        at = strip.text.find(text)
        if at >= 0:
            (segment, *_) = strip.crop(at, at + 1)
            assert segment.style is not None
            assert segment.style.color is not None
            return segment.style.color.name
    raise AssertionError(f"{text} is not shown")


def quiet(chat: ChatApp) -> str:
    return chat.theme_variables["quiet-text"].split()[-1]


async def test_the_panel_dims_what_the_server_does_not_know_and_does_not_take_it(tmp_path: Path, stub: Stub) -> None:
    chat = app(tmp_path, stub)
    async with chat.run_test(size=(140, 40)) as pilot:
        await talked(pilot, chat)
        await pilot.press("f6")
        await until(pilot, lambda: isinstance(chat.screen, SamplingScreen))
        panel = chat.screen
        assert isinstance(panel, SamplingScreen)
        assert f"top_k 0 {TOP_K} " in words(chat)
        assert color_at(chat, "top_k  ") == color_at(chat, TOP_K) == quiet(chat) != color_at(chat, "temperature  ")
        panel.rows.highlighted = panel.rows.get_option_index("value:top_k")
        await until(pilot, lambda: f"Not now: {TOP_K}; load a model here." in words(chat))
        await pilot.press("4", "enter")
        await until(pilot, lambda: str(panel.line.content) == f"{TOP_K}; load a model here")
        assert chat.session.generation.sampling.top_k == 0
        await pilot.press("escape", "escape")
        await say(pilot, "/set top_k 4")
        await until(pilot, lambda: f"{TOP_K}; load a model here" in told(chat))
        assert chat.session.generation.sampling.top_k == 0
        await say(pilot, "/preset creative")
        await until(pilot, lambda: "creative is not taken: this server (openai) does not know" in told(chat))
        assert len(stub.bodies(CHAT)) == 1


async def test_the_settings_dim_what_the_server_does_not_know_and_do_not_write_it(
    tmp_path: Path, home: Path, stub: Stub
) -> None:
    file = home / "config" / "settings.toml"
    chat = app(tmp_path, stub)
    async with chat.run_test(size=(140, 60)) as pilot:
        await talked(pilot, chat)
        await pilot.press("f2")
        await until(pilot, lambda: isinstance(chat.screen, SettingsScreen))
        panel = chat.screen
        assert isinstance(panel, SettingsScreen)
        assert f"top_k 0 {TOP_K} " in words(chat)
        assert color_at(chat, "top_k  ") == color_at(chat, TOP_K) == quiet(chat) != color_at(chat, "temperature  ")
        assert color_at(chat, "template  ") == quiet(chat) != color_at(chat, "user_name  ")
        panel.rows.highlighted = panel.rows.get_option_index("top_k")
        await until(pilot, lambda: f"Not now: {TOP_K}; load a model here." in words(chat))
        await pilot.press("enter", "4")
        await until(pilot, lambda: str(panel.said.content) == f"{TOP_K}; load a model here")
        await pilot.press("enter", "escape", "escape")
        for typed, reason in {
            "/settings top_k 4": TOP_K,
            "/settings sampling top_a = 0.2": "this server (openai) does not know top_a",
            "/settings template chatml": "has the prompt format itself",
            "/settings draft ngram": "chooses itself who guesses tokens ahead",
        }.items():
            await say(pilot, typed)
            await until(pilot, lambda reason=reason: reason in told(chat).splitlines()[-1])
        assert not file.exists()
        # What is off asks nothing of the server, and what every server knows is as ever.
        await say(pilot, "/settings top_k 0")
        await say(pilot, "/settings temperature 0.5")
        await until(pilot, lambda: file.exists() and "temperature = 0.5" in file.read_text())
        assert chat.session.generation.sampling.temperature == 0.5


async def test_a_persona_with_a_prompt_format_is_not_taken_where_the_server_has_it(tmp_path: Path, stub: Stub) -> None:
    chat = app(tmp_path, stub)
    async with chat.run_test(size=(120, 40)) as pilot:
        await talked(pilot, chat)
        with pytest.raises(ValueError, match="has the prompt format itself"):
            chat.session.let_speak(FrozenPersona("Ada", "Ada", "User", 0, system="You are Ada.", template="chatml"))
        assert [one.role for one in chat.session.branch] == ["user", "assistant"]
        chat.session.let_speak(FrozenPersona("Bo", "Bo", "User", 0, system="You are Bo."))
        assert chat.session.branch[-1].text == "You are Bo."


@pytest.mark.skipif(not paths.bundled_model().is_dir(), reason="the bundled model has not been made yet")
async def test_our_usual_min_p_holds_again_with_a_model_that_is_loaded_here(stub: Stub) -> None:
    start = AppOptions(None, device="cpu", remote=Remote("stub", Address.parse(stub.url)))
    chat = ChatApp(open_services(start))
    async with chat.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: chat.chat_screen.model.info is not None)
        assert chat.session.generation.sampling.min_p == 0.0
        chat.chat_screen.models.change_to(paths.bundled_model().parent / "none")
        await until(pilot, lambda: "none" in told(chat))
        assert chat.session.lacks
        assert chat.session.generation.sampling.min_p == 0.0
        chat.chat_screen.models.change_to(paths.bundled_model())
        await until(pilot, lambda: chat.chat_screen.model.info is not None and not chat.session.lacks, 4 * PATIENCE)
        assert chat.session.generation.sampling.min_p == SETTINGS["min_p"].default == 0.05
        await say(pilot, "/settings max_tokens 9")
        await until(pilot, lambda: chat.session.generation.max_tokens == 9)
        assert chat.session.generation.sampling.min_p == 0.05


async def test_a_model_that_is_loaded_afterwards_can_do_it(tmp_path: Path, stub: Stub) -> None:
    first = Remote("stub", Address.parse(stub.url))
    chat = ChatApp(services(tmp_path, load=lambda _: connect(first), loader=lambda _: lambda _: ScriptedEngine()))
    async with chat.run_test(size=(120, 40)) as pilot:
        await talked(pilot, chat)
        assert chat.session.lacks
        chat.chat_screen.models.change_to(paths.bundled_model())
        await until(pilot, lambda: chat.chat_screen.model.info is not None and not chat.session.lacks)
        await say(pilot, "/regex a+")
        await until(pilot, lambda: chat.session.generation.speech.constraint is not None)


async def test_the_line_mode_says_the_same(tmp_path: Path, stub: Stub) -> None:
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    from exlchat.ui.line.completion import CommandCompleter

    there = Remote("stub", Address.parse(stub.url))
    async with line_mode(tmp_path, load=lambda _: connect(there), size=(200, 40)) as line:
        await line.idle()
        (offered,) = CommandCompleter(line.chat).get_completions(Document("/regex"), CompleteEvent())
        assert (offered.display_meta_text, offered.style) == (REGEX, "class:quiet")
        await line.say("/regex a+")
        await line.sees(f"/regex: {REGEX}")
        await line.say("/help")
        await line.sees(f"/regex [RE|off]: Not now: {REGEX}.")
        await line.say("/settings")
        await line.sees(f"top_k = 0 (default)\n    Not now: {TOP_K}; load a model here.")
        await line.say("/sampling")
        await line.sees(f"Not now: {TOP_K}")
        assert not stub.bodies(CHAT)


def test_each_action_needs_what_some_server_says_that_it_lacks(stub: Stub) -> None:
    lacks = connect(Remote("stub", Address.parse(stub.url))).info.lacks
    known = {*lacks, "json_schema"}
    assert {one.needs for one in ACTIONS if one.needs} <= known
    assert BY_ID["send"].lacking(lacks) == BY_ID["retry"].lacking(lacks) == ""
