"""Links of the transcript: shown before anything is opened, and opened on a thread."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from exlchat.app.chat.session import NotPossibleError
from exlchat.chat.prompt.answer_parts import answer_parts

if TYPE_CHECKING:
    from exlchat.chat.model import Message
    from exlchat.ui.render.links import Link
    from exlchat.ui.tui.chat_view import ChatView


class Links:
    """Belongs to one screen and runs on its thread."""

    def __init__(self, screen: ChatView) -> None:
        self._screen = screen

    def of_message(self, message: Message) -> None:
        # No start needs them, here and below.
        from exlchat.ui.render.links import links_of
        from exlchat.ui.tui.screens.pick import PickScreen, Row, narrowed

        found = links_of(answer_parts(message).answer, is_markdown=message.role == "assistant")
        if not found:
            raise NotPossibleError("there is no link in this message")
        if len(found) == 1:
            self.ask(found[0])
            return
        rows = [Row(str(number), target) for number, target in enumerate(found)]

        def chosen(number: str | None) -> None:
            if number is not None:
                self.ask(found[int(number)])

        self._screen.app.push_screen(PickScreen("Links", narrowed(rows), hint="Enter shows · Esc leaves"), chosen)

    def ask(self, target: str) -> None:
        from exlchat.ui.render.links import look_at
        from exlchat.ui.tui.screens.link import LinkScreen

        link = look_at(target)

        def wished(wish: str | None) -> None:
            if wish == "copy":
                self._screen.app.copy_to_clipboard(link.target)
                self._screen.tell("Copied the address")
            elif wish == "open":
                self._screen.run_worker(partial(self._open, link), thread=True, group="links")

        self._screen.app.push_screen(LinkScreen(link), wished)

    def _open(self, link: Link) -> None:
        """On a thread of its own: a browser may take seconds to say that it has begun."""
        from exlchat.ui.render.links import OpenError, open_link

        try:
            open_link(link)
        except OpenError as error:
            self._screen.app.call_from_thread(self._screen.tell, str(error), warning=True)
