"""The window onto a list of messages: which lines are on screen, and keeping them there.

Only messages that come into view are laid out; the heights of all others are guesses until then. When a guess turns
out wrong, the lines that stand on the screen stay where they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from exlchat.ui.render.markdown.styles import MIN_WIDTH
from exlchat.ui.tui.widgets.transcript_messages import MessageList
from exlchat.ui.tui.widgets.transcript_paint import GUTTER_WIDTH, badge_text, badged, framed, selected
from exlchat.ui.tui.widgets.transcript_select import row_of, selected_text
from exlchat.ui.tui.widgets.transcript_style import COMPONENT_CLASSES, TRANSCRIPT_CSS, TranscriptStyles, read_styles

if TYPE_CHECKING:
    from rich.style import Style
    from textual import events
    from textual.selection import Selection

    from exlchat.config.schema import Underscores
    from exlchat.ui.render.markdown.styles import CodeStyle

MAX_TEXT_WIDTH: Final = 120
"""Cells beyond which a line is hard to read; a wider screen stays empty at the right."""
NEAR: Final = 3
"""A scroll by at most this many screens counts as reading on: the lines seen before keep their distance."""


class MessageView(ScrollView, can_focus=True):
    """Lays out, scrolls, paints and selects messages. It follows the end until the user scrolls up."""

    ALLOW_SELECT = True
    COMPONENT_CLASSES: ClassVar[set[str]] = set(COMPONENT_CLASSES)
    DEFAULT_CSS = TRANSCRIPT_CSS

    code_style: reactive[CodeStyle] = reactive("default", init=False)
    """Pygments style, or the name of one, for the colours of code."""
    underscores: reactive[Underscores] = reactive("text", init=False)
    """What those around words of an answer are."""
    fold_key: reactive[str] = reactive("z", init=False)
    """The key that unfolds code, as folded code says."""

    class NewBelow(Message, namespace="transcript"):
        """Lines arrived below the screen while the user was reading further up; 0 once they have been seen."""

        def __init__(self, view: MessageView, lines: int) -> None:
            self.view = view
            self.lines = lines
            super().__init__()

        @property
        def control(self) -> MessageView:
            """The sender, for `@on` selectors."""
            return self.view

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id, classes=classes)
        self._looks = TranscriptStyles.UNSTYLED
        self._messages = MessageList(self._looks.text, MAX_TEXT_WIDTH, self._looks.footer)
        self._following = True
        self._settling = False
        self._new_lines = 0
        self._place: tuple[int, int, int] | None = None
        """The text kept at the top through changes of width, and the line where that put it."""
        self._top_of_place = 0

    # Where the window stands

    @property
    def window(self) -> Size:
        """Columns and lines that messages are seen through: the widget less its scroll bar."""
        return self.scrollable_content_region.size

    @property
    def following(self) -> bool:
        return self._following

    def place(self) -> tuple[int, int, int] | None:
        """What `go_back_to` goes back to; `None` at the end, where it follows."""
        return None if self._following else self._place_of_top()

    def go_back_to(self, place: tuple[int, int, int]) -> None:
        self._following = False
        self._settle(self._top_at(place))

    def scroll_to_end(self) -> None:
        self._following = True
        self._settle(self.scroll_offset.y)

    def scroll_to_start(self) -> None:
        self._following = False
        self._settle(0)

    def action_scroll_end(self) -> None:
        self.scroll_to_end()

    def action_scroll_home(self) -> None:
        self.scroll_to_start()

    def action_page_up(self) -> None:
        """One screen up, less a line to read on from. At once: an animation would fight with corrected heights."""
        self.scroll_relative(y=-max(self.window.height - 1, 1), animate=False)

    def action_page_down(self) -> None:
        self.scroll_relative(y=max(self.window.height - 1, 1), animate=False)

    def action_scroll_up(self) -> None:
        self.scroll_relative(y=-1, animate=False)

    def action_scroll_down(self) -> None:
        self.scroll_relative(y=1, animate=False)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Lay out what comes into view; scrolling away from the end stops following, coming back resumes."""
        super().watch_scroll_y(old_value, new_value)
        if self._settling or round(old_value) == round(new_value):
            return
        old, new = round(old_value), round(new_value)
        self._following = new >= self.max_scroll_y
        reading_on = abs(new - old) <= NEAR * self.window.height
        self._settle(new, pivot=old if reading_on else new)

    def _settle(self, top: int, pivot: int | None = None) -> bool:
        """Lay out the messages in view and scroll to `top`, corrected for heights that turn out different.

        Lines from `pivot` on (`top` if not given) keep their distance to the top of the screen. While following, `top`
        is the end. Returns whether the window now shows other lines.
        """
        if not self.window.height:
            return False
        heights = self._messages.heights
        if self._following:
            self._lay_out_end()
        else:
            top = self._lay_out_from(top, top if pivot is None else pivot)
        last_top = max(heights.total - self.window.height, 0)
        top = last_top if self._following else min(max(top, 0), last_top)
        if len(self._messages):
            self._messages.show(heights.find(top)[0], heights.find(min(top + self.window.height, heights.total) - 1)[0])
        if top >= last_top:
            self._following = True
            self._set_new_lines(0)
        return self._move_window(top)

    def _move_window(self, top: int) -> bool:
        moved = top != self.scroll_offset.y
        self._settling = True
        try:
            self._set_total(Size(self.window.width, self._messages.heights.total))
            self.scroll_target_y = self.scroll_y = top
        finally:
            self._settling = False
        return moved

    def _set_total(self, size: Size) -> None:
        """Say how large all of it is.

        Setting `virtual_size` has Textual arrange the whole screen and paint all of it; while text streams in that was
        a third of all painting (`benchmarks/screen.py`). Nothing moves as long as the scroll bar stays, so that alone
        is told.
        """
        old = self.virtual_size
        stays = size.width == old.width and min(size.height, old.height) > self.window.height
        if not stays or not self.show_vertical_scrollbar:
            self.virtual_size = size
        elif size != old:
            self.set_reactive(ScrollView.virtual_size, size)
            self.vertical_scrollbar.window_virtual_size = size.height

    def _lay_out_end(self) -> None:
        room = self.window.height
        index = len(self._messages) - 1
        while index >= 0 and room > 0:
            self._ensure_layout(index)
            room -= self._messages.heights[index]
            index -= 1

    def _lay_out_from(self, top: int, pivot: int) -> int:
        """Lay out the screen from `top` on, nearest to `pivot` first; returns where `top` is then."""
        heights = self._messages.heights
        while len(self._messages):
            top = min(max(top, 0), max(heights.total - self.window.height, 0))
            first = heights.find(top)[0]
            last = heights.find(min(top + self.window.height, heights.total) - 1)[0]
            missing = [index for index in range(first, last + 1) if self._messages[index].layout is None]
            if not missing:
                break
            above = [index for index in missing if heights.start(index) < pivot]
            index = above[-1] if above else missing[0]
            delta = self._ensure_layout(index)
            if above:
                top, pivot = top + delta, pivot + delta
        return top

    def _ensure_layout(self, index: int) -> int:
        return self._messages.lay_out(index)[0] if self._messages[index].layout is None else 0

    def _set_new_lines(self, lines: int) -> None:
        if lines != self._new_lines:
            self._new_lines = lines
            self.post_message(self.NewBelow(self, lines))
            self._repaint_from(self.window.height - 1)

    def _repaint_from(self, y: int) -> None:
        height = self.window.height - max(y, 0)
        if height > 0:
            self.refresh(Region(0, max(y, 0), self.window.width, height))

    # Widths and looks

    def on_resize(self, _event: events.Resize) -> None:
        """Wrap to the new width; the text at the top of the screen stays at the top."""
        self._lay_out_anew()

    def notify_style_update(self) -> None:
        """Called by Textual for any change of style, also of focus: only other looks count."""
        super().notify_style_update()
        if self.is_mounted:
            self.call_later(self._lay_out_anew)  # the styles of the parts are brought up to date after this call

    def watch_code_style(self) -> None:
        """Colour all code anew, together with what else a theme changes: not twice."""
        if self.is_mounted:
            self.call_later(self._lay_out_anew)

    def watch_underscores(self) -> None:
        if self.is_mounted:
            self._lay_out_anew()

    def watch_fold_key(self) -> None:
        if self.is_mounted:
            self._lay_out_anew()

    def _lay_out_anew(self) -> None:
        looks = read_styles(self, self.code_style, self.underscores)
        width = max(min(self.window.width - GUTTER_WIDTH, MAX_TEXT_WIDTH), MIN_WIDTH)
        same_width = width == self._messages.width
        unfolds = f"{self.fold_key} unfolds"
        if not self.window.height or (same_width and looks == self._looks and unfolds == self._messages.unfolds):
            self._settle(self.scroll_offset.y)
            return
        if self._place is None or self.scroll_offset.y != self._top_of_place:
            self._place = self._place_of_top()
        if not same_width:
            self._drop_selection()
        self._looks = looks
        self._messages.restyle(looks.text, width, looks.footer, unfolds)
        self._settle(self._top_at(self._place))
        self._top_of_place = self.scroll_offset.y
        self.refresh()

    def _place_of_top(self) -> tuple[int, int, int]:
        """The message at the top of the screen, the characters of it that are above, and how far past its text."""
        if not len(self._messages):
            return 0, 0, 0
        index, line = self._messages.heights.find(min(self.scroll_offset.y, self._messages.heights.total - 1))
        lines = self._messages[index].lines
        return index, sum(_visible_length(strip) for strip in lines[:line]), max(line - len(lines), 0)

    def _top_at(self, place: tuple[int, int, int]) -> int:
        index, characters, past = place
        if index >= len(self._messages):
            return 0
        self._ensure_layout(index)
        lines = self._messages[index].lines
        line = 0
        while line < len(lines) and characters > 0:
            characters -= _visible_length(lines[line])
            line += 1
        if characters < 0:
            line -= 1
        return self._messages.heights.start(index) + line + past

    # Lines on the screen

    def render_line(self, y: int) -> Strip:
        width = self.window.width
        line = self._line_at(self.scroll_offset.y + y, width)
        if self._new_lines and y == self.window.height - 1:
            return badged(line, badge_text(self._new_lines), self._looks.badge)
        return line

    def _line_at(self, position: int, width: int) -> Strip:
        if position >= self._messages.heights.total:
            return Strip.blank(width, self._looks.text.text)
        index, number = self._messages.heights.find(position)
        message = self._messages[index]
        line = message.line(number)
        row = row_of(index, number)
        strip = framed(line, message.role, self._mark(index), self._looks.text.text, row, width=width)
        selection = self.text_selection
        if selection is None or line is None:
            return strip
        style = self.screen.get_component_rich_style("screen--selection")
        return selected(strip, line.text, selection, row, style)

    def _mark(self, index: int) -> Style:
        message = self._messages[index]
        return self._looks.mark(message.role, message.status)

    def on_click(self, event: events.Click) -> None:
        at = event.get_content_offset(self)
        left = self.window.width - len(badge_text(self._new_lines))
        if self._new_lines and at is not None and at.y == self.window.height - 1 and at.x >= left:
            event.stop()
            self.scroll_to_end()

    # Selection

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text as seen, without the marks of the roles, and what separates it from other widgets' text."""
        return selected_text(self._messages, selection), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        del selection
        self.refresh()

    def _drop_selection(self) -> None:
        if self.is_mounted and self.text_selection is not None:
            self.screen.clear_selection()


def _visible_length(strip: Strip) -> int:
    return sum(not character.isspace() for character in strip.text)
