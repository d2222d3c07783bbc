"""The model as the screen knows it: which one is loaded, being loaded, or why there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.chat.plain_text import one_line
from exlchat.chat.prompt_format import choose_format
from exlchat.ui.engine_jobs import LoadBegun, Loaded, LoadFailed, Loading, LoadRefused, WentBack
from exlchat.ui.markdown.sanitize import printable
from exlchat.ui.tui.widgets.status_line import StatusFacts

if TYPE_CHECKING:
    from exlchat.engine.events import LoadProgress, ModelInfo
    from exlchat.ui.tui.screens.chat import ChatScreen

ModelReport = LoadBegun | Loading | Loaded | LoadRefused | WentBack | LoadFailed


class ModelDisplay:
    """Belongs to one screen and runs on its thread."""

    def __init__(self, screen: ChatScreen, name: str, *, is_guide: bool) -> None:
        self._screen = screen
        self.name = name
        """What to call the model that is loaded or being loaded."""
        self.is_guide = is_guide
        self.info: ModelInfo | None = None
        """Of the model that is loaded."""
        self.failure: str | None = None
        """Why there is no model, in one line."""
        self._changed = False

    @property
    def activity(self) -> str:
        """What the status line says of the model itself."""
        return "no model" if self.failure else "loading" if self.info is None else ""

    def take(self, report: ModelReport) -> None:
        """Show what the engine thread says of models."""
        match report:
            case LoadBegun(name=name):
                self._begun(name)
            case Loading(progress=progress):
                self._loading(progress)
            case Loaded(info=info):
                self._loaded(info)
            case LoadRefused(line=line):
                self._screen.model_commands.take_back()
                self._screen.note(f"{printable(line)}\n{self.name} stays loaded.")
            case WentBack(line=line, name=name):
                self._screen.model_commands.take_back()
                self._screen.note(f"{printable(line)}\n{name} is loaded again.")
                self._begun(name)
            case LoadFailed(line=line):
                self._load_failed(line)

    def _begun(self, name: str) -> None:
        self.info = self.failure = None
        self.name = name
        self._changed = True
        self._screen.status.facts = StatusFacts(model=name, activity="loading")
        self._screen.answers.show_waiting()
        self._screen.refresh_around()

    def _loading(self, progress: LoadProgress) -> None:
        fraction = progress.done / progress.total if progress.total else None
        facts = replace(self._screen.status.facts, activity=progress.what or "loading", fraction=fraction)
        self._screen.status.facts = facts

    def _loaded(self, info: ModelInfo) -> None:
        self.info = info
        self.is_guide = Path(info.path) == paths.bundled_model().resolve()
        self.name = printable(one_line(info.name))
        self._screen.status.facts = replace(
            self._screen.status.facts, model=self.name, activity="", fraction=None, context_max=info.max_seq_len
        )
        self._screen.model_commands.settled()
        self._screen.refresh_around()
        self._screen.answers.show_figures_of(self._screen.session.last_answer)
        self._screen.answers.show_waiting()
        if self._changed:
            self._screen.note(f"{self.name} answers from here on.")

    def _load_failed(self, line: str) -> None:
        self.info = None
        self.failure = printable(line)
        self._screen.model_commands.settled()
        self._screen.status.facts = StatusFacts(model=self.name, activity="no model")
        if self._screen.session.branch:
            self._screen.note(
                f"{self.failure}\nConversations can be read; to chat, choose a model with /models, "
                "or start again with: exlchat MODEL_DIR"
            )
        self._screen.refresh_around()

    def check_template(self, name: str) -> None:
        """See that a prompt format exists, as far as that is known before the model is.

        Raises:
            PromptError: there is none of that name, or its file cannot be read.
        """
        if self.info is not None:
            choose_format(self.info, name, paths.folders().templates)

    def describe(self) -> str:
        """What is loaded and how, or why not."""
        info = self.info
        if info is None:
            return self.failure or "The model is still being loaded"
        return (
            f"{info.name}: {info.architecture}, {info.quantization}, {info.parameters / 1e6:,.1f} million parameters, "
            f"context {info.max_seq_len:,}, on {info.device} in {info.dtype}, from {info.path}"
        )
