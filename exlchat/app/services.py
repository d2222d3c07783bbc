"""What a start of the app is made of, opened in one place: settings, themes, conversations, drafts."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.app.chat.drafts import Drafts
from exlchat.app.chat.open_conversation import Defaults
from exlchat.app.chat.open_tabs import OpenTabs
from exlchat.app.composer.history import TypedHistory
from exlchat.app.generation_settings import at_start
from exlchat.app.guide.quoting import Quoting
from exlchat.app.keys.keymap import Keymap, keymap
from exlchat.app.library.memory import ModelMemory
from exlchat.app.library.shelf import Shelf, shown_name
from exlchat.app.log import Log
from exlchat.app.runtime.model_loading import load_wanted
from exlchat.chat.store.conversations import ConversationStore, StoreError
from exlchat.config.files import Reading, read_settings
from exlchat.config.state import State, load_state, save_state
from exlchat.config.themes import DEFAULT_THEME, ThemeFile, load_themes
from exlchat.llm.info import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from exlchat.app.options import AppOptions
    from exlchat.app.runtime.jobs import Loader
    from exlchat.chat.personas.frozen import FrozenPersona
    from exlchat.llm.info import LoadProgress
    from exlchat.llm.port import Engine

_NO_MODEL = "no model was found; start with exlchat MODEL_DIR"


@dataclass(frozen=True, slots=True)
class Services:
    """Everything the app needs from outside.

    Args:
        store: the conversations; in memory when the file cannot be used (`kept` is then false).
        kept: whether what is said outlives this run.
        load_engine: builds the first engine, on a thread of its own.
        shelf: the other models.
        defaults: how conversations that say nothing themselves are spoken to.
        themes: all themes by name.
        theme: name of the one to begin with.
        sidebar: whether the sidebar is shown at the start, if there is room.
        drafts: what was typed and not sent.
        model_name: name to show until the model is loaded.
        is_guide: whether the first model is the bundled guide.
        continue_last: open the newest conversation.
        notices: lines to show once.
        persona: who speaks in new conversations.
        titles: whether the model titles conversations when it is idle.
        keys: which keys do what.
        log: what the program says.
        typed: what was typed and sent, in earlier runs too.
        tabs: conversations that are open beside each other in the app.
        quoting: what the bundled guide says; it says what it learnt where there is none.
        first_message: taken as if it were typed as soon as the chat is there.
    """

    store: ConversationStore
    kept: bool
    load_engine: Loader
    shelf: Shelf
    defaults: Defaults
    themes: dict[str, ThemeFile]
    theme: str
    sidebar: bool
    drafts: Drafts
    model_name: str
    is_guide: bool
    continue_last: bool
    notices: tuple[str, ...]
    persona: FrozenPersona | None = None
    titles: bool = False
    keys: Keymap = field(default_factory=Keymap)
    log: Log = field(default_factory=lambda: Log(None))
    typed: TypedHistory = field(default_factory=lambda: TypedHistory(None))
    first_message: str | None = None
    tabs: OpenTabs = field(default_factory=lambda: OpenTabs(None))
    quoting: Quoting | None = None

    def close(self) -> None:
        """Remove for good what was deleted long ago, and let go of the database."""
        # A database that is busy now is tidied another time.
        with contextlib.suppress(StoreError):
            self.store.purge()
        self.store.close()


def open_services(options: AppOptions) -> Services:
    """Open everything for one start; what cannot be used is replaced where nothing is lost by it, and named.

    Raises:
        ThemeError: the installation is broken.
        SettingsError: what was typed about how answers are drawn contradicts the settings.
    """
    notices = list(options.notices)
    folders = paths.folders()
    reading = _settings(notices)
    settings = reading.settings
    store, kept = _store(notices, incognito=options.incognito)
    themes, broken = load_themes(paths.shipped_themes(), folders.themes)
    notices += broken
    keys = keymap(settings.keys)
    notices += keys.problems
    memory = ModelMemory(folders.model_memory)
    shelf = Shelf(options, reading, memory, lambda path: _loader(path, shelf, kept=kept))
    first = options.model_path
    held = shelf.held(first)
    defaults = Defaults(held, first, held.value("system"))
    # What was typed and does not go with the settings is an error of the start, not of the first answer.
    at_start(held, first)
    return Services(
        store=store,
        kept=kept,
        load_engine=_first_loader(options, shelf),
        shelf=shelf,
        defaults=defaults,
        themes=themes,
        theme=_theme(held.value("theme"), themes, notices),
        sidebar=settings.sidebar,
        drafts=Drafts(store, folders.state / "drafts.json" if kept else None),
        model_name=options.remote.name if options.remote else shown_name(first) if first else "",
        is_guide=first == paths.bundled_model(),
        continue_last=options.continue_last,
        notices=tuple(notices),
        persona=options.persona,
        titles=settings.title_by == "model",
        keys=keys,
        log=Log(folders.state / "exlchat.log" if kept else None),
        typed=TypedHistory(folders.state / "line_history" if kept else None),
        first_message=options.first_message,
        tabs=OpenTabs(folders.state / "tabs.json" if kept else None),
        quoting=Quoting(),
    )


def _settings(notices: list[str]) -> Reading:
    reading = read_settings()
    notices += [f"{problem}; the defaults are used for now" for problem in reading.file_problems[:1]]
    notices += [f"{problem}; it is ignored" for problem in reading.environment_problems]
    return reading


def _store(notices: list[str], *, incognito: bool) -> tuple[ConversationStore, bool]:
    if incognito:
        return ConversationStore(None), False
    path = paths.folders().conversations
    try:
        paths.ensure_folder(path.parent)
        store = ConversationStore(path)
    except (StoreError, paths.FolderError) as error:
        notices.append(f"{error}. You can chat, but nothing of this session is kept")
        return ConversationStore(None), False
    if store.recovered:
        notices.append("An answer was cut off when exlchat ended last time; its text is kept")
    return store, True


def _theme(wanted: str, themes: dict[str, ThemeFile], notices: list[str]) -> str:
    if wanted in themes:
        return wanted
    notices.append(f"There is no theme {wanted}; there are {', '.join(themes)}")
    return DEFAULT_THEME


def _first_loader(options: AppOptions, shelf: Shelf) -> Loader:
    remote = options.remote
    if remote is None:
        return shelf.loader(options.model_path) if options.model_path else _no_model

    def load(on_progress: Callable[[LoadProgress], None]) -> Engine:
        # No start without a server needs it.
        from exlchat.app.runtime.remote_loading import connect_to

        return connect_to(remote, on_progress)

    return load


def _no_model(_: Callable[[LoadProgress], None]) -> Engine:
    raise ModelError(_NO_MODEL)


def _loader(path: Path, shelf: Shelf, *, kept: bool) -> Loader:
    def load(on_progress: Callable[[LoadProgress], None]) -> Engine:
        # Asked when it is loaded: memory and settings may have been changed since.
        engine = load_wanted(path, shelf.options, shelf.held(path), kept=kept, on_progress=on_progress)
        _remember(path.absolute())
        with contextlib.suppress(paths.FolderError):
            shelf.memory.mark_used(path)
        return engine

    return load


def _remember(model: Path) -> None:
    """Next time this model is opened without being named. Not being able to is no reason to stop a chat."""
    state, _ = load_state()
    away = state.last_model is not None and not Path(state.last_model).is_dir()
    if state.last_model == str(model) or (away and model == paths.bundled_model()):
        # A model on a drive that is not plugged in today is not forgotten for the guide that stands in.
        return
    try:
        save_state(State(last_model=str(model)))
    except paths.FolderError:
        return
