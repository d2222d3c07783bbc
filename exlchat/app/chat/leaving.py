"""The end of a run: what is still to be brought to the disk, and how long that may take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.chat.store.conversations import StoreError
from exlchat.llm.info import CLOSE_SECONDS

if TYPE_CHECKING:
    from exlchat.app.chat.session import ChatSession
    from exlchat.app.chat.unsent import Unsent
    from exlchat.app.runtime.engine_jobs import EngineJobs

_STOP_SECONDS = 5.0
"""For the answer being written to be put on disk; a stop takes one token."""
_ABANDON_LOAD_SECONDS = 0.5


def closing_seconds(engine_jobs: EngineJobs, session: ChatSession) -> float:
    seconds = _ABANDON_LOAD_SECONDS
    if engine_jobs.engine is not None:
        seconds += CLOSE_SECONDS
    if session.being_written is not None:
        seconds += _STOP_SECONDS
    return seconds


def kept_or_why(session: ChatSession, unsent: Unsent) -> str | None:
    """Put on disk what is in hand: what is typed, and answers that could not be written. Why that is not possible."""
    typed = unsent.keep()
    try:
        session.unkept.save()
    except StoreError as error:
        return f"An answer is not on disk; quit again to lose its end. {error}"
    return None if typed is None else f"What is typed is not on disk; quit again to lose it. {typed}"
