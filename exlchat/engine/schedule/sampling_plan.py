"""By what the tokens of an answer are chosen, made of a request."""

from __future__ import annotations

import dataclasses
import secrets
from dataclasses import dataclass
from functools import cached_property

from exlchat.engine.grammar import GrammarVocabulary, check_constraint
from exlchat.engine.grammar.matcher import begun_matcher
from exlchat.engine.sampling import Sampler, check_sampling
from exlchat.engine.schedule.healing import Healing, healing_of
from exlchat.engine.schedule.token_rules import TokenRules
from exlchat.engine.text.tokenizer import Tokenizer
from exlchat.engine.text.vocabulary import Vocabulary
from exlchat.llm.constraint import Constraint
from exlchat.llm.request import GenerationRequest, RequestError
from exlchat.llm.sampling import SamplingSettings


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """Of one answer.

    Args:
        seed: the request's, or a fresh one.
    """

    rules: TokenRules
    healing: Healing | None
    sampler: Sampler
    seed: int


class SamplingPlans:
    """Of one model.

    Args:
        tokenizer, vocab_size: of the model.
        stop_ids: its own.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, stop_ids: tuple[int, ...]) -> None:
        self.vocabulary = Vocabulary(tokenizer, vocab_size)
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._stop_ids = frozenset(stop_ids)

    def check(self, sampling: SamplingSettings, constraint: Constraint | None) -> None:
        """Whether answers can be drawn so and be so. Raises `RequestError` in one line; from any thread."""
        try:
            check_sampling(sampling, self.vocabulary.of_samplers)
            if constraint is not None:
                check_constraint(constraint, self._grammars)
        except ValueError as error:
            raise RequestError(str(error)) from None

    def of(self, request: GenerationRequest, seed: int | None) -> SamplingPlan:
        """Of one answer to a request. Raises `RequestError` where it asks for what cannot be."""
        rules, healing = self._rules(request)
        seed = secrets.randbits(63) if seed is None else seed
        try:
            sampler = Sampler(request.sampling, seed, self.vocabulary.for_settings(request.sampling))
        except ValueError as error:
            raise RequestError(str(error)) from None
        return SamplingPlan(rules, healing, sampler, seed)

    def stop_ids(self, request: GenerationRequest) -> frozenset[int]:
        """All that end its answer. A tokenizer may know tokens that the model has no embedding for: they never come."""
        asked = {stop for stop in request.stop if isinstance(stop, int)}
        return frozenset(stop for stop in self._stop_ids | asked if 0 <= stop < self._vocab_size)

    def _rules(self, request: GenerationRequest) -> tuple[TokenRules, Healing | None]:
        """What holds for the next token, and how the end of the prompt is healed. Raises `RequestError`."""
        stops, healing, grammar = self.stop_ids(request), None, None
        if request.heal and request.begun and len(request.prompt_ids) > 1:
            begun = request.prompt_ids[len(request.prompt_ids) - request.begun :]
            healing = healing_of(begun, self.vocabulary.texts, self._tokenizer.decode, stops)
        if request.constraint is not None:
            try:
                grammar = begun_matcher(
                    request, self._grammars, stops, self._tokenizer.decode, healed=healing is not None
                )
            except ValueError as error:
                raise RequestError(str(error)) from None
        first = None if healing is None else healing.allowed
        return TokenRules(stop_ids=stops, least=request.min_new_tokens, grammar=grammar, first=first), healing

    @cached_property
    def _grammars(self) -> GrammarVocabulary:
        return GrammarVocabulary(self._tokenizer, self._vocab_size)


def healed_request(request: GenerationRequest) -> GenerationRequest:
    """Without the token at the end of its prompt that is drawn anew."""
    prompt, begun = request.prompt_ids[:-1], request.begun - 1
    # The other prompt ends with what was said as well, or it stands for something else.
    other = request.guidance_ids[:-1] if request.guidance_ids[-1:] == request.prompt_ids[-1:] else None
    guidance = request.guidance_ids if other is None else other
    return dataclasses.replace(request, prompt_ids=prompt, begun=begun, guidance_ids=guidance)
