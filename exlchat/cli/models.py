"""`exlchat models` and `exlchat pull`: the library on standard output, a model from the hub into it."""

from __future__ import annotations

import datetime
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.app.library.download import fetch, is_there
from exlchat.app.library.hub import PullError, look_up, parse_name, tell_warnings
from exlchat.app.library.listing import Entry, entries, fit_text, in_order, size_text, summary, used_text
from exlchat.app.library.memory import ModelMemory
from exlchat.app.library.places import all_models, in_folder
from exlchat.app.library.pulled import folder_for
from exlchat.config.settings import load_settings
from exlchat.llm.info import ModelError
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.interrupts import ctrl_c_ends_at_once
from exlchat.ui.terminal.standard_streams import ErrorLines, print_json, print_lines

if TYPE_CHECKING:
    from exlchat.app.options import AppOptions

_TELL_EVERY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ModelsOptions:
    """One `exlchat models`.

    Args:
        app: device, cache and context to reckon with.
        folder: look there alone.
        as_json: print JSON instead of text.
    """

    app: AppOptions
    folder: str | None = None
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class PullOptions:
    """One `exlchat pull`: a name on the hub, and patterns for the files."""

    name: str
    include: tuple[str, ...] = ()


def run_models(options: ModelsOptions) -> ExitCode:
    """Prints the library. Raises `ModelError` or `SettingsError` in one line."""
    settings = load_settings()
    memory = ModelMemory(paths.folders().model_memory)
    if options.folder is not None:
        found = in_folder(str(paths.expanded(options.folder).absolute()))
    else:
        found = all_models(settings.model_folders, memory.used_models())
    with ctrl_c_ends_at_once():
        listed = in_order(list(entries(found, memory, options.app, settings)))
    if options.as_json:
        return print_json([_as_json(entry) for entry in listed])
    if not listed:
        return print_lines(["No model was found. exlchat pull org/name fetches one from Hugging Face."])
    now = datetime.datetime.now()
    return print_lines(line for entry in listed for line in _lines(entry, now))


def _lines(entry: Entry, now: datetime.datetime) -> list[str]:
    told = [part for part in (summary(entry), used_text(entry.used, now) if entry.card.problem is None else "") if part]
    lines = [entry.name, f"    {' · '.join(told)}" if told else "", f"    {fit_text(entry)}"]
    return [line for line in [*lines, f"    {entry.card.path}"] if line.strip()]


def _as_json(entry: Entry) -> dict[str, object]:
    return {"name": entry.name, **asdict(entry.card), "last_used": entry.used}


def run_pull(options: PullOptions) -> ExitCode:
    """Fetches a model, with progress on stderr; prints where it lies. ctrl+c ends at once, and nothing is lost."""
    lines = ErrorLines()
    shown = _Progress(lines)

    def stopped() -> None:
        lines.say("stopped; the same command goes on from here")

    try:
        name = parse_name(options.name)
        with ctrl_c_ends_at_once(before=stopped):
            tell_warnings(lines.say)
            folder = folder_for(name.repository, name.revision)
            model = look_up(name, options.include)
            if is_there(model):
                lines.say(f"{name} is there already")
            else:
                lines.say(f"{name}: {len(model.files)} files, {size_text(model.bytes)}, into {folder}")
                fetch(model, shown.show)
            lines.clear()
            from exlchat.engine.weights.check import check

            check(folder)
    except (PullError, ModelError) as error:
        lines.say(str(error))
        return ExitCode.ERROR
    finally:
        lines.clear()
    return print_lines([str(folder), f"exlchat {name}"])


class _Progress:
    """A moving line on a terminal, a line now and then elsewhere."""

    def __init__(self, lines: ErrorLines) -> None:
        self._lines = lines
        self._began = self._told = time.monotonic()
        self._first = -1

    def show(self, what: str, done: int, total: int) -> None:
        """Takes what is done, and bytes."""
        now = time.monotonic()
        if self._first < 0:
            self._first, self._began = done, now
        if not self._lines.live and now - self._told < _TELL_EVERY_SECONDS:
            return
        self._told = now
        rate = (done - self._first) / (now - self._began) if now > self._began else 0.0
        speed = f", {size_text(int(rate))}/s" if what == "fetching" and rate > 0 else ""
        percent = 100 * done // max(total, 1)
        line = f"{what}: {size_text(done)} of {size_text(total)}, {percent} %{speed}"
        (self._lines.show if self._lines.live else self._lines.say)(line)
