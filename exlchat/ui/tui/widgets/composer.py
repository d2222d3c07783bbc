"""The composer: where a message is typed. Enter sends; everything else that looks like Enter makes a new line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea
from textual.widgets.text_area import Selection

from exlchat.app.commands.actions import ACTIONS, BY_NAME, completions
from exlchat.app.composer.file_mentions import begun_mention
from exlchat.app.composer.recall import Recall
from exlchat.app.keys.keymap import Keymap
from exlchat.ui.tui.terminal_keys import MODIFY_OTHER_KEYS_NEW_LINE
from exlchat.untrusted.sanitize import printable
from exlchat.untrusted.text import REPLACEMENT

if TYPE_CHECKING:
    from exlchat.ui.tui.vi_keys import ViKeys, ViText

PLACEHOLDER = "Write a message · Enter sends · /help"
NARROW_PLACEHOLDER = "Write a message"
WRAPPED_CHARACTERS = 100_000
"""A longer text is shown without wrapping its lines: to wrap five million characters takes Textual seconds, each time
that the composer or the terminal changes its size."""
ON_A_MESSAGE = (
    *("e edit", "r answer again", "← → alternatives", "d delete", "c copy", "x leave out", "b branch", "C copy code"),
    *("Esc back", "F1 all keys"),
)
"""While the cursor is on a message above; what leads on, at the end, stays longest."""

_VI_LETTERS = {"backspace": "h", "delete": "x", "space": "l"}
"""Keys beside letters that move vi's cursor or take away what is under it."""


class Composer(TextArea):
    """A text area that grows with its text up to the height its style allows."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "earlier", "Earlier prompt", show=False, id="earlier-prompt"),
        Binding("down", "later", "Later prompt", show=False, id="later-prompt"),
        Binding("tab", "complete", "Complete", show=False, id="complete"),
        # The text area would take ctrl+y for "redo", which most editors also have on ctrl+shift+z.
        Binding("ctrl+y", "screen.act('copy')", show=False, id="copy"),
        Binding("ctrl+shift+z", "redo", show=False),
        # And f6 and f7 for selecting the line and all.
        Binding("f6", "screen.act('sampling')", show=False, id="sampling"),
        Binding("f7", "screen.act('persona')", show=False, id="persona"),
        Binding("pageup", "screen.scroll_page(-1)", show=False, id="scroll-page-up"),
        Binding("pagedown", "screen.scroll_page(1)", show=False, id="scroll-page-down"),
    ]

    @dataclass
    class Submitted(Message):
        """Enter was pressed; the composer is empty again. What cannot be sent belongs back: `give_back`."""

        text: str

    @dataclass
    class CompletionMoved(Message):
        """Up (-1) or down (+1) was pressed while something is being offered."""

        by: int

    class CompletionTaken(Message):
        """Tab was pressed while something is being offered, or Enter on the beginning of it."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(placeholder=PLACEHOLDER, compact=True, highlight_cursor_line=False, id=id)
        self.offering = False
        self.chosen = False
        """Whether somebody has gone to one of those that are offered."""
        self.recall = Recall()
        self._on_a_message = False
        self._beside_edit: str | None = None
        """What was typed before a message was put here to be edited."""
        self._placeholder = PLACEHOLDER
        self._vi: ViKeys | None = None
        self.use_keys(Keymap())

    def use_keys(self, keys: Keymap) -> None:
        """Which keys send and which make a new line; Enter in any form that does not send makes one as well."""
        self._send_keys = frozenset(keys.keys("send"))
        self._new_line_keys = frozenset(keys.keys("new-line")) | MODIFY_OTHER_KEYS_NEW_LINE
        here = (key for action in ACTIONS if action.place in ("everywhere", "composer") for key in keys.keys(action.id))
        self._alt_keys = frozenset(key for key in here if key.startswith("alt+"))
        first = keys.keys("send")[0]
        self._placeholder = PLACEHOLDER.replace("Enter", "Enter" if first == "enter" else first)
        self._show_placeholder()

    def use_vi(self, wanted: bool) -> None:
        if wanted and self._vi is None:
            # It brings prompt_toolkit, which no other start of the app needs.
            from exlchat.ui.tui.vi_keys import ViKeys

            self._vi = ViKeys()
        elif not wanted:
            self._vi = None
        self._show_mode()

    def begin_edit(self, text: str) -> None:
        """Put a message here to be changed; `typed` stays what was typed before."""
        self._beside_edit = self.typed
        self.set_text(text)

    def end_edit(self) -> None:
        typed, self._beside_edit = self._beside_edit, None
        self.set_text(typed or "")

    def hear(self, text: str) -> None:
        """What was typed and not sent was changed in another window."""
        if self._beside_edit is not None:
            self._beside_edit = text
        elif not self.recall.begun:
            self.set_text(text)

    @property
    def typed(self) -> str:
        """What was typed and not sent: the draft while an earlier prompt stands here unchanged, else the text."""
        if self._beside_edit is not None:
            return self._beside_edit
        return self.recall.draft_behind(self.text)

    def set_text(self, text: str) -> None:
        self.recall.end()
        self._show(text)

    def _show(self, text: str) -> None:
        self._wrap_for(len(text))
        self.text = text
        self.move_cursor(self.document.end)

    def take(self, text: str) -> None:
        """Replace the text in a way that undo takes back."""
        self.recall.end()
        self.replace(text, (0, 0), self.document.end, maintain_selection_offset=False)

    @property
    def text_before_cursor(self) -> str:
        row, column = self.cursor_location
        return self.document.get_line(row)[:column]

    def replace_before_cursor(self, column: int, text: str) -> None:
        end = self.cursor_location
        self.replace(text, (end[0], column), end, maintain_selection_offset=False)

    def _wrap_for(self, characters: int) -> None:
        """Wrap lines if that is quickly done for a text of so many characters."""
        self.soft_wrap = characters <= WRAPPED_CHARACTERS

    def on_paste(self, event: events.Paste) -> None:
        """Comes before the text area takes it."""
        if len(event.text) > WRAPPED_CHARACTERS:
            self._wrap_for(len(event.text))

    def on_text_area_changed(self) -> None:
        """What has become short again is wrapped again."""
        self._wrap_for(len(self.text))

    def give_back(self, text: str) -> None:
        """Put a text that could not be sent back, before what has been typed since."""
        self.set_text("\n\n".join(part for part in (text, self.text) if part))

    def refuse(self, text: str) -> None:
        """Put a command that was refused back, selected: what is typed next takes its place, a key changes it.

        The history has it where something has been typed since.
        """
        if not self.text:
            self.set_text(text)
            self.select_all()

    def get_line(self, line_index: int) -> Text:
        """A line as it is drawn: what could steer the terminal becomes a picture; the text itself stays as it is."""
        line = self.document.get_line(line_index)
        shown = printable(line)
        if len(shown) != len(line) or "\n" in shown:
            # The text area looks characters up by position, so each needs exactly one in its place.
            shown = "".join(
                drawn if len(drawn) == 1 and drawn != "\n" else REPLACEMENT for drawn in map(printable, line)
            )
        return Text(shown, end="", no_wrap=True)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Tab completes a command while one is offered; else it moves the focus as everywhere."""
        if action == "complete":
            return self.offering
        return super().check_action(action, parameters)

    def _submit(self) -> None:
        """Send; a backslash at the end of the line makes it a new line, the beginning of a command is completed."""
        row, column = self.cursor_location
        if self.selection.is_empty and self.cursor_at_end_of_line and self.document[row].endswith("\\"):
            self.replace("\n", (row, column - 1), (row, column), maintain_selection_offset=False)
            return
        # What is offered follows what is typed a moment later, and Enter may come first.
        offered = completions(self.text) or begun_mention(self.text_before_cursor)
        if self.offering and (self.chosen or (offered and self.text.lower() not in BY_NAME)):
            self.post_message(self.CompletionTaken())
            return
        text = self.text
        self.recall.end()
        self.text = ""
        if self._vi is not None:
            self._vi.begin_insert()
            self._show_mode()
        self.post_message(self.Submitted(text))

    def action_complete(self) -> None:
        self.post_message(self.CompletionTaken())

    def action_earlier(self) -> None:
        """Cursor up; on the first line, the prompt before."""
        if self.offering:
            self.chosen = True
            self.post_message(self.CompletionMoved(-1))
        elif (
            self.navigator.is_first_wrapped_line(self.cursor_location)
            and (earlier := self.recall.before(self.text)) is not None
        ):
            self._show(earlier)
        else:
            self.action_cursor_up()

    def action_later(self) -> None:
        """Cursor down; on the last line, the prompt after, and at last the draft again."""
        if self.offering:
            self.chosen = True
            self.post_message(self.CompletionMoved(1))
        elif self.recall.begun and self.navigator.is_last_wrapped_line(self.cursor_location):
            self._show(self.recall.after())
        else:
            self.action_cursor_down()

    def action_delete_to_start_of_line(self) -> None:
        """What is selected, as of a command that was refused, goes as a whole."""
        if self.selection.is_empty:
            super().action_delete_to_start_of_line()
        else:
            self.action_delete_left()

    def on_key(self, event: events.Key) -> None:
        """Enter in its many forms.

        Not a binding, because Textual runs a priority binding at once, ahead of the letters that still wait in this
        widget's queue: a line that arrives in one piece would be sent before its end was typed.
        """
        if event.key not in self._alt_keys and self._vi is not None and self._take_vi_key(self._vi, event):
            pass
        elif event.key in self._send_keys:
            self._submit()
        elif event.key == "enter" or event.key in self._new_line_keys:
            self.replace("\n", *self.selection, maintain_selection_offset=False)
        elif event.key in self._alt_keys:
            # Terminals send the letter along, which would be typed; the key goes on to what it is for.
            event.prevent_default()
            return
        else:
            return
        event.stop()
        event.prevent_default()

    def _take_vi_key(self, vi: ViKeys, event: events.Key) -> bool:
        """Do what a key means to vi; whether it means anything. Outside of insert mode every letter does."""
        cursor = self._offset(self.cursor_location)
        if event.key == "escape":
            if not vi.inserting and vi.mode == "NORMAL" and not vi.pending:
                return False
            self._become(vi.escape(self.text, cursor))
        elif vi.inserting:
            return False
        elif (letter := _VI_LETTERS.get(event.key, event.character or "")) and letter.isprintable():
            self._press_vi(vi, letter, cursor)
        else:
            return False
        self._show_mode()
        return True

    def _press_vi(self, vi: ViKeys, letter: str, cursor: int) -> None:
        """What vi does not know, because it is the text area's or the program's; else what it makes of the letter."""
        alone = not vi.pending
        if alone and letter == "u":
            self.undo()
        elif alone and letter == "/":
            self.call_next(self.run_action, "screen.act('history')")
        elif alone and letter == "k" and self.navigator.is_first_wrapped_line(self.cursor_location):
            self.action_earlier()
        elif alone and letter == "j" and self.navigator.is_last_wrapped_line(self.cursor_location):
            self.action_later()
        else:
            self._become(vi.press(letter, self.text, cursor))

    def _become(self, wanted: ViText) -> None:
        if self.text != wanted.text:
            start, end, text = wanted.difference(self.text)
            self.replace(text, self._place(start), self._place(end))
        self.selection = Selection(self._place(wanted.anchor), self._place(wanted.cursor))

    def _offset(self, place: tuple[int, int]) -> int:
        row, column = place
        return sum(len(line) + 1 for line in self.text.split("\n")[:row]) + column

    def _place(self, offset: int) -> tuple[int, int]:
        before = self.text[:offset]
        return before.count("\n"), offset - (before.rfind("\n") + 1)

    def _show_mode(self) -> None:
        self.border_title = self._vi.mode if self._vi is not None else ""

    def on_resize(self) -> None:
        """A long placeholder would be cut in a narrow terminal."""
        self._show_placeholder()

    def hint_at_keys(self, wanted: bool) -> None:
        """Say what the keys do to the message above that has the cursor, or what is done here."""
        self._on_a_message = wanted
        self._show_placeholder()

    def _show_placeholder(self) -> None:
        width = self.content_size.width
        if self._on_a_message:
            parts = list(ON_A_MESSAGE)
            while len(parts) > 1 and len(" · ".join(parts)) >= width:
                del parts[max(len(parts) - 3, 0)]
            self.placeholder = " · ".join(parts)
        else:
            self.placeholder = self._placeholder if width > len(self._placeholder) else NARROW_PLACEHOLDER
