"""What is typed in the composer, on its way: a command, a changed message, or a prompt with the files that it names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from exlchat.app.composer.file_mentions import MentionError, with_files
from exlchat.app.composer.typed_input import BadCommand, Command, parse_input
from exlchat.chat.store.conversations import StoreError

if TYPE_CHECKING:
    from exlchat.app.generation_settings import GenerationSettings
    from exlchat.ui.tui.screens.chat import ChatScreen


class Sending:
    """Belongs to one screen and runs on its thread. What cannot be sent or done goes back into the composer."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen

    def take(self, text: str) -> None:
        """What was typed, when Enter was pressed."""
        screen = self._screen
        if screen.message_commands.editing:
            screen.commands.attempt(lambda: screen.message_commands.submit_edit(text))
            return
        if (line := screen.services.typed.add(text)) is not None:
            screen.tell(line, warning=True)
        match parse_input(text):
            case BadCommand(line=line):
                screen.composer.give_back(text)
                screen.tell(line, warning=True)
            case Command(action=action, argument=argument):
                if not screen.commands.run(action.id, argument) and argument:
                    screen.composer.give_back(text)
            case prompt if prompt.text:
                self._send_with_files(prompt.text)

    def send(self, text: str, *, generation: GenerationSettings | None = None) -> None:
        """Send a prompt as it is, or let it wait for the present answer; `generation` as of the session."""
        screen, session = self._screen, self._screen.session
        old_draft_of = session.draft_id
        try:
            message = session.send(text, generation=generation)
        except StoreError as error:
            self._give_back(text, error)
            return
        if old_draft_of is None:
            screen.unsent.forget_new()
        screen.unsent.keep()
        if message is None:
            screen.refresh_around()
        else:
            screen.show_prompt(message)

    def _send_with_files(self, text: str) -> None:
        try:
            self.send(with_files(text, Path.cwd()))
        except MentionError as error:
            self._give_back(text, error)

    def _give_back(self, text: str, error: Exception) -> None:
        self._screen.composer.give_back(text)
        self._screen.tell(f"Not sent: {error}", warning=True)
