"""How long the context of a model is here, and how many tokens its cache holds in all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from exlchat.engine.cards.room import Room, SharedRoom
from exlchat.engine.kv.sizes import layer_bytes, pages_of, window_slots
from exlchat.engine.model.spec import ModelSpec
from exlchat.ext.kv_formats import KINDS, PAGE_TOKENS, CacheKind
from exlchat.llm.info import ModelError

# A context of 128k tokens is no sensible default for the memory of most machines; --context asks for more.
_DEFAULT_CONTEXT = 32768
# A prompt and a short answer.
_SHORTEST_CONTEXT = 512
# The running conversation, and those before it.
_CONVERSATIONS = 3
# How much of what the weights leave may go to all of them, so that other programs find some too.
_SHARE = Fraction(3, 5)
_MOST_PAGES_BITS = 22  # 4 million pages, a thousand million tokens


@dataclass(frozen=True, slots=True)
class CacheWishes:
    """What the user asked for; `None` leaves it to `plan_cache`.

    Args:
        context: the longest prompt plus answer, in tokens.
        tokens: how many tokens of all conversations the cache holds.
        gigabytes: the same as memory, in GiB.
        conversations: as long as the context, how many of them run beside each other without either, as far as there
            is room.
    """

    context: int | None = None
    tokens: int | None = None
    gigabytes: float | None = None
    conversations: int | None = None


@dataclass(frozen=True, slots=True)
class CachePlan:
    """Tokens of the longest sequence, and of all."""

    context: int
    tokens: int


def plan_cache(
    name: str, spec: ModelSpec, kind: CacheKind, wishes: CacheWishes, room: Room | SharedRoom, *, at_once: bool = True
) -> CachePlan:
    """Context and cache for a model. What was not asked for is made to fit; what was asked for has to.

    Args:
        name: of the model, for errors.
        room: for weights and cache.
        at_once: all memory is taken at once, as on a GPU, so that it has to be there; else page by page, and there has
            to be room only for a cache that was asked for.

    Raises:
        ModelError: what was asked for does not fit the model, the memory or each other, or nothing of use fits.
    """
    sizes = _Sizes(spec, kind, room)
    context = _context(spec, wishes.context)
    budget = sizes.budget(wishes, context)
    if budget is None:
        if at_once:
            context = _fitting(name, sizes, context, asked=wishes.context is not None)
        spare = sizes.fitting(context, sizes.holds(_SHARE))
        return CachePlan(context, max(context, min(_usual(wishes, context), spare)))
    if budget < context:
        if wishes.context is not None or budget < min(_SHORTEST_CONTEXT, context):
            raise ModelError(
                f"{name}: a cache of {budget:,} tokens is too small for one conversation of "
                f"{max(wishes.context or 0, min(_SHORTEST_CONTEXT, context)):,}; give it more, or take a smaller "
                "--context"
            )
        context = budget
    # Where memory is taken page by page too: all that is asked for is to be used, and torch or the system would end it.
    if not sizes.holds()(context, budget):
        raise sizes.too_large(name, f"a cache of {budget:,} tokens", context, budget, option="--cache-tokens")
    return CachePlan(context, budget)


def longest_context(spec: ModelSpec, kind: CacheKind, room: int) -> int:
    """Tokens of the longest conversation whose cache takes no more than `room` bytes; 0 where none fits."""
    sizes = _Sizes(spec, kind, Room((room,)))
    return min(sizes.fitting(None, sizes.holds()), spec.longest_context)


def tokens_held(spec: ModelSpec, kind: CacheKind, context: int, room: int) -> int:
    """Tokens, in whole pages, of all conversations of such a length whose cache takes no more than `room` bytes."""
    sizes = _Sizes(spec, kind, Room((room,)))
    return sizes.fitting(context, sizes.holds())


def suffices(spec: ModelSpec, kind: CacheKind, wishes: CacheWishes, room: Room) -> bool:
    """Whether there is room for the context and the cache that are wished for, and not for a shorter one only.

    Raises:
        ModelError: the model has no such context.
    """
    sizes, context = _Sizes(spec, kind, room), _context(spec, wishes.context)
    return sizes.holds()(context, sizes.budget(wishes, context) or context)


def fewest(spec: ModelSpec, kind: CacheKind, wishes: CacheWishes, room: Room) -> Room:
    """The room of the first cards that suffice; all where none do. Raises as `suffices`."""
    some = (room.first(count) for count in range(1, len(room.cards)))
    return next((one for one in some if suffices(spec, kind, wishes, one)), room)


@dataclass(frozen=True, slots=True)
class _Sizes:
    spec: ModelSpec
    kind: CacheKind
    room: Room | SharedRoom

    def bytes(self, context: int, tokens: int) -> int:
        return sum(bytes_of_layers(self.spec, self.kind, CachePlan(context, tokens)))

    def holds(self, share: Fraction = Fraction(1)) -> Callable[[int, int], bool]:
        """Whether a cache takes no more than a share of the room."""

        def within(context: int, tokens: int) -> bool:
            layers = bytes_of_layers(self.spec, self.kind, CachePlan(context, tokens))
            return self.room.fits([size / share for size in layers])

        return within

    def fitting(self, context: int | None, holds: Callable[[int, int], bool]) -> int:
        """The most tokens in whole pages for which `holds` says so of context and tokens.

        Args:
            context: of one conversation; `None` for a single one that has them all.
        """
        fits = 0
        for step in (1 << bit for bit in reversed(range(_MOST_PAGES_BITS))):
            tokens = (fits + step) * PAGE_TOKENS
            if holds(tokens if context is None else min(context, tokens), tokens):
                fits += step
        return fits * PAGE_TOKENS

    def budget(self, wishes: CacheWishes, context: int) -> int | None:
        """Tokens of the cache that was asked for, in whole pages."""
        if wishes.tokens is not None:
            return pages_of(wishes.tokens) * PAGE_TOKENS
        if wishes.gigabytes is None:
            return None
        most = int(wishes.gigabytes * 2**30)
        return self.fitting(context, lambda context, tokens: self.bytes(context, tokens) <= most)

    def too_large(self, name: str, what: str, context: int, tokens: int, *, option: str) -> ModelError:
        needed, fits = self.bytes(context, tokens), self.fitting(None, self.holds())
        mends = [f"{option} {fits}"] if fits >= _SHORTEST_CONTEXT else []
        for smaller in KINDS.values():
            if not smaller.fits(self.spec.head_dim):
                continue
            sizes = _Sizes(self.spec, smaller, self.room)
            if sizes.bytes(context, tokens) < needed and sizes.holds()(context, tokens):
                mends.append(f"--kv-cache {smaller.name}")
                break
        free = self.room.spare
        return ModelError(
            f"{name}: {what} takes {needed / 2**30:.2f} GiB, and the weights leave {free / 2**30:.2f} GiB free: "
            f"{' or '.join(mends) or 'fewer bits or a smaller model'} would fit"
        )


def bytes_of_layers(spec: ModelSpec, kind: CacheKind, plan: CachePlan) -> list[int]:
    """What keys and values take in each layer."""
    pages = pages_of(max(plan.tokens, plan.context))
    slots = window_slots(spec, pages_of(plan.context), pages)
    page = PAGE_TOKENS * layer_bytes(spec, kind)
    return [page * (slots if window else pages) for window in spec.windows]


def _usual(wishes: CacheWishes, context: int) -> int:
    """Tokens of the cache where no size of it is wished for."""
    if wishes.conversations is None:
        return _CONVERSATIONS * context
    # Each that runs keeps a page back for its next token (`schedule/admission.py`).
    return wishes.conversations * (pages_of(context) + 1) * PAGE_TOKENS


def _context(spec: ModelSpec, wanted: int | None) -> int:
    if wanted is None:
        return min(spec.max_position_embeddings, _DEFAULT_CONTEXT)
    if not 1 <= wanted <= spec.longest_context:
        raise ModelError(f"a context of {wanted:,} tokens was asked for; this model has 1 to {spec.longest_context:,}")
    return wanted


def _fitting(name: str, sizes: _Sizes, context: int, *, asked: bool) -> int:
    """The context, shortened to what fits unless the user asked for one."""
    if sizes.holds()(context, context):
        return context
    fits = sizes.fitting(None, sizes.holds())
    if not asked and fits >= _SHORTEST_CONTEXT:
        return fits
    raise sizes.too_large(name, f"a context of {context:,} tokens", context, context, option="--context")
