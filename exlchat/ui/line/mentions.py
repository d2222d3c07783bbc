"""Files that can be named in the line, with their tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from prompt_toolkit.completion import Completer, Completion

from exlchat.app.composer.file_mentions import begun_mention, described_file, named_so_far
from exlchat.app.composer.file_names import FileNames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

_FILES = 30
_COUNTED = 7
"""As many files as the menu has rows are read and counted."""


class MentionCompleter(Completer):
    """Reads folders and files, so it belongs on a thread of its own. `count` gives the tokens of a text."""

    def __init__(self, count: Callable[[str], int | None]) -> None:
        self._count = count
        self._names = FileNames(Path.cwd())

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Names for the mention that the cursor is in; a name that is typed to its end has no others."""
        del complete_event
        before = document.current_line_before_cursor
        mention = begun_mention(before)
        if mention is None:
            return
        names = self._names.having(mention.name, _FILES)
        if mention.name in names:
            return
        for number, name in enumerate(names):
            told = described_file(name, self._names.folder, self._count) if number < _COUNTED else ""
            yield Completion(named_so_far(name), mention.at - len(before), display=name, display_meta=told)
