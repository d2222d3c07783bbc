"""What the commands of a chat need from whatever shows it: the app's screen, or the line mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from exlchat.app.chat.session import ChatSession
    from exlchat.app.chat.unsent import Unsent
    from exlchat.app.generation_settings import GenerationSettings
    from exlchat.app.runtime.jobs import Load
    from exlchat.app.runtime.model_state import ModelState
    from exlchat.app.services import Services


class ChatFront(Protocol):
    """Belongs to the session's thread, as everything that calls it."""

    @property
    def session(self) -> ChatSession:
        """The chat."""

    @property
    def services(self) -> Services:
        """What the start was made of."""

    @property
    def model(self) -> ModelState:
        """Which model is there."""

    @property
    def unsent(self) -> Unsent:
        """What is typed and not sent."""

    def tell(self, line: str, *, warning: bool = False) -> None:
        """A line in passing."""

    def note(self, text: str) -> None:
        """A remark of the program in the conversation; not part of it, so never on disk."""

    def show_messages(self) -> None:
        """The branch has changed."""

    def show_conversation(self) -> None:
        """Another conversation is open."""

    def refresh_around(self) -> None:
        """Titles, or the list of conversations, have changed."""

    def new_conversation(self) -> None:
        """Leave the open conversation for a new one."""

    def open_conversation(self, conversation_id: str) -> bool:
        """Leave the open conversation for another; whether that could be read."""

    def send(self, text: str, *, generation: GenerationSettings | None = None) -> object:
        """Have a prompt answered; `generation` is how, where that is not what holds."""

    def change_model(self, load: Load) -> None:
        """Have the engine thread load another model."""
