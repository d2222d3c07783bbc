"""How the next answers are drawn: every value with what it does, the presets, and writing them down."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from textual import getters, on
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from exlchat.app.generation_settings import NAMES
from exlchat.app.lacking import why_not
from exlchat.app.panels.sampling import (
    groups,
    is_chosen,
    next_choice,
    preset_lines,
    spoken_rows,
    stepped,
    typed_text,
    value_lines,
)
from exlchat.app.panels.sampling_idle import idle_reason, order_line
from exlchat.untrusted.sanitize import PRINTABLE_LINE, printable
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from textual import events
    from textual.app import ComposeResult

    from exlchat.app.chat.own_settings import Spoken
    from exlchat.app.generation_settings import GenerationSettings
    from exlchat.chat.presets.registry import PresetEntry

_LISTED = "Esc closes · ←→ steps · Enter or a digit types · r back · m more"
_EDITED = "Enter takes it · Esc leaves"
_NAME_CELLS = max(map(len, NAMES))
_WIDE_CELLS = 44
_VALUE_CELLS = 25
"""Of values, so that their sources stand in a column; a list goes beyond it."""
_PRESET_CELLS = 20
"""Below, names stand without room up to where the values begin."""
_VALUE, _PRESET, _DO, _FOLD = "value:", "preset:", "do:", "fold:"
_DOES = {"save": ("Save as preset…", "s"), "keep": ("Keep as default", "k")}


class Door(Protocol):
    @property
    def now(self) -> GenerationSettings: ...

    @property
    def start(self) -> GenerationSettings: ...

    @property
    def spoken(self) -> Spoken:
        """How the open conversation is spoken to."""

    @property
    def lacks(self) -> Mapping[str, str]:
        """What the model cannot do, and why: as of `ModelInfo`."""

    @property
    def not_kept(self) -> str:
        """Why nothing is written down; empty if it is."""

    def change(self, name: str, text: str) -> None:
        """Raises `ValueError` in one line."""

    def set_back(self, name: str) -> None:
        """To what it was at the start. Raises `ValueError` in one line."""

    def presets(self) -> Sequence[PresetEntry]: ...

    def take(self, preset: PresetEntry) -> None:
        """Have its values hold. Raises `ValueError` in one line."""

    def save(self) -> None:
        """Ask for a name and write a preset; tells the screen with `said`."""

    def keep(self) -> None:
        """Write the values into the settings; tells the screen with `said`."""


class SamplingScreen(ModalScreen[None]):
    """A change holds from the next answer on; what cannot be is said in place, and the old value stays."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Close"),
        Binding("f6", "close", show=False, id="sampling"),
    ]

    rows = getters.query_one("#sampling-list", OptionList)
    field = getters.query_one("#sampling-field", Input)
    line = getters.query_one("#sampling-said", Static)
    about = getters.query_one("#sampling-about", Static)

    def __init__(self, door: Door) -> None:
        super().__init__()
        self._door = door
        self._presets: dict[str, PresetEntry] = {}
        self._editing = ""
        self._told = ""
        self._unfolded = False

    def compose(self) -> ComposeResult:
        with Vertical(id="sampling"):
            yield SamplingList(id="sampling-list", markup=False)
            yield Input(id="sampling-field", restrict=PRINTABLE_LINE, select_on_focus=False)
            yield Static(id="sampling-said", markup=False)
            yield Static(id="sampling-about", markup=False)

    def on_mount(self) -> None:
        self.query_one("#sampling").border_title = "Sampling"
        self._stop_editing()
        self.read_presets()
        self.rows.highlighted = 1
        self.said(self._door.not_kept)

    def on_resize(self, event: events.Resize) -> None:
        del event
        self._fill()

    # The list

    def read_presets(self) -> None:
        self._presets = {one.id: one for one in self._door.presets()}
        self._fill()

    def _fill(self) -> None:
        option = self.rows.highlighted_option
        options = list(self._options())
        self.rows.clear_options()
        self.rows.add_options(options)
        # By its name: a preset that was saved moves what stands below it.
        same = (place for place, one in enumerate(options) if option is not None and one.id == option.id)
        self.rows.highlighted = next(same, 1)

    def _options(self) -> Iterator[Option]:
        yield Option(
            Content.assemble(("Values ", "bold $primary"), ("of the next answers", "$quiet-text")), disabled=True
        )
        off = 0
        for group, names in groups(self._door.now):
            off += len(names) if group else 0
            if group and self._unfolded:
                heading = Content.assemble((f"  {group} ", "$primary"), ("as usual", "$quiet-text"))
                yield Option(heading, disabled=True)
            for name in names if self._unfolded or not group else ():
                yield Option(self._value_row(name), id=f"{_VALUE}{name}")
            if not group:
                yield Option(
                    Content.assemble(("  ", ""), (order_line(self._door.now.sampling), "$quiet-text")), disabled=True
                )
        for title, value, source in spoken_rows(self._door.spoken):
            shown = Content.assemble(
                f"  {title:<{_NAME_CELLS}} ", f"{printable(value):<{_VALUE_CELLS}}", (f"  {source}", "$quiet-text")
            )
            yield Option(shown, disabled=True)
        more = "fewer" if self._unfolded else f"more… {off} that are off, or as usual"
        yield Option(Content.assemble("  ", more, ("  m", "$quiet-text")), id=_FOLD)
        yield Option("", disabled=True)
        yield Option(Content.assemble(("Presets ", "bold $primary"), ("Enter takes one", "$quiet-text")), disabled=True)
        for one in self._presets.values():
            yield Option(self._preset_row(one), id=f"{_PRESET}{one.id}")
        yield Option("", disabled=True)
        yield Option(Content.assemble(("Write down", "bold $primary")), disabled=True)
        for what, (title, key) in _DOES.items():
            yield Option(Content.assemble("  ", title, (f"  {key}", "$quiet-text")), id=f"{_DO}{what}")

    def _value_row(self, name: str) -> Content:
        now = self._door.now
        mark = ("  ", "") if now.value(name) == self._door.start.value(name) else ("• ", "$primary")
        wide = self.size.width >= _WIDE_CELLS
        title = f"{name:<{_NAME_CELLS}} " if wide else f"{name} "
        idle = " · idle" if idle_reason(now.sampling, name) else ""
        source = printable(now.source(name))
        if reason := why_not(self._door.lacks, name):
            # What mends it stands below, when the row is gone to.
            source, idle = reason.partition(";")[0], " "
        # What somebody decided stands out, what is as usual or does nothing steps back.
        decided = source != "default" and not idle
        value = Content.styled(printable(now.shown(name)), "bold" if decided else "$quiet-text")
        gap = " " * (max(_VALUE_CELLS - value.cell_length, 0) + 2) if wide else "  "
        styled = (f"{source}{idle}", "$primary" if decided else "$quiet-text")
        return Content.assemble(
            mark, (title, "$quiet-text" if reason else "bold" if decided else ""), value, gap, styled
        )

    @property
    def _preset_cells(self) -> int:
        return min(max(map(len, self._presets), default=0), _PRESET_CELLS)

    def _preset_row(self, one: PresetEntry) -> Content:
        now = self._door.now
        try:
            holds = bool(one.preset.overrides.decided()) and now.with_overrides(one.preset.overrides, one.source) == now
        except ValueError:
            holds = False
        about = printable(one_line(one.preset.description, 100))
        return Content.assemble(
            ("● " if holds else "  ", "$primary"),
            (f"{printable(one_line(one.id, 40)):<{self._preset_cells}}  ", "bold"),
            (about, "$quiet-text"),
        )

    def _chosen(self, kind: str) -> str:
        """What of this kind the chosen row stands for; empty if it is of another."""
        option = self.rows.highlighted_option
        ident = option.id or "" if option is not None else ""
        return ident.removeprefix(kind) if ident.startswith(kind) else ""

    @property
    def _is_fold(self) -> bool:
        option = self.rows.highlighted_option
        return option is not None and option.id == _FOLD

    @on(OptionList.OptionHighlighted, "#sampling-list")
    def _tell_about(self) -> None:
        option = self.rows.highlighted_option
        ident = option.id or "" if option is not None else ""
        lines: Iterator[str] = iter(())
        if name := self._chosen(_VALUE):
            lines = value_lines(self._door.now, self._door.start, name, self._door.lacks)
        elif ident == _FOLD:
            lines = iter(["The controls that are off or as usual, by group; each says what it does."])
        elif preset := self._presets.get(self._chosen(_PRESET)):
            lines = preset_lines(preset.preset, self._door.now, preset.source)
        elif what := self._chosen(_DO):
            lines = iter(
                ["The values, without the seed and context_policy, as a preset of yours."]
                if what == "save"
                else ["What differs from settings.toml is written into it, but for the seed."]
            )
        self.about.update(printable("\n".join(lines)))
        if ident != self._told:
            # What was said of the row before; the same row is drawn anew when its value has changed.
            first, self._told = not self._told, ident
            if not first:
                self.said("")

    @on(OptionList.OptionSelected, "#sampling-list")
    def choose(self) -> None:
        """Enter: edit a value, take a preset, write down."""
        if name := self._chosen(_VALUE):
            if is_chosen(name):
                self._take(name, next_choice(self._door.now, name))
            else:
                self._edit(name, typed_text(self._door.now, name))
                self.field.select_all()
        elif preset := self._presets.get(self._chosen(_PRESET)):
            self._take_preset(preset)
        elif self._is_fold:
            self.action_fold()
        elif what := self._chosen(_DO):
            self.action_write(what)

    def _take_preset(self, preset: PresetEntry) -> None:
        before = self._door.now
        try:
            self._door.take(preset)
        except ValueError as error:
            self.said(f"{preset.source} is not taken: {error}", wrong=True)
            return
        self._fill()
        changes = self._door.now.changes_from(before)
        kept = f". Not applied: {preset.preset.not_applied}" if preset.preset.not_applied else ""
        self.said(f"{preset.source}: {', '.join(changes) or 'nothing changes'}{kept}")

    def action_fold(self) -> None:
        """Show the controls that are off, by group, or no longer."""
        self._unfolded = not self._unfolded
        self._fill()

    def action_step(self, by: int) -> None:
        name = self._chosen(_VALUE)
        text = stepped(self._door.now, name, by) if name else None
        if text is not None:
            self._take(name, text)

    def action_back(self) -> None:
        if name := self._chosen(_VALUE):
            try:
                self._door.set_back(name)
            except ValueError as error:
                self.said(str(error), wrong=True)
                return
            self._fill()
            self.said(f"{name} is {self._door.now.shown(name)} again, as at the start")

    def action_write(self, what: str) -> None:
        """Save a preset, or keep the values as defaults."""
        if self._door.not_kept:
            self.said(self._door.not_kept, wrong=True)
        elif what == "save":
            self._door.save()
        else:
            self._door.keep()

    # The field

    def on_key(self, event: events.Key) -> None:
        """A digit begins a value."""
        name = self._chosen(_VALUE)
        if self._editing and not self.field.has_focus and event.character and event.character.isprintable():
            # The next ones of a number that is typed fast come before the field has the focus.
            event.stop()
            self.field.insert_text_at_cursor(event.character)
        elif (
            not self._editing and name and not is_chosen(name) and event.character and event.character in "0123456789."
        ):
            event.stop()
            self._edit(name, event.character)

    def _edit(self, name: str, text: str) -> None:
        self._editing = name
        self.field.display = True
        self.field.value = text
        self.field.cursor_position = len(text)
        self.field.focus()
        self.rows.disabled = True
        self.add_class("-editing")
        self.query_one("#sampling").border_subtitle = _EDITED

    def _stop_editing(self) -> None:
        self._editing = ""
        self.field.display = False
        self.rows.disabled = False
        self.rows.focus()
        self.remove_class("-editing")
        self.query_one("#sampling").border_subtitle = _LISTED

    @on(Input.Changed, "#sampling-field")
    def _check(self, event: Input.Changed) -> None:
        if not self._editing or not self.field.display:
            return
        try:
            self._door.now.with_value(self._editing, event.value.strip())
        except ValueError as error:
            self.said(str(error), wrong=True)
        else:
            self.said("")

    @on(Input.Submitted, "#sampling-field")
    def _enter(self, event: Input.Submitted) -> None:
        if self._editing and self._take(self._editing, event.value.strip()):
            self._stop_editing()

    def _take(self, name: str, text: str) -> bool:
        """Whether the value could be taken; if not, the old one stays."""
        try:
            self._door.change(name, text)
        except ValueError as error:
            self.said(str(error), wrong=True)
            return False
        self._fill()
        self.said(f"{name} is {self._door.now.shown(name)} from the next answer on")
        return True

    # The rest

    def said(self, line: str, *, wrong: bool = False) -> None:
        """What was done, or cannot be; "" nothing."""
        self.line.update(printable(line))
        self.line.display = bool(line)
        self.line.set_class(wrong, "-wrong")

    def action_leave(self) -> None:
        if self._editing:
            self._stop_editing()
            self.said("")
        else:
            self.dismiss()

    def action_close(self) -> None:
        self.dismiss()


class SamplingList(OptionList):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,minus", "screen.step(-1)", "Less", show=False),
        Binding("right,plus", "screen.step(1)", "More", show=False),
        Binding("backspace,delete,r", "screen.back", "Back", show=False),
        Binding("m", "screen.fold", "More", show=False),
        *(Binding(key, f"screen.write('{what}')", title, show=False) for what, (title, key) in _DOES.items()),
    ]

    def on_resize(self) -> None:
        """The chosen row stays in sight when what stands below takes more lines."""
        self.scroll_to_highlight()
