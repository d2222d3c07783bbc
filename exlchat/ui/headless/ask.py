"""`exlchat ask`: one answer without a terminal. Only the answer goes to stdout, everything else to stderr."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from exlchat import paths
from exlchat.app.generation_settings import at_start
from exlchat.app.library.memory import ModelMemory
from exlchat.app.options import AppOptions
from exlchat.app.runtime.model_loading import engine_for
from exlchat.chat.prompt.context import ContextFull
from exlchat.chat.prompt.errors import PromptError
from exlchat.chat.several_answers import several_answers
from exlchat.chat.speaking import TurnError, heard
from exlchat.chat.store.conversations import ConversationStore, StoreError
from exlchat.chat.turn import answer
from exlchat.chat.turn_plan import TurnOptions
from exlchat.config.files import SettingsError, read_settings
from exlchat.llm.info import ModelError
from exlchat.llm.port import Cancellation
from exlchat.llm.request import GenerationRequest, RequestError
from exlchat.ui.headless.answer import AnswerTelling
from exlchat.ui.headless.conversation import (
    Again,
    AnsweredConversation,
    AskedPrompt,
    begin,
    check,
    find,
    go_on,
    open_store,
)
from exlchat.ui.headless.output import AnswerOutput, JsonLinesOutput, TextOutput
from exlchat.ui.headless.several import SeveralTelling
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.interrupts import ctrl_c_ends_at_once, signals_taken
from exlchat.ui.terminal.standard_streams import ErrorLines, OutputClosedError, OutputError
from exlchat.ui.terminal.typed_text import PromptInputError, read_prompt

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path
    from types import FrameType

    from exlchat.chat.model import Conversation
    from exlchat.config.layers import Resolved
    from exlchat.llm.port import Engine


@dataclass(frozen=True, slots=True)
class AskOptions:
    """One `exlchat ask`.

    Args:
        app: model, sampling and prompt options, as for the app.
        prompt: the prompt as typed; standard input follows it, or stands alone.
        jsonl: print events instead of text.
        save: keep prompt and answer as a conversation.
        conversation: the one to go on with, as typed; `None` begins a new one.
        again: give its last answer again, or go on with that, instead of asking a prompt.
        answers: so many, from one reading of the prompt.
        speaker: who of its group answers; `None` leaves that to how it is settled there.
    """

    app: AppOptions
    prompt: str | None
    jsonl: bool = False
    save: bool = True
    conversation: str | None = None
    again: Again | None = None
    answers: int = 1
    speaker: str | None = None


class _Telling(Protocol):
    @property
    def begun(self) -> bool:
        """Whether the prompt was taken."""

    def show(self, event: Any) -> ExitCode:
        """Writes one event; the code of the last one is that of the program."""


def run_ask(options: AskOptions) -> ExitCode:
    """Reads the prompt, loads the model, prints the answer; every failure is one line on stderr and an exit code."""
    lines = ErrorLines()
    try:
        return _ask(options, lines)
    except PromptInputError as error:
        lines.say(str(error))
        return ExitCode.USAGE
    except ContextFull as error:
        lines.say(str(error))
        return ExitCode.DOES_NOT_FIT
    except (ModelError, RequestError, PromptError, SettingsError, StoreError, TurnError) as error:
        lines.say(str(error))
        return ExitCode.ERROR
    except OutputError as error:
        lines.say(f"{error}; the answer ends here")
        return ExitCode.ERROR
    except OutputClosedError:
        return ExitCode.BROKEN_PIPE
    finally:
        lines.clear()


def _ask(options: AskOptions, lines: ErrorLines) -> ExitCode:
    prompt = None
    if options.again is None:
        prompt = read_prompt(options.prompt, None if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer)
    reading = read_settings().require_sound()
    for notice in options.app.notices:
        lines.say(notice)
    model_path = options.app.model_path
    if model_path is None and options.app.remote is None:
        raise ModelError("no model is there; give a model folder: exlchat ask -m FOLDER")
    with ExitStack() as opened:
        there: AnsweredConversation | None = None
        if options.conversation is not None:
            # Before the model is loaded, which takes its time: what cannot be is said at once.
            store = opened.enter_context(closing(open_store()))
            conversation = find(store, options.conversation)
            _check(conversation, options)
            there = AnsweredConversation(store, conversation.id)
            options = replace(options, app=_as_spoken_in(conversation, options.app))
        memory = ModelMemory(paths.folders().model_memory)
        held = options.app.over(reading, memory.settings_of(model_path).layer)
        with ctrl_c_ends_at_once(before=lines.clear):
            engine = engine_for(options.app, held, kept=options.save, on_progress=lines.loading)
        opened.callback(engine.close)
        lines.clear()
        for notice in filter(None, (engine.info.without_draft, *engine.info.notices)):
            lines.say(notice)
        wishes = _turn_options(held, model_path)
        if refusal := _refused(engine, wishes, options):
            lines.say(refusal)
            return ExitCode.USAGE
        if wishes.speech.negative and wishes.sampling.guidance_scale == 1.0:
            lines.say("the negative prompt changes nothing while guidance_scale is 1; --sample guidance_scale=1.5")
        if there is not None:
            said = AskedPrompt(prompt, options.app.given("system"), options.app.persona)
            place = go_on(there.store, there.conversation_id, said, options.again)
        else:
            place = _begin_new(AskedPrompt(prompt, held.value("system"), options.app.persona), lines, save=options.save)
            opened.callback(place.store.close)
        return _answer(engine, place, wishes, options, lines=lines, memory=memory)


def _refused(engine: Engine, wishes: TurnOptions, options: AskOptions) -> str | None:
    """Why nothing can be answered so."""
    try:
        engine.check(GenerationRequest((), wishes.sampling, constraint=wishes.speech.constraint))
    except RequestError as error:
        return str(error)
    if options.answers > 1 and wishes.sampling.greedy:
        return f"all {options.answers} answers would be the same at temperature 0; give --temperature 0.7"
    return None


def _check(conversation: Conversation, options: AskOptions) -> None:
    check(conversation, options.again)
    if options.again is None and options.app.persona is None:
        # Who of a group speaks has to be settled, and what can be wrong with that is in what is there.
        heard(conversation.branch, speaker=options.speaker)


def _as_spoken_in(conversation: Conversation, app: AppOptions) -> AppOptions:
    # Most questions are asked of no persona.
    from exlchat.app.speaking import as_spoken

    return as_spoken(app, conversation.branch)


def _begin_new(said: AskedPrompt, lines: ErrorLines, *, save: bool) -> AnsweredConversation:
    """A new conversation with the question; in memory if need be: the answer matters more than keeping it."""
    if not save:
        return begin(ConversationStore(None), said)
    try:
        store = open_store()
        try:
            return begin(store, said)
        except StoreError:
            store.close()
            raise
    except (StoreError, paths.FolderError) as error:
        lines.say(f"the answer will not be saved: {error}")
        return begin(ConversationStore(None), said)


def _answer(
    engine: Engine,
    place: AnsweredConversation,
    wishes: TurnOptions,
    options: AskOptions,
    *,
    lines: ErrorLines,
    memory: ModelMemory,
) -> ExitCode:
    kept = None if place.store.path is None else place.conversation_id
    store, ident, many = place.store, place.conversation_id, options.answers
    cancellation = Cancellation()
    telling: _Telling
    if many > 1:
        seeds = [None if wishes.seed is None else wishes.seed + number for number in range(many)]
        telling = SeveralTelling(lines, many=many, jsonl=options.jsonl, engine=engine, memory=memory, kept=kept)
        turn: Generator[Any] = several_answers(
            store,
            engine,
            ident,
            wishes,
            seeds=seeds,
            retry_of=place.retry_of,
            speaker=options.speaker,
            cancellation=cancellation,
        )
    else:
        output: AnswerOutput = JsonLinesOutput() if options.jsonl else TextOutput()
        telling = AnswerTelling(output, lines, engine=engine, memory=memory, kept=kept)
        turn = answer(
            store,
            engine,
            ident,
            wishes,
            retry_of=place.retry_of,
            continue_from=place.continue_from,
            speaker=options.speaker,
            cancellation=cancellation,
        )
    code = ExitCode.OK
    try:
        # Closing the turn, whatever happens, is what puts the text so far on disk.
        with _signals_cancel(cancellation), closing(turn):
            for event in turn:
                code = telling.show(event)
    except Exception as error:
        # A question that could not even be asked is no conversation; the caller still has it. One that was asked in a
        # conversation that is there would stand before the next one.
        if isinstance(error, ContextFull) or not (place.new or telling.begun):
            place.take_back()
        raise
    return code


def _turn_options(held: Resolved, model: Path | None) -> TurnOptions:
    start = at_start(held, model)
    return TurnOptions(
        sampling=start.sampling,
        template=held.value("template"),
        seed=start.seed,
        max_new_tokens=start.max_tokens,
        context_policy=start.context_policy,
        speech=start.speech,
    )


@contextmanager
def _signals_cancel(cancellation: Cancellation) -> Iterator[None]:
    """Inside, the first ctrl+c, or a signal, ends the answer in order; a second ctrl+c raises `KeyboardInterrupt`."""

    def on_ctrl_c(_number: int, _frame: FrameType | None) -> None:
        if cancellation.asked:
            raise KeyboardInterrupt
        cancellation.cancel()

    previous = signal.signal(signal.SIGINT, on_ctrl_c)
    try:
        with signals_taken(lambda _: cancellation.cancel()):
            yield
    finally:
        signal.signal(signal.SIGINT, previous)
