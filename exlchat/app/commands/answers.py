"""What is done about answers: having them, stopping them, comparing them, reading how likely their tokens were."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from exlchat.app.chat import tree_actions
from exlchat.app.chat.session import NotPossibleError
from exlchat.app.commands import action
from exlchat.app.commands.action import attempt
from exlchat.app.commands.code import code_meant, copied_code_line
from exlchat.chat.prompt.answer_parts import answer_parts
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.app.view import View
    from exlchat.chat.answer_chances import AnswerChances

command = partial(action.command, topic="Answers")


@command(
    "stop",
    "Stop the answer",
    "Stop the answer and keep its text.",
    keys=("escape",),
    when=lambda now: now.can_stop,
    in_lines="Stop the answer and keep its text; leave a message that is being changed as it is.",
    after="editor",
)
def stop(view: View, _: str) -> None:
    view.session.stop()


@command(
    "retry",
    "Retry the last answer",
    "Have the last message answered again, or the Nth from the end; the old answer is kept.",
    "/retry",
    "[N]",
    keys=("ctrl+t",),
    when=lambda now: now.can_retry and not now.answering,
    after="open",
    aliases=("/regenerate", "/regen", "/swipe", "/reroll"),
)
def retry(view: View, back: str) -> None:
    session = view.session
    if back:
        tree_actions.answer_again(session, tree_actions.said_back(session, back).id)
    else:
        session.retry()
    view.show_messages()


@command(
    "continue",
    "Continue a cut answer",
    "Go on with an answer that was cut.",
    "/continue",
    when=lambda now: now.answer_was_cut and not now.answering,
    aliases=("/cont",),
    needs="begun",
)
def go_on(view: View, _: str) -> None:
    view.session.continue_answer()
    view.show_messages()


@command(
    "copy",
    "Copy the last answer",
    "Copy the last answer to the clipboard; with N the message that is the Nth from the end, with code its last code"
    " block, or its Kth.",
    "/copy",
    "[N|code [K]]",
    keys=("ctrl+y",),
    when=lambda now: now.has_answer,
    after="summary",
    aliases=("/cc",),
)
def copy(view: View, back: str) -> None:
    session = view.session
    if back.split()[:1] == ["code"]:
        _copy_code(view, back.removeprefix("code").strip())
        return
    wanted = tree_actions.said_back(session, back) if back else session.last_answer
    if wanted is None:
        raise NotPossibleError("there is no answer to copy yet")
    text = answer_parts(wanted).answer
    view.copy(text)
    view.tell(f"Copied “{one_line(text, 40)}”" if back else "Copied the last answer")


def _copy_code(view: View, number: str) -> None:
    blocks, _ = code_meant(view.session, "")
    if number and not (number.isdecimal() and 1 <= int(number) <= len(blocks)):
        raise NotPossibleError(f"{number!r} is no block of code; the last message that has any has {len(blocks)}")
    place = int(number) - 1 if number else len(blocks) - 1
    view.copy(blocks[place].code)
    view.tell(copied_code_line(blocks, place))


command(
    "compare",
    "Compare answers",
    "Have N answers to the last message, else two, side by side, and keep one; the others are its alternatives.",
    "/compare",
    "[N]",
    when=lambda now: now.can_retry and not now.answering,
    in_lines="Have N answers to the last message, else two, one after the other; /alternative N keeps one of them.",
    after="find",
)


@command(
    "probabilities",
    "Token probabilities",
    "Show how likely each token of an answer was, of the last one or of the Nth message from the end, and go on "
    "from another token: the one of that RANK at that PLACE.",
    "/probabilities",
    "[N PLACE RANK]",
    keys=("i",),
    place="message",
    when=lambda now: now.has_answer and not now.answering,
    after="redo",
    aliases=("/probs", "/logits"),
    needs="probabilities",
)
def probabilities(view: View, numbers: str) -> None:
    """Nothing, N or N PLACE RANK, where N counts messages from the end; without it the last answer is meant."""
    session, words = view.session, numbers.split()
    if len(words) not in (0, 1, 3) or not all(word.isdecimal() for word in words):
        raise NotPossibleError("/probabilities takes the number N of a message, or N PLACE RANK, such as 1 12 2")
    back = words[0] if words else ""
    message = (None if words else session.last_answer) or tree_actions.said_back(session, back)
    tree_actions.require_laid_open(session, message.id)
    if len(words) < 3:
        view.show_probabilities(message.id)
        return
    session.questions.chances(
        session.require_open(),
        message.id,
        partial(_take_token, view, message.id, int(words[1]), int(words[2])),
        template=session.template,
        policy=session.generation.context_policy,
    )


def _take_token(view: View, message_id: str, place: int, rank: int, chances: AnswerChances | None) -> None:
    def take() -> None:
        if chances is not None:
            view.session.take_token(message_id, chances.beginning(place - 1, _token(chances, place, rank)))
            view.show_messages()

    attempt(view, take)


def _token(chances: AnswerChances, place: int, rank: int) -> int:
    """The token of that rank at that place; both are counted from 1."""
    if not 1 <= place <= len(chances.places):
        raise NotPossibleError(
            f"there is no place {place:,}; there are {len(chances.places):,}, the last one behind all"
        )
    top = chances.places[place - 1].top
    if not 1 <= rank <= len(top):
        raise NotPossibleError(f"there is no token of rank {rank:,} to be taken; there are 1 to {len(top)}")
    return top[rank - 1].token_id
