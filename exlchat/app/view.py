"""What a command or the presenter sees of whatever shows the chat: the app's screen, or lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from exlchat.app.chat.session import ChatSession
    from exlchat.app.chat.unsent import Unsent
    from exlchat.app.generation_settings import GenerationSettings
    from exlchat.app.library.shelf import Shelf
    from exlchat.app.log import Log
    from exlchat.app.runtime.model_state import ModelState
    from exlchat.app.runtime.model_switch import ModelSwitch


class View(Protocol):
    """Belongs to the session's thread, as everything that calls it."""

    @property
    def session(self) -> ChatSession:
        """The chat."""

    @property
    def model(self) -> ModelState:
        """Which model is there."""

    @property
    def models(self) -> ModelSwitch:
        """What has another model take its place."""

    @property
    def shelf(self) -> Shelf:
        """The models and settings of this start."""

    @property
    def said(self) -> Log:
        """What the program has said."""

    @property
    def unsent(self) -> Unsent:
        """What is typed and not sent."""

    # What the program says

    def tell(self, line: str, *, warning: bool = False) -> None:
        """A line in passing; the log keeps it."""

    def note(self, text: str) -> None:
        """A remark of the program in the conversation; not part of it, so never on disk."""

    def show_rows(self, title: str, rows: Sequence[tuple[str, str]], *, late: str = "") -> None:
        """Rows of two columns, a heading having nothing on its right.

        Args:
            late: what to say in their place where somebody has gone on to something else; empty if they were not
                waited for.
        """

    # What is shown of conversations

    def show_messages(self) -> None:
        """The open branch has got messages, or lost them."""

    def show_branch(self, at: str | None = None) -> None:
        """Another branch of the open conversation is there; `at` is the message that it was changed for."""

    def show_conversation(self) -> None:
        """Another conversation is open."""

    def refresh_around(self) -> None:
        """Titles, or the list of conversations, have changed."""

    def list_conversations(self) -> None:
        """Let somebody choose a conversation to open."""

    def show_probabilities(self, message_id: str) -> None:
        """How likely each token of an answer was, once the engine has computed it."""

    # What somebody does

    def new_conversation(self) -> None:
        """Leave the open conversation for a new one."""

    def open_conversation(self, conversation_id: str) -> bool:
        """Leave the open conversation for another; whether that could be read."""

    def send(self, text: str, *, generation: GenerationSettings | None = None) -> object:
        """Have a prompt answered; `generation` is how, where that is not what holds."""

    def ask_title(self, conversation_id: str) -> None:
        """Let somebody type a title. Raises `NotPossibleError` where it can only be typed behind the command."""

    def write_in_editor(self) -> None:
        """Have the message that is being typed written in the user's editor."""

    def copy(self, text: str) -> None:
        """To the clipboard. Raises `NotPossibleError` where there is none."""

    def change_settings(self, argument: str) -> None:
        """What /settings does: show all settings, or the one that is named, or change it."""

    def leave(self) -> None:
        """Quit; while something is not on disk only the second time."""

    # Themes

    @property
    def theme_in_use(self) -> str:
        """Name of the theme in force."""

    def theme_names(self) -> Iterable[str]:
        """Names of the themes, read anew."""

    def choose_theme(self, name: str) -> None:
        """Use a theme that is there, now and from now on."""
