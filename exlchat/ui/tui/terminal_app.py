"""The terminal that the app has: its driver, its themes, its clipboard, and the user's editor in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import App, SuspendNotSupported
from textual.command import CommandPalette
from textual.drivers.linux_driver import LinuxDriver
from textual.notifications import Notification, Notify

from exlchat.app.live_themes import LiveThemes
from exlchat.config.files import SettingsError, save_setting
from exlchat.ui.render.themes import textual_theme
from exlchat.ui.terminal.clipboard import copy_with_tool
from exlchat.ui.tui.palette import THEME_PREFIX, Palette
from exlchat.ui.tui.stylesheet import SteadyStylesheet
from exlchat.ui.tui.terminal_input import TerminalDriver
from exlchat.ui.tui.terminal_keys import tell_alt_enter_from_enter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from textual.driver import Driver
    from textual.notifications import SeverityLevel

    from exlchat.app.services import Services
    from exlchat.config.themes import ThemeFile

_THEME_SECONDS = 60.0
"""A file that is being mended is looked at for longer than most toasts."""
_GOOD_NEWS_SECONDS = 5.0


class TerminalApp(App[int], inherit_bindings=False):
    """What the app is without the chat. Above it stand `tell` and `leave`."""

    def __init__(self, services: Services) -> None:
        tell_alt_enter_from_enter()
        # Textual asks for theme variables while it constructs itself.
        self.services = services
        super().__init__()
        self.themes = LiveThemes(self, services.themes)
        self._chosen_theme = services.theme
        self.use_themes(services.themes.values())
        self.set_reactive(TerminalApp.theme, services.theme)
        self.stylesheet = SteadyStylesheet(variables=self.get_css_variables())

    def tell(self, line: str, *, warning: bool = False) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        raise NotImplementedError

    def get_driver_class(self) -> type[Driver]:
        """Textual's choice; where that is its driver for terminals, ours takes its place."""
        chosen = super().get_driver_class()
        return TerminalDriver if chosen is LinuxDriver else chosen

    @property
    def draws(self) -> bool:
        """Whether the terminal is in the app's modes; not before, behind, or while an editor has it."""
        return isinstance(self._driver, TerminalDriver) and self._driver.draws

    def copy_to_clipboard(self, text: str) -> None:
        """Through the terminal and through the desktop's own tool."""
        super().copy_to_clipboard(text)
        self.run_worker(lambda: copy_with_tool(text), thread=True, group="clipboard", exit_on_error=False)

    def action_command_palette(self) -> None:
        if not isinstance(self.screen, Palette):
            self.push_screen(Palette(id="--command-palette"))

    def in_editor(self, text: str) -> str | None:
        """Give the terminal to the user's editor; what was written there, `None` where that came to nothing."""
        from exlchat.ui.terminal.editor import EditorError, write

        try:
            with self.suspend():
                written = write(text)
        except SuspendNotSupported:
            self.tell("this terminal cannot be given to an editor", warning=True)
            return None
        except EditorError as error:
            self.tell(str(error), warning=True)
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
        return self.theme

    def use_themes(self, themes: Iterable[ThemeFile]) -> None:
        """Know these from now on in the place of others of their names, and show them where they are in use."""
        for theme in themes:
            self.register_theme(textual_theme(theme))
            if theme.name == self.theme and self.is_running:
                self.mutate_reactive(TerminalApp.theme)

    def tell_of_theme(self, line: str, *, warning: bool) -> Callable[[], None]:
        """A toast; what is given takes it away again."""
        severity: SeverityLevel = "warning" if warning else "information"
        toast = Notification(line, severity=severity, timeout=_THEME_SECONDS if warning else _GOOD_NEWS_SECONDS)
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
            self.tell(f"There is no theme {name}; there are {', '.join(themes)}", warning=True)
            return
        self._chosen_theme = name
        self.theme = name

    def choose_theme(self, name: str) -> None:
        self._chosen_theme = name
        self.theme = name
        if not self.services.kept:
            return
        try:
            save_setting("theme", name)
        except SettingsError as error:
            self.tell(f"The theme holds for this session only: {error}", warning=True)

    def refresh_css(self, animate: bool = True) -> None:
        """The palette too: Textual leaves it out when it lies over all, and a preview would stand under the old one."""
        super().refresh_css(animate)
        if isinstance(self.screen, Palette):
            self.stylesheet.update(self.screen, animate=animate)

    def on_command_palette_option_highlighted(self, event: CommandPalette.OptionHighlighted) -> None:
        prompt = str(event.highlighted_event.option.prompt)
        name = prompt.removeprefix(THEME_PREFIX).splitlines()[0].strip() if prompt.startswith(THEME_PREFIX) else ""
        self.theme = name if name in self.themes.themes else self._chosen_theme

    def on_command_palette_closed(self) -> None:
        self.theme = self._chosen_theme
