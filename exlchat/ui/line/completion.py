"""What can follow in the line: slash commands that can be given now, and what each of them takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prompt_toolkit.completion import Completer, Completion

from exlchat.app.commands.actions import completions, situation_of
from exlchat.app.composer.arguments import Arguments
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    from exlchat.ui.line.chat import LineChat


class CommandCompleter(Completer):
    """Reads names of files and titles, so it belongs on a thread of its own."""

    def __init__(self, chat: LineChat) -> None:
        self._chat = chat
        self._arguments = Arguments(
            chat.session, chat.services.shelf, themes=lambda: chat.themes, hits=self._hits, listed=chat.summaries
        )

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Commands by their beginning; arguments by any part of them, those that begin so first."""
        del complete_event
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in text:
            return
        if " " not in text:
            now = situation_of(self._chat.session)
            for action in completions(text):
                if action.slash and action.available(now) and self._chat.commands.known(action.id):
                    end = " " if action.argument else ""
                    reason = action.lacking(now.lacks)
                    yield Completion(
                        f"{action.slash}{end}",
                        -len(text),
                        display=action.usage,
                        display_meta=reason or action.title,
                        style="class:quiet" if reason else "",
                    )
            return
        typed, offered = self._arguments.behind(text)
        for value, told in offered:
            yield Completion(value, -len(typed), display_meta=one_line(told, 60))

    def _hits(self) -> Iterator[tuple[str, str]]:
        for number, hit in enumerate(self._chat.commands.looking.hits, 1):
            yield f"#{number}", f"{hit.title}: {hit.snippet}"
