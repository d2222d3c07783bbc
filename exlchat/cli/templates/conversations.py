"""Prompts of conversations to show: what would be asked now, and what an answer was asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from exlchat import paths
from exlchat.app.chat.finding import conversation, message
from exlchat.app.library.choice import choose_model, model_called
from exlchat.app.library.memory import ModelMemory
from exlchat.app.library.places import library
from exlchat.app.options import AppOptions
from exlchat.app.speaking import as_spoken
from exlchat.chat.prompt.ids import PromptMessage
from exlchat.chat.prompt.inspection import to_ask
from exlchat.chat.prompt_format import PromptFormat
from exlchat.chat.reproduce import changed, prompt_again, record_of
from exlchat.chat.store.conversations import ConversationStore
from exlchat.cli.templates.prompts import MessagesError
from exlchat.config.settings import load_settings
from exlchat.config.state import load_state
from exlchat.llm.port import TextModel
from exlchat.untrusted.text import one_line


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


def asked_now(wanted: str, format_name: str | None, model: str | None) -> Asked:
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
    settings = load_settings()
    options = as_spoken(AppOptions(path, template=format_name), branch)
    template = ModelMemory(paths.folders().model_memory).settings_of(path).typed_or(options, settings).template
    asked = to_ask(engine, branch, template=template, policy=settings.context_policy)
    return Asked(engine, asked.form, asked.messages, notices=() if asked.notice is None else (asked.notice,))


def asked_for(wanted: str, model: str | None) -> Asked:
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
