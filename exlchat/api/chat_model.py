"""A loaded model as those who ask it for chat: its prompt format and what ends a turn, found out once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from exlchat.api.said import SaidBefore
from exlchat.chat.prompt.ids import PromptMessage, prompt_text
from exlchat.chat.prompt.stop_conditions import stop_conditions
from exlchat.chat.prompt.thinking import opens_thinking
from exlchat.chat.prompt_format import PromptFormat, choose_format, with_thinking
from exlchat.llm.port import Engine
from exlchat.llm.thought_splitter import ThinkingMarks

_THINKS = "enable_thinking"


@dataclass(frozen=True, slots=True)
class Format:
    """A prompt format of one model; `stops` end a turn in it."""

    form: PromptFormat
    stops: tuple[str | int, ...]

    def told(self, variables: Mapping[str, Any], think: bool | None) -> PromptFormat:
        """The format as a request wants it.

        Args:
            variables: what its template is to see.
            think: whether the model is to think first; `None` leaves it to the format.
        """
        wanted = variables.get(_THINKS, think)
        form = with_thinking(self.form, wanted) if isinstance(wanted, bool) else self.form
        return replace(form, variables={**form.variables, **variables})


class ChatModel:
    """An engine with its formats. From any thread.

    Args:
        engine: who answers.
        templates: the folder of the user's own formats; `None` knows none.
        said: what was answered before.
    """

    def __init__(self, engine: Engine, templates: Path | None = None, said: SaidBefore | None = None) -> None:
        self.engine = engine
        self.said = SaidBefore() if said is None else said
        self._templates = templates
        self._formats: dict[str | None, Format] = {}

    def format(self, template: str | None) -> Format:
        """By name or file; `None` is the model's own. A file is read once.

        Raises:
            PromptError: there is none.
        """
        found = self._formats.get(template)
        if found is None:
            form, _ = choose_format(self.engine.info, template, self._templates)
            found = Format(form, stop_conditions(self.engine, form))
            self._formats[template] = found
        return found

    def marks(self, form: PromptFormat, messages: list[PromptMessage]) -> ThinkingMarks | None:
        """How thoughts are marked in an answer to these messages."""
        if form.thinking is None:
            return None
        asked = prompt_text(self.engine, messages, form)
        return replace(form.thinking, opened=opens_thinking(asked, form.thinking))
