"""What can follow in the line: slash commands that can be given now, and what each of them takes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from prompt_toolkit.completion import Completer, Completion

from exlchat import paths
from exlchat.chat.plain_text import one_line
from exlchat.ui.actions import BY_SLASH, completions
from exlchat.ui.chat_commands import situation_of
from exlchat.ui.generation_settings import EXPLAINED
from exlchat.ui.library.memory import NAMES as MODEL_NAMES
from exlchat.ui.markdown.sanitize import PRINTABLE_LINE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    from exlchat.ui.line.chat import LineChat

_MOST = 200


class CommandCompleter(Completer):
    """Reads names of files and titles, so it belongs on a thread of its own."""

    def __init__(self, chat: LineChat) -> None:
        self._chat = chat
        self._arguments: dict[str, Callable[[], Iterable[tuple[str, str]]]] = {
            "open": lambda: ((str(number), title) for number, title in enumerate(chat.commands.titles(), 1)),
            "persona": _personas,
            "preset": _presets,
            "template": _templates,
            "theme": lambda: ((name, "dark" if theme.dark else "light") for name, theme in chat.themes.items()),
            "model": self._models,
            "set": EXPLAINED.items,
        }

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Commands by their beginning; arguments by any part of them, those that begin so first."""
        del complete_event
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in text:
            return
        name, space, argument = text.partition(" ")
        if not space:
            now = situation_of(self._chat.session)
            for action in completions(text):
                if action.slash and action.available(now) and self._chat.commands.known(action.id):
                    end = " " if action.argument else ""
                    yield Completion(
                        f"{action.slash}{end}", -len(text), display=action.usage, display_meta=action.title
                    )
            return
        known = BY_SLASH.get(name.lower())
        offered = self._arguments.get(known.id) if known is not None else None
        if offered is not None:
            for value, about in _matching(offered(), argument):
                yield Completion(value, -len(argument), display_meta=one_line(about, 60))

    def _models(self) -> Iterator[tuple[str, str]]:
        for one in self._chat.services.shelf.found():
            yield one.name, ""
        for name in MODEL_NAMES:
            yield f"set {name}", "remembered for this model"


def _matching(offered: Iterable[tuple[str, str]], typed: str) -> list[tuple[str, str]]:
    wanted = typed.casefold()
    safe = [one for one in offered if _safe(one[0]) and wanted in one[0].casefold() and one[0] != typed]
    return sorted(safe, key=lambda one: not one[0].casefold().startswith(wanted))[:_MOST]


def _safe(value: str) -> bool:
    """Whether a name can be drawn as it is; another one would not be the name any more."""
    return re.fullmatch(PRINTABLE_LINE, value) is not None


def _personas() -> Iterator[tuple[str, str]]:
    from exlchat.chat.personas.shelf import all_personas

    for one in all_personas().personas:
        yield one.id, one.persona.name


def _presets() -> Iterator[tuple[str, str]]:
    from exlchat.chat.sampling.shelf import all_presets

    for one in all_presets().presets:
        yield one.id, one.preset.description


def _templates() -> Iterator[tuple[str, str]]:
    from exlchat.chat.formats import FORMATS
    from exlchat.chat.prompt_format import MODEL_FORMAT, format_files

    yield MODEL_FORMAT, "the model's own"
    for one in FORMATS:
        yield one.name, one.about
    for name in format_files(paths.folders().templates):
        yield name, "a file of your own"
