"""`exlchat template show`: a prompt exactly, of a conversation, an answer, a file or a little talk with every role."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from exlchat import paths
from exlchat.app.chat.finding import conversation, message
from exlchat.app.library.choice import choose_model, model_called
from exlchat.app.library.memory import ModelMemory
from exlchat.app.library.places import library
from exlchat.app.options import AppOptions
from exlchat.app.speaking import as_spoken
from exlchat.chat.model import Role
from exlchat.chat.prompt.errors import PromptError
from exlchat.chat.prompt.ids import PromptMessage
from exlchat.chat.prompt.inspection import to_ask
from exlchat.chat.prompt.layout import MessageSpan, PromptLayout, lay_out
from exlchat.chat.prompt_format import PromptFormat, choose_format
from exlchat.chat.reproduce import NotReproducibleError, changed, prompt_again, record_of
from exlchat.chat.speaking import TurnError
from exlchat.chat.store.conversations import ConversationStore, StoreError
from exlchat.config.files import read_settings
from exlchat.config.layers import typed as typed_layer
from exlchat.config.state import load_state
from exlchat.llm.info import ModelInfo
from exlchat.llm.port import TextModel
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import ErrorLines, print_json, print_text
from exlchat.untrusted.files import UntrustedFileError
from exlchat.untrusted.json_reader import JsonError, read_json, read_json_file
from exlchat.untrusted.text import one_line, storable

MOST_BYTES = 20_000_000
_WIDTH = 100
_LITTLE_TALK = [
    PromptMessage("system", "Be brief."),
    PromptMessage("user", "Who are you?"),
    PromptMessage("assistant", "A language model."),
    PromptMessage("user", "What can you do?"),
]


class MessagesError(Exception):
    """Messages that cannot be had: one line."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt to show.

    Args:
        engine: whose tokens.
        form: its format.
        messages: what the model is shown.
        begun: ids of a cut answer behind them, which the answer goes on from.
        notices: lines to say.
        as_recorded: whether it is what the model saw, by an answer's record; `None` where nothing tells.
    """

    engine: TextModel
    form: PromptFormat
    messages: tuple[PromptMessage, ...]
    begun: tuple[int, ...] = ()
    notices: tuple[str, ...] = ()
    as_recorded: bool | None = None


def run_show(typed: argparse.Namespace) -> ExitCode:
    """Prints the prompt. Raises `ModelError` or `SettingsError` in one line."""
    lines = ErrorLines()
    if typed.message is not None and (typed.name is not None or not typed.opening):
        lines.say("--message shows the prompt that an answer had, in its format; leave out NAME and other changes")
        return ExitCode.USAGE
    try:
        return _show(typed, lines)
    except (PromptError, MessagesError, StoreError, TurnError, NotReproducibleError) as error:
        lines.say(str(error))
        return ExitCode.ERROR


def _show(typed: argparse.Namespace, lines: ErrorLines) -> ExitCode:
    asked = _asked(typed)
    for notice in asked.notices:
        lines.say(notice)
    layout = lay_out(asked.engine, asked.messages, asked.form, add_generation_prompt=typed.opening, begun=asked.begun)
    if typed.json:
        shown = _as_json(layout, asked.form, asked.engine.info)
        if typed.message is not None:
            shown["as_recorded"] = asked.as_recorded
        return print_json(shown)
    return print_text(_as_text(layout, asked.form, asked.engine.info))


def _asked(typed: argparse.Namespace) -> Asked:
    if typed.message is not None:
        return _asked_for(typed.message, typed.model)
    if typed.conversation is not None:
        return _asked_now(typed.conversation, typed.name, typed.model)
    messages = _LITTLE_TALK if typed.messages is None else _of_file(typed.messages)
    path = choose_model(typed.model, last_used=None, bundled=paths.bundled_model(), library=library).path
    engine = _tokenizer(path)
    form, notice = choose_format(engine.info, typed.name, paths.folders().templates)
    return Asked(engine, form, tuple(messages), notices=() if notice is None else (notice,))


def _asked_now(wanted: str, format_name: str | None, model: str | None) -> Asked:
    """What a conversation would be asked now, by the model that would answer it.

    The persona that speaks in it decides the format where none is named, then what is remembered of the model, then
    the settings, as for an answer. What its last answer no longer saw is left out, or summarised as it was.

    Raises:
        MessagesError: it has no messages.
        StoreError: there is no such conversation.
        PromptError, TurnError, ModelError, SettingsError: in one line.
    """
    with _store() as store:
        branch = store.load(conversation(store, wanted)).branch
    if not branch:
        raise MessagesError(f"conversation {one_line(wanted, 60)} has no messages; name another")
    path = choose_model(model, last_used=_last_used(), bundled=paths.bundled_model(), library=library).path
    engine = _tokenizer(path)
    reading = read_settings().require_sound()
    options = as_spoken(AppOptions(path, layers=(typed_layer(template=format_name),)), branch)
    held = options.over(reading, ModelMemory(paths.folders().model_memory).settings_of(path).layer)
    asked = to_ask(engine, branch, template=held.value("template"), policy=held.value("context_policy"))
    return Asked(engine, asked.form, asked.messages, notices=() if asked.notice is None else (asked.notice,))


def _asked_for(wanted: str, model: str | None) -> Asked:
    """What an answer was asked, by its record; in the tokens of its model, or of the one that is named.

    Raises:
        NotReproducibleError: it is no answer, or how it came to be was not kept.
        StoreError: there is no such message.
        PromptError, ModelError: in one line.
    """
    with _store() as store:
        answer = store.message(message(store, wanted))
        record = record_of(answer)
        if model is None:
            choice = model_called(record.model, last_used=_last_used(), bundled=paths.bundled_model(), library=library)
        else:
            choice = choose_model(model, last_used=_last_used(), bundled=paths.bundled_model(), library=library)
        engine = _tokenizer(choice.path)
        again = prompt_again(store, engine, answer)
    notices = []
    if again.same is False:
        notices.append(changed(record))
    elif again.same is None:
        of_another = f"the answer is of {record.model}, these are tokens of {engine.info.name}"
        why = "its record is older than such checks" if record.model == engine.info.name else of_another
        notices.append(f"it cannot be told whether this is exactly what the model saw: {why}")
    return Asked(engine, again.form, again.messages, again.begun, tuple(notices), again.same)


@contextmanager
def _store() -> Iterator[ConversationStore]:
    file = paths.folders().conversations
    if not file.exists():
        raise MessagesError(f"{file} is not there: there are no conversations yet")
    with closing(ConversationStore(file)) as store:
        yield store


def _tokenizer(path: Path) -> TextModel:
    # Imports torch, as reading a model's headers does.
    from exlchat.engine.text.tokenizer_alone import TokenizerAlone

    return TokenizerAlone(path, bundled=paths.is_bundled(path))


def _last_used() -> Path | None:
    state, _ = load_state()
    return Path(state.last_model) if state.last_model else None


def _of_file(file: Path) -> list[PromptMessage]:
    try:
        if str(file) == "-":
            content = read_json(sys.stdin.buffer.read(MOST_BYTES + 1), most=MOST_BYTES)
        else:
            content = read_json_file(file, largest=MOST_BYTES, kind="list of messages")
    except JsonError as error:
        raise MessagesError(f"standard input: {error}") from None
    except UntrustedFileError as error:
        raise MessagesError(str(error)) from None
    if isinstance(content, dict):
        content = content.get("messages")
    if not isinstance(content, list) or not content:
        raise MessagesError(f'{file}: holds no list of messages; write [{{"role": "user", "content": "Hi"}}]')
    return [_message(file, number, one) for number, one in enumerate(content, start=1)]


def _message(file: Path, number: int, one: object) -> PromptMessage:
    role = one.get("role") if isinstance(one, dict) else None
    text = one.get("content") if isinstance(one, dict) else None
    if isinstance(text, list):
        parts = [part.get("text") for part in text if isinstance(part, dict) and part.get("type") == "text"]
        said = [part for part in parts if isinstance(part, str)]
        text = "\n".join(said) if len(said) == len(text) else None
    if role not in get_args(Role) or not isinstance(text, str):
        raise MessagesError(f"{file}: message {number} lacks a role (system, user or assistant) or a text as content")
    return PromptMessage(str(role), storable(text))


def _as_json(layout: PromptLayout, form: PromptFormat, info: ModelInfo) -> dict[str, Any]:
    return {
        "model": info.name,
        "format": form.name,
        "text": layout.text,
        "ids": list(layout.ids),
        "tokens": list(layout.pieces),
        "messages": [
            {"role": one.role, "start": one.start, "end": one.end, "first_token": one.first, "end_token": one.last}
            for one in layout.messages
        ],
    }


def _as_text(layout: PromptLayout, form: PromptFormat, info: ModelInfo) -> str:
    """The prompt as it is, then a line for each message, then a line for each token."""
    lines = [
        f"{one_line(form.name, 80)}, tokens of {one_line(info.name, 80)}: {len(layout.ids)} tokens, "
        f"{len(layout.text)} characters",
        "",
        layout.text,
        "",
        f"{'message':>9}  {'role':<9}  {'characters':>15}  {'tokens':>13}  text",
    ]
    lines += [_message_line(number, one, layout.text) for number, one in enumerate(layout.messages)]
    lines += ["", f"{'token':>9}  {'id':>9}  {'message':>7}  text"]
    owner = {
        token: number
        for number, one in enumerate(layout.messages)
        if one.first is not None and one.last is not None
        for token in range(one.first, one.last)
    }
    for number, (token, piece) in enumerate(zip(layout.ids, layout.pieces, strict=True)):
        lines.append(f"{number:>9}  {token:>9}  {owner.get(number, ''):>7}  {_quoted(piece)}")
    return "\n".join(lines) + "\n"


def _message_line(number: int, one: MessageSpan, text: str) -> str:
    said = _quoted(text[one.start : one.end]) if one.start is not None else "(changed by the format, or left out)"
    places = _range(one.start, one.end), _range(one.first, one.last)
    return f"{number:>9}  {one.role:<9}  {places[0]:>15}  {places[1]:>13}  {said}"


def _range(first: int | None, last: int | None) -> str:
    return "-" if first is None or last is None else f"{first} to {last}"


def _quoted(text: str) -> str:
    quoted = repr(text)
    return quoted if len(quoted) <= _WIDTH else quoted[: _WIDTH - 1] + "…"
