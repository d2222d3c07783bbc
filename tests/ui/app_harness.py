"""The real app for tests: a real database file, a scripted engine, and waiting without sleeping blindly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from exlchat import paths
from exlchat.app.chat.drafts import Drafts
from exlchat.app.chat.open_conversation import Defaults
from exlchat.app.chat.open_tabs import OpenTabs
from exlchat.app.generation_settings import GenerationSettings, at_start
from exlchat.app.guide.quoting import Quoting
from exlchat.app.keys.keymap import Keymap
from exlchat.app.library.memory import ModelMemory
from exlchat.app.library.shelf import Shelf
from exlchat.app.options import AppOptions
from exlchat.app.services import Services
from exlchat.chat.personas.frozen import FrozenPersona
from exlchat.chat.store.conversations import ConversationStore
from exlchat.config.files import Reading
from exlchat.config.layers import Layer, resolve
from exlchat.config.schema import SETTINGS, Settings
from exlchat.config.themes import load_themes
from exlchat.llm.info import LoadProgress
from exlchat.llm.port import Engine
from exlchat.ui.tui.app import ChatApp
from exlchat.ui.tui.widgets.transcript import Transcript
from tests.patience import PATIENCE, Patience
from tests.ui.scripted_engine import ScriptedEngine

Load = Callable[[Callable[[LoadProgress], None]], Engine]


def app(folder: Path, engine: ScriptedEngine | None = None, **wanted: Any) -> ChatApp:
    """A new app; arguments as of `services`."""
    return ChatApp(services(folder, engine, **wanted))


def services(
    folder: Path,
    engine: ScriptedEngine | None = None,
    *,
    load: Load | None = None,
    store: ConversationStore | None = None,
    continue_last: bool = False,
    notices: tuple[str, ...] = (),
    loader: Callable[[Path], Load] | None = None,
    settings: Settings | None = None,
    persona: FrozenPersona | None = None,
    titles: bool = False,
    keys: Keymap | None = None,
    theme: str = "exlchat-dark",
    first_message: str | None = None,
    quoting: Quoting | None = None,
) -> Services:
    """Those of a start whose database, drafts and themes lie in `folder`; `loader` loads every model but the first."""
    port = engine or ScriptedEngine()
    memory = ModelMemory(folder / "models.json")
    reading = as_read(settings or Settings(temperature=0.0, min_p=0.0))
    shelf = Shelf(AppOptions(None), reading, memory, loader or (lambda _: lambda _: port))
    store = store or ConversationStore(folder / "conversations.db")
    return Services(
        store=store,
        kept=True,
        load_engine=load or (lambda _: port),
        shelf=shelf,
        defaults=Defaults(resolve(_first(reading)), None, persona.system_text if persona else None),
        themes=load_themes(paths.shipped_themes(), folder / "themes")[0],
        theme=theme,
        sidebar=True,
        drafts=Drafts(store, folder / "drafts.json"),
        model_name="scripted",
        is_guide=False,
        continue_last=continue_last,
        notices=notices,
        first_message=first_message,
        persona=persona,
        titles=titles,
        keys=keys or Keymap(),
        tabs=OpenTabs(folder / "tabs.json"),
        quoting=quoting,
    )


def _first(reading: Reading) -> Layer:
    """What conversations begin with: greedy answers, as if that were the default."""
    values = {"temperature": 0.0, "min_p": 0.0, **reading.file.values}
    return Layer("file", values, "default")


def drawn(services: Services) -> GenerationSettings:
    """How answers are drawn at a start, in conversations that say nothing of that."""
    return at_start(services.defaults.held, services.defaults.model)


def as_read(settings: Settings) -> Reading:
    """As if a file said what is not as usual."""
    values = {key: getattr(settings, key) for key in SETTINGS if getattr(settings, key) != SETTINGS[key].default}
    return Reading(Layer("file", values))


async def until(pilot: Pilot[int], condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until something is so."""
    patience = Patience(seconds)
    while not condition():
        assert not patience.is_over(), f"still not so after {seconds} s:\n{_situation(chat_app(pilot))}"
        await pilot.pause(0.01)
    await pilot.pause()


def _situation(app: ChatApp) -> str:
    """What helps whoever reads of a failure that does not come again."""
    transcript = app.chat_screen.transcript
    place = f"transcript {transcript.size}, line {transcript.scroll_y} of {transcript.max_scroll_y}"
    return f"{app.screen_stack}, {app.size}, {place}\n{shown(app)}"


def shown(app: ChatApp) -> str:
    """The text on the screen."""
    screen = app.screen
    strips = screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips[: screen.size.height])


def told(app: ChatApp) -> str:
    """The texts of the toasts, newest last."""
    return "\n".join(one.message for one in app._notifications)


def said(app: ChatApp) -> list[str]:
    """All that the program has said, newest first; what can be read already is not shown again."""
    return [line for _, line in app.services.log.rows()]


async def say(pilot: Pilot[int], text: str) -> None:
    """Type a message at once and send it."""
    chat = chat_app(pilot)
    chat.chat_screen.composer.focus()
    chat.chat_screen.composer.set_text(text)
    await pilot.press("enter")


def chat_app(pilot: Pilot[int]) -> ChatApp:
    assert isinstance(pilot.app, ChatApp)
    return pilot.app


def transcript(pilot: Pilot[int]) -> Transcript:
    return chat_app(pilot).chat_screen.transcript


async def idle(pilot: Pilot[int]) -> None:
    """Wait until no answer is on its way."""
    session = chat_app(pilot).session
    await until(pilot, lambda: not session.busy)
    await asyncio.sleep(0.05)
    await pilot.pause()
