"""Which tokens may come next in an answer that has to match something."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from exlchat.engine.grammar.lark import terminals
from exlchat.engine.grammar.source import source_of
from exlchat.engine.grammar.vocabulary import GrammarVocabulary, single_bytes
from exlchat.llm.constraint import Constraint, ConstraintError
from exlchat.llm.request import GenerationRequest

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


_LONGEST_ERROR = 200
# Seconds. A schema of some pages takes a few milliseconds; a multiple of 999,983 takes ten seconds and a gigabyte.
_PATIENCE = 2.0
_Words = NDArray[np.uint32]


class GrammarMatcher:
    """One answer on its way through a constraint. Not safe to use from two threads at once.

    On one core a mask takes 0.1 ms in the median, of 4,096 tokens as of 128,000 (JSON and choices; one in ten 0.3 ms,
    the first ones of a text up to 5 ms), and 6 ms of 128,000 with a regex as `(\\w+ ){3,30}`; `accept` takes 0.02 ms.
    The library lets go of Python's lock meanwhile: a thread beside it counts on at full speed, so that a mask can be
    computed while another thread waits for a GPU.

    Args:
        constraint: what the answer as a whole has to match.
        vocabulary: of the model.
        stop_ids: tokens that end the answer: allowed exactly when it may end, whatever text they are. Other special
            tokens are never allowed, nor are ids that the tokenizer does not have.
        at_start: the answer's text begins here, where some tokenizers swallow a space; false where it goes on behind
            other text.

    Raises:
        ConstraintError: no answer can be held to it; see `check_constraint`.
        ModelError: the model's tokenizer has no bytes for its tokens.
    """

    def __init__(
        self,
        constraint: Constraint,
        vocabulary: GrammarVocabulary,
        stop_ids: Collection[int],
        *,
        at_start: bool = True,
    ) -> None:
        source = source_of(constraint)
        self._kind = constraint.kind
        self._size = vocabulary.size
        self._vocabulary = vocabulary
        self._stops = frozenset(stop_ids)
        self._plain = open_matcher(vocabulary.library, source.plain, constraint)
        self._behind_space: LLMatcher | None = None
        # The first token decides: where its space is not shown the rest of the text follows the grammar that has one.
        self._first_decides = at_start and vocabulary.swallowed != "nothing"
        if self._first_decides and source.behind_a_space is not None:
            self._behind_space = open_matcher(vocabulary.library, source.behind_a_space, constraint)
        self._running = self._plain
        # Of each accepted token whether the library has it; it does not get the stop token.
        self._accepted: list[bool] = []
        self._words: _Words | None = None

    @property
    def finished(self) -> bool:
        return self._ended or (self._running.is_stopped() and self._may_end)

    def allowed(self) -> Tensor:
        """bool `[vocab]` on the CPU, in memory of its own.

        Raises:
            ConstraintError: no token is allowed, because the vocabulary lacks a character; or it has become too much.
        """
        bits = np.unpackbits(self._mask().view(np.uint8), bitorder="little")[: self._size]
        return torch.from_numpy(bits.view(np.bool_))

    def words(self) -> Tensor:
        """uint32 `[ceil(vocab / 32)]` on the CPU, in memory of its own: token `i` is bit `i % 32` of word `i // 32`.

        Raises as `allowed` does.
        """
        return torch.from_numpy(self._mask().copy())

    def accept(self, token: int) -> None:
        """Goes on behind a token.

        Raises:
            ConstraintError: it is not allowed here; nothing has changed.
        """
        if token in self._stops:
            taken = self._may_end
        else:
            taken = not self._ended and 0 <= token < self._size and self._take(token)
        if not taken:
            raise ConstraintError(f"token {token} is not allowed by the {_KINDS[self._kind]} here")
        self._accepted.append(token not in self._stops)
        self._words = None

    def back(self, count: int) -> None:
        """Takes the last `count` tokens back.

        Raises:
            ValueError: so many have not been accepted.
            ConstraintError: the library cannot.
        """
        if not 0 <= count <= len(self._accepted):
            raise ValueError(f"{count} tokens cannot be taken back of {len(self._accepted)}")
        if count == 0:
            return
        known = sum(self._accepted[-count:])
        if known and not self._running.rollback(known):
            raise self._broken()
        del self._accepted[-count:]
        if not self._accepted:
            self._running = self._plain
        self._words = None

    @property
    def _ended(self) -> bool:
        return bool(self._accepted) and not self._accepted[-1]

    @property
    def _may_end(self) -> bool:
        return self._ended or self._running.is_accepting()

    def _take(self, token: int) -> bool:
        matcher = self._running
        if self._first_decides and not self._accepted and self._vocabulary.spaced[token]:
            if self._behind_space is None or self._bars_wide(token):
                return False
            matcher = self._behind_space
        taken = matcher.try_consume_tokens([token]) == 1
        if matcher.is_error():
            self._running = matcher
            raise self._broken()
        if taken:
            self._running = matcher
        return taken

    def _bars_wide(self, token: int) -> bool:
        # Of such a token all spaces are lost, of which the grammar knows one.
        return self._vocabulary.swallowed == "all spaces" and bool(self._vocabulary.widely_spaced[token])

    def _mask(self) -> _Words:
        if self._words is None:
            self._words = self._compute()
        return self._words

    def _compute(self) -> _Words:
        words = self._library_mask(self._running)
        if self._first_decides and not self._accepted:
            self._merge_first(words)
        if self._ended:
            words[:] = 0
        may_end = self._may_end
        for token in self._stops:
            if 0 <= token < self._size:
                bit = np.uint32(1 << (token % 32))
                words[token // 32] = words[token // 32] | bit if may_end else words[token // 32] & ~bit
        if not may_end and not words.any():
            raise ConstraintError(
                f"no token of the model goes on with the {_KINDS[self._kind]}: it contradicts itself, or asks for a "
                "character that the model lacks"
            )
        return words

    def _library_mask(self, matcher: LLMatcher) -> _Words:
        """uint32 `[ceil(vocab / 32)]`; the bit of the end, and those behind it, are cleared."""
        words = np.zeros((self._size + 1 + 31) // 32, dtype=np.uint32)
        if not matcher.is_error():
            matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if matcher.is_error():
            # With nothing that could come next the library calls the mask an error, too.
            if not _at_dead_end(matcher):
                self._running = matcher
                raise self._broken()
            words[:] = 0
        words[self._size // 32] &= np.uint32((1 << (self._size % 32)) - 1)
        return words[: (self._size + 31) // 32]

    def _merge_first(self, words: _Words) -> None:
        spaced = _packed(self._vocabulary.spaced)
        words &= ~spaced
        if self._behind_space is not None:
            other = self._library_mask(self._behind_space) & spaced
            if self._vocabulary.swallowed == "all spaces":
                other &= ~_packed(self._vocabulary.widely_spaced)
            words |= other

    def _broken(self) -> ConstraintError:
        reason = _clean(self._running.get_error())
        return ConstraintError(
            f"the {_KINDS[self._kind]} became too much for the grammar library ({reason}); make it simpler"
        )


_KINDS = {"json_schema": "JSON schema", "regex": "regex", "choice": "choice", "grammar": "grammar"}


def check_constraint(constraint: Constraint, vocabulary: GrammarVocabulary | None = None) -> None:
    """Says at once what would else be found in the middle of an answer.

    Args:
        constraint: what an answer is to match.
        vocabulary: of the model; without one the text alone is looked at.

    Raises:
        ConstraintError: in one line: it is no JSON, no schema, no regex, no grammar (with the line); it uses something
            that is not supported; nothing matches it, or only the empty text; it never ends; its characters are none of
            the model's; or it takes more than two seconds to prepare.
        ModelError: the model's tokenizer has no bytes for its tokens.
    """
    failed: list[BaseException] = []

    def run() -> None:
        try:
            _check(constraint, vocabulary)
        except BaseException as error:  # The library turns a Rust panic into one that is no Exception.
            failed.append(error)

    # The library cannot be interrupted. What takes longer ends by itself, at its own limits.
    worker = Thread(target=run, name="constraint", daemon=True)
    worker.start()
    worker.join(_PATIENCE)
    if worker.is_alive():
        raise ConstraintError(
            f"the {_KINDS[constraint.kind]} takes more than {_PATIENCE:.0f} seconds to prepare; make it simpler"
        )
    if failed:
        raise failed[0]


def _check(constraint: Constraint, vocabulary: GrammarVocabulary | None) -> None:
    kind = _KINDS[constraint.kind]
    library = single_bytes()
    matcher = open_matcher(library, source_of(constraint).plain, constraint)
    begins = _begins(matcher, library)
    if not begins:
        if matcher.is_accepting():
            raise ConstraintError(f"only the empty text matches the {kind}")
        raise ConstraintError(f"nothing matches the {kind}")
    if constraint.kind == "grammar":
        _check_terminals(constraint)
    if vocabulary is not None:
        # Not as the start of a text, where a lone space that is not shown seems to be a beginning of anything.
        GrammarMatcher(constraint, vocabulary, (), at_start=False).allowed()


def _check_terminals(constraint: Constraint) -> None:
    """The library takes one that nothing matches, as "x" & "y", and an answer would find out in the middle."""
    library = single_bytes()
    for name, line, source in terminals(constraint.text):
        matcher = open_matcher(library, source, constraint)
        if not _begins(matcher, library) and not matcher.is_accepting():
            raise ConstraintError(f"the grammar, line {line}: nothing matches {name[:40]}")


def _begins(matcher: LLMatcher, library: LLTokenizer) -> bool:
    """Whether a text that matches can have a first byte."""
    mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
    return bool(np.unpackbits(mask, bitorder="little")[: library.vocab_size - 1].any())


def open_matcher(library: LLTokenizer, source: str, constraint: Constraint) -> LLMatcher:
    """The library's matcher of a grammar. Raises `ConstraintError` with what the library says, in one line."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(verbose_errors=False)
    matcher = LLMatcher(library, LLMatcher.grammar_from_lark(source), log_level=0, limits=limits)
    if matcher.is_error() and not _at_dead_end(matcher):
        raise ConstraintError(_explain(constraint, matcher.get_error()))
    return matcher


def _at_dead_end(matcher: LLMatcher) -> bool:
    return any(text.startswith("NoExtension") for text in (matcher.stop_reason(), matcher.get_error()))


def _explain(constraint: Constraint, error: str) -> str:
    kind = _KINDS[constraint.kind]
    found = re.match(r"(?:at )?(\d+)\((\d+)\): ", error)
    text = error[found.end() :] if found else error
    text = text.removeprefix("failed to compile JSON schema: ")
    where = f", line {found[1]}" if found and constraint.kind == "grammar" else ""
    for pattern, explanation in _KNOWN:
        known = re.search(pattern, text, re.DOTALL)
        if known:
            return _clean(f"the {kind}{where}: {known.expand(explanation)}")
    return _clean(f"the {kind}{where}: {text.splitlines()[0] if text.strip() else 'cannot be used'}")


# What the library says, and what exlchat does.
_KNOWN = (
    (r"^panic", "breaks the grammar library; write it in another way"),
    (r"too big \(limit|too large|too many|[Ff]uel", "is too large; make it smaller"),
    (r"too deeply nested|nest limit|recursion limit", "is nested too deep"),
    (r"Unsatisfiable schema: Regex is empty", "no string matches all that is asked of it"),
    (r"Unsatisfiable schema: ([^\n]*)", r"nothing matches it (\1)"),
    (r"Unimplemented keys: \[([^\n]*)\]", r"\1 is not supported; leave it out"),
    (r"Invalid type: ([^\n]*)", r"\1 is no type of JSON"),
    (r"Unable to determine if regex is empty", "a pattern with a length or a format is too much; write it shorter"),
    (
        r"circular references with sibling",
        "a $ref that comes back to itself has something beside it; move that",
    ),
    (r"lookarounds not supported", "look-around, \\\\b, and ^ or $ in the middle are not supported"),
    (r"regex parse error:.*error: ([^\n]*)", r"not a regex (\1)"),
)


def _clean(text: str) -> str:
    line = "".join(character if character.isprintable() else " " for character in text)
    line = " ".join(line.split())
    return line if len(line) <= _LONGEST_ERROR else line[: _LONGEST_ERROR - 3] + "..."


def _packed(bits: NDArray[np.bool_]) -> _Words:
    packed = np.packbits(bits, bitorder="little")
    return np.frombuffer(packed.tobytes().ljust((len(bits) + 31) // 32 * 4, b"\0"), dtype=np.uint32)


def begun_matcher(
    request: GenerationRequest,
    vocabulary: GrammarVocabulary,
    stop_ids: Collection[int],
    decode: Callable[[Sequence[int]], str],
    *,
    healed: bool,
) -> GrammarMatcher:
    """Of a request with a constraint: behind what its answer has said already, thoughts left out.

    `healed`: the last token of that is taken back, for one that begins with its text.

    Raises:
        ConstraintError: no answer can be held to it, or what was said does not match.
    """
    assert request.constraint is not None
    begun = list(request.prompt_ids[len(request.prompt_ids) - request.begun :])
    # What holds behind a mark alone says nothing of what was said before.
    spoken = [] if request.constraint_from else begun[_thoughts(request, begun, decode) :]
    at_start = not request.thoughts and not request.constraint_from and len(spoken) == len(begun)
    matcher = GrammarMatcher(request.constraint, vocabulary, stop_ids, at_start=at_start)
    for token in spoken:
        try:
            matcher.accept(token)
        except ConstraintError:
            raise ConstraintError(
                "the answer so far does not match what it has to be; have it given again, or leave the constraint out"
            ) from None
    if healed and spoken:
        matcher.back(1)
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
