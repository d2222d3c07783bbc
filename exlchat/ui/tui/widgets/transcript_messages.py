"""The messages behind a transcript: their texts, heights and, for those lately seen, their lines."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from rich.segment import Segment
from textual.strip import Strip

from exlchat.ui.tui.widgets.transcript_heights import HeightIndex
from exlchat.untrusted.sanitize import normalize_newlines, printable
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.style import Style

    from exlchat.ui.render.markdown.render import Renderer
    from exlchat.ui.render.markdown.styles import TextStyles
    from exlchat.ui.tui.widgets.transcript_items import Role, Status, TranscriptItem, View
    from exlchat.ui.tui.widgets.transcript_layout import MessageLayout

CACHED_LINES: Final = 20_000
"""Lines kept laid out, besides those on screen."""

_NONE: Final[frozenset[int]] = frozenset()
_EMPTY: Final = Strip([Segment("")], 0)


class TranscriptMessage:
    """A message that may grow. Its layout exists while it is on screen or was lately."""

    def __init__(self, item: TranscriptItem) -> None:
        self.key: Final = item.key
        self.role: Final[Role] = item.role
        self.footer = item.footer
        self.status: Status = item.status
        self.fold = item.fold
        self.view: View = "folded" if item.folded else "whole"
        self.code_folded = False
        """Whether long code is folded, but for the blocks that are unfolded."""
        self._unfolded = _NONE
        self.layout: MessageLayout | None = None
        self.measured: int | None = None
        """Height when last laid out at the present width, in lines."""
        self._footer_lines: list[Strip] = []
        self._set_text(item.text)

    def _set_text(self, text: str) -> None:
        self._pieces = [text]
        self._characters = len(text)
        self._newlines = text.count("\n")

    @property
    def text(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    @property
    def lines(self) -> Sequence[Strip]:
        """Lines of the text as last laid out; none without a layout."""
        return self.layout.lines if self.layout is not None else ()

    def append(self, text: str) -> None:
        self._pieces.append(text)
        self._characters += len(text)
        self._newlines += text.count("\n")
        if self.view == "folded":
            self.layout = None
        elif self.layout is not None:
            self.layout.append(text)

    def show_as(self, view: View) -> None:
        self.view, self.layout, self.measured = view, None, None

    def fold_code(self, folded: bool) -> None:
        self.code_folded = folded
        self._unfolded = _NONE
        self.show_as("whole")

    def unfold_code_at(self, line: int) -> None:
        if self.layout is not None:
            self._unfolded |= {self.layout.block_at(line)}
        self.show_as(self.view)

    def close(self, text: str | None, footer: str, status: Status, fold: str = "") -> None:
        """Finish the message; `text`, if given and different, takes the place of what was streamed."""
        if text is not None and text != self.text:
            self._set_text(text)
            self.layout = None
        if fold != self.fold and self.view == "folded":
            self.layout = None
        self.footer, self.status, self.fold = footer, status, fold
        if self.layout is not None:
            self.layout.close()

    def height(self, width: int) -> int:
        """Lines with footer and the blank line below: as measured, else a guess that needs no parsing."""
        if self.measured is not None:
            return self.measured
        if self.role == "name":
            return 1
        if self.view == "folded":
            return 2 + bool(self.footer)
        return self._newlines + self._characters // width + 2 + bool(self.footer)

    def _fold_line(self) -> str:
        if self.fold:
            return f"▸ {self.fold}"
        lines = self.text.strip().splitlines() or [""]
        more = f" … {len(lines)} lines" if len(lines) > 1 else ""
        return f"▸ {one_line(lines[0], 60)}{more}"

    def _new_layout(self, renderer: Renderer, folding: Renderer) -> MessageLayout:
        # No first screen of a new conversation needs it.
        from exlchat.ui.tui.widgets.transcript_layout import MessageLayout

        if self.view == "folded":
            layout = MessageLayout("notice", self._fold_line(), renderer)
            layout.close()
            return layout
        role = "user" if self.view == "source" else self.role
        layout = MessageLayout(role, self.text, renderer, folding if self.code_folded else None, self._unfolded)
        if self.status != "streaming":
            layout.close()
        return layout

    def lay_out(self, renderer: Renderer, folding: Renderer, footer_style: Style) -> int:
        """Bring the lines up to date; returns the first that may have changed. `folding` renders folded code."""
        if self.layout is None:
            self.layout = self._new_layout(renderer, folding)
        first_changed = self.layout.update()
        footer = printable(normalize_newlines(self.footer))
        self._footer_lines = [Strip(line) for line in renderer.wrapped(footer, footer_style)] if footer else []
        blank = self.role != "name"
        self.measured = max(len(self.layout.lines), 1) + len(self._footer_lines) + blank
        return first_changed

    def line(self, number: int) -> Strip | None:
        """A line of the text or the footer; None for the blank one below or past the end."""
        body = self.lines
        if number < len(body):
            return body[number]
        number -= max(len(body), 1)
        if number < 0:
            return _EMPTY
        return self._footer_lines[number] if number < len(self._footer_lines) else None


class MessageList:
    """All messages of a transcript, their heights, and the layouts of those lately seen."""

    def __init__(self, styles: TextStyles, width: int, footer_style: Style) -> None:
        self._styles = styles
        self.width = width
        """Cells a line of text may fill."""
        self.unfolds = ""
        """How folded code is unfolded, as it says itself."""
        self._renderers: tuple[Renderer, Renderer, Renderer] | None = None
        self._footer_style = footer_style
        self._messages: list[TranscriptMessage] = []
        self._index: dict[str, int] = {}
        self._recent: OrderedDict[str, int] = OrderedDict()
        """Keys of the messages with a layout, least lately seen first, and their heights."""
        self._recent_lines = 0
        self.heights = HeightIndex()

    def __len__(self) -> int:
        return len(self._messages)

    def __getitem__(self, index: int) -> TranscriptMessage:
        return self._messages[index]

    def holds(self, key: str) -> bool:
        return key in self._index

    def index(self, key: str) -> int:
        """Where a message stands.

        Raises:
            KeyError: there is no message of that key.
        """
        return self._index[key]

    def replace(self, items: Iterable[TranscriptItem]) -> None:
        """Forget all messages and take these.

        Raises:
            ValueError: two of them have the same key.
        """
        messages = [TranscriptMessage(item) for item in items]
        if len({message.key for message in messages}) < len(messages):
            raise ValueError("two messages of the transcript have the same key")
        self._messages = messages
        self._recent.clear()
        self._recent_lines = 0
        self._reindex()

    def append(self, item: TranscriptItem) -> None:
        """Add a message at the end.

        Raises:
            ValueError: its key is taken.
        """
        if item.key in self._index:
            raise ValueError(f"the transcript already has a message {item.key!r}")
        message = TranscriptMessage(item)
        self._index[item.key] = len(self._messages)
        self._messages.append(message)
        self.heights.append(message.height(self.width))

    def remove(self, key: str) -> None:
        """Take a message out.

        Raises:
            KeyError: there is no message of that key.
        """
        del self._messages[self._index[key]]
        self._recent_lines -= self._recent.pop(key, 0)
        self._reindex()

    def _reindex(self) -> None:
        self._index = {message.key: index for index, message in enumerate(self._messages)}
        width = self.width
        self.heights = HeightIndex(message.height(width) for message in self._messages)

    def restyle(self, styles: TextStyles, width: int, footer_style: Style, unfolds: str) -> None:
        """Lay out anew what is seen from now on; another width also makes all heights guesses again.

        `unfolds` says how folded code is unfolded ("z unfolds").
        """
        same_width = width == self.width
        self._styles, self.width, self._footer_style, self.unfolds = styles, width, footer_style, unfolds
        self._renderers = None
        self._recent.clear()
        self._recent_lines = 0
        for message in self._messages:
            message.layout = None
            if not same_width:
                message.measured = None
        if not same_width:
            self._reindex()

    def lay_out(self, index: int) -> tuple[int, int]:
        """Bring a message's lines up to date; returns how many lines it grew by and the first that may have changed."""
        message = self._messages[index]
        quiet = message.role in ("thinking", "name") or message.view == "folded"
        whole, quieter, folding = self._rendered_by()
        first_changed = message.lay_out(quieter if quiet else whole, folding, self._footer_style)
        height = message.height(self.width)
        self._recent_lines += height - self._recent.get(message.key, 0)
        self._recent[message.key] = height
        return self.heights.set(index, height), first_changed

    def _rendered_by(self) -> tuple[Renderer, Renderer, Renderer]:
        """What is said, what is quiet, and what has its code folded."""
        if self._renderers is None:
            # No first screen of a new conversation needs it.
            from exlchat.ui.render.markdown.render import Renderer

            whole = Renderer(self._styles, self.width)
            self._renderers = whole, whole.quieter(), whole.folding(self.unfolds)
        return self._renderers

    def show(self, first: int, last: int) -> None:
        """Say which messages are on screen. Of the others, those seen longest ago lose their layouts."""
        for message in self._messages[first : last + 1]:
            if message.key in self._recent:
                self._recent.move_to_end(message.key)
        surplus = len(self._recent) - (last + 1 - first)
        while self._recent_lines > CACHED_LINES and surplus > 0:
            key, height = self._recent.popitem(last=False)
            self._messages[self._index[key]].layout = None
            self._recent_lines -= height
            surplus -= 1
