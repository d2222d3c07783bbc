"""Text <-> ids, and what the tokenizer's files say about special tokens and stop ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from threading import Lock
from typing import Any

from exlchat.engine.text import tokenizer_process
from exlchat.engine.text.incremental_decoder import ByteFallback
from exlchat.engine.text.token_bytes import TokenBytes, read_fallback, token_bytes
from exlchat.engine.text.tokenizer_files import guarded, open_tokenizer
from exlchat.engine.text.tokenizer_growth import encoding_growth
from exlchat.engine.text.tokenizer_process import Trial
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.llm.info import LoadProgress, ModelError
from exlchat.llm.request import RequestError

_MIXED_UP = "tokenizer and weights are of different models; take its files from the original model"
_TAKE = "take the tokenizer's files from the original model"
# Of a text; the library takes a hundred bytes and more for each, and no prompt has as many. And as its model may be
# given them, where every character becomes as many as any can.
_MOST_CHARACTERS, _MOST_GROWN = 20_000_000, 100_000_000
# Embeddings are padded to round sizes, and small experiments have far more rows than tokens; but a tokenizer of under a
# quarter of the rows is another model's, as that of Llama 2 (32,000) beside the weights of Llama 3 (128,256).
_LEAST_SHARE = 0.25
_THINKING = frozenset(
    {
        *("<think>", "</think>", "[THINK]", "[/THINK]", "<seed:think>", "</seed:think>"),
        *("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|channel>", "<channel|>"),
    }
)
# Harmony says with these whether a message is thoughts or the answer; "<|end|>" ends what others call a turn.
_CHANNELS = frozenset({"<|start|>", "<|channel|>", "<|message|>", "<|end|>"})


def shown_tokens(special: Sequence[str]) -> frozenset[str]:
    """Those special tokens that are text all the same: without them nobody could tell thoughts from the answer."""
    return _THINKING.intersection(special) | (_CHANNELS if _CHANNELS.issubset(special) else frozenset())


class Tokenizer:
    """The tokenizer of a model directory. Safe to call from several threads.

    Args:
        checkpoint: where the tokenizer's files are: see `tokenizer_files`.
        vocab_size: rows of the embedding.
        bundled: whether the model is part of the program; what strangers made is tried first.
        trial: one that has begun, if any has.

    Raises:
        ModelError: a file is missing or broken, the tokenizer fails its trial, or the vocabulary does not fit the
            embedding. All methods that take texts or ids raise `RequestError`, in one line, where the library refuses.
    """

    def __init__(
        self, checkpoint: Checkpoint, vocab_size: int, *, bundled: bool = False, trial: Trial | None = None
    ) -> None:
        if not bundled:
            trial = trial or tokenizer_process.take(checkpoint.path)
            trial.require_opened()
        files = open_tokenizer(checkpoint)
        self._fast, self._file, self.named_tokens = files.fast, files.file, dict(files.named)
        self._most = min(_MOST_CHARACTERS, int(_MOST_GROWN / encoding_growth(self._fast)))
        self._lock = Lock()
        self._checkpoint = checkpoint
        added = self._fast.get_added_tokens_decoder()
        self.special_tokens = tuple(token.content for _, token in sorted(added.items()) if token.special)
        self.added_tokens = tuple(token.content for _, token in sorted(added.items()))
        shown = shown_tokens(self.special_tokens)
        self._shown = {index: token.content for index, token in added.items() if token.content in shown}
        self._silent = {index for index, token in added.items() if token.special} - self._shown.keys()
        self._spelled: tuple[bytes, ...] | None = None
        byte_ids = read_fallback(self._fast)
        self.fallback = ByteFallback(byte_ids, self._is_silent) if byte_ids else None
        self._check_fits(vocab_size)
        if trial is not None:
            trial.require()

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of `text`, no BOS added. `special`: whether the text of a special token becomes that token."""
        if len(text) > self._most:
            raise RequestError(f"a text of {len(text):,} characters; {self._file} takes {self._most:,} at once")
        try:
            # The library only says that it is no text.
            text.encode()
        except UnicodeEncodeError as error:
            half = f"U+{ord(text[error.start]):04X}, character {error.start:,} of {len(text):,}"
            raise RequestError(
                f"{self._file}: cannot encode half a character ({half}); take it out of the message or the template"
            ) from None

        def encode() -> list[int]:
            self._fast.encode_special_tokens = not special
            return list(self._fast.encode(text, add_special_tokens=False).ids)

        with self._lock:
            return guarded(encode, lambda reason: self._refused("encode this text", reason))

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Text of `ids`; no whole character becomes U+FFFD.

        `special`: with that of all special tokens; else of marks of thinking alone.
        """
        if special:
            return self._decoded(ids, skip_special_tokens=False)
        if self._shown.keys().isdisjoint(ids):
            return self._decoded(ids)
        pieces: list[str] = []
        for mark, run in groupby(ids, key=self._shown.get):
            same = list(run)
            pieces.append(self._decoded(same) if mark is None else mark * len(same))
        return "".join(pieces)

    def texts(self, count: int) -> list[str]:
        """The text of each of the first `count` ids within a text; "" of special tokens and of ids that are none.

        Of an id that is half a character that is U+FFFD. A vocabulary of 128,000 takes a quarter of a second.
        """
        # Tokenizers treat the beginning of a text in their own way, so each is decoded behind another one.
        anchor = next(iter(self.encode("x", special=False)), 0)
        alone = self._decoded([anchor])
        pairs = [[anchor, index] for index in range(count)]
        both = guarded(
            lambda: self._fast.decode_batch(pairs, skip_special_tokens=True),
            lambda reason: self._refused("spell its tokens", reason),
        )
        return [str(text).removeprefix(alone) if str(text).startswith(alone) else str(text) for text in both]

    def id_of(self, token: str) -> int | None:
        return guarded(lambda: self._fast.token_to_id(token), lambda reason: self._refused("look up a token", reason))

    def token_bytes(self, size: int) -> TokenBytes:
        """What each id below `size` is as text. Takes 0.2 s for 128,000; raises as `token_bytes.token_bytes` does."""
        with self._lock:
            return token_bytes(self._fast, size)

    def spell(self, ids: Sequence[int]) -> list[bytes]:
        """What each id adds to a text; of an added token that is a control token its name."""
        spelled = self._spelled
        if spelled is None:
            spelled = self._spelled = self._spell_all()
        return [spelled[index] if 0 <= index < len(spelled) else b"" for index in ids]

    def _spell_all(self) -> tuple[bytes, ...]:
        size = 1 + max(self._fast.get_vocab(with_added_tokens=True).values(), default=-1)
        try:
            found = list(self.token_bytes(size).tokens)
        except ModelError:
            # Of a kind whose tokens have no bytes of their own, as WordPiece: what each is within a text.
            found = [text.encode() for text in self.texts(size)]
        for index, token in self._fast.get_added_tokens_decoder().items():
            if token.special:
                found[index] = token.content.encode()
        return tuple(found)

    def unlike(self, other: Tokenizer) -> str | None:
        """How another vocabulary differs, in a few words; `None` where every token has the same id."""
        mine, its = self._fast.get_vocab(with_added_tokens=True), other._fast.get_vocab(with_added_tokens=True)
        if mine == its:
            return None
        for token, index in sorted(mine.items(), key=lambda item: item[1]):
            if its.get(token) != index:
                found = "does not have it" if token not in its else f"has it as {its[token]}"
                return f"token {index} is {token[:40]!r} here, and it {found}"
        return f"it has {len(its) - len(mine):,} tokens more"

    def stop_ids(self, config: dict[str, Any], vocab_size: int) -> tuple[int, ...]:
        """Ids that end an answer: the union of `generation_config.json`, `config.json` and the tokenizer's EOS."""
        found: set[int] = set()
        generation = self._checkpoint.read_json("generation_config.json")
        for name, source in (("generation_config.json", generation), ("config.json", config)):
            value = source.get("eos_token_id")
            for item in value if isinstance(value, list) else [value]:
                if item is None:
                    continue
                if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < vocab_size:
                    where = self._checkpoint.path / name
                    raise ModelError(f"{where}: eos_token_id is {value!r}; it must hold ids below {vocab_size}")
                found.add(item)
        eos = self.id_of(self.named_tokens.get("eos_token", ""))
        if eos is not None:
            found.add(eos)
        return tuple(sorted(found))

    def _decoded(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return guarded(
            lambda: str(self._fast.decode(list(ids), skip_special_tokens=skip_special_tokens)),
            lambda reason: self._refused("decode these ids", reason),
        )

    def _refused(self, what: str, reason: str) -> RequestError:
        return RequestError(f"{self._file}: cannot {what} ({reason}); {_TAKE}")

    def _is_silent(self, token_id: int) -> bool:
        return token_id in self._silent or self._fast.id_to_token(token_id) is None

    def _check_fits(self, vocab_size: int) -> None:
        """Only special added tokens may lie past the embedding: real models carry such pads, and nobody types them."""
        special = set(self.special_tokens)
        vocabulary = self._fast.get_vocab(with_added_tokens=True)
        outside = [token for token, index in vocabulary.items() if index >= vocab_size and token not in special]
        if outside:
            raise ModelError(
                f"{self._file}: has {len(outside)} tokens past the model's {vocab_size} embeddings; {_MIXED_UP}"
            )
        if len(vocabulary) < _LEAST_SHARE * vocab_size:
            raise ModelError(
                f"{self._file}: has {len(vocabulary)} tokens for the model's {vocab_size} embeddings; {_MIXED_UP}"
            )


class TokenizerToCome:
    """A tokenizer that is opened as soon as its trial allows it, while weights are read.

    Args:
        checkpoint, vocab_size, bundled: as of `Tokenizer`.
    """

    def __init__(self, checkpoint: Checkpoint, vocab_size: int, *, bundled: bool) -> None:
        self._checkpoint, self._vocab_size = checkpoint, vocab_size
        self._trial = None if bundled else tokenizer_process.take(checkpoint.path)
        self._opened: Tokenizer | None = None

    def look(self) -> None:
        """Opens it if nothing has to be waited for. Raises as `Tokenizer` does."""
        if self._trial is None or self._trial.opened:
            self.get()

    def beside(self, on_progress: Callable[[LoadProgress], None] | None) -> Callable[[LoadProgress], None]:
        """What to call with the progress of loading, so that it is opened between two steps of it."""

        def report(progress: LoadProgress) -> None:
            self.look()
            if on_progress is not None:
                on_progress(progress)

        return report

    def get(self) -> Tokenizer:
        """The tokenizer, waited for. Raises as `Tokenizer` does."""
        if self._opened is None:
            self._opened = Tokenizer(self._checkpoint, self._vocab_size, bundled=self._trial is None, trial=self._trial)
        return self._opened
