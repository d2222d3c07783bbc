"""`exlchat ask`: one answer without a terminal. Only the answer goes to stdout, everything else to stderr."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from exlchat import paths
from exlchat.chat.context import ContextFull
from exlchat.chat.prompt_format import PromptError
from exlchat.chat.store import ConversationStore, StoreError
from exlchat.chat.turn import TurnOptions, answer
from exlchat.engine.events import ModelError, RequestError
from exlchat.settings import Settings, SettingsError, load_settings
from exlchat.ui import generation_settings
from exlchat.ui.exit_codes import ExitCode
from exlchat.ui.headless_answer import AnswerTelling
from exlchat.ui.headless_output import (
    AnswerOutput,
    ErrorLines,
    JsonLinesOutput,
    OutputClosedError,
    OutputError,
    TextOutput,
    abandon,
)
from exlchat.ui.interrupts import ctrl_c_ends_at_once
from exlchat.ui.library.memory import ModelMemory, ModelSettings
from exlchat.ui.model_loading import load_model
from exlchat.ui.options import AppOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from exlchat.chat.engine_port import EnginePort
    from exlchat.chat.personas.frozen import FrozenPersona


@dataclass(frozen=True, slots=True)
class AskOptions:
    """One `exlchat ask`.

    Args:
        app: model, sampling and prompt options, as for the app.
        prompt: the prompt as typed; standard input follows it, or stands alone.
        jsonl: print events instead of text.
        stop: texts that end the answer.
        save: keep prompt and answer as a conversation.
    """

    app: AppOptions
    prompt: str | None
    jsonl: bool = False
    stop: tuple[str, ...] = ()
    save: bool = True


class PromptInputError(Exception):
    """There is no usable prompt: one line."""


def run_ask(options: AskOptions) -> ExitCode:
    """Reads the prompt, loads the model, prints the answer; every failure is one line on stderr and an exit code."""
    lines = ErrorLines(sys.stderr)
    try:
        return _ask(options, lines)
    except PromptInputError as error:
        lines.say(str(error))
        return ExitCode.USAGE
    except ContextFull as error:
        lines.say(str(error))
        return ExitCode.DOES_NOT_FIT
    except (ModelError, RequestError, PromptError, SettingsError, StoreError) as error:
        lines.say(str(error))
        return ExitCode.ERROR
    except OutputError as error:
        abandon(sys.stdout)
        lines.say(str(error))
        return ExitCode.ERROR
    except OutputClosedError:
        abandon(sys.stdout)
        return ExitCode.BROKEN_PIPE
    finally:
        lines.clear()


def _ask(options: AskOptions, lines: ErrorLines) -> ExitCode:
    prompt = read_prompt(options.prompt, None if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer)
    settings = load_settings()
    app = options.app
    for notice in app.notices:
        lines.say(notice)
    if app.model_path is None:
        raise ModelError("no model is there; give a model folder: exlchat ask -m FOLDER")
    cache_sizes = app.cache_sizes.or_settings(settings)
    wanted = ModelMemory(paths.folders().model_memory).settings_of(app.model_path).typed_or(app, settings)
    with ctrl_c_ends_at_once(before=lines.clear):
        engine = load_model(
            app.model_path,
            device=app.device,
            kv_cache=wanted.kv_cache or "auto",
            context=wanted.context,
            # Pages say what was asked, to whoever reads them.
            cache_sizes=cache_sizes if options.save else cache_sizes.in_memory_only(),
            extension=settings.extension if app.extension is None else app.extension,
            quantize_head=app.quantize_head,
            usual_head=settings.quantize_head,
            on_progress=lines.loading,
        )
    lines.clear()
    system = wanted.system
    begin = partial(_begin, prompt=prompt, system=system, persona=app.persona)
    store, conversation_id = _ask_on_disk(begin, lines) if options.save else _ask_in_memory(begin)
    try:
        output: AnswerOutput = JsonLinesOutput(sys.stdout) if options.jsonl else TextOutput(sys.stdout)
        return _answer(engine, store, conversation_id, _turn_options(options, settings, wanted), output, lines=lines)
    finally:
        store.close()
        engine.close()


def read_prompt(argument: str | None, stdin: BinaryIO | None) -> str:
    """The argument, what `stdin` holds, or both with a blank line between them.

    Raises:
        PromptInputError: not UTF-8, or nothing at all.
    """
    parts = []
    if argument:
        try:
            argument.encode("utf-8")
        except UnicodeEncodeError as error:
            raise PromptInputError(f"the prompt is not UTF-8 (character {error.start})") from error
        parts.append(argument)
    if stdin is not None:
        try:
            piped = stdin.read().decode("utf-8").removeprefix("\ufeff").rstrip("\n")
        except UnicodeDecodeError as error:
            raise PromptInputError(
                f"standard input is not UTF-8 (byte {error.start}); convert it first, for example with iconv"
            ) from error
        if piped.strip():
            parts.append(piped)
    if not parts:
        raise PromptInputError("there is no prompt; give it as an argument or on standard input")
    return "\n\n".join(parts)


def _ask_on_disk(begin: Callable[[ConversationStore], str], lines: ErrorLines) -> tuple[ConversationStore, str]:
    """A new conversation with the question; in memory if need be: the answer matters more than keeping it."""
    try:
        where = paths.folders().conversations
        paths.ensure_folder(where.parent)
        store = ConversationStore(where)
        try:
            return store, begin(store)
        except StoreError:
            store.close()
            raise
    except (StoreError, paths.FolderError) as error:
        lines.say(f"the answer will not be saved: {error}")
        return _ask_in_memory(begin)


def _ask_in_memory(begin: Callable[[ConversationStore], str]) -> tuple[ConversationStore, str]:
    store = ConversationStore(None)
    return store, begin(store)


def _begin(store: ConversationStore, *, prompt: str, system: str | None, persona: FrozenPersona | None) -> str:
    if persona is not None:
        # Most questions are asked of no persona.
        from exlchat.chat.personas.opening import begin_conversation

        # Who asks speaks first, so that nobody is greeted.
        conversation_id = begin_conversation(store, persona, system=system, greets=False).id
    else:
        conversation_id = store.create_conversation().id
        if system:
            store.add_message(conversation_id, "system", system)
    store.add_message(conversation_id, "user", prompt)
    return conversation_id


def _answer(
    engine: EnginePort,
    store: ConversationStore,
    conversation_id: str,
    options: TurnOptions,
    output: AnswerOutput,
    *,
    lines: ErrorLines,
) -> ExitCode:
    kept = None if store.path is None else conversation_id
    telling = AnswerTelling(output, lines, model=engine.info.name, kept=kept)
    turn = answer(store, engine, conversation_id, options)
    code = ExitCode.OK
    try:
        # Closing the turn, whatever happens, is what puts the text so far on disk.
        with _ctrl_c_cancels(engine) as cancel_if_asked, closing(turn):
            for event in turn:
                cancel_if_asked()
                code = telling.show(event)
    except ContextFull:
        # A question that could not even be asked is no conversation; the caller still has it.
        store.delete(conversation_id)
        raise
    return code


def _turn_options(options: AskOptions, settings: Settings, wanted: ModelSettings) -> TurnOptions:
    start = generation_settings.at_start(options.app, settings, options.app.model_path)
    return TurnOptions(
        sampling=start.sampling,
        template=wanted.template,
        seed=start.seed,
        max_new_tokens=start.max_tokens,
        context_policy=start.context_policy,
        stop=options.stop,
    )


@contextmanager
def _ctrl_c_cancels(engine: EnginePort) -> Iterator[Callable[[], None]]:
    """Inside, the first ctrl+c ends the answer in order and the second one raises `KeyboardInterrupt`.

    The engine forgets a `cancel` that comes before it generates, so what is yielded, called at each event, repeats it.
    """
    asked = False

    def on_ctrl_c(_signal: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        engine.cancel()

    def cancel_if_asked() -> None:
        if asked:
            engine.cancel()

    previous = signal.signal(signal.SIGINT, on_ctrl_c)
    try:
        yield cancel_if_asked
    finally:
        signal.signal(signal.SIGINT, previous)
