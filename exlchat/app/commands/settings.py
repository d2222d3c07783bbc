"""What /settings does in any front: the settings as they are, saving one, and having it hold in the running program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from exlchat import paths
from exlchat.app.chat.open_conversation import Defaults
from exlchat.app.chat.session import NotPossibleError
from exlchat.app.keys.keymap import keymap
from exlchat.app.lacking import setting_refused, why_not
from exlchat.config.files import Reading, SettingsError, read_settings, save_setting
from exlchat.config.layers import STARTED
from exlchat.config.schema import EITHER, SETTINGS
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.app.keys.keymap import Keymap
    from exlchat.app.panels.settings_rows import SettingRow
    from exlchat.app.view import View
    from exlchat.config.kinds import TomlValue
    from exlchat.config.layers import Resolved
    from exlchat.config.schema import Underscores

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

    def __init__(self, front: View) -> None:
        self._front = front
        self._shelf = front.shelf
        self.reading: Reading = self._shelf.reading
        """The last one that was good."""
        self.held = self.reading.held
        """What holds, since somebody asked last."""
        self._told: tuple[str, ...] = ()

    # What each front does in its own way

    def _show_all(self) -> None:
        raise NotImplementedError

    def themes(self) -> list[str]:
        raise NotImplementedError

    def _show_theme(self, name: str) -> None:
        raise NotImplementedError

    def _show_sidebar(self, shown: bool) -> None:
        """Where there is one, and room for it."""
        raise NotImplementedError

    def _show_underscores(self, meant: Underscores) -> None:
        raise NotImplementedError

    def _use_keys(self, keys: Keymap) -> None:
        raise NotImplementedError

    def _use_vi(self, wanted: bool) -> None:
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

    def _change(self, row: SettingRow, text: str) -> None:
        if row.is_theme and text not in (DEFAULT, *self.themes()):
            raise NotPossibleError(f"there is no theme {one_line(text, 40)}; there are {', '.join(self.themes())}")
        self.save(row, None if text == DEFAULT else row.value(text, self.reading))
        beaten = self.beaten_by(row)
        holds = f"{beaten} In the file: {self._in_file(row)}" if beaten else HOLDS[row.setting.when]
        self._front.tell(f"{row.key} = {self.shown(row)}; {holds}")

    def told(self, row: SettingRow) -> list[str]:
        """A setting in a few lines: its value and where that is from, what it means and may be, when a change holds."""
        about = row.setting
        allowed = "" if row.action_id else f" It must be {about.kind.what}."
        beaten = self.beaten_by(row)
        default = f"Default: {row.default()}. A change takes effect: {about.when}."
        return [
            f"{row.key} = {self.shown(row)} ({self.source(row)})",
            f"{row.help}{allowed}",
            default,
            *([f"Not now: {reason}."] if (reason := self.lacking(row)) else []),
            *([f"{beaten} In the file: {self._in_file(row)}"] if beaten else []),
            f"/settings {row.key} VALUE changes it, /settings {row.key} {DEFAULT} takes it out of the file",
        ]

    def lacking(self, row: SettingRow) -> str:
        """Why the model that is there does not know it, and what would mend that; empty where it does."""
        return why_not(self._front.session.lacks, row.key)

    def shown(self, row: SettingRow) -> str:
        return row.shown(self.holds(row), keymap(self.held.value("keys")))

    def source(self, row: SettingRow) -> str:
        over = self.held.beaten(row.setting.key)
        if over is None:
            return "file" if row.in_file(self.reading) else "default"
        if over.place in ("conversation", "persona"):
            return over.name or "conversation"
        if over.place in STARTED:
            return "this start"
        return "remembered for this model" if over.place == "remembered" else over.place

    def _in_file(self, row: SettingRow) -> str:
        return one_line(row.text(self.reading), _SHOWN_CELLS) if row.in_file(self.reading) else "nothing"

    def holds(self, row: SettingRow) -> Any:
        return self.held.value(row.setting.key)

    def beaten_by(self, row: SettingRow) -> str:
        """What stands over the file, in a sentence; empty if nothing does."""
        key, over = row.setting.key, self.held.beaten(row.setting.key)
        if over is None:
            return ""
        if not over.says(key):
            # The other of two ways to say one thing.
            key = next(one for one in EITHER if over.says(one))
        if over.place == "environment":
            return f"The environment variable {SETTINGS[key].variable} beats the file."
        if over.place == "remembered":
            return f"For this model {_short(over.value(key))} is remembered, which holds (/model set {key})."
        if over.place == "conversation":
            return f"This conversation says {_short(over.value(key))} itself, which holds in it; /undo takes that back."
        if over.place == "persona":
            return f"{over.name.capitalize()}, who speaks here, wishes for {_short(over.value(key))}, which holds."
        given = SETTINGS[key].kind.to_text(self._shelf.options.given(key))
        options = " or ".join(row.setting.options)
        return f"This start was given {_short(given)} ({options}), which holds until you quit."

    def check(self, row: SettingRow, value: TomlValue) -> None:
        """What only the app knows.

        Raises:
            SettingsError: the model that is there does not know it.
            PromptError: it cannot be given this template.
        """
        if value is not None and not row.action_id:
            wanted = row.setting.from_toml(value)
            if reason := setting_refused(self._front.session.lacks, row.key, wanted):
                raise SettingsError(reason)
        if row.key == "template" and isinstance(value, str):
            self._front.model.check_template(value)

    def save(self, row: SettingRow, value: TomlValue) -> None:
        """Write a value, `None` for the default, and have it hold.

        Raises:
            SettingsError: it cannot be written, or goes neither with the rest of the file nor with the model.
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
        last, self.reading = self._shelf.reading, found
        before, self.held = self._held(last), self._held(found)
        try:
            self._front.session.require_fit(self._defaults(found))
        except ValueError as error:
            # How answers are drawn stays as it is; the rest holds.
            self._told = (str(error),)
            if self._told != told:
                self._front.tell(f"{error}; answers are drawn as before", warning=True)
            found = found.drawing_as(last)
            self.held = self._held(found)
        self._shelf.reading = found
        self._front.session.use(self._defaults(found))
        for key in SETTINGS:
            if before.value(key) != self.held.value(key):
                self._apply(key)

    # Having a change hold

    def catch_up(self) -> None:
        """Have hold what was changed in another front, since this one was last in sight."""
        before, self.reading = self.held, self._shelf.reading
        self.held = self._held(self.reading)
        self._front.session.use(self._defaults(self.reading))
        for key in SETTINGS:
            if before.value(key) != self.held.value(key):
                self._apply(key)

    def _apply(self, key: str) -> None:
        session, value = self._front.session, self.held.value(key)
        match key:
            case "theme":
                self._show_theme(value)
            case "sidebar":
                self._show_sidebar(value)
            case "keys":
                self._take_keys(keymap(value))
            case "editing":
                self._use_vi(value == "vi")
            case "underscores":
                self._show_underscores(value)
            case "title_by":
                session.titles = value == "model"

    def _take_keys(self, keys: Keymap) -> None:
        for problem in keys.problems:
            self._front.tell(problem, warning=True)
        self._use_keys(keys)
        self._front.refresh_around()

    def _defaults(self, reading: Reading) -> Defaults:
        session, state = self._front.session, self._front.model
        now = session.defaults
        model = now.model if state.info is None else Path(state.info.path)
        held = self._shelf.options.over(reading, self._shelf.memory.settings_of(model).layer)
        system = held.value("system") if session.first_persona is None else now.system
        return Defaults(held, paths.bundled_model() if state.is_guide else model, system)

    def _held(self, reading: Reading) -> Resolved:
        return self._front.session.layered(self._defaults(reading))


def _short(value: Any) -> str:
    return one_line(str(value), _SHOWN_CELLS) or "nothing"
