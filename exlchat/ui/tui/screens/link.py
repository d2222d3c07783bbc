"""Shows where a link really leads before it is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from exlchat.ui.render.links import Link

Wish = Literal["open", "copy"]


class LinkScreen(ModalScreen[Wish | None]):
    """Gives what is to be done with the address, or `None` when it was left with Escape."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Leave", priority=True),
        Binding("enter", "open", "Open", priority=True),
        Binding("c,y", "copy", "Copy", priority=True),
    ]

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="link"):
            yield Static(_address(self._link), id="link-address", markup=False)
            for remark in self._link.remarks:
                yield Static(remark, classes="remark", markup=False)

    def on_mount(self) -> None:
        frame = self.query_one("#link")
        frame.border_title = "Open this address?" if self._link.can_open else "This address is not opened"
        frame.border_subtitle = f"{'Enter opens · ' if self._link.can_open else ''}c copies · Esc leaves"
        frame.focus()

    def action_open(self) -> None:
        if self._link.can_open:
            self.dismiss("open")
        else:
            self.app.bell()

    def action_copy(self) -> None:
        self.dismiss("copy")

    def action_leave(self) -> None:
        self.dismiss(None)


def _address(link: Link) -> Content:
    end = link.host_at + len(link.host)
    return Content.assemble(
        Content(link.target[: link.host_at]),
        Content.styled(link.host, "bold"),
        Content(link.target[end:]),
    )
