"""A matcher that stands where an answer goes on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from exlchat.engine.grammar.matcher import GrammarMatcher
from exlchat.engine.grammar.vocabulary import GrammarVocabulary
from exlchat.llm.constraint import ConstraintError
from exlchat.llm.request import GenerationRequest


def begun_matcher(
    request: GenerationRequest,
    vocabulary: GrammarVocabulary,
    stop_ids: Collection[int],
    decode: Callable[[Sequence[int]], str],
) -> GrammarMatcher:
    """Of a request with a constraint: behind what its answer has said already, thoughts left out.

    Raises:
        ConstraintError: no answer can be held to it, or what was said does not match.
    """
    assert request.constraint is not None
    begun = list(request.prompt_ids[len(request.prompt_ids) - request.begun :])
    if request.heal:
        begun = begun[:-1]
    spoken = begun[_thoughts(request, begun, decode) :]
    at_start = not request.thoughts and len(spoken) == len(begun)
    matcher = GrammarMatcher(request.constraint, vocabulary, stop_ids, at_start=at_start)
    for token in spoken:
        try:
            matcher.accept(token)
        except ConstraintError:
            raise ConstraintError(
                "the answer so far does not match what it has to be; have it given again, or leave the constraint out"
            ) from None
    return matcher


def _thoughts(request: GenerationRequest, begun: list[int], decode: Callable[[Sequence[int]], str]) -> int:
    """How many tokens of what was said are thoughts and their marks."""
    limit = request.thoughts
    if limit is None or not begun:
        return 0
    text = decode(begun)
    # Where the prompt has opened them, nothing but their end is in the answer.
    if not (limit.opened or text.lstrip().startswith(limit.marks.opening) or limit.marks.closing in text):
        return 0
    ends = (count for count in range(1, len(begun) + 1) if limit.marks.closing in decode(begun[:count]))
    return next(ends, len(begun))
