"""What an answer took, as OpenAI counts it, and what of it we tell besides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from exlchat.llm.events import Finished, FinishReason, GenerationStats, TextDelta

FINISH_REASONS: dict[FinishReason, str] = {
    "stop_token": "stop",
    "stop_string": "stop",
    "repeating": "stop",
    "max_new_tokens": "length",
    "context_full": "length",
    "cancelled": "stop",
}
"""By our own words. Nobody reads of a cancelled one, unless the server is being stopped."""


class Thinking:
    """Counts the tokens of an answer's thoughts, with their marks."""

    def __init__(self) -> None:
        self.tokens = 0
        self._answered = False

    def add(self, delta: TextDelta) -> None:
        self._answered = self._answered or bool(delta.text and delta.channel == "answer")
        if not self._answered and delta.channel != "answer":
            self.tokens += len(delta.token_ids)


def usage(ended: Sequence[Finished], thinking: Sequence[Thinking]) -> dict[str, Any]:
    """Of all answers to one prompt, which is counted once, as the first of them read it."""
    prompt, cached = ended[0].stats.prompt_tokens, min(one.stats.cached_tokens for one in ended)
    new = sum(one.stats.new_tokens for one in ended)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": sum(one.tokens for one in thinking)},
    }


def figures(stats: GenerationStats) -> dict[str, Any]:
    """Of one answer: its seed, and its times."""
    read = stats.prompt_tokens - stats.cached_tokens
    return {
        "seed": stats.seed,
        "ttft_ms": round(1000 * stats.time_to_first_token, 3),
        "prefill_tok_s": round(read / stats.prefill_seconds, 1) if stats.prefill_seconds > 0 else 0.0,
        "decode_tok_s": round(stats.tokens_per_second, 1),
    }
