"""`exlchat sessions reproduce`: an answer asked for again by its record, and whether it comes out the same."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from exlchat import paths
from exlchat.app.chat.finding import message
from exlchat.app.library.choice import choose_model, model_called
from exlchat.app.library.memory import ModelMemory
from exlchat.app.library.places import library
from exlchat.app.options import AppOptions
from exlchat.app.runtime.model_loading import load_wanted
from exlchat.chat.model import AnswerRecord, Message
from exlchat.chat.prompt.errors import PromptError
from exlchat.chat.reproduce import NotReproducibleError, record_of, request_again
from exlchat.chat.store.conversations import ConversationStore
from exlchat.config.files import read_settings
from exlchat.config.layers import typed as typed_layer
from exlchat.config.state import load_state
from exlchat.llm.events import Finished, PrefillProgress
from exlchat.llm.port import Engine
from exlchat.llm.request import GenerationRequest, RequestError
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.interrupts import ctrl_c_ends_at_once
from exlchat.ui.terminal.standard_streams import ErrorLines, print_lines
from exlchat.untrusted.text import one_line

_WIDTH = 60


def run_reproduce(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    """Says whether the answer comes out token for token; the exit code is 1 where it does not.

    Raises:
        ModelError, SettingsError: in one line.
        StoreError: there is no such message.
    """
    lines = ErrorLines()
    try:
        answer = store.message(message(store, typed.message))
        record = record_of(answer)
        with closing(_load(_model(record, typed.model), typed, lines)) as engine:
            request = request_again(store, engine, answer.id)
            again = _asked(engine, request, lines)
            lines.clear()
            return _compared(engine, answer, record, again)
    except (NotReproducibleError, PromptError, RequestError) as error:
        lines.say(str(error))
        return ExitCode.ERROR
    finally:
        lines.clear()


def _model(record: AnswerRecord, typed: str | None) -> Path:
    """Where the model lies that answered; by its name, so that no other one is loaded first."""
    state, _ = load_state()
    last_used = Path(state.last_model) if state.last_model else None
    if typed is None:
        return model_called(record.model, last_used=last_used, bundled=paths.bundled_model(), library=library).path
    path = choose_model(typed, last_used=last_used, bundled=paths.bundled_model(), library=library).path
    if path.resolve().name != record.model:
        raise NotReproducibleError(f"this is an answer of {record.model}, and {path} is another model; give that one")
    return path


def _load(path: Path, typed: argparse.Namespace, lines: ErrorLines) -> Engine:
    reading = read_settings().require_sound()
    names = ("context", "kv_cache", "cards", "reserve", "host_layers", "extension", "quantize_head")
    wanted = {name: getattr(typed, name) for name in names}
    options = AppOptions(path, typed.device, (typed_layer(**wanted),))
    held = options.over(reading, ModelMemory(paths.folders().model_memory).settings_of(path).layer)
    with ctrl_c_ends_at_once(before=lines.clear):
        # Nothing that was kept on disk: all of it is computed again.
        engine = load_wanted(path, options, held, kept=False, on_progress=lines.loading)
    lines.clear()
    return engine


def _asked(engine: Engine, request: GenerationRequest, lines: ErrorLines) -> tuple[int, ...]:
    finished: Finished | None = None
    with engine.generate(request) as events:
        for event in events:
            if isinstance(event, Finished):
                finished = event
            elif isinstance(event, PrefillProgress):
                lines.reading(event)
            else:
                lines.show("answering again")
    return () if finished is None else finished.token_ids


def _compared(engine: Engine, answer: Message, record: AnswerRecord, again: Sequence[int]) -> ExitCode:
    before = answer.token_ids[record.begun_tokens :]
    if tuple(again) == before:
        seed = "" if record.stats is None else f", seed {record.stats.seed}"
        return print_lines([f"the same: {len(before):,} tokens of {one_line(record.model, _WIDTH)}{seed}"])
    place = next((at for at, pair in enumerate(zip(before, again, strict=False)) if pair[0] != pair[1]), None)
    place = min(len(before), len(again)) if place is None else place
    lines = (
        f"another answer, from token {place + 1:,} on; of {len(before):,} in the record, {len(again):,} now",
        f"  before it: {_quoted(engine.decode(before[:place]), end=True)}",
        f"  recorded:  {_token(before, place)}{_quoted(engine.decode(before[place:]))}",
        f"  now:       {_token(again, place)}{_quoted(engine.decode(again[place:]))}",
    )
    told = print_lines(lines)
    return ExitCode.ERROR if told is ExitCode.OK else told


def _token(ids: Sequence[int], place: int) -> str:
    return f"id {ids[place]}: " if place < len(ids) else "ends there: "


def _quoted(text: str, *, end: bool = False) -> str:
    """A text, or where it is long its beginning or its end, on one line."""
    if len(text) <= _WIDTH:
        return repr(text)
    return f"…{text[-_WIDTH:]!r}" if end else f"{text[:_WIDTH]!r}…"
