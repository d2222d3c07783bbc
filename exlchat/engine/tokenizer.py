"""Text <-> ids, and what the tokenizer's files say about special tokens, stop ids and the chat template."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from exlchat.engine.checkpoint import Checkpoint
from exlchat.engine.events import ModelError

_MIXED_UP = "tokenizer and weights are of different models; take tokenizer.json from the original model"
# Embeddings are padded to round sizes, and small experiments have far more rows than tokens; but a tokenizer of under a
# quarter of the rows is another model's, as that of Llama 2 (32,000) beside the weights of Llama 3 (128,256).
_LEAST_SHARE = 0.25


class Tokenizer:
    """The tokenizer of a model directory. Safe to call from several threads.

    Args:
        checkpoint: where `tokenizer.json` and its companions are.
        vocab_size: rows of the embedding.

    Raises:
        ModelError: a file is missing or broken, or the vocabulary does not fit the embedding.
    """

    def __init__(self, checkpoint: Checkpoint, vocab_size: int) -> None:
        self._fast = _read(checkpoint)
        self._lock = Lock()
        self._checkpoint = checkpoint
        self._config = checkpoint.read_json("tokenizer_config.json")
        added = self._fast.get_added_tokens_decoder()
        self.special_tokens = tuple(token.content for token in added.values() if token.special)
        self._check_fits(vocab_size)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of `text`, no BOS added. `special`: whether the text of a special token becomes that token."""
        with self._lock:
            self._fast.encode_special_tokens = not special
            return list(self._fast.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens; what is no whole character becomes U+FFFD."""
        return str(self._fast.decode(list(ids), skip_special_tokens=True))

    def token_text(self, key: str) -> str:
        """`bos_token` or `eos_token` as `tokenizer_config.json` names it; empty if it names none."""
        value = self._config.get(key)
        if isinstance(value, dict):
            value = value.get("content")
        return value if isinstance(value, str) else ""

    def id_of(self, token: str) -> int | None:
        """The id of one token's exact text."""
        found = self._fast.token_to_id(token)
        return None if found is None else int(found)

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
        eos = self.id_of(self.token_text("eos_token"))
        if eos is not None:
            found.add(eos)
        return tuple(sorted(found))

    def chat_template(self) -> str | None:
        """Jinja source of the model's own template: its own file first, then `tokenizer_config.json`."""
        own_file = self._checkpoint.read_text("chat_template.jinja")
        if own_file is not None:
            return own_file
        value = self._checkpoint.read_json("chat_template.json").get("chat_template", self._config.get("chat_template"))
        if isinstance(value, list):
            named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
            value = named.get("default")
        if value is not None and not isinstance(value, str):
            where = self._checkpoint.path / "tokenizer_config.json"
            raise ModelError(f"{where}: chat_template is no text; mend it or choose another with --template")
        return value

    def _check_fits(self, vocab_size: int) -> None:
        """Only special added tokens may lie past the embedding: real models carry such pads, and nobody types them."""
        special = set(self.special_tokens)
        vocabulary = self._fast.get_vocab(with_added_tokens=True)
        outside = [token for token, index in vocabulary.items() if index >= vocab_size and token not in special]
        if outside:
            raise ModelError(
                f"{self._checkpoint.path / 'tokenizer.json'}: has {len(outside)} tokens past the model's "
                f"{vocab_size} embeddings; {_MIXED_UP}"
            )
        if len(vocabulary) < _LEAST_SHARE * vocab_size:
            raise ModelError(
                f"{self._checkpoint.path / 'tokenizer.json'}: has {len(vocabulary)} tokens for the model's "
                f"{vocab_size} embeddings; {_MIXED_UP}"
            )


def _read(checkpoint: Checkpoint) -> FastTokenizer:
    file = checkpoint.path / "tokenizer.json"
    if not file.is_file():
        hint = "; a SentencePiece tokenizer.model alone is not read" if file.with_suffix(".model").is_file() else ""
        raise ModelError(f"{file.parent}: tokenizer.json is missing{hint}; take it from the original model")
    try:
        # The library raises plain Exception for a file that it cannot parse, and for some BaseException: a Rust panic.
        fast = FastTokenizer.from_file(str(file))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"{file}: not a tokenizer ({reason}); download the model again") from error
    fast.no_truncation()
    fast.no_padding()
    return fast
