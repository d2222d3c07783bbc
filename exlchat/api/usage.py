"""What answers took, as OpenAI counts it, and what of it we tell besides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from exlchat.llm.events import Finished, GenerationStats, TextDelta


class Thinking:
    """Counts the tokens of an answer's thoughts, with their marks."""

    def __init__(self) -> None:
        self.tokens = 0
        self._answered = False

    def add(self, delta: TextDelta) -> None:
        self._answered = self._answered or bool(delta.text and delta.channel == "answer")
        if not self._answered and delta.channel != "answer":
            self.tokens += len(delta.token_ids)


def usage(ended: Sequence[Sequence[Finished]], thoughts: int = 0) -> dict[str, Any]:
    """Of the answers to each prompt, which is counted once, as the first of them read it.

    Args:
        ended: a sequence of answers for each prompt.
        thoughts: tokens of all thoughts.
    """
    prompt = sum(answers[0].stats.prompt_tokens for answers in ended)
    cached = sum(min(one.stats.cached_tokens for one in answers) for answers in ended)
    new = sum(one.stats.new_tokens for answers in ended for one in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": thoughts},
    }


def figures(stats: GenerationStats) -> dict[str, Any]:
    """Of one answer: its seed, its times, and beside how many it was made."""
    read = stats.prompt_tokens - stats.cached_tokens
    return {
        "seed": stats.seed,
        "ttft_ms": round(1000 * stats.time_to_first_token, 3),
        "prefill_tok_s": round(read / stats.prefill_seconds, 1) if stats.prefill_seconds > 0 else 0.0,
        "decode_tok_s": round(stats.tokens_per_second, 1),
        "rows": stats.rows,
        "exact": stats.exact,
    }
