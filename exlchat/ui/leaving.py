"""How long the end of a run waits for what is still to be brought to the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.engine.events import CLOSE_SECONDS

if TYPE_CHECKING:
    from exlchat.ui.chat_session import ChatSession
    from exlchat.ui.engine_thread import EngineThread

_STOP_SECONDS = 5.0
"""For the answer being written to be put on disk; a stop takes one token."""
_ABANDON_LOAD_SECONDS = 0.5


def closing_seconds(engine_thread: EngineThread, session: ChatSession) -> float:
    """For `EngineThread.close`."""
    seconds = _ABANDON_LOAD_SECONDS
    if engine_thread.loaded:
        seconds += CLOSE_SECONDS
    if session.being_written is not None:
        seconds += _STOP_SECONDS
    return seconds
