"""A model of a server in the place of one that is loaded here. torch is not needed for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.chat.prompt import template_process
from exlchat.llm.info import LoadProgress
from exlchat.remote.engine import connect

if TYPE_CHECKING:
    from collections.abc import Callable

    from exlchat.llm.port import Engine
    from exlchat.remote.address import Remote


def connect_to(remote: Remote, on_progress: Callable[[LoadProgress], None] | None = None) -> Engine:
    """Look at a server; blocks, so call it away from the UI thread.

    Raises:
        ModelError: it cannot be used, in one line.
    """
    # Whatever template the server names is rendered there.
    template_process.start()
    if on_progress is not None:
        on_progress(LoadProgress(0, 1, f"asking {remote.address.place}"))
    return connect(remote)
