"""Which tokens may come next in one answer, beside what the sampler makes of it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import torch
from torch import Tensor


class Grammar(Protocol):
    """Where an answer stands in what it has to be; see `grammar.GrammarMatcher`."""

    @property
    def finished(self) -> bool:
        """Whether nothing can follow but the end."""

    def allowed(self) -> Tensor:
        """bool `[vocab]` on the CPU: what may come next; stop tokens where it may end."""

    def words(self) -> Tensor:
        """The same as bits: uint32 `[ceil(vocab / 32)]`."""

    def accept(self, token: int) -> None:
        """The next token, one of those that may come."""

    def back(self, count: int) -> None: ...


class TokenRules:
    """Of one answer.

    Args:
        stop_ids: tokens that end it.
        least: before so many tokens none of them comes.
        grammar: what the answer has to be.
        first: bool `[vocab]`, on the CPU, which tokens it may begin with; `None` where all may.
    """

    def __init__(
        self, *, stop_ids: Collection[int], least: int, grammar: Grammar | None = None, first: Tensor | None = None
    ) -> None:
        self._stop_ids = frozenset(stop_ids)
        self._least = least
        self._grammar = grammar
        self._first = first
        self._count = 0
        self._matched: list[int] = []
        self._barred: dict[int, set[int]] = {}
        self.grammar_holds = grammar is not None
        """Whether the grammar's part has begun."""

    @property
    def finished(self) -> bool:
        return self._grammar is not None and self.grammar_holds and self._grammar.finished

    @property
    def hold(self) -> bool:
        """Whether the next token depends on the ones before it, by a grammar."""
        return self._grammar is not None and self.grammar_holds

    @property
    def mask(self) -> Tensor | None:
        """What the grammar allows, as bits: int32 `[ceil(vocab / 32)]` on the CPU; `None` where none holds."""
        return self._grammar.words().view(torch.int32) if self._grammar is not None and self.hold else None

    @property
    def barred(self) -> frozenset[int]:
        stops = self._stop_ids if self._count < self._least else frozenset()
        return stops | self._barred.get(self._count, set())

    @property
    def allowed(self) -> Tensor | None:
        """bool `[vocab]` on the CPU, the only ones that may come next; `None` where all may."""
        first = self._first if self._count == 0 else None
        if self._grammar is None or not self.grammar_holds:
            return first
        # What was said keeps to the grammar, so the two have a token in common: the one that was taken back.
        return self._grammar.allowed() if first is None else self._grammar.allowed() & first

    def bar(self, token: int) -> None:
        """It may not come next, as long as the tokens before stay the same."""
        self._barred.setdefault(self._count, set()).add(token)

    def accept(self, token: int) -> None:
        """The next token of the answer."""
        if self._grammar is not None and self.grammar_holds:
            self._grammar.accept(token)
            self._matched.append(self._count)
        self._count += 1

    def back(self, count: int) -> None:
        """Forget the last tokens, and what was barred behind them."""
        self._count -= count
        gone = sum(place >= self._count for place in self._matched)
        if self._grammar is not None and gone:
            self._grammar.back(gone)
            del self._matched[-gone:]
        self._barred = {place: tokens for place, tokens in self._barred.items() if place <= self._count}
