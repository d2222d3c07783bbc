"""What a start of the app is made of, opened in one place: settings, themes, conversations, drafts."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.chat.plain_text import one_line
from exlchat.chat.store import ConversationStore, StoreError
from exlchat.settings import Settings, SettingsError, load_settings
from exlchat.state import State, load_state, save_state
from exlchat.ui import generation_settings
from exlchat.ui.drafts import Drafts
from exlchat.ui.model_loading import load_model
from exlchat.ui.theme_files import load_themes
from exlchat.ui.themes import DEFAULT_THEME, ThemeFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from exlchat.chat.engine_port import EnginePort
    from exlchat.engine.events import LoadProgress
    from exlchat.ui.generation_settings import GenerationSettings
    from exlchat.ui.options import AppOptions

_NO_MODEL = "no model was found; start with exlchat MODEL_DIR"


@dataclass(frozen=True, slots=True)
class Services:
    """Everything the app needs from outside.

    Args:
        store: the conversations; in memory when the file cannot be used (`kept` is then false).
        kept: whether what is said outlives this run.
        load_engine: builds the engine on the engine thread.
        generation: how answers are drawn at the start.
        template: prompt format wanted; `None` is the model's own.
        system: system prompt of new conversations.
        themes: all themes by name.
        theme: name of the one to begin with.
        sidebar: whether the sidebar is shown at the start, if there is room.
        drafts: what was typed and not sent.
        model_name: name to show until the model is loaded.
        is_guide: whether the model is the bundled guide.
        continue_last: open the newest conversation.
        notices: lines to show once.
    """

    store: ConversationStore
    kept: bool
    load_engine: Callable[[Callable[[LoadProgress], None]], EnginePort]
    generation: GenerationSettings
    template: str | None
    system: str | None
    themes: dict[str, ThemeFile]
    theme: str
    sidebar: bool
    drafts: Drafts
    model_name: str
    is_guide: bool
    continue_last: bool
    notices: tuple[str, ...]

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
        ValueError: a sampling value from the command line is out of range.
    """
    notices = list(options.notices)
    folders = paths.folders()
    settings = _settings(notices)
    store, kept = _store(notices)
    themes, broken = load_themes(paths.shipped_themes(), folders.themes)
    notices += broken
    return Services(
        store=store,
        kept=kept,
        load_engine=_loader(options, settings, kept=kept),
        generation=generation_settings.at_start(options, settings),
        template=options.template or settings.template,
        system=options.system or settings.system,
        themes=themes,
        theme=_theme(options.theme or settings.theme, themes, notices),
        sidebar=settings.sidebar,
        drafts=Drafts(folders.state / "drafts.json" if kept else None),
        model_name=one_line(options.model_path.name) if options.model_path else "",
        is_guide=options.model_path == paths.bundled_model(),
        continue_last=options.continue_last,
        notices=tuple(notices),
    )


def _settings(notices: list[str]) -> Settings:
    try:
        return load_settings()
    except SettingsError as error:
        notices.append(f"{error}; the defaults are used for now")
        return Settings()


def _store(notices: list[str]) -> tuple[ConversationStore, bool]:
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


def _loader(
    options: AppOptions, settings: Settings, *, kept: bool
) -> Callable[[Callable[[LoadProgress], None]], EnginePort]:
    cache_sizes = options.cache_sizes.or_settings(settings)

    def load(on_progress: Callable[[LoadProgress], None]) -> EnginePort:
        if options.model_path is None:
            from exlchat.engine.events import ModelError

            raise ModelError(_NO_MODEL)
        engine = load_model(
            options.model_path,
            device=options.device,
            kv_cache=options.kv_cache or settings.kv_cache,
            context=options.context or settings.context,
            # Pages tell what was said, so nothing is kept of them either.
            cache_sizes=cache_sizes if kept else cache_sizes.in_memory_only(),
            extension=settings.extension if options.extension is None else options.extension,
            quantize_head=options.quantize_head,
            usual_head=settings.quantize_head,
            on_progress=on_progress,
        )
        _remember(options.model_path.absolute())
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
