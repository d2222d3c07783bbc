"""The designs that `streaming.py` compares: one way each to show messages, all at their best."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rich.markdown import Markdown as RichMarkdown
from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Markdown, Static

from exlchat.ui.render.markdown.render import Renderer
from exlchat.ui.render.markdown.styles import TextStyles
from exlchat.ui.tui.widgets.transcript import PAINT_INTERVAL, Transcript, TranscriptItem
from exlchat.ui.tui.widgets.transcript_layout import MessageLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.timer import Timer
    from textual.widgets.markdown import MarkdownStream


class Candidate(Protocol):
    """A way to show messages, the last of which may grow."""

    @property
    def widget(self) -> Widget:
        """What shows them."""

    async def open(self, items: Sequence[TranscriptItem]) -> None:
        """Show these messages."""

    async def begin(self) -> None:
        """Add an empty message that will grow."""

    async def append(self, text: str) -> None:
        """Let it grow."""

    async def finish(self) -> None:
        """Return once all text is shown."""


class _TextualMarkdown:
    """One Markdown widget a message; the growing one is fed through Textual's own MarkdownStream."""

    def __init__(self) -> None:
        self.widget: VerticalScroll = VerticalScroll()
        self._stream: MarkdownStream | None = None

    async def open(self, items: Sequence[TranscriptItem]) -> None:
        await self.widget.mount_all([Markdown(item.text) for item in items])
        self.widget.anchor()

    async def begin(self) -> None:
        markdown = Markdown()
        await self.widget.mount(markdown)
        self.widget.anchor()
        self._stream = Markdown.get_stream(markdown)

    async def append(self, text: str) -> None:
        if self._stream is not None:
            await self._stream.write(text)

    async def finish(self) -> None:
        if self._stream is not None:
            await self._stream.stop()


class _Coalescing:
    """Calls a function at most 30 times a second, after it was asked to."""

    def __init__(self, widget: Widget, paint: Callable[[], None]) -> None:
        self._widget, self._paint = widget, paint
        self._timer: Timer | None = None

    def request(self) -> None:
        if self._timer is None:
            self._timer = self._widget.set_timer(PAINT_INTERVAL, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._paint()


class _RichStatic:
    """One Static with a Rich Markdown a message; the whole growing message is rendered again 30 times a second."""

    def __init__(self) -> None:
        self.widget: VerticalScroll = VerticalScroll()
        self._static = Static()
        self._text = ""
        self._coalescing = _Coalescing(self.widget, self._update)

    async def open(self, items: Sequence[TranscriptItem]) -> None:
        await self.widget.mount_all([Static(RichMarkdown(item.text)) for item in items])
        self.widget.anchor()

    async def begin(self) -> None:
        await self.widget.mount(self._static)
        self.widget.anchor()

    async def append(self, text: str) -> None:
        self._text += text
        self._coalescing.request()

    async def finish(self) -> None:
        self._update()

    def _update(self) -> None:
        self._static.update(RichMarkdown(self._text))


class _MessageLines(Widget):
    """One message by the line API, with the same layout code as the transcript."""

    DEFAULT_CSS = "_MessageLines { height: auto; }"

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self._text = text
        self._layout: MessageLayout | None = None

    def append(self, text: str) -> None:
        if self._layout is None:
            self._text += text
        else:
            self._layout.append(text)

    def show(self) -> None:
        """Lay out what has arrived."""
        if self._layout is not None:
            height = len(self._layout.lines)
            first_changed = self._layout.update()
            if len(self._layout.lines) != height:
                self.refresh(layout=True)
            elif first_changed < height:
                self.refresh()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        del container, viewport
        if self._layout is None:
            self._layout = MessageLayout("assistant", self._text, Renderer(TextStyles(), width))
            self._layout.update()
        return len(self._layout.lines)

    def render_line(self, y: int) -> Strip:
        lines = self._layout.lines if self._layout is not None else []
        return lines[y].extend_cell_length(self.size.width) if y < len(lines) else Strip.blank(self.size.width)


class _LineWidgets:
    """One widget a message, rendered by lines: the transcript's layout, Textual's scrolling."""

    def __init__(self) -> None:
        self.widget: VerticalScroll = VerticalScroll()
        self._growing = _MessageLines()
        self._coalescing = _Coalescing(self.widget, self._growing.show)

    async def open(self, items: Sequence[TranscriptItem]) -> None:
        await self.widget.mount_all([_MessageLines(item.text) for item in items])
        self.widget.anchor()

    async def begin(self) -> None:
        await self.widget.mount(self._growing)
        self.widget.anchor()

    async def append(self, text: str) -> None:
        self._growing.append(text)
        self._coalescing.request()

    async def finish(self) -> None:
        self._growing.show()


class _OneTranscript:
    """The design that was chosen."""

    def __init__(self) -> None:
        self.widget: Transcript = Transcript()

    async def open(self, items: Sequence[TranscriptItem]) -> None:
        self.widget.set_messages(items)

    async def begin(self) -> None:
        self.widget.append_message(TranscriptItem("growing", "assistant", "", status="streaming"))

    async def append(self, text: str) -> None:
        self.widget.append_text("growing", text)

    async def finish(self) -> None:
        self.widget.close_message("growing")


CANDIDATES: dict[str, tuple[str, Callable[[], Candidate]]] = {
    "markdown": ("Textual Markdown widget a message, MarkdownStream", _TextualMarkdown),
    "rich": ("Static with Rich Markdown a message, 30 updates/s", _RichStatic),
    "lines": ("line-rendered widget a message, our layout", _LineWidgets),
    "transcript": ("Transcript, one line-rendered widget", _OneTranscript),
}
