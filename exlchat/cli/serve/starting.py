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

from exlchat import paths
from exlchat.api.asked import Speaker
from exlchat.api.chat_model import ChatModel
from exlchat.api.head import fingerprint
from exlchat.api.voice import Voice
from exlchat.app.generation_settings import at_start
from exlchat.app.library.memory import ModelMemory
from exlchat.app.library.shelf import shown_name
from exlchat.app.options import AppOptions
from exlchat.app.runtime.model_loading import load_wanted
from exlchat.config.files import read_settings
from exlchat.config.layers import Resolved
from exlchat.llm.info import ModelError
from exlchat.llm.port import Engine, HasCache
from exlchat.llm.request import GenerationRequest
from exlchat.server.application import application
from exlchat.server.desk import Desk
from exlchat.server.guard import Rules
from exlchat.server.record import Record
from exlchat.server.running import Address, Running
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.interrupts import LEAVE_SECONDS, ctrl_c_ends_at_once, signals_taken
from exlchat.ui.terminal.standard_streams import ErrorLines

# As for the chat's engine thread: one that decodes must get the interpreter back in time.
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
    """

    app: AppOptions
    address: Address
    bound: socket.socket
    rules: Rules
    drain: float
    quiet: bool
    any_name: bool


def serve(start: Start) -> ExitCode:
    """Raises `ModelError`, `RequestError` or `SettingsError` before the first client comes."""
    lines = ErrorLines()
    for notice in start.app.notices:
        lines.say(notice)
    path = start.app.model_path
    if path is None:
        raise ModelError("no model is there; give a model folder: exlchat serve FOLDER")
    reading = read_settings().require_sound()
    held = start.app.over(reading, ModelMemory(paths.folders().model_memory).settings_of(path).layer)
    voice = _voice(start.app, held, path)
    sys.setswitchinterval(_SWITCH_SECONDS)
    with ctrl_c_ends_at_once(before=lines.clear):
        engine = load_wanted(path, start.app, held, kept=True, on_progress=lines.loading)
    lines.clear()
    try:
        engine.check(GenerationRequest((), voice.sampling, constraint=voice.speech.constraint))
        desk = Desk(_speaker(shown_name(path), engine, voice), any_name=start.any_name)
        say = (lambda _: None) if start.quiet else (lambda record: lines.say(record.line()))
        return _run(start, desk, lines, say)
    finally:
        engine.close()


def _run(start: Start, desk: Desk, lines: ErrorLines, say: Callable[[Record], None]) -> ExitCode:
    running = Running(
        application(desk, start.rules, say),
        desk,
        start.bound,
        drain=start.drain,
        ready=lambda: lines.say(f"{desk.find('').name} answers at {_place(start)}"),
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


def _speaker(name: str, engine: Engine, voice: Voice) -> Speaker:
    kind = engine.cache_report().kind if isinstance(engine, HasCache) else ""
    return Speaker(name, ChatModel(engine, paths.folders().templates), voice, fingerprint(engine.info, kind))


def _voice(app: AppOptions, held: Resolved, model: Path) -> Voice:
    """What a request leaves out is as the chat has it."""
    usual = at_start(held, model)
    system = held.value("system") or ("" if app.persona is None else app.persona.system_text)
    return Voice(
        sampling=usual.sampling,
        speech=usual.speech,
        seed=usual.seed,
        max_tokens=usual.max_tokens,
        template=held.value("template"),
        system=system or "",
    )


def _place(start: Start) -> str:
    if start.address.unix is not None:
        return f"unix:{start.address.unix}"
    host, port = start.bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
