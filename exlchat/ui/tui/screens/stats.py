"""The figures of answers, memory and cache; live while an answer is written."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from textual import getters
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.reactive import reactive
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Static

from exlchat.app.commands.cache import model_to_come
from exlchat.app.panels.stats import answer_rows, engine_rows, growing_line, rates, rates_line
from exlchat.ui.render.sparkline import bars
from exlchat.ui.tui.screens.table import table

if TYPE_CHECKING:
    from textual.app import ComposeResult, RenderResult

    from exlchat.llm.info import ModelInfo
    from exlchat.ui.tui.chat_view import ChatView

_EVERY_SECONDS = 0.25
FEWEST_BARS = 4
"""Fewer say nothing of how it goes."""


class Bars(Widget):
    """A row of bars, the newest at the right end."""

    values: reactive[tuple[float, ...]] = reactive(())

    def render(self) -> RenderResult:
        shown = bars(self.values, self.size.width) if len(self.values) >= FEWEST_BARS else ""
        return Content.styled(shown, "$primary")


class StatsScreen(ModalScreen[None]):
    """Reads the session, and asks the engine."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "close", "Close", priority=True),
        Binding("f9", "close", show=False, priority=True, id="stats"),
    ]

    now_line = getters.query_one("#stats-now-line", Static)
    now_bars = getters.query_one("#stats-now-bars", Bars)
    rates_line = getters.query_one("#stats-rates-line", Static)
    rates_bars = getters.query_one("#stats-rates-bars", Bars)
    answer = getters.query_one("#stats-answer", Static)
    engine = getters.query_one("#stats-engine", Static)

    def __init__(self, chat: ChatView) -> None:
        super().__init__()
        self._chat = chat
        self._asked_of: ModelInfo | None = None
        self._answers_shown: tuple[object, ...] = ()
        self._engine_shown: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="stats"):
            yield Static("Now", classes="stats-heading", id="stats-now", markup=False)
            yield Static(id="stats-now-line", markup=False)
            yield Bars(id="stats-now-bars")
            yield Static(id="stats-answer", markup=False)
            yield Static("Answers of this conversation", classes="stats-heading", markup=False)
            yield Static(id="stats-rates-line", markup=False)
            yield Bars(id="stats-rates-bars")
            yield Static(id="stats-engine", markup=False)

    def on_mount(self) -> None:
        panel = self.query_one("#stats", VerticalScroll)
        panel.border_title, panel.border_subtitle = "Statistics", "Esc closes"
        panel.focus()
        self._look()
        self.set_interval(_EVERY_SECONDS, self._look)

    def _look(self) -> None:
        self._ask()
        self._show_growing()
        self._show_answers()
        self._show_engine()

    # What grows

    def _show_growing(self) -> None:
        session = self._chat.session
        writing, now = session.being_written, time.monotonic()
        for one in (self.query_one("#stats-now"), self.now_line, self.now_bars):
            one.display = writing is not None
        if writing is not None:
            growing = writing.growing
            elsewhere = writing.conversation_id != session.conversation_id
            self.now_line.update(growing_line(growing.tokens, growing.rate(now), elsewhere=elsewhere))
            self.now_bars.values = tuple(growing.recent(now))

    # What has ended

    def _show_answers(self) -> None:
        branch = self._chat.session.branch
        rows, found = tuple(answer_rows(branch)), tuple(rates(branch))
        width = self.app.size.width
        if (rows, found, width) == self._answers_shown:
            return
        self._answers_shown = (rows, found, width)
        self.answer.update(table(rows, self.app.theme_variables, width))
        self.rates_line.update(rates_line(found))
        self.rates_bars.values = found
        self.rates_bars.display = len(found) >= FEWEST_BARS

    # What the engine says

    def _ask(self) -> None:
        """While something is answered, and once when all has ended."""
        model, session = self._chat.model.info, self._chat.session
        if model is not None and (self._asked_of is not model or session.busy):
            self._asked_of = None if session.busy else model
            session.questions.ask_figures()

    def _show_engine(self) -> None:
        figures, waits = self._chat.session.questions.figures, model_to_come(self._chat)
        width = self.app.size.width
        if (figures, waits, width) == self._engine_shown:
            return
        self._engine_shown = (figures, waits, width)
        if waits is not None or figures is None:
            self.engine.update(f"Memory and cache are shown when {waits}" if waits else "")
        else:
            self.engine.update(table(engine_rows(figures), self.app.theme_variables, width))

    def action_close(self) -> None:
        self.dismiss()
