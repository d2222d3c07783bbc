"""The panel of /serve: requests of other programs as they come, run and end; one of them can be ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import getters
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from exlchat.app.panels.serving import progress, result, who

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textual.app import ComposeResult

    from exlchat.app.serving.shared import SharedServer

_EVERY_SECONDS = 0.5
_NAME_CELLS = 30


class ServingScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close", "Close", priority=True),
        Binding("delete,x", "end_request", "End the request", priority=True),
    ]

    where = getters.query_one("#serving-where", Static)
    requests = getters.query_one("#serving-list", OptionList)

    def __init__(self, server: SharedServer) -> None:
        super().__init__()
        self._server = server

    def compose(self) -> ComposeResult:
        with Vertical(id="serving"):
            yield Static(id="serving-where", markup=False)
            yield OptionList(id="serving-list", markup=False)

    def on_mount(self) -> None:
        panel = self.query_one("#serving")
        panel.border_title = "Other programs"
        panel.border_subtitle = "Del ends a request · /serve off ends all · Esc closes"
        self.requests.focus()
        self._look()
        self.set_interval(_EVERY_SECONDS, self._look)

    def _look(self) -> None:
        self.where.update(f"They reach this model at {self._server.place}" if self._server.place else "They cannot ask")
        chosen = self._chosen()
        options = list(self._options())
        self.requests.clear_options()
        self.requests.add_options(options)
        places = {option.id: at for at, option in enumerate(options) if option.id is not None}
        self.requests.highlighted = places.get(chosen or "", min(places.values(), default=None))

    def _options(self) -> Iterator[Option]:
        under_way = self._server.under_way()
        yield _heading(f"Running: {len(under_way)}" if under_way else "Nothing is asked now")
        for record in under_way:
            yield Option(_line(who(record), progress(record)), id=record.id)
        ended = self._server.ended()
        if ended:
            yield _heading("Ended")
        for record in ended:
            yield Option(_line(who(record), result(record)), disabled=True)

    def _chosen(self) -> str | None:
        option = self.requests.highlighted_option
        return None if option is None else option.id

    def action_end_request(self) -> None:
        if (chosen := self._chosen()) is not None:
            self._server.end(chosen)

    def action_close(self) -> None:
        self.dismiss()


def _heading(text: str) -> Option:
    return Option(Content.styled(text, "bold $primary"), disabled=True)


def _line(left: str, right: str) -> Content:
    return Content.assemble(f"{left:<{_NAME_CELLS}} ", Content.styled(right, "$quiet-text"))
