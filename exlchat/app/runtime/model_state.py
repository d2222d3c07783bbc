"""The model as people see it: which one is loaded, being loaded, or why there is none. No terminal library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.app.runtime.jobs import LoadBegun, Loaded, LoadFailed, Loading, LoadRefused, WentBack
from exlchat.untrusted.sanitize import printable
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.llm.info import ModelInfo

ModelReport = LoadBegun | Loading | Loaded | LoadRefused | WentBack | LoadFailed


class ModelState:
    """Belongs to one front and runs on its thread."""

    def __init__(self, name: str, *, is_guide: bool) -> None:
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
        """What is going on with the model itself, in a word; empty when it is there."""
        return "no model" if self.failure else "loading" if self.info is None else ""

    def learn(self, report: ModelReport) -> str | None:
        """Take over what the engine's jobs say of models; what people are to be told of it, if anything."""
        match report:
            case LoadBegun(name=name):
                self._begun(name)
            case Loaded(info=info):
                self.info = info
                self.is_guide = Path(info.path) == paths.bundled_model().resolve()
                self.name = printable(one_line(f"{info.name} ({info.remote})" if info.remote else info.name))
                told = f"{self.name} answers from here on." if self._changed else ""
                lines = (told, info.without_draft, *info.notices)
                return "\n".join(printable(line) for line in lines if line) or None
            case LoadRefused(line=line):
                return f"{printable(line)}\n{self.name} stays loaded."
            case WentBack(line=line, name=name):
                self._begun(name)
                return f"{printable(line)}\n{name} is loaded again."
            case LoadFailed(line=line):
                self.info = None
                self.failure = printable(line)
                return (
                    f"{self.failure}\nConversations can be read; to chat, choose a model with /models, "
                    "or start again with: exlchat MODEL_DIR"
                )
        return None

    def _begun(self, name: str) -> None:
        self.info = self.failure = None
        self.name = name
        self._changed = True

    def check_template(self, name: str) -> None:
        """See that a prompt format exists, as far as that is known before the model is.

        Raises:
            PromptError: there is none of that name, or its file cannot be read.
        """
        if self.info is not None:
            # No start needs it.
            from exlchat.chat.prompt_format import choose_format

            choose_format(self.info, name, paths.folders().templates)

    def describe(self) -> str:
        info = self.info
        if info is None:
            return self.failure or "The model is still being loaded"
        if info.remote:
            return f"{info.name}: {info.remote}, context {info.max_seq_len:,}, from {info.path}"
        return (
            f"{info.name}: {info.architecture}, {info.quantization}, {info.parameters / 1e6:,.1f} million parameters, "
            f"context {info.max_seq_len:,}, on {info.device} in {info.dtype}, from {info.path}"
        )
