"""A terminal that can move its cursor: a prompt_toolkit application below the scrollback, a few rows high.

What is finished is written above it and never touched again. prompt_toolkit's own `PromptSession` is not used: its
toolbar waits for the terminal to say where the cursor is after every line that is written above.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import signal
from typing import TYPE_CHECKING, TextIO

from prompt_toolkit.application import Application, run_in_terminal
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import ThreadedCompleter, merge_completers
from prompt_toolkit.data_structures import Size
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.filters import Condition
from prompt_toolkit.key_binding.vi_state import InputMode
from prompt_toolkit.output.color_depth import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.renderer import print_formatted_text
from prompt_toolkit.styles import DynamicStyle, Style

from exlchat.app.composer.file_mentions import begun_mention
from exlchat.app.composer.typed_input import Prompt, parse_input
from exlchat.ui.line.bindings import TypedLine, line_bindings
from exlchat.ui.line.completion import CommandCompleter
from exlchat.ui.line.formatter import EDIT_PROMPT, PROMPT
from exlchat.ui.line.keys import BEGIN_REPORTS, END_REPORTS, learn_keys
from exlchat.ui.line.layout import LineLayout
from exlchat.ui.line.mentions import MentionCompleter
from exlchat.ui.line.pastes import take_pastes_whole
from exlchat.ui.line.styled_formatter import StyledFormatter
from exlchat.ui.line.styles import rules_of
from exlchat.ui.line.toolbar import toolbar_text
from exlchat.ui.line.typed_count import TypedCount
from exlchat.ui.terminal.clipboard import copy_with_tool
from exlchat.untrusted.sanitize import normalize_newlines, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from prompt_toolkit.formatted_text import StyleAndTextTuples
    from prompt_toolkit.history import History
    from prompt_toolkit.input import Input
    from prompt_toolkit.output import Output

    from exlchat.ui.line.chat import LineChat
    from exlchat.ui.line.formatter import Formatter, Fragments

_ROWS_AROUND = 6
"""What the open end leaves free: the message, its menu, the toolbar."""
_ESCAPE_SECONDS = 0.05
_CHORD_SECONDS = 0.4


class LineScreen:
    """A `Console` that repaints its open end. Runs on the thread of the event loop."""

    def __init__(self, chat: LineChat, source: Input, output: Output, history: History, *, keys: bool = True) -> None:
        """`keys` has the terminal tell shift+enter from Enter while this runs."""
        learn_keys()
        take_pastes_whole(source)
        self._chat = chat
        self._output = output
        self._keys = keys
        self._hint = ""
        self._count = TypedCount(chat)
        self._held: list[Fragments] | None = None
        """Lines that wait while an editor has the terminal."""
        self._formatter = StyledFormatter(
            chat.themes[chat.theme],
            lambda: output.get_size().columns,
            lambda: chat.services.shelf.settings.underscores,
        )
        self.set_theme()
        self.buffer = Buffer(
            name="message",
            multiline=True,
            completer=ThreadedCompleter(
                merge_completers([CommandCompleter(chat), MentionCompleter(chat.engine_jobs.count)])
            ),
            complete_while_typing=Condition(self._completes),
            auto_suggest=AutoSuggestFromHistory(),
            history=history,
            on_text_changed=lambda _: self._typed(),
        )
        rows = LineLayout(
            self.buffer,
            rows=lambda: output.get_size().rows,
            above=self._above,
            below=self._below,
            prompt=lambda: EDIT_PROMPT if chat.editing.active else PROMPT,
        )
        self.app: Application[None] = Application(
            layout=rows.layout,
            key_bindings=line_bindings(
                TypedLine(self.buffer, self.set_text, self.submit, self.paste, self.edit, self.suspend, self.clear),
                chat,
            ),
            style=DynamicStyle(lambda: self._style),
            input=source,
            output=output,
            erase_when_done=True,
            editing_mode=EditingMode.VI if chat.services.shelf.settings.editing == "vi" else EditingMode.EMACS,
        )
        self.app.ttimeoutlen = _ESCAPE_SECONDS
        self.app.timeoutlen = _CHORD_SECONDS

    def _completes(self) -> bool:
        """Whether a menu opens by itself: behind a slash at the beginning, or in the name of a file."""
        if self._chat.editing.active:
            return False
        before = self.buffer.document.current_line_before_cursor
        return self.buffer.text.startswith("/") or begun_mention(before) is not None

    def _typed(self) -> None:
        self._chat.unsent.keep_soon()
        self._count.changed()

    # Console

    @property
    def formatter(self) -> Formatter:
        return self._formatter

    @property
    def repaints(self) -> bool:
        return True

    @property
    def tail_rows(self) -> int:
        """What the message and the toolbar leave free."""
        return max(1, self._output.get_size().rows - _ROWS_AROUND)

    @property
    def in_editor(self) -> bool:
        return self._held is not None

    def put(self, lines: Sequence[Fragments]) -> None:
        if not lines:
            return
        if self._held is not None:
            self._held += lines
            return
        if self.app.is_running:
            self.app.renderer.erase()
        fragments: StyleAndTextTuples = [piece for line in lines for piece in (*line, ("", "\n"))]
        print_formatted_text(self._output, fragments, self._style, color_depth=self.app.color_depth)
        self.app.invalidate()

    def refresh(self) -> None:
        """As soon as the loop is free."""
        self.app.invalidate()

    def hint(self, line: str, seconds: float) -> None:
        self._hint = line
        self.refresh()
        self._chat.later(seconds, self._forget_hint)

    def _forget_hint(self) -> None:
        self._hint = ""
        self.refresh()

    def typed(self) -> str:
        return self.buffer.text

    def set_text(self, text: str) -> None:
        self.buffer.text = _typable(text)
        self.buffer.cursor_position = len(self.buffer.text)

    def take_unfinished(self) -> None:
        """There is none: every key has arrived."""

    def begin_edit(self, text: str, what: str) -> None:
        del what
        self.set_text(text)

    def end_edit(self, before: str) -> None:
        self.set_text(before)

    def set_theme(self) -> None:
        """From here on; what is written stays as it is."""
        theme = self._chat.themes[self._chat.theme]
        self._formatter.use(theme)
        self._style = Style.from_dict(rules_of(theme))

    def copy(self, text: str) -> None:
        """Through the terminal, and through the desktop's own tool."""
        encoded = base64.b64encode(text.encode("utf-8", "replace")).decode("ascii")
        self._output.write_raw(f"\x1b]52;c;{encoded}\a")
        self._output.flush()
        self._chat.in_background(lambda: copy_with_tool(text), lambda _: None)

    def leave(self) -> None:
        if self.app.is_running and self.app.future is not None and not self.app.future.done():
            self.app.exit()

    # What is typed

    def submit(self) -> None:
        """Hand over the message; what cannot be sent stays in sight, a command so that what is typed replaces it."""
        text = self.buffer.text
        command = not self._chat.editing.active and not isinstance(parse_input(text), Prompt)
        if text.strip():
            self.buffer.append_to_history()
        self.buffer.reset()
        back = self._chat.submit(text)
        if back and not (command and self.buffer.text):
            self.set_text("\n\n".join(part for part in (back, self.buffer.text) if part))
            if command:
                self._select_all()

    def _select_all(self) -> None:
        """As by shift and an arrow key, which vi's keys do not know: there the line is left empty."""
        if self.app.editing_mode == EditingMode.VI:
            self.buffer.reset()
            return
        self.buffer.cursor_position = 0
        self.buffer.start_selection()
        self.buffer.cursor_position = len(self.buffer.text)
        if self.buffer.selection_state is not None:
            self.buffer.selection_state.enter_shift_mode()

    def clear(self) -> bool:
        """Take away what is typed, which the history keeps; whether there was anything."""
        if not self.buffer.text:
            return False
        self.buffer.append_to_history()
        self.buffer.reset()
        return True

    def paste(self, text: str) -> None:
        """Text from the clipboard, made safe; nothing in it is a key."""
        self.buffer.insert_text(_typable(text))

    def write_in_editor(self) -> None:
        self._chat.keep_running(self.edit())

    def use_vi(self, wanted: bool) -> None:
        self.app.editing_mode = EditingMode.VI if wanted else EditingMode.EMACS

    async def edit(self) -> None:
        """Write the message in $EDITOR; what comes meanwhile is shown after it."""
        # No start needs it.
        from exlchat.ui.terminal.editor import EditorError, write

        if self._held is not None:
            return
        self._held = []
        self._report_keys(False)
        try:
            text = self.buffer.text
            self.set_text(await run_in_terminal(lambda: write(text), in_executor=True))
        except EditorError as error:
            self._chat.tell(str(error), warning=True)
        finally:
            held, self._held = self._held, None
            self._report_keys(True)
            self.put(held)

    def suspend(self) -> None:
        """Give the terminal back to the shell until it brings this program to the front again."""

        def stop() -> None:
            self._report_keys(False)
            os.kill(0, signal.SIGTSTP)
            self._report_keys(True)

        run_in_terminal(stop)

    # Life

    async def run(self, ready: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        first = True

        def painted(_: Application[None]) -> None:
            nonlocal first
            if first:
                first = False
                loop.call_soon(ready)

        self.app.after_render += painted
        self._report_keys(True)
        try:
            await self.app.run_async(set_exception_handler=False)
        except (EOFError, KeyboardInterrupt, OSError):
            # The terminal has gone.
            self._chat.end()
        finally:
            with contextlib.suppress(OSError):
                self._report_keys(False)

    def _report_keys(self, on: bool) -> None:
        if self._keys:
            self._output.write_raw(BEGIN_REPORTS if on else END_REPORTS)
            self._output.flush()

    def _above(self) -> list[Fragments]:
        tail = self._chat.scrollback.tail()
        return [*tail[-self.tail_rows :], *self._chat.scrollback.waiting()]

    def _below(self) -> str:
        chat = self._chat
        if self._hint:
            return self._hint
        if chat.editing.active:
            return f"Editing {chat.editing.what} · Enter keeps it beside the old one · Esc leaves it as it is"
        normal = self.app.editing_mode == EditingMode.VI and self.app.vi_state.input_mode == InputMode.NAVIGATION
        return toolbar_text(
            chat.facts,
            persona=chat.session.spoken.who or None,
            own=chat.session.spoken.words,
            place=chat.place,
            typed=" · ".join(part for part in ("NORMAL" if normal else "", self._count.told()) if part),
            width=self._output.get_size().columns - 2,
        )


def terminal_output(stream: TextIO, size: Callable[[], tuple[int, int]], term: str) -> Output:
    """What draws on a terminal of `size()` columns and rows, without asking it where its cursor is."""

    def get_size() -> Size:
        columns, rows = size()
        return Size(rows=rows or 24, columns=columns or 80)

    return Vt100_Output(stream, get_size, term=term, enable_cpr=False, default_color_depth=_color_depth())


def _color_depth() -> ColorDepth | None:
    """All colours where the terminal says that it has them; none with NO_COLOR; else prompt_toolkit's choice."""
    if os.environ.get("NO_COLOR"):
        return ColorDepth.DEPTH_1_BIT
    return ColorDepth.DEPTH_24_BIT if os.environ.get("COLORTERM") in ("truecolor", "24bit") else None


def _typable(text: str) -> str:
    return printable(normalize_newlines(text))
