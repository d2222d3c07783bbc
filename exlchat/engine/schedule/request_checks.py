"""What is wrong with a request, before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from exlchat.engine.text.stream import folded
from exlchat.llm.request import GenerationRequest, RequestError, ScoreRequest
from exlchat.llm.thought_splitter import Thoughts

_MOST_ALTERNATIVES = 100
_MOST_BANNED = 10_000


def check_request(request: GenerationRequest) -> None:
    """Raises `RequestError` in one line for what is out of range or contradicts itself."""
    for problem in _problems(request):
        raise RequestError(problem)


def check_ids(ids: Sequence[int], vocab_size: int, max_seq_len: int) -> None:
    """Raises `RequestError` for a prompt that is empty, too long, or holds ids that the model does not have."""
    if not ids:
        raise RequestError("the prompt is empty; it needs at least one token")
    if len(ids) > max_seq_len:
        raise RequestError(
            f"the prompt has {len(ids):,} tokens and the context holds {max_seq_len:,}; "
            "shorten it or load with a larger --context"
        )
    wrong = next((token for token in ids if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise RequestError(f"the prompt holds id {wrong}, but the model has {vocab_size:,} embeddings")


def check_score(request: ScoreRequest, vocab_size: int, max_seq_len: int) -> None:
    """As `check_ids`; also where `start` is none of the places."""
    check_ids(request.ids, vocab_size, max_seq_len)
    if not 1 <= request.start <= len(request.ids) or request.top < 1:
        raise RequestError(
            f"start is {request.start} and top is {request.top}; they must be from 1 to {len(request.ids):,}, "
            "and at least 1"
        )


def _problems(request: GenerationRequest) -> Iterator[str]:
    yield from _problems_of_length(request)
    if not 0 <= request.begun <= len(request.prompt_ids):
        yield f"begun is {request.begun}; it must be from 0 to {len(request.prompt_ids):,}"
    if not 0 <= request.alternatives <= _MOST_ALTERNATIVES:
        yield f"alternatives is {request.alternatives}; it must be from 0 to {_MOST_ALTERNATIVES}"
    if len(request.banned) > _MOST_BANNED:
        yield f"{len(request.banned):,} strings are banned; there can be {_MOST_BANNED:,}"
    if request.sampling.guidance_scale != 1.0 and not request.guidance_ids:
        yield "guidance_scale needs a prompt to lean away from; give one, or set guidance_scale to 1"
    if request.constraint_from and request.constraint is None:
        yield "constraint_from says where a constraint begins, and there is none; leave it out"
    if request.thoughts is not None:
        yield from _problems_of_thoughts(request.thoughts, request.banned)


def _problems_of_length(request: GenerationRequest) -> Iterator[str]:
    most, least = request.max_new_tokens, request.min_new_tokens
    if most is not None and most < 0:
        yield f"max_new_tokens is {most}; it cannot be negative"
    if least < 0:
        yield f"min_new_tokens is {least}; it cannot be negative"
    if most is not None and least > most:
        yield f"min_new_tokens is {least} and max_new_tokens {most}; the least is more than the most"


def _problems_of_thoughts(thoughts: Thoughts, banned: Sequence[str]) -> Iterator[str]:
    if thoughts.tokens is None:
        return
    if thoughts.tokens < 0:
        yield f"the budget of thoughts is {thoughts.tokens}; it cannot be negative"
    closing = folded(thoughts.marks.closing)[0]
    for text in banned:
        if text and folded(text)[0] in closing:
            yield f"{text!r} is banned, and thoughts are closed with it; allow it, or lift the budget"
