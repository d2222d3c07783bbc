"""What can follow in the line: slash commands that can be given now, and what each of them takes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from prompt_toolkit.completion import Completer, Completion

from exlchat import paths
from exlchat.app.chat.tree_lines import tree_lines
from exlchat.app.commands.actions import BY_NAME, completions, situation_of
from exlchat.app.commands.settings import DEFAULT
from exlchat.app.generation_settings import EXPLAINED
from exlchat.app.library.memory import NAMES as MODEL_NAMES
from exlchat.chat.answer_options import DRAFTS
from exlchat.chat.prompt.answer_parts import answer_parts
from exlchat.chat.store.conversations import StoreError
from exlchat.llm.limits import MOST_ANSWERS
from exlchat.ui.line.message_lists import WHO, about, numbered_back
from exlchat.untrusted.sanitize import PRINTABLE_LINE
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    from exlchat.ui.line.chat import LineChat

_MOST = 200
_Read = TypeVar("_Read")


class CommandCompleter(Completer):
    """Reads names of files and titles, so it belongs on a thread of its own."""

    def __init__(self, chat: LineChat) -> None:
        self._chat = chat
        counted = dict.fromkeys(
            ("edit", "branch", "cut", "pin", "unpin", "leave-out", "take-in", "copy", "source", "retry"), self._messages
        )
        self._arguments: dict[str, Callable[[], Iterable[tuple[str, str]]]] = {
            **counted,
            "save-code": self._with_code,
            "alternative": self._alternatives,
            "tree": self._branches,
            "search": self._hits,
            "compare": lambda: ((str(number), "answers") for number in range(2, MOST_ANSWERS + 1)),
            "open": lambda: ((str(number), one_line(one.title, 60)) for number, one in enumerate(chat.summaries(), 1)),
            "persona": _personas,
            "preset": _presets,
            "template": _templates,
            "theme": lambda: ((name, "dark" if theme.dark else "light") for name, theme in chat.themes.items()),
            "model": self._models,
            "set": EXPLAINED.items,
            "draft": lambda: ((word, "guesses tokens ahead") for word in DRAFTS),
            "think": lambda: (("on", "think first"), ("off", "answer at once"), ("none", "as the template has it")),
            **dict.fromkeys(("schema", "regex", "choice", "grammar", "ban", "stop-text", "begin", "negative"), _off),
            "logprobs": _off,
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
        known = BY_NAME.get(name.lower())
        if known is None:
            return
        offered = self._settings(argument) if known.id == "settings" else self._arguments.get(known.id, tuple)()
        for value, told in _matching(offered, argument):
            yield Completion(value, -len(argument), display_meta=one_line(told, 60))

    def _messages(self) -> Iterator[tuple[str, str]]:
        session = self._chat.session
        for number, message in reversed(numbered_back(session.branch)):
            if number:
                yield str(number), about(message, session.places)

    def _with_code(self) -> Iterator[tuple[str, str]]:
        marks = ("```", "~~~", "\n    ", "\n\t")
        for number, message in reversed(numbered_back(self._chat.session.branch)):
            if number and any(mark in message.text for mark in marks):
                yield str(number), about(message, self._chat.session.places)

    def _alternatives(self) -> Iterator[tuple[str, str]]:
        session = self._chat.session
        last = next((one for one in reversed(session.branch) if one.id in session.places), None)
        for number, one in enumerate(self._stored(lambda: session.store.alternatives(last.id) if last else ()), 1):
            yield str(number), answer_parts(one).answer

    def _branches(self) -> Iterator[tuple[str, str]]:
        session = self._chat.session
        ident = session.conversation_id
        messages = self._stored(lambda: session.store.read_tree(ident).messages if ident is not None else ())
        for number, one in enumerate(tree_lines(messages), 1):
            yield str(number), f"{WHO[one.message.role]}: {one.text}"

    def _hits(self) -> Iterator[tuple[str, str]]:
        for number, hit in enumerate(self._chat.commands.looking.hits, 1):
            yield f"#{number}", f"{hit.title}: {hit.snippet}"

    def _settings(self, typed: str) -> Iterator[tuple[str, str]]:
        """The keys; behind one of them the values to choose from."""
        from exlchat.app.panels.settings_rows import groups

        key, space, _ = typed.partition(" ")
        for row in (row for _, _, rows in groups() for row in rows):
            if not space:
                yield row.key, row.help
            elif row.key == key:
                values = ("true", "false") if row.is_switch else row.choices(list(self._chat.themes))
                yield from ((f"{key} {value}", row.help) for value in (*values, DEFAULT))

    def _stored(self, read: Callable[[], Sequence[_Read]]) -> Sequence[_Read]:
        try:
            return read()
        except StoreError:
            return ()

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


def _off() -> Iterator[tuple[str, str]]:
    yield "off", "nothing of it from here on"


def _personas() -> Iterator[tuple[str, str]]:
    from exlchat.chat.personas.registry import PERSONAS

    for one in PERSONAS.all().entries:
        yield one.id, one.persona.name


def _presets() -> Iterator[tuple[str, str]]:
    from exlchat.chat.presets.registry import PRESETS

    for one in PRESETS.all().entries:
        yield one.id, one.preset.description


def _templates() -> Iterator[tuple[str, str]]:
    from exlchat.chat.prompt.formats import FORMATS
    from exlchat.chat.prompt_format import MODEL_FORMAT, format_files

    yield MODEL_FORMAT, "the model's own"
    for one in FORMATS:
        yield one.name, one.about
    for name in format_files(paths.folders().templates):
        yield name, "a file of your own"
