"""The settings in lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.app.commands.settings import DEFAULT, SettingsCommands

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from exlchat.app.keys.keymap import Keymap
    from exlchat.config.schema import Underscores
    from exlchat.ui.line.view import LineView


class LineSettings(SettingsCommands):
    """Belongs to one chat and runs on its thread."""

    def __init__(self, view: LineView, use_keys: Callable[[Keymap], None]) -> None:
        super().__init__(view)
        self._view = view
        self._use_keys_now = use_keys

    def _show_all(self) -> None:
        self._view.note("\n".join(self._all()))

    def _all(self) -> Iterator[str]:
        # No start needs them.
        from exlchat.app.panels.settings_rows import groups

        yield f"/settings KEY tells more of one of these, /settings KEY VALUE changes it, {DEFAULT} takes it back:"
        for group, about, rows in groups():
            yield f"{group}: {about}"
            for row in rows:
                if not row.action_id or row.in_file(self.reading):
                    yield f"  {row.key} = {self.shown(row)} ({self.source(row)})"
                    if reason := self.lacking(row):
                        yield f"    Not now: {reason}."
                    if beaten := self.beaten_by(row):
                        yield f"    {beaten}"
        yield "/settings keys.ACTION KEY gives an action another key; /help has the keys"

    def themes(self) -> list[str]:
        return list(self._view.theme_names())

    def _show_theme(self, name: str) -> None:
        if name in self._view.reload_themes():
            self._view.show_theme(name)
        else:
            self._view.tell(f"There is no theme {name}; there are {', '.join(self._view.themes)}", warning=True)

    def _show_sidebar(self, shown: bool) -> None:
        """There is none."""

    def _show_underscores(self, meant: Underscores) -> None:
        """What is printed stays; the next answer asks."""

    def _use_keys(self, keys: Keymap) -> None:
        self._use_keys_now(keys)

    def _use_vi(self, wanted: bool) -> None:
        self._view.console.use_vi(wanted)
