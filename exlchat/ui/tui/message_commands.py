"""What is done to one message of the conversation: under the cursor of the transcript, or counted from the end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from exlchat.app.chat import tree_actions
from exlchat.app.chat.session import NotPossibleError
from exlchat.app.commands.action import attempt
from exlchat.app.commands.code import code_meant, copied_code_line, free_name, saved_line
from exlchat.app.commands.messages import cut_from, left_out_line, pinned_line
from exlchat.chat.prompt.answer_parts import answer_parts
from exlchat.ui.tui.items import message_of
from exlchat.ui.tui.links import Links

if TYPE_CHECKING:
    from collections.abc import Callable

    from exlchat.app.chat.session import ChatSession
    from exlchat.app.commands.code_files import CodeBlock
    from exlchat.chat.model import Message
    from exlchat.ui.tui.chat_view import ChatView
    from exlchat.ui.tui.widgets.transcript_items import View

_EDITING = {
    "user": "Editing your message · Enter sends it beside the old one · Esc leaves it as it is",
    "assistant": "Editing the answer · Enter keeps it beside the old one · Esc leaves it as it is",
    "system": "Editing the system prompt · Enter keeps it beside the old one · Esc leaves it as it is",
}


class MessageCommands:
    """Belongs to one screen and runs on its thread. Failures are raised, as by `tree_actions`."""

    def __init__(self, screen: ChatView) -> None:
        self._screen = screen
        self.links = Links(screen)
        self._copied = ("", 0)
        """The message whose code was copied last, and which of its blocks."""
        self._under_cursor: dict[str, Callable[[str], None]] = {
            "copy-message": self._copy,
            "copy-code": self._copy_code,
            "edit": self.begin_edit,
            "answer-again": self._answer_again,
            "alternative-before": partial(self._alternative, by=-1),
            "alternative-after": partial(self._alternative, by=1),
            "branch": self._branch,
            "cut": partial(cut_from, screen, undone_by="u or /undo"),
            "pin-message": self._pin,
            "leave-out-message": self._leave_out,
            "save-code": self._save_code,
            "probabilities": screen.show_probabilities,
            "open-link": lambda message_id: self.links.of_message(self._message(message_id)),
        }

    @property
    def _session(self) -> ChatSession:
        return self._screen.session

    # By its doors

    def at_cursor(self, action_id: str, key: str) -> None:
        if action_id in ("fold", "source"):
            self._show_as(key, "folded" if action_id == "fold" else "source")
            return
        if action_id == "fold-code":
            self._fold_code(key)
            return
        if action_id == "fold-above":
            self._fold_above(key)
            return
        message_id = message_of(key)
        if message_id is None or not any(one.id == message_id for one in self._session.branch):
            raise NotPossibleError("go to a message first, with the arrow keys")
        self._under_cursor[action_id](message_id)

    def counted(self, action_id: str, back: str) -> None:
        """Do an action to the message that a number counts from the end."""
        self._under_cursor[action_id](tree_actions.said_back(self._session, back).id)

    def counted_code(self, argument: str) -> None:
        """Save the code of a message to a file, whose name is asked for if it was not given."""
        blocks, name = code_meant(self._session, argument)
        if name:
            self._save(blocks, name)
        else:
            self._ask_file(blocks)

    def counted_source(self, back: str) -> None:
        """Show a message as it was written, or again as it is meant."""
        self._show_as(tree_actions.said_back(self._session, back).id, "source")

    def numbered_alternative(self, number: str) -> None:
        by, last = tree_actions.numbered_alternative(self._session, number)
        if by:
            self._alternative(last.id, by=by)

    def compare(self, many: str) -> None:
        if many and not many.isdecimal():
            raise NotPossibleError(f"{many!r} is no number of answers, such as 3")
        # No start needs them.
        from exlchat.app.chat.comparison import Comparison
        from exlchat.ui.tui.screens.compare import CompareScreen

        comparison = Comparison(self._session, int(many or 2))

        def kept(number: int | None) -> None:
            if number is None:
                attempt(self._screen, lambda: self._screen.tell(comparison.choose_none()))
            else:
                comparison.stop()
                attempt(self._screen, lambda: comparison.keep(number))
            self._screen.show_messages()
            self._screen.show_figures()

        looks = self._screen.transcript
        self._screen.app.push_screen(CompareScreen(comparison, looks.code_style, looks.underscores), kept)

    # Editing

    def begin_edit(self, message_id: str) -> None:
        """Put a message into the composer; what stands there comes back afterwards."""
        session = self._session
        session.require_quiet()
        text = tree_actions.text_to_edit(session, message_id)
        role = next(one.role for one in session.branch if one.id == message_id)
        self._screen.edited = message_id
        self._screen.prompt.begin_edit(text, _EDITING[role])
        self._screen.refresh_bindings()

    def submit_edit(self, text: str) -> None:
        """Keep the changed message; what could not be kept stays in the composer."""
        message_id = self._screen.edited
        assert message_id is not None
        try:
            message = tree_actions.edit(self._session, message_id, text)
        except Exception:
            self._screen.composer.give_back(text)
            raise
        self._screen.end_edit(kept=True)
        self._screen.show_messages()
        if message.role == "assistant":
            self._screen.tell("The changed answer is kept beside the old one; /continue goes on from it")

    # One message

    def _copy(self, message_id: str) -> None:
        self._screen.app.copy_to_clipboard(answer_parts(self._message(message_id)).answer)
        self._screen.tell("Copied the message")

    def _copy_code(self, message_id: str) -> None:
        """Of several blocks the first, and the next one each time."""
        from exlchat.app.commands.code_files import code_blocks

        blocks = code_blocks(answer_parts(self._message(message_id)).answer)
        if not blocks:
            raise NotPossibleError("there is no code in this message")
        before, place = self._copied
        place = (place + 1) % len(blocks) if before == message_id else 0
        self._copied = (message_id, place)
        self._screen.app.copy_to_clipboard(blocks[place].code)
        self._screen.tell(copied_code_line(blocks, place))

    def _answer_again(self, message_id: str) -> None:
        tree_actions.answer_again(self._session, message_id)
        self._screen.show_messages()

    def _alternative(self, message_id: str, *, by: int) -> None:
        shown = tree_actions.alternative(self._session, message_id, by)
        self._screen.show_messages(at=shown.id)

    def _branch(self, message_id: str) -> None:
        self._screen.unsent.keep()
        tree_actions.branch_off(self._session, message_id)
        self._screen.show_conversation()
        self._screen.tell("This is a new conversation with what came before; the other one is in the sidebar")

    def _pin(self, message_id: str) -> None:
        line = pinned_line(self._screen, message_id, pinned=not self._message(message_id).pinned)
        self._screen.show_messages(at=message_id)
        self._screen.tell(line)

    def _leave_out(self, message_id: str) -> None:
        line = left_out_line(self._screen, message_id, left_out=not self._message(message_id).left_out)
        self._screen.show_messages(at=message_id)
        self._screen.tell(line)

    def _show_as(self, key: str, view: View) -> None:
        """That way, or as it is meant if it is shown so already."""
        transcript = self._screen.transcript
        if not transcript.holds(key):
            raise NotPossibleError("go to a message first, with the arrow keys")
        transcript.show_as(key, "whole" if transcript.view_of(key) == view else view)
        transcript.move_cursor_to(key)

    def _fold_above(self, key: str) -> None:
        if not self._screen.transcript.holds(key) or not self._screen.transcript.fold_above(key):
            raise NotPossibleError("there is no message above that could be folded")

    def _fold_code(self, key: str) -> None:
        transcript = self._screen.transcript
        if not transcript.holds(key):
            raise NotPossibleError("go to a message first, with the arrow keys")
        if not transcript.fold_code(key):
            raise NotPossibleError("no code of this message is long enough to fold")
        transcript.move_cursor_to(key)

    def _save_code(self, message_id: str) -> None:
        from exlchat.app.commands.code_files import code_blocks

        blocks = code_blocks(answer_parts(self._message(message_id)).answer)
        if not blocks:
            raise NotPossibleError("there is no code in this message")
        self._ask_file(blocks)

    def _ask_file(self, blocks: list[CodeBlock]) -> None:
        many = "Save the code" if len(blocks) == 1 else f"Save {len(blocks)} blocks of code"
        # No start needs it.
        from exlchat.ui.tui.screens.line import InputScreen

        asked = InputScreen(many, free_name(blocks), hint="Enter saves · Esc leaves")
        self._screen.app.push_screen(asked, lambda name: self._save(blocks, name))

    def _save(self, blocks: list[CodeBlock], name: str | None) -> None:
        if name is not None:
            attempt(self._screen, lambda: self._screen.tell(saved_line(blocks, name)))

    def _message(self, message_id: str) -> Message:
        return next(one for one in self._session.branch if one.id == message_id)
