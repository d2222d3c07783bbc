"""A model is loaded and put behind its socket; what is said of requests; how the signals end it."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.app.library.memory import ModelMemory
from exlchat.app.library.shelf import Shelf
from exlchat.app.options import AppOptions
from exlchat.app.runtime.model_loading import load_wanted
from exlchat.app.serving.house import UsersHouse, one_or_library
from exlchat.config.files import read_settings
from exlchat.llm.info import ModelError
from exlchat.llm.request import GenerationRequest
from exlchat.server.application import application
from exlchat.server.desk import Desk
from exlchat.server.floor import Floor
from exlchat.server.guard import Rules
from exlchat.server.record import Record
from exlchat.server.running import Address, Running
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.interrupts import LEAVE_SECONDS, ctrl_c_ends_at_once, signals_taken
from exlchat.ui.terminal.standard_streams import ErrorLines

if TYPE_CHECKING:
    from exlchat.app.runtime.jobs import Loader

# As for the jobs of the chat: a thread that decodes must get the interpreter back in time.
_SWITCH_SECONDS = 1e-4
_LAST_SECONDS = LEAVE_SECONDS + 2.0
"""For clients to be told, and pages to be brought to the disk, behind the draining."""


@dataclass(frozen=True, slots=True)
class Start:
    """One `exlchat serve`.

    Args:
        app: model, sampling and prompt options, as for the app.
        address, bound: where clients come.
        rules: who of them may ask.
        drain: seconds that answers may take when it is stopped.
        quiet: say nothing of requests.
        any_name: answer to names of models that there are not.
        strict_fields: refuse requests with fields that mean nothing here.
        load_on_request: load other models of the library when they are asked for.
        unload_after: seconds without a request after which the model gives its memory back.
    """

    app: AppOptions
    address: Address
    bound: socket.socket
    rules: Rules
    drain: float
    quiet: bool
    any_name: bool = False
    strict_fields: bool = False
    load_on_request: bool = False
    unload_after: float | None = None


def serve(start: Start) -> ExitCode:
    """Raises `ModelError`, `RequestError` or `SettingsError` before the first client comes."""
    lines = ErrorLines()
    for notice in start.app.notices:
        lines.say(notice)
    folder = start.app.model_path
    if folder is None:
        raise ModelError("no model is there; give a model folder: exlchat serve FOLDER")
    reading, memory = read_settings().require_sound(), ModelMemory(paths.folders().model_memory)
    shelf = Shelf(start.app, reading, memory, lambda path: _loader(path, shelf))
    house = UsersHouse(shelf, one_or_library(shelf, folder, others=start.load_on_request))
    first = house.models()[0]
    voice = house.voice(first, "")
    with ctrl_c_ends_at_once(before=lines.clear):
        engine = house.load(first, lines.loading)
    if engine.info.device != "cpu":
        # A processor computes while others have the interpreter: there each change of hands only costs.
        sys.setswitchinterval(_SWITCH_SECONDS)
    lines.clear()
    engine.check(GenerationRequest((), voice.sampling, constraint=voice.speech.constraint))
    desk = Desk(
        house,
        Floor(engine, first, house.load),
        templates=paths.folders().templates,
        any_name=start.any_name,
        strict_fields=start.strict_fields,
        unload_after=start.unload_after,
    )
    say = (lambda _: None) if start.quiet else (lambda record: lines.say(record.line()))
    return _run(start, desk, lines, say)


def _loader(path: Path, shelf: Shelf) -> Loader:
    return lambda on_progress: load_wanted(path, shelf.options, shelf.held(path), kept=True, on_progress=on_progress)


def _run(start: Start, desk: Desk, lines: ErrorLines, say: Callable[[Record], None]) -> ExitCode:
    running = Running(
        application(desk, start.rules, say),
        desk,
        start.bound,
        drain=start.drain,
        ready=lambda: lines.say(f"{desk.name} answers at {_place(start)}"),
    )
    with _signals_stop(running, lines, start.drain) as heard:
        running.run()
    return ExitCode.STOPPED if signal.SIGINT in heard else ExitCode.OK


@contextmanager
def _signals_stop(running: Running, lines: ErrorLines, drain: float) -> Iterator[list[int]]:
    """Inside, ctrl+c or a signal begins the end; another one ends the program there and then. What was heard."""
    heard: list[int] = []

    def stop(number: int) -> None:
        heard.append(number)
        running.stop()

    def on_ctrl_c(number: int, _frame: FrameType | None) -> None:
        if heard:
            raise KeyboardInterrupt
        lines.say("no new requests; ctrl+c again ends those that run, too")
        stop(number)

    previous = signal.signal(signal.SIGINT, on_ctrl_c)
    try:
        with signals_taken(stop, seconds=drain + _LAST_SECONDS):
            yield heard
    finally:
        signal.signal(signal.SIGINT, previous)


def _place(start: Start) -> str:
    if start.address.unix is not None:
        return f"unix:{start.address.unix}"
    host, port = start.bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
