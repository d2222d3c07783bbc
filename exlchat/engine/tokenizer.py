"""Text <-> ids, and what the tokenizer's files say about special tokens and stop ids."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from threading import Lock
from typing import Any

from exlchat.engine.checkpoint import Checkpoint
from exlchat.engine.events import ModelError
from exlchat.engine.token_bytes import TokenBytes, token_bytes
from exlchat.engine.tokenizer_files import open_tokenizer

_MIXED_UP = "tokenizer and weights are of different models; take its files from the original model"
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

    Raises:
        ModelError: a file is missing or broken, or the vocabulary does not fit the embedding.
    """

    def __init__(self, checkpoint: Checkpoint, vocab_size: int) -> None:
        files = open_tokenizer(checkpoint)
        self._fast, self._file, self.named_tokens = files.fast, files.file, dict(files.named)
        self._lock = Lock()
        self._checkpoint = checkpoint
        added = [token for _, token in sorted(self._fast.get_added_tokens_decoder().items())]
        self.special_tokens = tuple(token.content for token in added if token.special)
        self.added_tokens = tuple(token.content for token in added)
        shown = shown_tokens(self.special_tokens)
        self._shown = {index: token for token in shown if (index := self._fast.token_to_id(token)) is not None}
        self._check_fits(vocab_size)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of `text`, no BOS added. `special`: whether the text of a special token becomes that token."""
        with self._lock:
            self._fast.encode_special_tokens = not special
            return list(self._fast.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens, but for marks of thinking; no whole character becomes U+FFFD."""
        if self._shown.keys().isdisjoint(ids):
            return str(self._fast.decode(list(ids), skip_special_tokens=True))
        pieces: list[str] = []
        for mark, run in groupby(ids, key=self._shown.get):
            same = list(run)
            pieces.append(self._fast.decode(same, skip_special_tokens=True) if mark is None else mark * len(same))
        return "".join(pieces)

    def spell(self, ids: Sequence[int]) -> str:
        """Text of `ids` with all special tokens."""
        return str(self._fast.decode(list(ids), skip_special_tokens=False))

    def texts(self, count: int) -> list[str]:
        """The text of each of the first `count` ids within a text; "" of special tokens and of ids that are none.

        Of an id that is half a character that is U+FFFD. A vocabulary of 128,000 takes a quarter of a second.
        """
        # Tokenizers treat the beginning of a text in their own way, so each is decoded behind another one.
        anchor = next(iter(self.encode("x", special=False)), 0)
        alone = str(self._fast.decode([anchor], skip_special_tokens=True))
        both = self._fast.decode_batch([[anchor, index] for index in range(count)], skip_special_tokens=True)
        return [str(text).removeprefix(alone) if str(text).startswith(alone) else str(text) for text in both]

    def id_of(self, token: str) -> int | None:
        """The id of one token's exact text."""
        found = self._fast.token_to_id(token)
        return None if found is None else int(found)

    def token_bytes(self, size: int) -> TokenBytes:
        """What each id below `size` is as text. Takes 0.2 s for 128,000; raises as `token_bytes.token_bytes` does."""
        with self._lock:
            return token_bytes(self._fast, size)

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
