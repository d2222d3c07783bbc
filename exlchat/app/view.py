"""What a command or the presenter sees of whatever shows the chat: the app's screen, or lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from exlchat.app.chat.answering import PendingAnswer
    from exlchat.app.chat.session import ChatSession
    from exlchat.app.chat.unsent import Unsent
    from exlchat.app.generation_settings import GenerationSettings
    from exlchat.app.library.shelf import Shelf
    from exlchat.app.log import Log
    from exlchat.app.panels.figures import StatusFacts
    from exlchat.app.runtime.model_state import ModelReport, ModelState
    from exlchat.app.runtime.model_switch import ModelSwitch
    from exlchat.app.serving.shared import SharedServer
    from exlchat.chat.model import Message
    from exlchat.chat.turn_events import AnswerClosed, AnswerStarted
    from exlchat.llm.events import TextDelta


class View(Protocol):
    """Belongs to the session's thread, as everything that calls it."""

    @property
    def session(self) -> ChatSession: ...

    @property
    def model(self) -> ModelState: ...

    @property
    def models(self) -> ModelSwitch:
        """What has another model take its place."""

    @property
    def shelf(self) -> Shelf:
        """The models and settings of this start."""

    @property
    def serving(self) -> SharedServer:
        """What has other programs ask the model."""

    @property
    def said(self) -> Log:
        """What the program has said."""

    @property
    def unsent(self) -> Unsent:
        """What is typed and not sent."""

    facts: StatusFacts
    """Figures of model and answer, shown as they are set."""

    def later(self, seconds: float, what: Callable[[], None], /) -> object:
        """Call something after a while, unless the view has gone by then."""

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

    def show_serving(self) -> None:
        """What other programs ask."""

    def serving_changed(self) -> None:
        """Other programs may ask from now on, or may not any more."""

    # What is shown of conversations

    def show_figures(self) -> None:
        """Those of the newest answer of the open conversation."""

    def show_spoken(self) -> None:
        """Who speaks in the open conversation, and what it says itself of how it is spoken to, may have changed."""

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


class AnswerView(Protocol):
    """Where a view draws answers: what is told of the open conversation only, if not said otherwise."""

    def begin(self, answering: PendingAnswer, notices: Sequence[str], *, moved: bool) -> None:
        """An answer is on disk.

        Args:
            answering: with its message, and the text that it goes on from.
            notices: what is to be said before it.
            moved: whether the model no longer sees a part of the conversation that it saw before.
        """

    def grow(self, answering: PendingAnswer) -> bool:
        """It has grown by its `fresh` pieces; whether it is among what is shown."""

    def close(self, closed: AnswerClosed) -> None:
        """It has ended, and has gone if it is not kept."""

    def one_of_several(
        self, one: PendingAnswer | None, index: int, event: AnswerStarted | TextDelta | AnswerClosed
    ) -> None:
        """One of several answers to a message, counted from 0, has begun, grown or ended."""

    def ended(self, answering: PendingAnswer, *, failed: bool, prompt: Message | None, seconds: float) -> None:
        """What was asked for in any conversation is done.

        Args:
            answering: what that was.
            failed: whether it came to nothing.
            prompt: the one that waited and is asked now.
            seconds: since the answer began, where nothing waited.
        """

    @property
    def can_take_back(self) -> bool:
        """Whether nothing is typed where a prompt could be put back."""

    def take_back(self, prompt: str) -> None:
        """Put a prompt where messages are typed, because it was not taken."""

    def failed(self, line: str) -> None:
        """Say why there is no answer."""

    def model_changed(self, report: ModelReport, told: str | None) -> None:
        """A model is being loaded, has been, or cannot be; `told` is what people are to be told of it."""
