"""`exlchat --line`: everything opened, run until it is quit, and brought to the disk."""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from exlchat.app.chat.leaving import closing_seconds
from exlchat.app.runtime.errors import told_error
from exlchat.app.services import open_services
from exlchat.chat.store.conversations import StoreError
from exlchat.llm.info import ModelError
from exlchat.ui.line.chat import LineChat
from exlchat.ui.terminal.interrupts import signals_taken
from exlchat.ui.terminal.terminal_state import LINE, TerminalState

if TYPE_CHECKING:
    from collections.abc import Callable

    from exlchat.app.options import AppOptions
    from exlchat.app.services import Services
    from exlchat.ui.line.plain import PlainConsole
    from exlchat.ui.line.screen import LineScreen

BROKEN: Final = "something could not be shown; this is an error in exlchat"


def run_line(options: AppOptions, *, plain: bool) -> int:
    """Run the chat in lines until it is quit; the exit code. `plain` only appends.

    Raises:
        ThemeError: the installation is broken.
        ModelError: the model could not be loaded; a line has said so, but that is above all that came after it.
        StoreError: the end of an answer is lost, because the database could not be written until the end.
    """
    services = open_services(options)
    try:
        chat = asyncio.run(_run(services, plain))
    finally:
        services.close()
    if chat.not_kept is not None:
        raise StoreError(chat.not_kept)
    if chat.model.failure is not None:
        raise ModelError(chat.model.failure)
    return 0


async def _run(services: Services, plain: bool) -> LineChat:
    chat = LineChat(services, _plain_console if plain else _screen)
    terminal = TerminalState(sys.stdin.fileno(), sys.stdout.fileno(), "" if plain else LINE)
    await converse(chat, terminal.restore)
    return chat


async def converse(chat: LineChat, restore: Callable[[], None] = lambda: None) -> None:
    """Begin, take input until somebody quits, and wait for what has to be on disk.

    `restore` gives the terminal back in an end that takes too long to do so itself.
    """
    asyncio.get_running_loop().set_exception_handler(partial(_tell_broken, chat))
    chat.begin()
    with signals_taken(chat.end_soon):
        try:
            with signals_taken(chat.end_soon, restore):
                await chat.console.run(chat.engine_jobs.start)
        finally:
            chat.serving.stop()
            await asyncio.to_thread(chat.serving.wait_for_end)
            await asyncio.to_thread(chat.engine_jobs.close, closing_seconds(chat.engine_jobs, chat.session))


def _tell_broken(chat: LineChat, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An error of ours while something was shown: a line, and the chat goes on."""
    error = context.get("exception")
    said = told_error(error) if isinstance(error, Exception) else str(context.get("message", "unknown"))
    chat.tell(f"{BROKEN}: {said}", warning=True)


def _plain_console(chat: LineChat) -> PlainConsole:
    from exlchat.ui.line.plain import PlainConsole

    return PlainConsole(chat, sys.stdin.fileno(), sys.stdout)


def _screen(chat: LineChat) -> LineScreen:
    from prompt_toolkit.input import create_input

    from exlchat.ui.line.history import LineHistory
    from exlchat.ui.line.screen import LineScreen, terminal_output

    history = LineHistory(chat.services.typed, lambda line: chat.tell(line, warning=True))
    output = terminal_output(sys.stdout, lambda: os.get_terminal_size(sys.stdout.fileno()), os.environ.get("TERM", ""))
    return LineScreen(chat, create_input(), output, history)
