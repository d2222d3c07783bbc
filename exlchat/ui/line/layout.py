"""The rows below the scrollback: open end, message, search, toolbar; and a menu over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prompt_toolkit.application import get_app
from prompt_toolkit.filters import Condition
from prompt_toolkit.layout import (
    BufferControl,
    CompletionsMenu,
    ConditionalContainer,
    Dimension,
    Float,
    FloatContainer,
    FormattedTextControl,
    HSplit,
    Layout,
    Window,
)
from prompt_toolkit.layout.processors import (
    AppendAutoSuggestion,
    HighlightIncrementalSearchProcessor,
    HighlightSelectionProcessor,
)
from prompt_toolkit.widgets import SearchToolbar

if TYPE_CHECKING:
    from collections.abc import Callable

    from prompt_toolkit.buffer import Buffer
    from prompt_toolkit.formatted_text import StyleAndTextTuples

    from exlchat.ui.line.formatter import Fragments

_MENU_ROWS = 7
_CONTINUED = "… "


class LineLayout:
    """Asks `above` for the lines over the message, `prompt` for what stands before it, `below` for the toolbar."""

    def __init__(
        self,
        buffer: Buffer,
        *,
        rows: Callable[[], int],
        above: Callable[[], list[Fragments]],
        below: Callable[[], str],
        prompt: Callable[[], str],
    ) -> None:
        self._buffer = buffer
        self._rows = rows
        self._above = above
        self._below = below
        self._prompt = prompt
        search = SearchToolbar(ignore_case=True)
        control = BufferControl(
            buffer,
            input_processors=[
                HighlightIncrementalSearchProcessor(),
                HighlightSelectionProcessor(),
                AppendAutoSuggestion(),
            ],
            search_buffer_control=search.control,
            preview_search=True,
        )
        message = Window(
            control,
            height=self._height,
            get_line_prefix=self._prefix,
            wrap_lines=True,
            dont_extend_height=True,
        )
        open_end = ConditionalContainer(
            Window(FormattedTextControl(self._above_text), dont_extend_height=True),
            Condition(lambda: bool(self._above())),
        )
        toolbar = Window(
            FormattedTextControl(lambda: f" {self._below()}"),
            height=1,
            style="class:bottom-toolbar",
            dont_extend_height=True,
        )
        # prompt_toolkit never takes rows back from the terminal; those left over stay empty at the very bottom.
        body = HSplit([open_end, message, search, toolbar, Window(height=Dimension(min=0, preferred=0))])
        menu = Float(CompletionsMenu(max_height=_MENU_ROWS, scroll_offset=1), xcursor=True, ycursor=True)
        self.layout = Layout(FloatContainer(body, [menu]), focused_element=message)

    def _height(self) -> Dimension:
        """Room for the menu while there is one, and never more than the terminal has."""
        most = max(1, self._rows() - 3)
        least = 1
        if self._buffer.complete_state is not None and not get_app().is_done:
            least = min(1 + _MENU_ROWS, most)
        return Dimension(min=least, max=most)

    def _above_text(self) -> StyleAndTextTuples:
        pieces: StyleAndTextTuples = []
        for number, line in enumerate(self._above()):
            if number:
                pieces.append(("", "\n"))
            pieces += line
        return pieces

    def _prefix(self, line: int, wrapped: int) -> StyleAndTextTuples:
        prompt = self._prompt()
        if line == 0 and wrapped == 0:
            return [("class:prompt", prompt)]
        return [("class:quiet", _CONTINUED.rjust(len(prompt)) if wrapped == 0 else " " * len(prompt))]
