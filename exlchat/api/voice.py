"""How a model speaks where a request does not say: what a server or a run was started with."""

from __future__ import annotations

from dataclasses import dataclass

from exlchat.chat.answer_options import PLAIN, AnswerOptions
from exlchat.llm.sampling import SamplingSettings

_USUAL = SamplingSettings()


@dataclass(frozen=True, slots=True)
class Voice:
    """What a request leaves out.

    Args:
        sampling: how tokens are drawn.
        speech: what an answer is asked to be.
        seed: of answers; `None` takes a fresh one each.
        max_tokens: the longest answer; `None` goes on until the context is full.
        template: prompt format by name or file; `None` takes the model's own.
        system: what the model is told before all messages; empty for nothing. A client's own comes behind it.
    """

    sampling: SamplingSettings = _USUAL
    speech: AnswerOptions = PLAIN
    seed: int | None = None
    max_tokens: int | None = None
    template: str | None = None
    system: str = ""
