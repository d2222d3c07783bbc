"""What the next answers have to say, must not say, and what is kept of them: in the open conversation."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from exlchat.app.commands import action
from exlchat.app.generation_settings import CONVERSATION
from exlchat.chat import answer_option_values
from exlchat.chat.answer_option_values import ANSWER_OPTIONS
from exlchat.chat.constraints import constraint_of
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.app.view import View

command = partial(action.command, topic="What an answer has to be")

_OFF = ("off", "none")


@command(
    "schema",
    "Answer by a JSON schema",
    "Have the next answers be JSON by a schema, of a file or typed; with :: MESSAGE behind it, only that one.",
    "/schema",
    "[FILE|JSON|off]",
    is_typed=True,
    after="quit",
    needs="json_schema",
)
def schema(view: View, text: str) -> None:
    _hold(view, "schema", text)


@command(
    "regex",
    "Answer by a regular expression",
    "Have the next answers match a regular expression as a whole; off lets them go.",
    "/regex",
    "[RE|off]",
    is_typed=True,
    needs="regex",
)
def regex(view: View, text: str) -> None:
    _hold(view, "regex", text)


@command(
    "choice",
    "Answer one of these",
    "Have the next answers be one of some texts, with commas between them; off lets them go.",
    "/choice",
    "[A, B|off]",
    is_typed=True,
    needs="choice",
)
def choice(view: View, text: str) -> None:
    _hold(view, "choice", text)


@command(
    "grammar",
    "Answer by a grammar",
    "Have the next answers follow a grammar (Lark, llguidance), of a file or as typed; off lets them go.",
    "/grammar",
    "[FILE|off]",
    is_typed=True,
    needs="grammar",
)
def grammar(view: View, text: str) -> None:
    _hold(view, "grammar", text)


def _hold(view: View, word: str, text: str) -> None:
    """Hold the next answers to something of this kind; with a message behind `::` the answer to that alone."""
    if not text:
        _tell(view, "constraint")
        return
    session = view.session
    form, once, message = text.rpartition(" :: ")
    if not (once and form.strip() and message.strip()):
        held = None if text.lower() in _OFF else constraint_of(word, text)
        session.draw_by(session.generation.speaking(CONVERSATION, constraint=held))
        _tell(view, "constraint")
        return
    session.require_quiet()
    wanted = session.generation.speaking(CONVERSATION, constraint=constraint_of(word, form.strip()))
    view.send(message.strip(), generation=wanted)


@command(
    "ban",
    "Ban a text",
    "Have TEXT never come in an answer, which goes back and takes another way; off allows all again.",
    "/ban",
    "[TEXT|off]",
    is_typed=True,
    needs="banned",
)
def ban(view: View, text: str) -> None:
    _add(view, "ban", text)


@command(
    "stop-text",
    "Stop at a text",
    "End answers before TEXT; off clears all such texts. While an answer is on its way, alone, stop it.",
    "/stop",
    "[TEXT|off]",
    is_typed=True,
)
def stop(view: View, text: str) -> None:
    if text or not view.session.stop():
        _add(view, "stop", text)


def _add(view: View, name: str, text: str) -> None:
    """One text more, which stands there as it is typed; in quotes where white space matters."""
    if text:
        generation = view.session.generation
        now = generation.value(name)
        one = () if text.lower() in _OFF else (answer_option_values.unquoted(name, text),)
        texts = tuple(dict.fromkeys((*now, *one))) if one else ()
        view.session.draw_by(generation.speaking(CONVERSATION, **{name: texts}))
    _tell(view, name)


@command(
    "begin",
    "Begin the answers",
    "Have each new answer begin with TEXT, from which the model goes on; off lets it begin by itself.",
    "/begin",
    "[TEXT|off]",
    is_typed=True,
    needs="begun",
)
def begin(view: View, text: str) -> None:
    _set(view, "begin", text)


@command(
    "think",
    "Thinking",
    "Have the model think first or not, where its template can be told, or for at most N tokens.",
    "/think",
    "[on|off|N]",
    is_typed=True,
    needs="thinking",
)
def think(view: View, text: str) -> None:
    name = "thinking_budget" if text.isdecimal() else "think"
    generation = view.session.generation
    if text:
        generation = generation.with_value(name, text)
        if name == "thinking_budget" and generation.speech.think is False:
            generation = generation.with_value("think", "on")
        view.session.draw_by(generation)
    _tell(view, "think", "thinking_budget")


@command(
    "negative",
    "Negative prompt",
    "Lean away from another system prompt, which guidance_scale above 1 does; off leans away from none at all.",
    "/negative",
    "[TEXT|off]",
    is_typed=True,
    needs="guidance_ids",
)
def negative(view: View, text: str) -> None:
    _set(view, "negative", text)
    now = view.session.generation
    if now.speech.negative and now.sampling.guidance_scale == 1.0:
        view.tell("It changes nothing while guidance_scale is 1; /set guidance_scale 1.5", warning=True)


@command(
    "draft",
    "Drafting",
    "Choose who guesses tokens ahead, for speed: auto, ngram, a draft model (exlchat --draft DIR), or off.",
    "/draft",
    "[auto|ngram|model|off]",
    is_typed=True,
    needs="draft",
    lets_go=("auto",),
)
def draft(view: View, text: str) -> None:
    _set(view, "draft", text)


@command(
    "logprobs",
    "Keep probabilities",
    "Keep with each token of the next answers how likely it was, and the N likeliest; off keeps nothing.",
    "/logprobs",
    "[N|off]",
    is_typed=True,
    needs="alternatives",
)
def logprobs(view: View, text: str) -> None:
    _set(view, "logprobs", text)


def _set(view: View, name: str, text: str) -> None:
    if text:
        view.session.draw_by(view.session.generation.with_value(name, text))
    _tell(view, name)


def _tell(view: View, *names: str) -> None:
    now = view.session.generation
    view.note("\n".join(f"{name}: {_in_full(now.value(name), name)}" for name in names))


def _in_full(value: object, name: str) -> str:
    shown = answer_option_values.shown(name, value)
    told = answer_option_values.to_text(name, value) if value not in (None, (), "") else shown
    return f"{one_line(told, 2000)}. {ANSWER_OPTIONS[name].help}"
