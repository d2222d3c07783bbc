"""The Textual app: themes, keys that work everywhere, and the life of the engine thread."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from typing import TYPE_CHECKING, ClassVar

from textual.app import App, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.drivers.linux_driver import LinuxDriver
from textual.notifications import Notification, Notify

from exlchat.app.chat.leaving import closing_seconds, kept_or_why
from exlchat.app.chat.session import ChatSession
from exlchat.app.live_themes import LiveThemes
from exlchat.app.runtime.engine_thread import EngineThread
from exlchat.app.runtime.jobs import JobEvent
from exlchat.app.services import Services, open_services
from exlchat.chat.several_answers import OneAnswer
from exlchat.chat.store.conversations import StoreError
from exlchat.chat.turn import AnswerClosed
from exlchat.config.files import SettingsError, save_setting
from exlchat.llm.info import ModelError
from exlchat.ui.render.themes import pygments_style, textual_theme
from exlchat.ui.terminal.clipboard import copy_with_tool
from exlchat.ui.terminal.interrupts import signals_taken
from exlchat.ui.terminal.terminal_state import APP, TerminalState
from exlchat.ui.tui.palette import THEME_PREFIX, Palette
from exlchat.ui.tui.screens.chat import NARROW_CELLS, ChatScreen, EngineReport
from exlchat.ui.tui.stylesheet import SteadyStylesheet
from exlchat.ui.tui.terminal_input import TerminalDriver
from exlchat.ui.tui.terminal_keys import tell_alt_enter_from_enter
from exlchat.ui.tui.widgets.transcript import Transcript

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from textual.driver import Driver
    from textual.notifications import SeverityLevel
    from textual.screen import Screen

    from exlchat.app.options import AppOptions
    from exlchat.app.runtime.jobs import Report
    from exlchat.config.themes import ThemeFile

_THEME_SECONDS = 60.0
"""A file that is being mended is looked at for longer than most toasts."""
_SHORT_ROWS = 12
_TALL_ROWS = 18
"""Below, the list of commands would push what is being typed off the screen."""


class ChatApp(App[int], inherit_bindings=False):
    """One window on one model and many conversations."""

    TITLE = "exlchat"
    CSS_PATH = "exlchat.tcss"
    ENABLE_COMMAND_PALETTE = True
    COMMANDS: ClassVar = set()
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+q", "leave", "Quit", show=False, priority=True, id="quit")]

    def __init__(self, services: Services) -> None:
        tell_alt_enter_from_enter()
        # Textual asks for theme variables while it constructs itself.
        self.services = services
        super().__init__()
        self.HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (NARROW_CELLS, "-wide")]
        self.VERTICAL_BREAKPOINTS = [(0, "-short"), (_SHORT_ROWS, "-low"), (_TALL_ROWS, "-tall")]
        self.themes = LiveThemes(self, services.themes)
        self._chosen_theme = services.theme
        self.use_themes(services.themes.values())
        self.set_reactive(ChatApp.theme, services.theme)
        self.stylesheet = SteadyStylesheet(variables=self.get_css_variables())
        self.engine_thread = EngineThread(services.load_engine, self._post, name=services.model_name)
        self.session = ChatSession(
            services.store,
            self.engine_thread,
            template=services.template,
            system=services.system,
            generation=services.generation,
            persona=services.persona,
            titles=services.titles,
        )
        self.chat_screen = ChatScreen(self.session, services, self.engine_thread)
        self._loop_of_signals: asyncio.AbstractEventLoop | None = None
        self._ended = False
        self._warned_of_loss = False
        self._leaving = False
        self.not_kept: str | None = None
        """Why something that was written until the end is not on disk."""

    def get_driver_class(self) -> type[Driver]:
        """Textual's choice; where that is its driver for terminals, ours takes its place."""
        chosen = super().get_driver_class()
        return TerminalDriver if chosen is LinuxDriver else chosen

    def get_default_screen(self) -> Screen[None]:
        """The chat."""
        return self.chat_screen

    def on_mount(self) -> None:
        """Load the model once the first screen has been painted."""
        self._loop_of_signals = asyncio.get_running_loop()
        if self._ended:
            self.action_end()
            return
        self.call_after_refresh(self._painted)
        self.run_worker(self.themes.follow(), group="themes", exit_on_error=False)

    def _painted(self) -> None:
        """The first screen stands."""
        if not gc.isenabled():
            gc.freeze()
            gc.enable()
        self.engine_thread.start()

    async def on_unmount(self) -> None:
        """Keep the answer being written: stop it and wait until it is on disk; then what the cache is writing."""
        await asyncio.to_thread(self.engine_thread.close, closing_seconds(self.engine_thread, self.session))

    def leave(self) -> None:
        """Quit; while something is not on disk only the second time."""
        problem = kept_or_why(self.session, self.chat_screen.unsent)
        if problem is not None and not self._warned_of_loss:
            self._warned_of_loss = True
            self.chat_screen.tell(problem, warning=True)
            return
        self._go(problem)

    def end(self, _: int) -> None:
        """Quit as soon as the loop is free; for signal handlers."""
        self._ended = True
        if self._loop_of_signals is not None:
            with contextlib.suppress(RuntimeError):  # The loop has ended by itself.
                self._loop_of_signals.call_soon_threadsafe(self.action_end)

    @property
    def draws(self) -> bool:
        """Whether the terminal is in the app's modes; not before, behind, or while an editor has it."""
        return isinstance(self._driver, TerminalDriver) and self._driver.draws

    def action_end(self) -> None:
        """Quit because a signal says so, or the terminal has gone: what cannot be kept is told behind the end."""
        if not self._leaving:
            self._go(kept_or_why(self.session, self.chat_screen.unsent))

    def _go(self, not_kept: str | None) -> None:
        self.not_kept = not_kept
        self._leaving = True
        self.exit(0)

    def action_leave(self) -> None:
        """Quit by key, from any screen."""
        self.leave()

    def _post(self, report: Report) -> None:
        """Called on the engine thread."""
        match report:
            case (
                JobEvent(event=AnswerClosed(error=str() as error))
                | JobEvent(event=OneAnswer(event=AnswerClosed(error=str() as error)))
            ) if self._leaving:
                # The screen, which would show it, is on its way out.
                self.not_kept = error
        self.chat_screen.post_message(EngineReport(report))

    def copy_to_clipboard(self, text: str) -> None:
        """Through the terminal and through the desktop's own tool."""
        super().copy_to_clipboard(text)
        self.run_worker(lambda: copy_with_tool(text), thread=True, group="clipboard", exit_on_error=False)

    def action_command_palette(self) -> None:
        """The palette, once."""
        if not isinstance(self.screen, Palette):
            self.push_screen(Palette(id="--command-palette"))

    def in_editor(self, text: str) -> str | None:
        """Give the terminal to the user's editor; what was written there, `None` where that came to nothing."""
        from exlchat.ui.terminal.editor import EditorError, write

        try:
            with self.suspend():
                written = write(text)
        except SuspendNotSupported:
            self.chat_screen.tell("this terminal cannot be given to an editor", warning=True)
            return None
        except EditorError as error:
            self.chat_screen.tell(str(error), warning=True)
            return None
        return written

    # Themes

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Our own colours, so that the style sheet holds under any theme."""
        return textual_theme(self.services.themes[self.services.theme]).variables

    def reload_themes(self) -> dict[str, ThemeFile]:
        """Read the user's themes anew; a broken one is named, and the last good reading of it stays."""
        return self.themes.read()

    @property
    def theme_in_use(self) -> str:
        """Name of the theme on the screen."""
        return self.theme

    def use_themes(self, themes: Iterable[ThemeFile]) -> None:
        """Know these from now on in the place of others of their names, and show them where they are in use."""
        for theme in themes:
            self.register_theme(textual_theme(theme))
            if theme.name == self.theme and self.is_running:
                self.mutate_reactive(ChatApp.theme)

    def tell_of_theme(self, line: str, *, warning: bool) -> Callable[[], None]:
        """A toast; what is given takes it away again."""
        severity: SeverityLevel = "warning" if warning else "information"
        toast = Notification(line, severity=severity, timeout=_THEME_SECONDS if warning else 5)
        self.post_message(Notify(toast))
        return lambda: self._take_toast(toast)

    def _take_toast(self, toast: Notification) -> None:
        """Take a toast away before its time; nothing where that is over."""
        if toast in self._notifications:
            # With what it lies in, as when its time is over; else that would go on to hold its rows.
            self.screen.query(f"#--textual-toast-{toast.identity}").remove()
            self._unnotify(toast, refresh=False)

    def show_theme(self, name: str) -> None:
        """Use a theme now, if there is one of that name."""
        if name not in (themes := self.reload_themes()):
            self.chat_screen.tell(f"There is no theme {name}; there are {', '.join(themes)}", warning=True)
            return
        self._chosen_theme = name
        self.theme = name

    def choose_theme(self, name: str) -> None:
        """Use a theme now and from now on."""
        self._chosen_theme = name
        self.theme = name
        if not self.services.kept:
            return
        try:
            save_setting("theme", name)
        except SettingsError as error:
            self.chat_screen.tell(f"The theme holds for this session only: {error}", warning=True)

    def refresh_css(self, animate: bool = True) -> None:
        """The palette too: Textual leaves it out when it lies over all, and a preview would stand under the old one."""
        super().refresh_css(animate)
        if isinstance(self.screen, Palette):
            self.stylesheet.update(self.screen, animate=animate)

    def watch_theme(self, name: str) -> None:
        """Code blocks follow the theme."""
        if name in self.themes.themes:
            for transcript in self.chat_screen.query(Transcript):
                transcript.code_style = pygments_style(self.themes.themes[name])

    def on_command_palette_option_highlighted(self, event: CommandPalette.OptionHighlighted) -> None:
        """Show a theme while it is highlighted."""
        prompt = str(event.highlighted_event.option.prompt)
        name = prompt.removeprefix(THEME_PREFIX).splitlines()[0].strip() if prompt.startswith(THEME_PREFIX) else ""
        self.theme = name if name in self.themes.themes else self._chosen_theme

    def on_command_palette_closed(self) -> None:
        """Go back to the theme that was chosen."""
        self.theme = self._chosen_theme


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
