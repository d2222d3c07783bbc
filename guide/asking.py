"""Talking to a model folder through exlchat's own engine, at temperature 0."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from exlchat import engine
from exlchat.app.guide.quoting import Quoting, one_of
from exlchat.chat.prompt_format import MODEL_FORMAT, choose_format
from exlchat.llm.events import Finished
from exlchat.llm.port import Engine
from exlchat.llm.request import GenerationRequest
from guide.held_out import HeldOut

LONGEST = 200


class Conversation:
    """One conversation with a loaded model; it remembers what was said.

    Args:
        quoting: says what may be answered, as in the chat; the model answers freely unless given.
    """

    def __init__(self, model: Engine, quoting: Quoting | None = None) -> None:
        self._model = model
        self._quoting = quoting
        self._format, _ = choose_format(model.info, MODEL_FORMAT)
        self._messages: list[dict[str, str]] = []

    def ask(self, question: str) -> str:
        """The answer to the next question."""
        self._messages.append({"role": "user", "content": question})
        texts = self._quoting.answers(question) if self._quoting is not None else []
        # Where there is one text, the model could say nothing else.
        answer = texts[0] if len(texts) == 1 else self._generated(texts)
        self._messages.append({"role": "assistant", "content": answer})
        return answer

    def _generated(self, texts: Sequence[str]) -> str:
        """What the model says, one of the texts if there are any."""
        info = self._model.info
        prompt = self._format.render(self._messages, bos_token=info.bos_token, eos_token=info.eos_token)
        request = GenerationRequest(
            self._model.encode(prompt), max_new_tokens=LONGEST, constraint=one_of(texts) if texts else None
        )
        answer = ""
        for event in self._model.generate(request):
            if isinstance(event, Finished):
                answer = event.text
        return next((text for text in texts if text.startswith(answer)), answer)


def answer_held_out(model: Engine, question: HeldOut, quoting: Quoting | None = None) -> str:
    """The answer to a held-out question, with what was asked before it."""
    conversation = Conversation(model, quoting)
    for earlier in question.before:
        conversation.ask(earlier)
    return conversation.ask(question.ask)


def load_on_cpu(folder: Path) -> Engine:
    """The model of a folder, on the CPU, in float32."""
    return engine.load(folder, device="cpu", kv_cache="fp32")
