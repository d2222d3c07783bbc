"""The settings: a list that typing narrows, what the chosen one means, and an editor for it below."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import events, getters, on
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from exlchat.app.commands.settings import HOLDS
from exlchat.app.keys.keymap import keymap
from exlchat.app.panels.settings_rows import SettingRow, groups, padded
from exlchat.chat.prompt.errors import PromptError
from exlchat.config.files import SettingsError
from exlchat.ui.tui.widgets.composer import Composer
from exlchat.untrusted.sanitize import PRINTABLE_LINE, printable

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from exlchat.app.commands.settings import SettingsCommands
    from exlchat.config.kinds import TomlValue

_LISTED = "Enter changes · Del default · Esc closes"
_EDITED = "Enter keeps · Esc leaves"
_LINES = "Enter keeps · ctrl+j new line · Esc leaves"


class Lines(Composer):
    def _show_placeholder(self) -> None:
        self.placeholder = ""


class SettingsScreen(ModalScreen[None]):
    """Every change is checked while it is typed, and written when Enter keeps it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Close"),
        Binding("f2", "close", show=False, id="settings"),
    ]

    typed = getters.query_one("#settings-typed", Input)
    rows = getters.query_one("#settings-list", OptionList)
    choices = getters.query_one("#settings-choices", OptionList)
    field = getters.query_one("#settings-field", Input)
    lines = getters.query_one("#settings-lines", Lines)
    said = getters.query_one("#settings-said", Static)
    about = getters.query_one("#settings-about", Static)

    def __init__(self, commands: SettingsCommands) -> None:
        super().__init__()
        self._commands = commands
        self._rows: dict[str, SettingRow] = {}
        self._editing: SettingRow | None = None
        self._told = ""

    def compose(self) -> ComposeResult:
        with Vertical(id="settings"):
            yield TypedWords(id="settings-typed", placeholder="Type to search", restrict=PRINTABLE_LINE)
            yield OptionList(id="settings-list", markup=False)
            yield OptionList(id="settings-choices", markup=False)
            yield Input(id="settings-field", restrict=PRINTABLE_LINE)
            yield Lines(id="settings-lines")
            yield Static(id="settings-said", markup=False)
            yield Static(id="settings-about", markup=False)

    def on_mount(self) -> None:
        self.query_one("#settings").border_title = "Settings"
        self.rows.can_focus = False
        self._stop_editing()
        self._fill()

    # The list

    def _fill(self) -> None:
        """The rows that have every word that was typed, in their name, what they mean, what holds, or their group."""
        chosen = self._chosen
        words = self.typed.value.casefold().split()
        options: list[Option] = []
        for name, told, rows in groups():
            self._rows.update({row.key: row for row in rows})
            found = [
                row
                for row in rows
                if all(word in f"{name} {row.name} {row.help} {self._value(row)}".casefold() for word in words)
            ]
            if not found:
                continue
            heading = Content.assemble((f"{name} ", "bold $primary"), (told, "$quiet-text"))
            options += [Option("", disabled=True)] if options else []
            options.append(Option(heading, disabled=True))
            options += [Option(self._drawn(row), id=row.key) for row in found]
        self.rows.clear_options()
        self.rows.add_options(options)
        places: dict[str, int] = {option.id: at for at, option in enumerate(options) if option.id is not None}
        first = next(iter(places.values()), None)
        self.rows.highlighted = places.get(chosen.key, first) if chosen is not None else first
        if not places:
            self.about.update("Nothing has these words; try fewer")

    @on(Input.Changed, "#settings-typed")
    def _search(self) -> None:
        self._fill()

    def action_move(self, how: str) -> None:
        getattr(self.rows, f"action_{how}")()

    def _value(self, row: SettingRow) -> str:
        return row.shown(self._commands.holds(row), keymap(self._commands.reading.settings.keys))

    def _drawn(self, row: SettingRow) -> Content:
        reading = self._commands.reading
        value = printable(self._value(row))
        if self._commands.beaten_by(row):
            mark = ("! ", "$warning")
        else:
            mark = ("• ", "$primary") if row.in_file(reading) else ("  ", "")
        if reason := self._commands.lacking(row):
            # What mends it stands below, when the row is gone to.
            return Content.assemble(mark, (f"{padded(row.name)}{value}  {reason.partition(';')[0]}", "$quiet-text"))
        return Content.assemble(mark, (padded(row.name), "bold"), value)

    @property
    def _chosen(self) -> SettingRow | None:
        option = self.rows.highlighted_option
        return self._rows.get(option.id or "") if option is not None else None

    @on(OptionList.OptionHighlighted, "#settings-list")
    def _tell_about(self) -> None:
        row = self._chosen
        if row is None:
            return
        about = row.setting
        default = f"Default: {row.default()}. Takes effect: {about.when}."
        file = "• The file says so." if row.in_file(self._commands.reading) else ""
        beaten = self._commands.beaten_by(row)
        told = (
            row.help,
            default,
            f"Not now: {reason}." if (reason := self._commands.lacking(row)) else "",
            f"! {beaten} In the file: {row.text(self._commands.reading) or 'nothing'}" if beaten else file,
        )
        self.about.update(printable("\n".join(line for line in told if line)))
        if row.key != self._told:
            # What was said of the row before; the same row is drawn anew when it has been written.
            self._told = row.key
            self._say("")

    @on(OptionList.OptionSelected, "#settings-list")
    def change(self) -> None:
        """Enter: turn a switch, open the editor of another."""
        row = self._chosen
        if row is None:
            return
        text = row.text(self._commands.reading)
        if row.is_switch:
            self._keep(row, "false" if text == "true" else "true")
            return
        self._editing = row
        choices = row.choices(self._commands.themes())
        if choices:
            self.choices.clear_options()
            self.choices.add_options([Option(printable(one)) for one in choices])
            self.choices.highlighted = choices.index(text) if text in choices else 0
            self._edit_in(self.choices)
        elif row.has_lines:
            self.lines.set_text(text)
            self._edit_in(self.lines, _LINES)
        else:
            self.field.value = text
            self.field.select_all()
            self._edit_in(self.field)

    def action_default(self) -> None:
        """Take the chosen row out of the file."""
        if (row := self._chosen) is not None:
            self._write(row, None)

    # The editor

    def _edit_in(self, editor: OptionList | Input | Lines, told: str = _EDITED) -> None:
        editor.display = True
        editor.focus()
        self.rows.disabled = self.typed.disabled = True
        self.query_one("#settings").border_subtitle = told
        self._say("")

    def _stop_editing(self) -> None:
        self._editing = None
        for editor in (self.choices, self.field, self.lines):
            editor.display = False
        self.rows.disabled = self.typed.disabled = False
        self.typed.focus()
        self.query_one("#settings").border_subtitle = _LISTED

    @on(Input.Changed, "#settings-field")
    @on(Composer.Changed)
    def _check(self) -> None:
        row = self._editing
        if row is None:
            return
        text = self.field.value if self.field.display else self.lines.text
        try:
            self._commands.check(row, row.value(text, self._commands.reading))
        except (ValueError, SettingsError, PromptError) as error:
            self._say(str(error), wrong=True)
        else:
            self._say("")

    @on(OptionList.OptionSelected, "#settings-choices")
    def _choose(self, event: OptionList.OptionSelected) -> None:
        if self._editing is not None:
            self._keep(self._editing, str(event.option.prompt))

    @on(Input.Submitted, "#settings-typed")
    def _enter_row(self) -> None:
        self.change()

    @on(Input.Submitted, "#settings-field")
    def _enter(self, event: Input.Submitted) -> None:
        if self._editing is not None:
            self._keep(self._editing, event.value)

    @on(Composer.Submitted)
    def _enter_lines(self, event: Composer.Submitted) -> None:
        if self._editing is not None and not self._keep(self._editing, event.text):
            self.lines.set_text(event.text)

    def _keep(self, row: SettingRow, text: str) -> bool:
        """Whether it could be written; if not, the editor stays as it is."""
        try:
            value = row.value(text, self._commands.reading)
        except ValueError as error:
            self._say(str(error), wrong=True)
            return False
        return self._write(row, value)

    def _write(self, row: SettingRow, value: TomlValue) -> bool:
        try:
            self._commands.save(row, value)
        except (SettingsError, PromptError) as error:
            self._say(str(error), wrong=True)
            return False
        self._stop_editing()
        self._fill()
        holds = "something else holds in this start" if self._commands.beaten_by(row) else HOLDS[row.setting.when]
        self._say(f"{row.name} is {'written' if value is not None else 'back at its default'}; {holds}")
        return True

    def _say(self, line: str, *, wrong: bool = False) -> None:
        self.said.update(printable(line))
        self.said.display = bool(line)
        self.said.set_class(wrong, "-wrong")

    def action_leave(self) -> None:
        if self._editing is None:
            self.dismiss()
        else:
            self._stop_editing()
            self._say("")

    def action_close(self) -> None:
        self.dismiss()


class TypedWords(Input):
    """What narrows the list, whose keys come here: one types, moves and changes without going from one to the other."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(key, f"screen.move('{how}')", show=False)
            for key, how in (
                ("up", "cursor_up"),
                ("down", "cursor_down"),
                ("pageup", "page_up"),
                ("pagedown", "page_down"),
            )
        ),
        Binding("delete", "screen.default", "Default", show=False),
    ]

    def on_key(self, event: events.Key) -> None:
        """A space stands between words; before any it changes what is chosen, as Enter does."""
        if event.key == "space" and not self.value:
            event.stop()
            event.prevent_default()
            self.post_message(self.Submitted(self, self.value))
