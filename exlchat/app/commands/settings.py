"""What /settings does in any front: the settings as they are, saving one, and having it hold in the running program."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exlchat import paths
from exlchat.app.chat.session import NotPossibleError
from exlchat.app.generation_settings import NAMES, at_start, of_settings
from exlchat.app.keys.keymap import keymap
from exlchat.app.library.memory import NAMES as REMEMBERED
from exlchat.app.library.memory import ModelSettings
from exlchat.app.overriding import given
from exlchat.config.settings import DRAWN, SETTINGS, Reading, SettingsError, read_settings, save_setting
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.app.commands.chat_front import ChatFront
    from exlchat.app.keys.keymap import Keymap
    from exlchat.app.panels.settings_rows import Row
    from exlchat.config.kinds import TomlValue
    from exlchat.config.settings import Settings

DEFAULT = "default"
"""The word that takes a key out of the file."""
HOLDS = {
    "at once": "it holds now",
    "next conversation": "it holds for the next conversation",
    "next load": "it holds when a model is loaded next",
}
"""When a changed setting takes effect, in words."""
_SHOWN_CELLS = 60


class SettingsCommands:
    """Belongs to one front and runs on its thread.

    A front adds what needs a screen of its kind: `_show_all`, `themes`, `_show_theme`, `_show_sidebar`, `_use_keys`,
    `_use_vi`.
    """

    def __init__(self, front: ChatFront) -> None:
        self._front = front
        self.reading: Reading = front.services.reading
        """The last one that was good."""
        self._told: tuple[str, ...] = ()

    # What each front does in its own way

    def _show_all(self) -> None:
        """All settings."""
        raise NotImplementedError

    def themes(self) -> list[str]:
        """Names of the themes there are."""
        raise NotImplementedError

    def _show_theme(self, name: str) -> None:
        """Use a theme, if there is one of that name."""
        raise NotImplementedError

    def _show_sidebar(self, shown: bool) -> None:
        """Where there is one, and room for it."""
        raise NotImplementedError

    def _use_keys(self, keys: Keymap) -> None:
        raise NotImplementedError

    def _use_vi(self, wanted: bool) -> None:
        """Edit what is typed with vi's keys, or with emacs's."""
        raise NotImplementedError

    # Doors

    def run(self, argument: str) -> None:
        """Show all settings, with KEY that one, with KEY VALUE change it. What was changed in the file holds from now.

        Raises:
            NotPossibleError: there is no such setting, or it cannot be so.
        """
        self.take_over()
        if not argument:
            self._show_all()
            return
        from exlchat.app.panels.settings_rows import row_of

        key, _, text = argument.partition(" ")
        try:
            row = row_of(key)
            if text.strip():
                self._change(row, text.strip())
            else:
                self._front.note("\n".join(self.told(row)))
        except (ValueError, SettingsError) as error:
            raise NotPossibleError(str(error)) from None

    def _change(self, row: Row, text: str) -> None:
        if row.is_theme and text not in (DEFAULT, *self.themes()):
            raise NotPossibleError(f"there is no theme {one_line(text, 40)}; there are {', '.join(self.themes())}")
        self.save(row, None if text == DEFAULT else row.value(text, self.reading))
        beaten = self.beaten_by(row)
        holds = f"{beaten} In the file: {self._in_file(row)}" if beaten else HOLDS[row.setting.about.when]
        self._front.tell(f"{row.key} = {self.shown(row)}; {holds}")

    def told(self, row: Row) -> list[str]:
        """A setting in a few lines: its value and where that is from, what it means and may be, when a change holds."""
        about = row.setting.about
        allowed = "" if row.action_id else f" It must be {about.kind.what}."
        beaten = self.beaten_by(row)
        default = f"Default: {row.default()}. A change takes effect: {about.when}."
        return [
            f"{row.key} = {self.shown(row)} ({self.source(row)})",
            f"{row.help}{allowed}",
            default,
            *([f"{beaten} In the file: {self._in_file(row)}"] if beaten else []),
            f"/settings {row.key} VALUE changes it, /settings {row.key} {DEFAULT} takes it out of the file",
        ]

    def shown(self, row: Row) -> str:
        """The value in force, in one line."""
        return row.shown(self.holds(row), keymap(self.reading.settings.keys))

    def source(self, row: Row) -> str:
        """Where the value in force is from."""
        if given(self._front.services.shelf.options, row.setting.key) is not None:
            return "this start"
        if row.setting.key in self.reading.environment:
            return "environment"
        if row.key in REMEMBERED and getattr(self._remembered(), row.key) is not None:
            return "remembered for this model"
        return "file" if row.in_file(self.reading) else "default"

    def _in_file(self, row: Row) -> str:
        return one_line(row.text(self.reading), _SHOWN_CELLS) if row.in_file(self.reading) else "nothing"

    def holds(self, row: Row) -> Any:
        """The value in force: what this start was given, else the environment, the model's memory, the file."""
        key, options = row.setting.key, self._front.services.shelf.options
        if key in REMEMBERED:
            return getattr(self._remembered().typed_or(options, self.reading.settings), key)
        typed = given(options, key)
        return getattr(self.reading.settings, key) if typed is None else typed

    def beaten_by(self, row: Row) -> str:
        """What stands over the file, in a sentence; empty if nothing does."""
        key = row.setting.key
        if (typed := given(self._front.services.shelf.options, key)) is not None:
            options = " or ".join(row.setting.about.options)
            typed = row.setting.about.kind.to_text(typed)
            return f"This start was given {_short(typed)} ({options}), which holds until you quit."
        if key in self.reading.environment:
            return f"The environment variable {row.setting.variable} beats the file."
        remembered = getattr(self._remembered(), key) if key in REMEMBERED else None
        if remembered is None:
            return ""
        return f"For this model {_short(remembered)} is remembered, which holds (/model set {key})."

    def check(self, row: Row, value: TomlValue) -> None:
        """What only the app knows. Raises `PromptError` for a template that the model cannot be given."""
        if row.key == "template" and isinstance(value, str):
            self._front.model.check_template(value)

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
                self._front.tell(f"{found.file_problems[0]}; what held before goes on", warning=True)
            self._told = problems
            return
        told, self._told = self._told, ()
        before, self.reading = self.reading.settings, found
        try:
            self._draw_by(before, found.settings)
        except (SettingsError, ValueError) as error:
            # How answers are drawn stays as it is; the rest holds.
            self._told = (str(error),)
            if self._told != told:
                self._front.tell(f"{error}; answers are drawn as before", warning=True)
            found = replace(found, settings=replace(found.settings, **{key: getattr(before, key) for key in DRAWN}))
            self.reading = found
        self._front.services.shelf.settings = found.settings
        for key in SETTINGS:
            if getattr(before, key) != getattr(found.settings, key):
                self._apply(key, found.settings)

    # Having a change hold

    def _apply(self, key: str, settings: Settings) -> None:
        """Have one changed setting hold now, if it is one of those that do and nothing stands over it."""
        session = self._front.session
        if given(self._front.services.shelf.options, key) is not None:
            return
        match key:
            case "theme":
                self._show_theme(settings.theme)
            case "sidebar":
                self._show_sidebar(settings.sidebar)
            case "keys":
                self._take_keys(settings)
            case "editing":
                self._use_vi(settings.editing == "vi")
            case "title_by":
                session.titles = settings.title_by == "model"
            case "template" | "system":
                self._use_texts(key, settings)

    def _take_keys(self, settings: Settings) -> None:
        keys = keymap(settings.keys)
        for problem in keys.problems:
            self._front.tell(problem, warning=True)
        self._use_keys(keys)
        self._front.refresh_around()

    def _use_texts(self, key: str, settings: Settings) -> None:
        session, wanted = self._front.session, self._wanted(settings)
        if key == "template":
            session.use(wanted.template, session.defaults.system, None)
        elif session.persona is None:
            session.use(session.template, wanted.system, None)

    def _draw_by(self, before: Settings, now: Settings) -> None:
        """Have what changed of how answers are drawn hold, but for what this start was given, all of it together.

        Raises:
            SettingsError: it does not go with what this start was given.
            ValueError: it does not go with what holds in this session.
        """
        options, session, guide = self._front.services.shelf.options, self._front.session, self._front.model.is_guide
        at_start(options, now, paths.bundled_model() if guide else None)
        was, said = of_settings(before, bundled_guide=guide), of_settings(now, bundled_guide=guide)
        given_here = {*options.sampling.decided(), *(key for key in SETTINGS if given(options, key) is not None)}
        changed = [name for name in NAMES if was.value(name) != said.value(name) and name not in given_here]
        session.draw_by(session.generation.taking(changed, said))

    def _wanted(self, settings: Settings) -> ModelSettings:
        return self._remembered().typed_or(self._front.services.shelf.options, settings)

    def _remembered(self) -> ModelSettings:
        info = self._front.model.info
        return ModelSettings() if info is None else self._front.services.shelf.memory.settings_of(Path(info.path))


def _short(value: Any) -> str:
    return one_line(str(value), _SHOWN_CELLS) or "nothing"
