"""Which of a model directory's files hold its tokenizer, and opening them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from exlchat.engine.text.added_tokens import AddedTokens, add_missing, read_added_tokens
from exlchat.engine.text.sentencepiece_model import parse
from exlchat.engine.text.tokenizer_conversion import END_OF_TEXT, SPLITTING, from_sentencepiece, from_vocabulary
from exlchat.engine.text.tokenizer_library import guarded
from exlchat.engine.weights.files import SmallFiles, read_bytes
from exlchat.llm.info import ModelError

_CONFIG = "tokenizer_config.json"
_SENTENCEPIECE = ("tokenizer.model", "spm.model")
_DOWNLOAD_AGAIN = "download the model again"
_TAKE = "take tokenizer.json from the original model, or from one that was made of it"
_LARGEST_JSON = 128_000_000
"""Bytes of a `tokenizer.json`; the largest that are known have 35 million."""
_LARGEST = 16_000_000
"""Bytes of a vocabulary in any other form; the largest that are known have 5 million."""
# A name that transformers' GemmaTokenizer gives one of its tokens where the files do not.
_GEMMA_MASK = "<mask>"
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


def open_tokenizer(files: SmallFiles) -> TokenizerFiles:
    """The tokenizer of a model directory.

    `tokenizer.json` counts where it is there; else a SentencePiece model; else `vocab.json` with `merges.txt`.

    Raises:
        ModelError: there is none that exlchat reads, or it is broken.
    """
    added = read_added_tokens(files)
    file = _find(files.path)
    return guarded(
        lambda: _opened(files, file, added),
        lambda reason: ModelError(f"{file}: not a tokenizer ({reason}); {_DOWNLOAD_AGAIN}"),
    )


def _opened(files: SmallFiles, file: Path, added: AddedTokens) -> TokenizerFiles:
    defaults: dict[str, str] = {}
    if file.name == "tokenizer.json":
        fast = Tokenizer.from_buffer(read_bytes(file, largest=_LARGEST_JSON))
    elif file.name in _SENTENCEPIECE:
        fast, defaults = _open_sentencepiece(files, file, added)
    else:
        fast, defaults = _open_vocabulary(files, file)
    if "gemma" in _kind(files).lower() and fast.token_to_id(_GEMMA_MASK) is not None:
        defaults["mask_token"] = _GEMMA_MASK
    named = {**defaults, **added.named}
    merged = AddedTokens(added.where, added.tokens, named, (*added.special, *named.values()))
    add_missing(fast, merged, str(files.path))
    fast.no_truncation()
    fast.no_padding()
    # It adds special tokens, which only templates do here; but some could write a text several times.
    fast.post_processor = None
    return TokenizerFiles(fast, file, named)


def _find(folder: Path) -> Path:
    names = ("tokenizer.json", *_SENTENCEPIECE)
    file = next((folder / name for name in names if (folder / name).exists()), None)
    if file is not None:
        return file
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    if vocabulary.exists() and merges.exists():
        return vocabulary
    for other in sorted(folder.iterdir()):
        kind = "a Tekken" if other.name == "tekken.json" else "a tiktoken" if "tiktoken" in other.name else ""
        if kind:
            raise ModelError(f"{folder}: tokenizer.json is missing, and {other.name} is {kind} vocabulary; {_TAKE}")
    raise ModelError(f"{folder}: tokenizer.json is missing; take it from the original model")


def _open_sentencepiece(files: SmallFiles, file: Path, added: AddedTokens) -> _Opened:
    data = read_bytes(file, largest=_LARGEST)
    try:
        model = parse(data)
    except ValueError as error:
        if _is_tiktoken(data):
            raise ModelError(f"{file}: is a tiktoken vocabulary, not a SentencePiece model; {_TAKE}") from error
        raise ModelError(f"{file}: not a SentencePiece model ({error}); {_DOWNLOAD_AGAIN}") from error
    texts = {piece.text for piece in model.pieces}
    renamed = {
        index: token.content
        for index, token in added.tokens.items()
        if index < len(model.pieces) and token.content not in texts
    }
    fast = from_sentencepiece(model, files.read_json(_CONFIG), renamed)
    ids = {"bos_token": model.bos_id, "eos_token": model.eos_id, "unk_token": model.unknown_id}
    return fast, {name: text for name, index in ids.items() if (text := renamed.get(index) or model.text_of(index))}


def _open_vocabulary(files: SmallFiles, file: Path) -> _Opened:
    kind = _kind(files)
    splitting = SPLITTING.get(kind)
    if splitting is None:
        raise ModelError(
            f"{file.parent}: tokenizer.json is missing, and of vocab.json with merges.txt exlchat reads GPT-2's and "
            f"Qwen2's kind, not {kind}; {_TAKE}"
        )
    vocabulary = read_bytes(file, largest=_LARGEST)
    merges = read_bytes(file.with_name("merges.txt"), largest=_LARGEST)
    fast = from_vocabulary(vocabulary, merges, splitting, files.read_json(_CONFIG))
    if fast.token_to_id(END_OF_TEXT) is None:
        return fast, {}
    return fast, dict.fromkeys(["bos_token", "eos_token"] if splitting == "GPT-2" else ["eos_token"], END_OF_TEXT)


def _kind(files: SmallFiles) -> str:
    """The class of the tokenizer as its files name it, else that of the model."""
    named = files.read_json(_CONFIG).get("tokenizer_class")
    return str(named or files.read_json("config.json").get("model_type")).removesuffix("Fast")


def _is_tiktoken(data: bytes) -> bool:
    """Whether each line is a token's bytes in base64 and its rank."""
    token, _, rank = data.partition(b"\n")[0].partition(b" ")
    try:
        return bool(base64.b64decode(token, validate=True)) and rank.strip().isdigit()
    except binascii.Error:
        return False
