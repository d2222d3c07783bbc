"""Looking for messages in lines: the list of them, a text in them, all branches, all conversations, the prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.app.chat import tree_actions
from exlchat.app.chat.found import search
from exlchat.app.chat.numbered import about, numbered_back
from exlchat.app.chat.session import NotPossibleError
from exlchat.app.commands.cache import questions_wait_for
from exlchat.app.commands.conversations import TITLE_CELLS
from exlchat.ui.line.message_lists import (
    MOST,
    branch_lines,
    day_of,
    found_lines,
    hit_lines,
    message_lines,
)
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from exlchat.app.view import View
    from exlchat.chat.model import Message
    from exlchat.chat.prompt.inspection import Inspected
    from exlchat.chat.store.search import SearchHit
    from exlchat.ui.line.console import Console
    from exlchat.ui.line.message_lists import Listed
    from exlchat.ui.line.scrollback import Scrollback

_HIT_MARK = "#"


class Looking:
    """Belongs to one chat and runs on its thread. Failures are raised, as by `tree_actions`."""

    def __init__(self, view: View, scrollback: Scrollback, console: Console) -> None:
        self._view = view
        self._scrollback = scrollback
        self._console = console
        self.hits: Sequence[SearchHit] = ()
        """What the last search found, in the order of its numbers."""

    # The open conversation

    def messages(self) -> None:
        """The messages of the open conversation, numbered from the end."""
        session = self._view.session
        self._require_messages()
        earlier = max(len(session.branch) - MOST, 0)
        self._write(
            "Messages, numbered from the end as in /edit N, /copy N, /pin N, /retry N, /branch N, /cut N, /code N:",
            message_lines(session.branch, session.places),
            f"Before them {earlier} more; /find TEXT looks through all" if earlier else "",
        )

    def find(self, text: str) -> None:
        self._require_messages()
        if not text:
            raise NotPossibleError("/find needs TEXT: /find TEXT")
        found = found_lines(self._view.session.branch, text)
        if not found:
            raise NotPossibleError(
                f"no message of this conversation has “{one_line(text, 40)}”; /search TEXT looks in all"
            )
        self._write(
            f"{_many(len(found))} with “{one_line(text, 40)}”, numbered from the end; /source N writes one of them:",
            found[-MOST:],
            f"Before them {len(found) - MOST} more" if len(found) > MOST else "",
        )

    def source(self, back: str) -> None:
        message = tree_actions.said_back(self._view.session, back)
        self._view.note(f"Message {back or 1} from the end, as it was written:\n{message.text}")

    def tree(self, number: str) -> None:
        """All branches; with a number the message of that place in the list is shown, with the newest branch below."""
        view = self._view
        if number:
            self._show(tree_actions.numbered_in_tree(view.session, number))
            return
        messages = view.session.store.read_tree(view.session.require_open()).messages
        listed, before = branch_lines(messages, view.session.branch, in_words=not self._console.repaints)
        self._write(
            "All branches; /tree N shows a message, with the newest branch below it:",
            listed,
            f"Before them {before} more, which have numbers too" if before else "",
        )

    # All conversations

    def search(self, text: str) -> None:
        """What was found in all conversations; with #N go to one of what was found last."""
        view = self._view
        if text.startswith(_HIT_MARK) and text[1:].isdecimal():
            self._go_to(int(text[1:]))
            return
        if not text:
            raise NotPossibleError("/search needs TEXT: words, or how they begin")
        hits = search(view.session.store, text, MOST)
        if not hits:
            raise NotPossibleError(f"nothing was found that has “{one_line(text, 40)}”")
        self.hits = hits
        self._write(
            f"Found in all conversations; /search {_HIT_MARK}N goes to one of these:",
            hit_lines(hits, [day_of(hit.created_at) for hit in hits]),
            f"These are the best {MOST}; more words find fewer" if len(hits) == MOST else "",
        )

    def archived(self) -> None:
        there = self._view.session.store.list_conversations("archived")
        if not there:
            raise NotPossibleError("nothing is in the archive; /archive puts a conversation there")
        lines = [f"{one_line(one.title, TITLE_CELLS)} ({day_of(one.updated_at)})" for one in there[:MOST]]
        lines += [f"and {len(there) - MOST} older ones"] if len(there) > MOST else []
        self._view.note("\n".join(("In the archive; /search WORDS finds one, /search #N opens it:", *lines)))

    def _go_to(self, number: int) -> None:
        view = self._view
        if not self.hits:
            raise NotPossibleError("nothing was searched yet; /search TEXT does")
        if not 1 <= number <= len(self.hits):
            raise NotPossibleError(f"the last search found {_HIT_MARK}1 to {_HIT_MARK}{len(self.hits)}")
        hit = self.hits[number - 1]
        if hit.conversation_id != view.session.conversation_id and not view.open_conversation(hit.conversation_id):
            return
        if hit.message_id is None:
            view.tell(f"This is “{one_line(hit.title, 60)}”")
        else:
            self._show(hit.message_id)

    def _show(self, message_id: str) -> None:
        """The branch of a message, and where on it the message is; its text, where that is not among what is shown."""
        view = self._view
        if not any(one.id == message_id for one in view.session.branch):
            tree_actions.show(view.session, message_id)
            view.show_conversation()
        number, message = next(one for one in numbered_back(view.session.branch) if one[1].id == message_id)
        if number and self._scrollback.is_shown(message_id):
            view.tell(f"Message {number} from the end is the one — {about(message, view.session.places)}")
        else:
            self._write_one(number, message)

    def _write_one(self, number: int, message: Message) -> None:
        where = f"Message {number} from the end" if number else "The system prompt"
        self._view.note(f"{where}:")
        self._scrollback.write_again(message)

    # The prompt

    def prompt(self) -> None:
        """The exact prompt that would be asked now, once the engine has time."""
        from exlchat.ui.line import prompt_lines

        view, session = self._view, self._view.session
        conversation_id = session.require_open()
        if (wait := questions_wait_for(view)) is not None:
            view.tell(f"The prompt is written when {wait}")

        title = session.conversation.title if session.conversation is not None else ""

        def show(prompt: Inspected) -> None:
            formatter = self._console.formatter
            lines = prompt_lines.told(prompt, conversation_id)
            if session.conversation_id != conversation_id:
                lines.insert(0, f"Of “{one_line(title, 60)}”, which is not open now:")
            head = formatter.remark("note", "\n".join(lines))
            if self._console.repaints:
                head += formatter.remark("footer", "(every second token is underlined, what the cache holds is shaded)")
            self._scrollback.put(
                [
                    *head,
                    *formatter.tokens(prompt_lines.pieces(prompt)),
                    *formatter.remark("note", "The prompt ends here."),
                ]
            )

        session.questions.prompt(
            conversation_id,
            show,
            template=session.template,
            policy=session.generation.context_policy,
            thinking=session.generation.speech.think,
        )

    # Lines

    def _write(self, head: str, listed: Sequence[Listed], tail: str) -> None:
        formatter = self._console.formatter
        lines = [fragments for one in listed for fragments in formatter.marked(one.text, one.marks)]
        self._scrollback.put(
            [*formatter.remark("note", head), *lines, *(formatter.remark("note", tail) if tail else [])]
        )

    def _require_messages(self) -> None:
        if not self._view.session.branch:
            raise NotPossibleError("there are no messages yet")


def _many(messages: int) -> str:
    return "1 message" if messages == 1 else f"{messages} messages"
