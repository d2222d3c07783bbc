"""What the sampling panel needs: the values of the session, presets, and writing either down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.app.chat.session import NotPossibleError
from exlchat.app.commands.sampling_keeping import NOT_KEPT, keep_as_default, save_as_preset
from exlchat.app.generation_settings import NAMES
from exlchat.chat.presets.registry import PRESETS, place_for
from exlchat.config.files import SettingsError
from exlchat.paths import FolderError
from exlchat.ui.tui.screens.line import InputScreen
from exlchat.ui.tui.screens.sampling import SamplingScreen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from exlchat.app.chat.own_settings import Spoken
    from exlchat.app.generation_settings import GenerationSettings
    from exlchat.chat.presets.registry import PresetEntry
    from exlchat.ui.tui.chat_view import ChatView


class SamplingCommands:
    """Belongs to one screen and runs on its thread."""

    def __init__(self, screen: ChatView, take_over: Callable[[], None]) -> None:
        self._screen = screen
        self._take_over = take_over
        self._panel = SamplingScreen(self)
        self._problems_told: set[str] = set()

    def open(self) -> None:
        self._screen.app.push_screen(self._panel)

    @property
    def now(self) -> GenerationSettings:
        """How the next answers are drawn."""
        return self._screen.session.generation

    @property
    def start(self) -> GenerationSettings:
        """How they would be had nobody said anything of that in this conversation."""
        return self._screen.session.as_usual

    @property
    def spoken(self) -> Spoken:
        return self._screen.session.spoken

    @property
    def lacks(self) -> Mapping[str, str]:
        return self._screen.session.lacks

    @property
    def not_kept(self) -> str:
        return "" if self._screen.services.kept else NOT_KEPT

    # For this session

    def change(self, name: str, text: str) -> None:
        self._screen.session.draw_by(self.now.with_value(name, text))
        self._screen.show_spoken()

    def set_back(self, name: str) -> None:
        self._screen.session.set_back([name])
        self._screen.show_spoken()

    def presets(self) -> Sequence[PresetEntry]:
        listed = PRESETS.all()
        for problem in listed.problems:
            if problem not in self._problems_told:
                self._problems_told.add(problem)
                self._screen.tell(problem, warning=True)
        return listed.entries

    def take(self, preset: PresetEntry) -> None:
        self._screen.session.draw_by(self.now.with_overrides(preset.preset.overrides, preset.source))
        self._screen.show_spoken()

    # Written down

    def save(self) -> None:
        self._ask_name("Save as preset", "", "")

    def _ask_name(self, title: str, name: str, replaces: str) -> None:
        """`replaces` is the file whose name, given again, means that it may be replaced."""
        hint = "Enter replaces it · another name keeps both · Esc leaves" if replaces else "Enter saves · Esc leaves"

        def named(typed: str | None) -> None:
            if typed is None:
                self._panel.said("Nothing was saved")
                return
            target = place_for(typed)
            if target.exists() and target.stem != replaces:
                self._ask_name(f"{target.stem} is there already", target.stem, target.stem)
            else:
                self._attempt(lambda: save_as_preset(self.now, target))
                self._panel.read_presets()

        self._screen.app.push_screen(InputScreen(title, name, hint=hint), named)

    def keep(self) -> None:
        """Write the values into the settings, and have the app know them."""
        model = paths.bundled_model() if self._screen.model.is_guide else None
        self._attempt(lambda: keep_as_default(self.now, model))
        self._take_over()
        # What is usual by now is nothing of this conversation's own.
        session = self._screen.session
        usual = session.as_usual
        own = session.spoken.own.values
        session.set_back(name for name in own if name in NAMES and usual.value(name) == self.now.value(name))
        self._panel.read_presets()

    def _attempt(self, write: Callable[[], str]) -> None:
        try:
            self._panel.said(write())
        except (FolderError, NotPossibleError, SettingsError) as error:
            self._panel.said(str(error), wrong=True)
