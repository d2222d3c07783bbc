"""What can follow a slash command: names, numbers, values, files."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from exlchat import paths
from exlchat.app.chat.group_actions import EVERYBODY
from exlchat.app.chat.list_order import FOLDER_MARK, folder_of
from exlchat.app.chat.numbered import about, numbered_back, who_says
from exlchat.app.chat.tree_lines import tree_lines
from exlchat.app.commands.actions import BY_NAME
from exlchat.app.commands.groups import BY
from exlchat.app.commands.settings import DEFAULT
from exlchat.app.composer.file_names import FileNames
from exlchat.app.generation_settings import EXPLAINED
from exlchat.app.library.memory import NAMES as MODEL_NAMES
from exlchat.app.panels.sampling import steps_of, typed_text
from exlchat.chat.answer_options import DRAFTS
from exlchat.chat.prompt.answer_parts import answer_parts
from exlchat.chat.store.conversations import StoreError
from exlchat.llm.limits import KV_CACHES, MOST_ANSWERS
from exlchat.untrusted.sanitize import PRINTABLE_LINE
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from exlchat.app.chat.session import ChatSession
    from exlchat.app.library.shelf import Shelf
    from exlchat.chat.model import ConversationSummary
    from exlchat.config.themes import ThemeFile

_MOST = 200
_PATH = ("/", "~", "./", "../")
_FILES = ("save", "schema", "grammar", "import", "persona")
_Read = TypeVar("_Read")
Offered = tuple[str, str]
"""What can stand there, and a few words on it."""


class Arguments:
    """Reads names of files and titles, so it is asked on a thread of its own.

    Args:
        themes: by name, as last read.
        listed: the conversations, in the order of their numbers.
        hits: what was found by the last search, by the words that lead there.
    """

    def __init__(
        self,
        session: ChatSession,
        shelf: Shelf,
        *,
        themes: Callable[[], Mapping[str, ThemeFile]],
        listed: Callable[[], Sequence[ConversationSummary]],
        hits: Callable[[], Iterable[Offered]] = tuple,
    ) -> None:
        self._session = session
        self._shelf = shelf
        self._themes = themes
        self._listed = listed
        self._files = FileNames(Path.cwd())
        counted = dict.fromkeys(
            ("edit", "branch", "cut", "pin", "unpin", "leave-out", "take-in", "copy", "source", "retry"), self._messages
        )
        self._named: dict[str, Callable[[], Iterable[Offered]]] = {
            **counted,
            "save-code": self._with_code,
            "alternative": self._alternatives,
            "tree": self._branches,
            "search": hits,
            "compare": lambda: ((str(number), "answers") for number in range(2, MOST_ANSWERS + 1)),
            **dict.fromkeys(
                ("open", "tab"),
                lambda: ((str(number), one_line(one.title, 60)) for number, one in enumerate(self._stored(listed), 1)),
            ),
            "folder": self._folders,
            "persona": _personas,
            "speak": lambda: (*self._members(), (EVERYBODY, "one after the other")),
            "note": lambda: (("depth 4", "how many messages stand behind it"), ("-", "takes it away")),
            "preset": _presets,
            "template": _templates,
            "theme": lambda: ((name, "dark" if theme.dark else "light") for name, theme in themes().items()),
            "draft": lambda: ((word, "guesses tokens ahead") for word in DRAFTS),
            "think": lambda: (("on", "think first"), ("off", "answer at once"), ("none", "as the template has it")),
            **dict.fromkeys(("schema", "regex", "choice", "grammar", "ban", "stop-text", "begin", "negative"), _off),
            "logprobs": _off,
        }

    def behind(self, line: str) -> tuple[str, list[Offered]]:
        """What is typed behind the command of a line, and what can stand in its place: what begins so comes first."""
        name, space, typed = line.partition(" ")
        known = BY_NAME.get(name.lower())
        if not space or known is None or "\n" in line:
            return "", []
        return typed, _matching(self._offered(known.id, typed), typed)

    def _offered(self, action_id: str, typed: str) -> Iterable[Offered]:
        by_words = {
            "tag": self._tags,
            "settings": self._settings,
            "set": self._values,
            "model": self._models,
            "group": self._with_persona,
        }
        if (offered := by_words.get(action_id)) is not None:
            return offered(typed)
        match action_id:
            case "save-code":
                number, space, name = typed.partition(" ")
                return self._paths(name, f"{number} ") if space else self._with_code()
            case _ if action_id in _FILES:
                return [*self._named.get(action_id, tuple)(), *self._paths(typed)]
        return self._named.get(action_id, tuple)()

    def _paths(self, typed: str, before: str = "") -> Iterator[Offered]:
        for name in self._files.having(typed, _MOST):
            yield f"{before}{name}", "folder" if name.endswith("/") else ""

    def _messages(self) -> Iterator[Offered]:
        for number, message in reversed(numbered_back(self._session.branch)):
            if number:
                yield str(number), about(message, self._session.places)

    def _tags(self, typed: str) -> Iterator[Offered]:
        """Behind those that are typed one more: of all there are; behind a minus, of those that the open one has."""
        before, space, last = typed.rpartition(" ")
        if last.startswith("-"):
            ident = self._session.conversation_id
            here = self._stored(lambda: self._session.store.tags(ident)) if ident is not None else ()
            yield from ((f"{before}{space}-{tag}", "taken away") for tag in here if not tag.endswith(FOLDER_MARK))
            return
        counted = Counter(tag for one in self._stored(self._listed) for tag in one.tags)
        for tag, many in counted.most_common():
            if not tag.endswith(FOLDER_MARK):
                yield f"{before}{space}{tag}", f"on {many}"

    def _folders(self) -> Iterator[Offered]:
        counted = Counter(folder for one in self._stored(self._listed) if (folder := folder_of(one.tags)))
        yield from ((folder, f"holds {many}") for folder, many in counted.most_common())
        yield "-", "out of its folder"

    def _members(self) -> Iterator[Offered]:
        group = self._session.spoken.group
        for name in () if group is None else group.names:
            yield name, "speaks now"

    def _with_persona(self, typed: str) -> Iterator[Offered]:
        """What /group takes: behind the names that are typed one more."""
        before, space, _ = typed.rpartition(" ")
        if not space:
            yield from (("add", "NAME joins"), ("remove", "NAME leaves"), ("-", "the group ends"))
        if before in ("", "by"):
            yield from ((f"by {word}", "how it is settled who speaks next") for word in BY)
        if before == "remove":
            yield from ((f"remove {name}", "leaves") for name, _ in self._members())
        if before in ("by", "remove"):
            return
        for ident, name in _personas():
            yield f"{before}{space}{ident}", name

    def _with_code(self) -> Iterator[Offered]:
        marks = ("```", "~~~", "\n    ", "\n\t")
        for number, message in reversed(numbered_back(self._session.branch)):
            if number and any(mark in message.text for mark in marks):
                yield str(number), about(message, self._session.places)

    def _alternatives(self) -> Iterator[Offered]:
        session = self._session
        last = next((one for one in reversed(session.branch) if one.id in session.places), None)
        ident = last.id if last is not None else ""
        others = self._stored(lambda: session.store.alternatives(ident, gone_on_from=False))
        for number, one in enumerate(others, 1):
            yield str(number), answer_parts(one).answer

    def _branches(self) -> Iterator[Offered]:
        session = self._session
        ident = session.conversation_id
        messages = self._stored(lambda: session.store.read_tree(ident).messages if ident is not None else ())
        for number, one in enumerate(tree_lines(messages), 1):
            yield str(number), f"{who_says(one.message)}: {one.text}"

    def _settings(self, typed: str) -> Iterator[Offered]:
        """The keys; behind one of them the values to choose from."""
        from exlchat.app.panels.settings_rows import groups

        key, space, _ = typed.partition(" ")
        for row in (row for _, _, rows in groups() for row in rows):
            if not space:
                yield row.key, row.help
            elif row.key == key:
                values = ("true", "false") if row.is_switch else row.choices(list(self._themes()))
                yield from ((f"{key} {value}", row.help) for value in (*values, DEFAULT))

    def _values(self, typed: str) -> Iterator[Offered]:
        """The names of what can be set; behind one of them its values."""
        now = self._session.generation
        name, space, _ = typed.partition(" ")
        if not space:
            yield from EXPLAINED.items()
        elif name in EXPLAINED:
            held = typed_text(now, name)
            values = dict.fromkeys((held, *steps_of(now, name)))
            for value in values:
                yield f"{name} {value}", "now" if value == held else ""

    def _models(self, typed: str) -> Iterator[Offered]:
        if typed.startswith(_PATH):
            for name, told in self._paths(typed):
                if told:
                    yield name, "model" if _is_model(name) else told
            return
        for one in self._shelf.found():
            yield one.name, ""
        for name in MODEL_NAMES:
            yield f"set {name}", "remembered for this model"
        if typed.startswith("set kv_cache "):
            yield from ((f"set kv_cache {kind}", "remembered for this model") for kind in KV_CACHES)

    def _stored(self, read: Callable[[], Sequence[_Read]]) -> Sequence[_Read]:
        try:
            return read()
        except StoreError:
            return ()


def _is_model(name: str) -> bool:
    try:
        return (paths.expanded(name) / "config.json").is_file()
    except (OSError, ValueError):
        return False


def _matching(offered: Iterable[Offered], typed: str) -> list[Offered]:
    wanted = typed.casefold()
    safe = [one for one in offered if _safe(one[0]) and wanted in one[0].casefold() and one[0] != typed]
    return sorted(safe, key=lambda one: not one[0].casefold().startswith(wanted))[:_MOST]


def _safe(value: str) -> bool:
    """Whether a name can be drawn as it is; another one would not be the name any more."""
    return re.fullmatch(PRINTABLE_LINE, value) is not None


def _off() -> Iterator[Offered]:
    yield "off", "nothing of it from here on"


def _personas() -> Iterator[Offered]:
    from exlchat.chat.personas.registry import PERSONAS

    for one in PERSONAS.all().entries:
        yield one.id, one.persona.name


def _presets() -> Iterator[Offered]:
    from exlchat.chat.presets.registry import PRESETS

    for one in PRESETS.all().entries:
        yield one.id, one.preset.description


def _templates() -> Iterator[Offered]:
    from exlchat.chat.prompt.formats import FORMATS
    from exlchat.chat.prompt_format import MODEL_FORMAT, format_files

    yield MODEL_FORMAT, "the model's own"
    for one in FORMATS:
        yield one.name, one.about
    for name in format_files(paths.folders().templates):
        yield name, "a file of your own"
