"""What the commands do that say what the next answers have to be: they hold until they are changed, or you quit."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from exlchat.app.generation_settings import TYPED
from exlchat.chat import answer_option_values
from exlchat.chat.answer_option_values import ANSWER_OPTIONS
from exlchat.chat.constraints import WORDS, constraint_of
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from exlchat.app.commands.chat_front import ChatFront

_OFF = ("off", "none")
_VALUES = {"begin": "begin", "negative": "negative", "draft": "draft", "logprobs": "logprobs"}
"""Command -> the value that it sets as it is typed."""


class SpeechCommands:
    """Belongs to one front and runs on its thread. What cannot be raises `ValueError` in one line."""

    def __init__(self, front: ChatFront) -> None:
        self._front = front

    def doors(self) -> Mapping[str, Callable[[str], None]]:
        """By the id of the action."""
        return {
            **{word: partial(self._hold, word) for word in WORDS},
            **{command: partial(self._set, name) for command, name in _VALUES.items()},
            "ban": partial(self._add, "ban"),
            "stop-text": self._stop,
            "think": self._think,
        }

    def _hold(self, word: str, text: str) -> None:
        """Hold the next answers to something of this kind; with a message behind `::` the answer to that alone."""
        if not text:
            self._tell("constraint")
            return
        session = self._front.session
        form, once, message = text.rpartition(" :: ")
        if not (once and form.strip() and message.strip()):
            held = None if text.lower() in _OFF else constraint_of(word, text)
            session.draw_by(session.generation.speaking(TYPED, constraint=held))
            self._tell("constraint")
            return
        session.require_quiet()
        wanted = session.generation.speaking(TYPED, constraint=constraint_of(word, form.strip()))
        self._front.send(message.strip(), generation=wanted)

    def _add(self, name: str, text: str) -> None:
        """One text more, which stands there as it is typed; in quotes where white space matters."""
        if text:
            generation = self._front.session.generation
            now = generation.value(name)
            one = () if text.lower() in _OFF else (answer_option_values.unquoted(name, text),)
            texts = tuple(dict.fromkeys((*now, *one))) if one else ()
            self._front.session.draw_by(generation.speaking(TYPED, **{name: texts}))
        self._tell(name)

    def _set(self, name: str, text: str) -> None:
        if text:
            self._front.session.draw_by(self._front.session.generation.with_value(name, text))
        self._tell(name)
        now = self._front.session.generation
        if name == "negative" and now.speech.negative and now.sampling.guidance_scale == 1.0:
            self._front.tell("It changes nothing while guidance_scale is 1; /set guidance_scale 1.5", warning=True)

    def _stop(self, text: str) -> None:
        session = self._front.session
        if not text and session.stop():
            return
        self._add("stop", text)

    def _think(self, text: str) -> None:
        name = "thinking_budget" if text.isdecimal() else "think"
        generation = self._front.session.generation
        if text:
            generation = generation.with_value(name, text)
            if name == "thinking_budget" and generation.speech.think is False:
                generation = generation.with_value("think", "on")
            self._front.session.draw_by(generation)
        self._tell("think", "thinking_budget")

    def _tell(self, *names: str) -> None:
        """What holds, in full where it is long."""
        now = self._front.session.generation
        self._front.note("\n".join(f"{name}: {_in_full(now.value(name), name)}" for name in names))


def _in_full(value: object, name: str) -> str:
    shown = answer_option_values.shown(name, value)
    told = answer_option_values.to_text(name, value) if value not in (None, (), "") else shown
    return f"{one_line(told, 2000)}. {ANSWER_OPTIONS[name].help}"
