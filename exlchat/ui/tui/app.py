"""The Textual app: themes, keys that work everywhere, and the life of the engine's jobs."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget

from exlchat.app.chat.leaving import closing_seconds, kept_or_why
from exlchat.app.chat.session import ChatSession
from exlchat.app.runtime.engine_jobs import EngineJobs
from exlchat.app.runtime.jobs import JobEvent
from exlchat.app.services import Services, open_services
from exlchat.chat.store.conversations import StoreError
from exlchat.chat.turn_events import AnswerClosed, OneAnswer
from exlchat.llm.info import ModelError
from exlchat.ui.render.themes import pygments_style
from exlchat.ui.terminal.interrupts import signals_taken
from exlchat.ui.terminal.terminal_state import APP, TerminalState
from exlchat.ui.tui.chat_view import NARROW_CELLS
from exlchat.ui.tui.incognito import KEPT, Incognito
from exlchat.ui.tui.screens.chat import ChatScreen, EngineReport
from exlchat.ui.tui.terminal_app import TerminalApp
from exlchat.ui.tui.widgets.transcript import Transcript

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from exlchat.app.options import AppOptions
    from exlchat.app.runtime.jobs import Report

_SHORT_ROWS = 12
_TALL_ROWS = 18
"""Below, the list of commands would push what is being typed off the screen."""


class ChatApp(TerminalApp, inherit_bindings=False):
    TITLE = "exlchat"
    CSS_PATH = "exlchat.tcss"
    ENABLE_COMMAND_PALETTE = True
    COMMANDS: ClassVar = set()
    DEFAULT_MODE = KEPT
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+q", "leave", "Quit", show=False, priority=True, id="quit")]

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self.HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (NARROW_CELLS, "-wide")]
        self.VERTICAL_BREAKPOINTS = [(0, "-short"), (_SHORT_ROWS, "-low"), (_TALL_ROWS, "-tall")]
        self.engine_jobs = EngineJobs(services.load_engine, self._post, name=services.model_name)
        self.session = ChatSession(
            services.store,
            self.engine_jobs,
            defaults=services.defaults,
            persona=services.persona,
            titles=services.titles,
            quoting=services.quoting,
        )
        self.chat_screen = ChatScreen(self.session, services, self.engine_jobs)
        self.incognito = Incognito(self, self.chat_screen, self.engine_jobs)
        self.chat_screen.sides = self.incognito
        self.add_mode(KEPT, lambda: self.chat_screen)
        self._loop_of_signals: asyncio.AbstractEventLoop | None = None
        self._ended = False
        self._warned_of: str | None = None
        """What would be lost, as somebody who wants to quit has read."""
        self._leaving = False
        self.not_kept: str | None = None
        """Why something that was written until the end is not on disk."""

    def on_mount(self) -> None:
        """Load the model once the first screen has been painted."""
        self._loop_of_signals = asyncio.get_running_loop()
        if self._ended:
            self.action_end()
            return
        self.call_after_refresh(self._painted)
        self.run_worker(self.themes.follow(), group="themes", exit_on_error=False)
        self.run_worker(self.chat_screen.elsewhere.follow(), group="elsewhere", exit_on_error=False)

    def _painted(self) -> None:
        # What messages and dialogs are drawn with: the first of them do not wait, and the first screen did not either.
        import exlchat.ui.tui.widgets.transcript_layout  # noqa: F401

        self.stylesheet.read(Path(__file__).with_name("dialogs.tcss"))
        self.stylesheet.parse()
        if len(self.screen_stack) > 1:
            # A key that was pressed before has opened one already.
            self.refresh_css(animate=False)
        if not gc.isenabled():
            gc.freeze()
            gc.enable()
        self.engine_jobs.start()

    async def on_unmount(self) -> None:
        """Keep the answer being written: stop it and wait until it is on disk; then what the cache is writing."""
        serving = self.chat_screen.serving
        serving.stop()
        await asyncio.to_thread(serving.wait_for_end)
        await asyncio.to_thread(self.engine_jobs.close, closing_seconds(self.engine_jobs, self.session))

    def tell(self, line: str, *, warning: bool = False) -> None:
        self.chat_screen.tell(line, warning=warning)

    def leave(self) -> None:
        problem = kept_or_why(self.session, self.chat_screen.unsent)
        loss = problem or self.incognito.loss()
        if loss is not None and loss != self._warned_of:
            self._warned_of = loss
            self.chat_screen.tell(loss, warning=True)
            return
        self._go(problem)

    def end(self, _: int) -> None:
        """Quit as soon as the loop is free; for signal handlers."""
        self._ended = True
        if self._loop_of_signals is not None:
            with contextlib.suppress(RuntimeError):  # The loop has ended by itself.
                self._loop_of_signals.call_soon_threadsafe(self.action_end)

    def action_end(self) -> None:
        """Quit because a signal says so, or the terminal has gone: what cannot be kept is told behind the end."""
        if not self._leaving:
            self._go(kept_or_why(self.session, self.chat_screen.unsent))

    def _go(self, not_kept: str | None) -> None:
        self.not_kept = not_kept
        self._leaving = True
        self.exit(0)

    def action_leave(self) -> None:
        """What was typed before comes first: widgets take keys from queues, and send on what comes of them."""
        pumps = [one for one in (self.focused or self.screen).ancestors_with_self if isinstance(one, Widget)]
        # Twice each: what a widget makes of a key, it sends to itself first.
        _behind([one for one in pumps for _ in range(2)], self.leave)

    def _post(self, report: Report) -> None:
        """Called on the threads of jobs."""
        match report:
            case (
                JobEvent(event=AnswerClosed(error=str() as error))
                | JobEvent(event=OneAnswer(event=AnswerClosed(error=str() as error)))
            ) if self._leaving:
                # The screen, which would show it, is on its way out.
                self.not_kept = error
        # A screen that may be gone when it comes cannot take it from another thread: the app hands it on.
        taker = self if self.incognito.owns(report) else self.chat_screen
        taker.post_message(EngineReport(report))

    @on(EngineReport)
    def _reported_incognito(self, event: EngineReport) -> None:
        self.incognito.take(event.report)

    def watch_theme(self, name: str) -> None:
        if name in self.themes.themes:
            for screen in (self.chat_screen, self.incognito.screen):
                for transcript in () if screen is None else screen.query(Transcript):
                    transcript.code_style = pygments_style(self.themes.themes[name])


def _behind(pumps: Sequence[Widget], act: Callable[[], None]) -> None:
    """Calls it when one after the other has come to the end of what is in its queue now."""
    if not (pumps and pumps[0].call_later(_behind, pumps[1:], act)):
        act()


def run_app(options: AppOptions) -> int:
    """Run the chat until it is quit; the exit code.

    Raises:
        ThemeError: the installation is broken.
        ModelError: the model could not be loaded; the app has said so too, but its screen is gone now.
        StoreError: the end of an answer is lost, because the database could not be written until the end.
    """
    services = open_services(options)
    app = ChatApp(services)
    state = TerminalState(sys.stdin.fileno(), sys.stderr.fileno(), APP)
    try:
        with signals_taken(app.end, lambda: state.restore(drawn=app.draws)):
            code = app.run()
    finally:
        services.close()
    if app.not_kept is not None:
        raise StoreError(app.not_kept)
    if not code and app.chat_screen.model.failure is not None:
        raise ModelError(app.chat_screen.model.failure)
    return app.return_code or 0 if code is None else code
