"""What /code and /copy code do: find the code blocks that are meant, save them to files, say which was copied."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from exlchat.app.chat import tree_actions
from exlchat.app.chat.session import NotPossibleError
from exlchat.chat.prompt.answer_parts import answer_parts
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.app.chat.session import ChatSession
    from exlchat.app.commands.code_files import CodeBlock


def code_meant(session: ChatSession, argument: str) -> tuple[list[CodeBlock], str]:
    """The code blocks of a message, and the file name that was given, "" without one.

    Args:
        session: whose open conversation.
        argument: "[N] [FILE]"; N counts the message from the end, without it the last one that has code is meant.

    Raises:
        NotPossibleError: there is no such message, or no code in it.
    """
    # The parser is not needed for a start.
    from exlchat.app.commands.code_files import code_blocks

    first, _, rest = argument.partition(" ")
    if first.isdecimal():
        blocks = code_blocks(answer_parts(tree_actions.said_back(session, first)).answer)
        if not blocks:
            raise NotPossibleError(f"there is no code in message {first} from the end")
        return blocks, rest.strip()
    for message in reversed(session.branch):
        if message.role != "system" and (blocks := code_blocks(answer_parts(message).answer)):
            return blocks, argument
    raise NotPossibleError("there is no code in this conversation")


def copied_code_line(blocks: list[CodeBlock], place: int) -> str:
    """What was copied: the block at `place` of those of a message."""
    lines = blocks[place].code.strip("\n").count("\n") + 1
    which = f" {place + 1} of {len(blocks)}" if len(blocks) > 1 else ""
    language = f"{one_line(blocks[place].language, 20)}, " if blocks[place].language else ""
    return f"Copied code{which}: {language}{lines} line{'s' if lines > 1 else ''}"


def free_name(blocks: list[CodeBlock]) -> str:
    from exlchat.app.commands.code_files import usual_name

    return usual_name(blocks, Path.cwd())


def saved_line(blocks: list[CodeBlock], name: str) -> str:
    """Save them and say where.

    Raises:
        NotPossibleError: they cannot be saved there.
    """
    from exlchat.app.commands.code_files import SaveError, save_code

    try:
        saved = save_code(blocks, Path(name))
    except SaveError as error:
        raise NotPossibleError(str(error)) from None
    return f"Saved {', '.join(str(path) for path in saved)}"
