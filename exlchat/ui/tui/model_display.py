"""The model on the screen: what the engine thread says of it, brought into status line and transcript."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from exlchat.app.panels.figures import StatusFacts
from exlchat.app.runtime.jobs import LoadBegun, Loaded, LoadFailed, Loading, LoadRefused, WentBack
from exlchat.app.runtime.model_state import ModelReport, ModelState

if TYPE_CHECKING:
    from exlchat.llm.info import LoadProgress, ModelInfo
    from exlchat.ui.tui.screens.chat import ChatScreen


class ModelDisplay(ModelState):
    """Belongs to one screen and runs on its thread."""

    def __init__(self, screen: ChatScreen, name: str, *, is_guide: bool) -> None:
        super().__init__(name, is_guide=is_guide)
        self._screen = screen

    def take(self, report: ModelReport) -> None:
        """Show what the engine thread says of models."""
        told = self.learn(report)
        match report:
            case LoadBegun():
                self._show_loading()
            case Loading(progress=progress):
                self._show_progress(progress)
            case Loaded(info=info):
                self._show_loaded(info)
            case LoadRefused() | WentBack():
                self._screen.model_commands.take_back()
            case LoadFailed():
                self._screen.model_commands.settled()
                self._screen.status.facts = StatusFacts(model=self.name, activity="no model")
                # An empty conversation shows it in the place of its first line.
                told = told if self._screen.session.branch else None
        if told is not None:
            self._screen.note(told)
        if isinstance(report, WentBack):
            self._show_loading()
        if isinstance(report, LoadFailed):
            self._screen.refresh_around()

    def _show_loading(self) -> None:
        self._screen.status.facts = StatusFacts(model=self.name, activity="loading")
        self._screen.answers.show_waiting()
        self._screen.refresh_around()

    def _show_progress(self, progress: LoadProgress) -> None:
        fraction = progress.done / progress.total if progress.total else None
        facts = replace(self._screen.status.facts, activity=progress.what or "loading", fraction=fraction)
        self._screen.status.facts = facts

    def _show_loaded(self, info: ModelInfo) -> None:
        self._screen.status.facts = replace(
            self._screen.status.facts, model=self.name, activity="", fraction=None, context_max=info.max_seq_len
        )
        self._screen.model_commands.settled()
        self._screen.refresh_around()
        self._screen.typed_tokens.changed()
        self._screen.answers.show_figures_of(self._screen.session.last_answer)
        self._screen.answers.show_waiting()
