"""vi's keys for the composer: prompt_toolkit's own, run on a text and a cursor instead of a terminal.

What is typed in insert mode is the text area's affair. `.` (again) and searching are not there, as in prompt_toolkit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prompt_toolkit.application import Application
from prompt_toolkit.application.current import set_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.input import DummyInput
from prompt_toolkit.key_binding.key_processor import KeyPress
from prompt_toolkit.key_binding.vi_state import InputMode
from prompt_toolkit.layout import BufferControl, Layout, Window
from prompt_toolkit.output import DummyOutput


@dataclass(frozen=True, slots=True)
class ViText:
    """What a key has made of a text.

    Args:
        text: the text.
        cursor: where it stands, in characters from the beginning; at a selection, where that ends.
        anchor: the other end of the selection; the cursor where nothing is selected.
    """

    text: str
    cursor: int
    anchor: int

    def difference(self, before: str) -> tuple[int, int, str]:
        """The part of `before` that is another one in this text: from, to, and what stands there now."""
        after, shorter = self.text, min(len(before), len(self.text))
        start = next((at for at in range(shorter) if before[at] != after[at]), shorter)
        most = shorter - start
        same = next((at for at in range(most) if before[-1 - at] != after[-1 - at]), most)
        return start, len(before) - same, after[start : len(after) - same]


class ViKeys:
    """One editor's state: mode, operator that waits, registers. It begins in insert mode, as vi's line editors do."""

    def __init__(self) -> None:
        self._buffer = Buffer(multiline=True)
        self._given = ViText("", 0, 0)
        """What was given last: as long as that stands there, the cursor is where vi has it."""
        self._app: Application[Any] = Application(
            layout=Layout(Window(BufferControl(self._buffer))),
            editing_mode=EditingMode.VI,
            input=DummyInput(),
            output=DummyOutput(),
        )
        # An unfinished command waits for its end however long it takes.
        self._app.timeoutlen = None  # type: ignore[assignment]  # one of its documented values

    @property
    def inserting(self) -> bool:
        return self._app.vi_state.input_mode in (InputMode.INSERT, InputMode.INSERT_MULTIPLE)

    @property
    def pending(self) -> bool:
        """Whether a command has begun and waits for its end, or a selection for a command."""
        vi, processor = self._app.vi_state, self._app.key_processor
        selecting = self._buffer.selection_state is not None
        return selecting or vi.operator_func is not None or bool(processor.key_buffer) or self._counting

    @property
    def mode(self) -> str:
        """Its name, to be shown; empty for insert mode."""
        if self.inserting:
            return ""
        if self._app.vi_state.input_mode == InputMode.REPLACE:
            return "REPLACE"
        return "VISUAL" if self._buffer.selection_state is not None else "NORMAL"

    def begin_insert(self) -> None:
        """As at the beginning: for a message that is begun anew."""
        self._settle(InputMode.INSERT)

    def escape(self, text: str, cursor: int) -> ViText:
        """Leave insert mode, or give up what has begun."""
        if self.inserting and cursor and text[cursor - 1] != "\n":
            cursor -= 1
        elif self._stands(text, cursor):
            cursor = self._buffer.cursor_position
        self._settle(InputMode.NAVIGATION)
        return self._give(ViText(text, cursor, cursor))

    def press(self, character: str, text: str, cursor: int) -> ViText:
        """Take one character as a key, outside of insert mode."""
        buffer = self._buffer
        if not self._stands(text, cursor):
            buffer.set_document(Document(text, cursor))
        with set_app(self._app):
            self._app.key_processor.feed(KeyPress(character))
            self._app.key_processor.process_keys()
        at, state = buffer.cursor_position, buffer.selection_state
        if state is None:
            return self._give(ViText(buffer.text, at, at))
        # prompt_toolkit's range holds what is selected but its last character, and vi selects the one under the cursor.
        first, last = buffer.document.selection_range()
        last = min(last + 1, len(buffer.text))
        forward = at >= state.original_cursor_position
        return self._give(ViText(buffer.text, last if forward else first, first if forward else last))

    def _give(self, given: ViText) -> ViText:
        self._given = given
        return given

    def _stands(self, text: str, cursor: int) -> bool:
        return (text, cursor) == (self._given.text, self._given.cursor) and self._buffer.text == text

    @property
    def _counting(self) -> bool:
        return self._app.key_processor.arg is not None

    def _settle(self, mode: InputMode) -> None:
        self._app.key_processor.reset()
        self._app.key_processor.arg = None
        self._app.vi_state.reset()
        self._buffer.exit_selection()
        self._app.vi_state.input_mode = mode
