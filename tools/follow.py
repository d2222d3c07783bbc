"""Which files one value passes on its way through the running program, and how often it comes back to one that it left.

    python -m tools.follow [line] [token] [weight] [command] [setting]

The app runs with the bundled model, without a terminal. A file is passed where one of its functions is given the value,
alone or within a list, a mapping or a value of fields.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import exlchat

PACKAGE = str(Path(exlchat.__file__).parent) + os.sep
DEPTH = 3
LINE = "zebra quartz"
WEIGHT = "layers.0.self_attn.q_proj"
TEMPERATURE = 0.4321
LONGEST_NAME = 80
COMMON_IDS = 300


class Trail:
    """The files that were given a value for which `wanted` holds, while the trail is `followed`."""

    def __init__(self, wanted: Callable[[Any], bool]) -> None:
        self._wanted = wanted
        self._stays: list[tuple[str, str]] = []
        self._looking = threading.local()

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Watches all threads that are begun inside, and this one."""
        threading.setprofile(self._look)
        sys.setprofile(self._look)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def lines(self, title: str) -> list[str]:
        """The files in the order in which they were first passed."""
        first = dict(reversed(self._stays))
        order = list(dict.fromkeys(name for name, _ in self._stays))
        returns = len(self._stays) - len(order)
        return [f"{title}: {len(order)} files, {returns} returns", *(f"  {name}  {first[name]}" for name in order), ""]

    def _look(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE) or getattr(self._looking, "now", False):
            return
        name = code.co_filename.removeprefix(PACKAGE)
        if self._stays and self._stays[-1][0] == name:
            return
        self._looking.now = True
        try:
            given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if any(self._holds(frame.f_locals.get(one), DEPTH) for one in given if one not in ("self", "cls")):
                self._stays.append((name, code.co_qualname))
        finally:
            self._looking.now = False

    def _holds(self, value: Any, depth: int) -> bool:
        if self._wanted(value):
            return True
        if depth == 0:
            return False
        if isinstance(value, list | tuple):
            return any(self._holds(one, depth - 1) for one in value[-8:])
        if isinstance(value, Mapping):
            return any(self._holds(one, depth - 1) for one in list(value.values())[:40])
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = dataclasses.fields(value)
            return any(self._holds(getattr(value, one.name, None), depth - 1) for one in fields)
        return False


def typed_line() -> Trail:
    """A prompt typed into the app, until its answer has ended."""
    trail = Trail(lambda value: isinstance(value, str) and LINE in value)
    with trail.followed():
        _in_the_app([f"What is {LINE}?"])
    return trail


def command() -> Trail:
    """`/retry`, typed into the app behind an answer."""
    trail = Trail(lambda value: value == "/retry" or (getattr(value, "id", None) == "retry" and not callable(value)))
    _in_the_app(["Hello!"], then=(trail, "/retry"))
    return trail


def setting() -> Trail:
    """A temperature, from the command line to the sampler."""
    from exlchat.cli.main import main as exlchat_main

    trail = Trail(lambda value: isinstance(value, float | str) and value in (TEMPERATURE, str(TEMPERATURE)))
    with Path(os.devnull).open("w") as nowhere, trail.followed(), contextlib.redirect_stdout(nowhere):
        exlchat_main(["ask", "-m", "guide", "hello", "--temperature", str(TEMPERATURE), "--max-tokens", "3"])
    return trail


def weight() -> Trail:
    """The name of a weight, from the file to the layer that computes with it."""
    from exlchat import paths
    from exlchat.engine import load

    trail = Trail(lambda value: isinstance(value, str) and WEIGHT in value and len(value) < LONGEST_NAME)
    with trail.followed():
        load(paths.bundled_model(), device="cpu").unload()
    return trail


def token() -> Trail:
    """The id of a token of an answer, from its draw to its text."""
    from exlchat import paths
    from exlchat.engine import load
    from exlchat.llm.events import Finished
    from exlchat.llm.request import GenerationRequest

    engine = load(paths.bundled_model(), device="cpu")
    request = GenerationRequest(engine.encode("How do I quit?"), max_new_tokens=12)
    # A small id would be taken for a count.
    drawn = max(token for event in engine.generate(request) if isinstance(event, Finished) for token in event.token_ids)
    assert drawn > COMMON_IDS
    trail = Trail(lambda value: type(value) is int and value == drawn)
    with trail.followed():
        list(engine.generate(request))
    return trail


def _in_the_app(lines: list[str], then: tuple[Trail, str] | None = None) -> None:
    asyncio.run(_session(lines, then))


async def _session(lines: list[str], then: tuple[Trail, str] | None) -> None:
    from textual.pilot import Pilot

    from exlchat import paths
    from exlchat.app.options import AppOptions
    from exlchat.app.services import open_services
    from exlchat.ui.tui.app import ChatApp

    app = ChatApp(open_services(AppOptions(paths.bundled_model())))

    async def until(condition: Callable[[], bool], pilot: Pilot[int]) -> None:
        while not condition():
            await pilot.pause(0.02)

    async def say(text: str, pilot: Pilot[int]) -> None:
        app.chat_screen.composer.focus()
        app.chat_screen.composer.set_text(text)
        await pilot.press("enter")
        await until(lambda: app.session.busy, pilot)
        await until(lambda: not app.session.busy, pilot)

    async with app.run_test(size=(120, 40)) as pilot:
        await until(lambda: app.engine_jobs.engine is not None, pilot)
        for line in lines:
            await say(line, pilot)
        if then is not None:
            trail, text = then
            with trail.followed():
                await say(text, pilot)


PATHS: dict[str, tuple[str, Callable[[], Trail]]] = {
    "line": ("a typed line", typed_line),
    "token": ("a token", token),
    "weight": ("a weight", weight),
    "command": ("a command", command),
    "setting": ("a setting", setting),
}


def main() -> None:
    """Prints the paths that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", choices=[*PATHS, []], metavar="PATH", help=", ".join(PATHS))
    chosen = parser.parse_args().which or list(PATHS)
    with tempfile.TemporaryDirectory(prefix="exlchat-follow-") as home:
        os.environ["EXLCHAT_HOME"] = home
        for name in chosen:
            title, follow = PATHS[name]
            sys.stdout.write("\n".join(follow().lines(title)) + "\n")


if __name__ == "__main__":
    main()
