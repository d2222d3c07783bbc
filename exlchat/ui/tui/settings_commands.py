"""What the settings screen needs: the settings as they are, saving one, and having it hold in the running app."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from exlchat.chat.plain_text import one_line
from exlchat.settings import SETTINGS, Reading, read_settings, save_setting
from exlchat.ui.generation_settings import SAMPLED, of_settings
from exlchat.ui.keymap import keymap
from exlchat.ui.library.memory import NAMES, ModelSettings
from exlchat.ui.overriding import given

if TYPE_CHECKING:
    from exlchat.setting_kinds import TomlValue
    from exlchat.settings import Settings
    from exlchat.ui.tui.app import ChatApp
    from exlchat.ui.tui.screens.chat import ChatScreen
    from exlchat.ui.tui.screens.settings_rows import Row

_NARROW_CELLS = 80
_SHOWN_CELLS = 60


class SettingsCommands:
    """Belongs to one screen and runs on its thread."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self.reading: Reading = screen.services.reading
        """The last one that was good."""
        self._told: tuple[str, ...] = ()

    @property
    def _app(self) -> ChatApp:
        from exlchat.ui.tui.app import ChatApp

        app = self._screen.app
        assert isinstance(app, ChatApp)
        return app

    def open(self) -> None:
        """Show the screen. What was changed in the file meanwhile holds from now on."""
        self.take_over()
        # No start needs it.
        from exlchat.ui.tui.screens.settings import SettingsScreen

        self._app.push_screen(SettingsScreen(self))

    def themes(self) -> list[str]:
        """Names of the themes there are."""
        return list(self._app.reload_themes())

    def holds(self, row: Row) -> Any:
        """The value in force: what this start was given, else the environment, the model's memory, the file."""
        key, options = row.setting.key, self._screen.services.shelf.options
        if key in NAMES:
            return getattr(self._remembered().typed_or(options, self.reading.settings), key)
        typed = given(options, key)
        return getattr(self.reading.settings, key) if typed is None else typed

    def beaten_by(self, row: Row) -> str:
        """What stands over the file, in a sentence; empty if nothing does."""
        key = row.setting.key
        if (typed := given(self._screen.services.shelf.options, key)) is not None:
            options = " or ".join(row.setting.about.options)
            return f"This start was given {_short(typed)} ({options}), which holds until you quit."
        if key in self.reading.environment:
            return f"The environment variable {row.setting.variable} beats the file."
        remembered = getattr(self._remembered(), key) if key in NAMES else None
        if remembered is None:
            return ""
        return f"For this model {_short(remembered)} is remembered, which holds (/model set {key})."

    def check(self, row: Row, value: TomlValue) -> None:
        """What only the app knows. Raises `PromptError` for a template that the model cannot be given."""
        if row.key == "template" and isinstance(value, str):
            self._screen.model.check_template(value)

    def save(self, row: Row, value: TomlValue) -> None:
        """Write a value, `None` for the default, and have it hold.

        Raises:
            SettingsError: it cannot be written, or does not go with the rest of the file.
            PromptError: there is no such template.
        """
        self.check(row, value)
        save_setting(row.key, value)
        self.take_over()

    def take_over(self) -> None:
        """Read the settings and have what is new hold; of a broken file the last good reading stays, told once."""
        found = read_settings()
        problems = (*found.file_problems[:1], *found.environment_problems)
        if found.file_problems:
            if problems != self._told:
                self._screen.tell(f"{found.file_problems[0]}; what held before goes on", warning=True)
            self._told = problems
            return
        self._told = ()
        before, self.reading = self.reading.settings, found
        self._screen.services.shelf.settings = found.settings
        for key in SETTINGS:
            if getattr(before, key) != getattr(found.settings, key):
                self._apply(key, found.settings)

    # Having a change hold

    def _apply(self, key: str, settings: Settings) -> None:
        """Have one changed setting hold now, if it is one of those that do and nothing stands over it."""
        screen, session = self._screen, self._screen.session
        if given(screen.services.shelf.options, key) is not None:
            return
        match key:
            case "theme":
                self._app.show_theme(settings.theme)
            case "sidebar":
                screen.show_sidebar(settings.sidebar and self._app.size.width >= _NARROW_CELLS)
            case "keys":
                self._use_keys(settings)
            case "title_by":
                session.titles = settings.title_by == "model"
            case "template" | "system":
                self._use_texts(key, settings)
            case _ if key in (*SAMPLED, "max_tokens", "context_policy"):
                self._draw_by(key, settings)

    def _use_keys(self, settings: Settings) -> None:
        keys = keymap(settings.keys)
        for problem in keys.problems:
            self._screen.tell(problem, warning=True)
        self._screen.use_keys(keys)
        self._screen.refresh_around()

    def _use_texts(self, key: str, settings: Settings) -> None:
        session, wanted = self._screen.session, self._wanted(settings)
        if key == "template":
            session.use(wanted.template, session.defaults.system, None)
        elif session.persona is None:
            session.use(session.template, wanted.system, None)

    def _draw_by(self, key: str, settings: Settings) -> None:
        session = self._screen.session
        said = of_settings(settings, bundled_guide=self._screen.model.is_guide)
        session.generation = session.generation.taking(key, said)

    def _wanted(self, settings: Settings) -> ModelSettings:
        return self._remembered().typed_or(self._screen.services.shelf.options, settings)

    def _remembered(self) -> ModelSettings:
        info = self._screen.model.info
        return ModelSettings() if info is None else self._screen.services.shelf.memory.settings_of(Path(info.path))


def _short(value: Any) -> str:
    return one_line(str(value), _SHOWN_CELLS) or "nothing"
