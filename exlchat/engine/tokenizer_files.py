"""Which of a model directory's files hold its tokenizer, and opening them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from exlchat.engine.added_tokens import AddedTokens, add_missing, read_added_tokens
from exlchat.engine.checkpoint import LFS_POINTER, Checkpoint
from exlchat.engine.events import ModelError
from exlchat.engine.sentencepiece_model import parse
from exlchat.engine.tokenizer_conversion import END_OF_TEXT, SPLITTING, from_sentencepiece, from_vocabulary

_SENTENCEPIECE = ("tokenizer.model", "spm.model")
_DOWNLOAD_AGAIN = "download the model again"
_TAKE = "take tokenizer.json from the original model, or from one that was made of it"
# The largest vocabularies there are take some 5 MB.
_MOST_BYTES = 256 * 2**20
_Opened = tuple[Tokenizer, dict[str, str]]


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """An opened tokenizer with all its added tokens.

    Args:
        fast: the library's.
        file: what it was read from, for errors.
        named: texts of special tokens by name, as `eos_token`.
    """

    fast: Tokenizer
    file: Path
    named: Mapping[str, str]


def open_tokenizer(checkpoint: Checkpoint) -> TokenizerFiles:
    """The tokenizer of a model directory.

    `tokenizer.json` counts where it is there; else a SentencePiece model; else `vocab.json` with `merges.txt`.

    Raises:
        ModelError: there is none that exlchat reads, or it is broken.
    """
    added = read_added_tokens(checkpoint)
    file = _find(checkpoint.path)
    defaults: dict[str, str] = {}
    if file.name == "tokenizer.json":
        fast = _library(file, lambda: Tokenizer.from_file(str(file)))
    elif file.name in _SENTENCEPIECE:
        fast, defaults = _open_sentencepiece(checkpoint, file, added)
    else:
        fast, defaults = _open_vocabulary(checkpoint, file)
    named = {**defaults, **added.named}
    merged = AddedTokens(added.where, added.tokens, named, (*added.special, *named.values()))
    add_missing(fast, merged, str(checkpoint.path))
    fast.no_truncation()
    fast.no_padding()
    return TokenizerFiles(fast, file, named)


def _find(folder: Path) -> Path:
    names = ("tokenizer.json", *_SENTENCEPIECE)
    file = next((folder / name for name in names if (folder / name).is_file()), None)
    if file is not None:
        return file
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    if vocabulary.is_file() and merges.is_file():
        return vocabulary
    for other in sorted(folder.iterdir()):
        kind = "a Tekken" if other.name == "tekken.json" else "a tiktoken" if "tiktoken" in other.name else ""
        if kind:
            raise ModelError(f"{folder}: tokenizer.json is missing, and {other.name} is {kind} vocabulary; {_TAKE}")
    raise ModelError(f"{folder}: tokenizer.json is missing; take it from the original model")


def _open_sentencepiece(checkpoint: Checkpoint, file: Path, added: AddedTokens) -> _Opened:
    data = _bytes_of(file)
    try:
        model = parse(data)
    except ValueError as error:
        _check_is_no_pointer(data, file)
        if _is_tiktoken(data):
            raise ModelError(f"{file}: is a tiktoken vocabulary, not a SentencePiece model; {_TAKE}") from error
        raise ModelError(f"{file}: not a SentencePiece model ({error}); {_DOWNLOAD_AGAIN}") from error
    texts = {piece.text for piece in model.pieces}
    renamed = {
        index: token.content
        for index, token in added.tokens.items()
        if index < len(model.pieces) and token.content not in texts
    }
    config = checkpoint.read_json("tokenizer_config.json")
    fast = _library(file, lambda: from_sentencepiece(model, config, renamed))
    ids = {"bos_token": model.bos_id, "eos_token": model.eos_id, "unk_token": model.unknown_id}
    return fast, {name: text for name, index in ids.items() if (text := renamed.get(index) or model.text_of(index))}


def _open_vocabulary(checkpoint: Checkpoint, file: Path) -> _Opened:
    config = checkpoint.read_json("tokenizer_config.json")
    kind = str(config.get("tokenizer_class") or checkpoint.config.get("model_type")).removesuffix("Fast")
    splitting = SPLITTING.get(kind)
    if splitting is None:
        raise ModelError(
            f"{file.parent}: tokenizer.json is missing, and of vocab.json with merges.txt exlchat reads GPT-2's and "
            f"Qwen2's kind, not {kind}; {_TAKE}"
        )
    fast = _library(file, lambda: from_vocabulary(file, file.with_name("merges.txt"), splitting, config))
    if fast.token_to_id(END_OF_TEXT) is None:
        return fast, {}
    return fast, dict.fromkeys(["bos_token", "eos_token"] if splitting == "GPT-2" else ["eos_token"], END_OF_TEXT)


def _library(file: Path, make: Callable[[], Tokenizer]) -> Tokenizer:
    try:
        # The library raises plain Exception for a file that it cannot parse, and for some BaseException: a Rust panic.
        return make()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        _check_is_no_pointer(_bytes_of(file), file)
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"{file}: not a tokenizer ({reason}); {_DOWNLOAD_AGAIN}") from error


def _bytes_of(file: Path) -> bytes:
    try:
        size = file.stat().st_size
        if size > _MOST_BYTES:
            raise ModelError(f"{file}: has {size:,} bytes, far more than a tokenizer; {_DOWNLOAD_AGAIN}")
        return file.read_bytes()
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise ModelError(f"{file}: cannot be read ({reason}); mend its permissions or {_DOWNLOAD_AGAIN}") from error


def _check_is_no_pointer(data: bytes, file: Path) -> None:
    if data.startswith(LFS_POINTER):
        raise ModelError(f"{file}: is a Git LFS pointer, not the tokenizer; run `git lfs pull` in {file.parent}")


def _is_tiktoken(data: bytes) -> bool:
    """Whether each line is a token's bytes in base64 and its rank."""
    token, _, rank = data.partition(b"\n")[0].partition(b" ")
    try:
        return bool(base64.b64decode(token, validate=True)) and rank.strip().isdigit()
    except binascii.Error:
        return False
