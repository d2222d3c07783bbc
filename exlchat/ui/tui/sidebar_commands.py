"""What is done to conversations from the sidebar: to the one under the cursor, or to all that are marked."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from exlchat.app.chat.list_order import FOLDER_MARK, folder_of
from exlchat.app.commands import arranging
from exlchat.app.commands.action import attempt
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from exlchat.ui.tui.chat_view import ChatView

_TITLE_CELLS = 40


class SidebarCommands:
    """Belongs to one screen and runs on its thread."""

    def __init__(self, screen: ChatView) -> None:
        self._screen = screen

    def run(self, action_id: str, idents: Sequence[str]) -> None:
        """Do an action of the registry; what it needs more is asked for."""
        act = self._open_in_tabs if action_id == "tab-selected" else partial(self._run, action_id)
        attempt(self._screen, lambda: act(idents))

    def _open_in_tabs(self, idents: Sequence[str]) -> None:
        for ident in idents:
            self._screen.tabs.show_beside(ident)
        self._screen.sidebar.marked.clear()
        self._screen.leave_sidebar()

    def _run(self, action_id: str, idents: Sequence[str]) -> None:
        screen = self._screen
        summaries = {one.id: one for one in screen.summaries()}
        first = summaries.get(idents[0])
        if first is None:
            screen.refresh_around()
            return
        what = f"“{one_line(first.title, _TITLE_CELLS)}”" if len(idents) == 1 else f"{len(idents)} conversations"
        match action_id:
            case "rename-selected":
                screen.ask_title(idents[0])
            case "delete-selected":
                self._ask_delete(what, idents)
            case "tag-selected":
                now = " ".join(f"#{tag}" for tag in first.tags if not tag.endswith(FOLDER_MARK))
                title = f"Tags of {what}{f', now {one_line(now, 30)}' if now and len(idents) == 1 else ''}"
                self._ask(title, "", "Enter adds, -TAG takes away", partial(arranging.tag_all, screen, idents))
            case "folder-selected":
                there = folder_of(first.tags)
                hint = "Enter puts it there, - takes it out"
                self._ask(f"Folder of {what}", there, hint, partial(arranging.file_all, screen, idents))
            case "pin-selected":
                pinned = all(summaries[one].pinned for one in idents if one in summaries)
                arranging.pin_all(screen, idents, pinned=not pinned)
            case "archive-selected":
                arranging.archive_all(screen, idents, archived=True)
                screen.sidebar.marked.clear()
                screen.refresh_around()
            case "export-selected":
                hint = "Enter writes it · .md, .html, .json or .jsonl"
                self._ask(f"Export {what}", "conversations.jsonl", hint, partial(arranging.export_all, screen, idents))

    def _ask_delete(self, what: str, idents: Sequence[str]) -> None:
        # No start needs it.
        from exlchat.ui.tui.screens.question import QuestionScreen

        def answered(yes: bool | None) -> None:
            if yes:
                self._screen.sidebar.marked.clear()
                attempt(self._screen, lambda: arranging.delete_all(self._screen, idents))

        asked = QuestionScreen(f"Delete {what}?", no="Keep it", yes="Delete it; /undo brings it back")
        self._screen.app.push_screen(asked, answered)

    def _ask(self, title: str, line: str, hint: str, then: Callable[[str], None]) -> None:
        # No start needs it.
        from exlchat.ui.tui.screens.line import InputScreen

        def typed(text: str | None) -> None:
            if text is not None:
                attempt(self._screen, lambda: then(text))

        self._screen.app.push_screen(InputScreen(title, line, hint=f"{hint} · Esc leaves"), typed)
