"""What is wrong with a request by itself, whatever the model."""

from __future__ import annotations

from exlchat.engine.events import GenerationRequest, RequestError
from exlchat.engine.text_stream import folded

_MOST_ALTERNATIVES = 100
_MOST_BANNED = 10_000


def check_request(request: GenerationRequest, *, draft_model: bool) -> None:
    """Raises `RequestError` in one line for what is out of range or contradicts itself.

    Args:
        draft_model: whether there is one.
    """
    most, least = request.max_new_tokens, request.min_new_tokens
    if most is not None and most < 0:
        raise RequestError(f"max_new_tokens is {most}; it cannot be negative")
    if least < 0:
        raise RequestError(f"min_new_tokens is {least}; it cannot be negative")
    if most is not None and least > most:
        raise RequestError(f"min_new_tokens is {least} and max_new_tokens {most}; the least is more than the most")
    if not 0 <= request.begun <= len(request.prompt_ids):
        raise RequestError(f"begun is {request.begun}; it must be from 0 to {len(request.prompt_ids):,}")
    if not 0 <= request.alternatives <= _MOST_ALTERNATIVES:
        raise RequestError(f"alternatives is {request.alternatives}; it must be from 0 to {_MOST_ALTERNATIVES}")
    if len(request.banned) > _MOST_BANNED:
        raise RequestError(f"{len(request.banned):,} strings are banned; there can be {_MOST_BANNED:,}")
    if request.draft == "model" and not draft_model:
        raise RequestError("there is no draft model; load one with --draft MODEL, or draft by ngram")
    if request.sampling.guidance_scale != 1.0 and not request.guidance_ids:
        raise RequestError("guidance_scale needs a prompt to lean away from; give one, or set guidance_scale to 1")
    limit = request.thoughts
    if limit is not None and limit.tokens is not None:
        if limit.tokens < 0:
            raise RequestError(f"the budget of thoughts is {limit.tokens}; it cannot be negative")
        for banned in request.banned:
            if folded(banned)[0] in folded(limit.closing)[0]:
                raise RequestError(
                    f"{banned!r} is banned, and thoughts are closed with it; allow it, or lift the budget"
                )
