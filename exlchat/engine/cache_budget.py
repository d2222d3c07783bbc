"""How long the context of a model is here, and how many tokens its cache holds in all."""

from __future__ import annotations

from dataclasses import dataclass

from exlchat.engine.architecture import ModelSpec
from exlchat.engine.events import ModelError
from exlchat.engine.kv_cache import bytes_per_token, pages_of
from exlchat.ext.kv_formats import KINDS, PAGE_TOKENS, CacheKind

# A context of 128k tokens is no sensible default for the memory of most machines; --context asks for more.
_DEFAULT_CONTEXT = 32768
# A prompt and a short answer.
_SHORTEST_CONTEXT = 512
# Beside the running conversation, those before it; and how much of what the weights leave may go to all of them, so
# that other programs find some too.
_OTHER_CONTEXTS = 2
_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class CacheWishes:
    """What the user asked for; `None` leaves it to `plan_cache`.

    Args:
        context: the longest prompt plus answer, in tokens.
        tokens: how many tokens of all conversations the cache holds.
        gigabytes: the same as memory, in GiB.
    """

    context: int | None = None
    tokens: int | None = None
    gigabytes: float | None = None


@dataclass(frozen=True, slots=True)
class CachePlan:
    """Tokens of the longest sequence, and of all."""

    context: int
    tokens: int


def plan_cache(
    name: str, spec: ModelSpec, kind: CacheKind, wishes: CacheWishes, room: int, *, at_once: bool = True
) -> CachePlan:
    """Context and cache for a model. What was not asked for is made to fit; what was asked for has to.

    Args:
        name: of the model, for errors.
        room: bytes that the weights leave.
        at_once: all memory is taken at once, as on a GPU, so that it has to be there; else page by page.

    Raises:
        ModelError: what was asked for does not fit the model, the memory or each other, or nothing of use fits.
    """
    per_token, room = bytes_per_token(spec, kind), max(room, 0)
    context = _context(spec, wishes.context)
    budget = _budget(wishes, per_token)
    if budget is None:
        if at_once:
            context = _fitting(name, spec, kind, context, room, asked=wishes.context is not None)
        spare = int(_SHARE * room) // per_token
        return CachePlan(context, max(context, min((1 + _OTHER_CONTEXTS) * context, spare)))
    if budget < context:
        if wishes.context is not None or budget < min(_SHORTEST_CONTEXT, context):
            raise ModelError(
                f"{name}: a cache of {budget:,} tokens is too small for one conversation of "
                f"{max(wishes.context or 0, min(_SHORTEST_CONTEXT, context)):,}; give it more, or take a smaller "
                "--context"
            )
        context = budget
    if at_once and budget * per_token > room:
        raise ModelError(
            f"{name}: a cache of {budget:,} tokens takes {budget * per_token / 2**30:.2f} GiB, and the weights leave "
            f"{room / 2**30:.2f} GiB free: {_mends(spec, kind, budget, room, '--cache-tokens')} would fit"
        )
    return CachePlan(context, budget)


def _budget(wishes: CacheWishes, per_token: int) -> int | None:
    """Tokens of the cache that was asked for, in whole pages."""
    if wishes.tokens is not None:
        return pages_of(wishes.tokens) * PAGE_TOKENS
    if wishes.gigabytes is not None:
        return int(wishes.gigabytes * 2**30 / per_token) // PAGE_TOKENS * PAGE_TOKENS
    return None


def _context(spec: ModelSpec, wanted: int | None) -> int:
    if wanted is None:
        return min(spec.max_position_embeddings, _DEFAULT_CONTEXT)
    if not 1 <= wanted <= spec.max_position_embeddings:
        raise ModelError(
            f"a context of {wanted:,} tokens was asked for; this model has 1 to {spec.max_position_embeddings:,}"
        )
    return wanted


def _fitting(name: str, spec: ModelSpec, kind: CacheKind, context: int, room: int, *, asked: bool) -> int:
    """The context, shortened to what fits unless the user asked for one."""
    per_token = bytes_per_token(spec, kind)
    fits = room // per_token
    if pages_of(context) * PAGE_TOKENS <= fits:
        return context
    if not asked and fits >= _SHORTEST_CONTEXT:
        return fits // PAGE_TOKENS * PAGE_TOKENS
    raise ModelError(
        f"{name}: a context of {context:,} tokens takes {context * per_token / 2**30:.2f} GiB, and the weights leave "
        f"{room / 2**30:.2f} GiB free: {_mends(spec, kind, context, room, '--context')} would fit"
    )


def _mends(spec: ModelSpec, kind: CacheKind, tokens: int, room: int, option: str) -> str:
    """What would fit instead of so many tokens: fewer of them, or fewer bits."""
    fits = room // bytes_per_token(spec, kind) // PAGE_TOKENS * PAGE_TOKENS
    mends = [f"{option} {fits}"] if fits >= _SHORTEST_CONTEXT else []
    for smaller in KINDS.values():
        per_token = bytes_per_token(spec, smaller)
        if smaller.fits(spec.head_dim) and per_token < bytes_per_token(spec, kind) and per_token * tokens <= room:
            mends.append(f"--kv-cache {smaller.name}")
            break
    return " or ".join(mends) or "fewer bits or a smaller model"
