"""An answer on its way, and what is known about one that has ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exlchat.chat.conversation import Message
    from exlchat.ui.engine_jobs import Job


@dataclass(slots=True)
class Answering:
    """An answer that waits, is being written, or was just closed.

    Args:
        job: its job on the engine thread.
        prompt: the message it answers, when that was sent for it.
        replaces: id of the answer it takes the place of on the screen.
        message: the answer itself, once it has begun.
        text: the pieces of its text so far.
    """

    job: Job
    prompt: Message | None
    replaces: str | None
    message: Message | None = None
    text: list[str] = field(default_factory=list)

    @property
    def conversation_id(self) -> str:
        """Where the answer belongs."""
        return self.job.conversation_id

    @property
    def so_far(self) -> str:
        """The text that may be shown."""
        return "".join(self.text)


def was_cut(message: Message) -> bool:
    """Whether an answer stopped before its end: by the user, a crash, or a limit; an edited one can go on as well."""
    if message.role != "assistant":
        return False
    if message.edited_from is not None and message.record is None:
        return True
    reason = message.record.finish_reason if message.record else None
    return message.status == "partial" or reason in ("max_new_tokens", "context_full")
