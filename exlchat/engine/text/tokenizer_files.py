"""Which of a model directory's files hold its tokenizer, and opening them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import AddedToken, Tokenizer

from exlchat.engine.text.tokenizer_conversion import END_OF_TEXT, SPLITTING, from_sentencepiece, from_vocabulary, parse
from exlchat.engine.weights.files import SmallFiles, read_bytes
from exlchat.llm.info import ModelError
from exlchat.llm.request import RequestError
from exlchat.untrusted.text import one_line

_Value = TypeVar("_Value")
_LONGEST_REASON = 120


def guarded(call: Callable[[], _Value], told: Callable[[str], ModelError | RequestError]) -> _Value:
    """What `call` returns.

    The library raises plain `Exception` for what it cannot do, what Python's own conversions raise for text that is
    none, and for its own faults a panic, which is a `BaseException`.

    Args:
        call: to the library.
        told: the error for a reason, a few words without a full stop.

    Raises:
        ModelError, RequestError: what `told` makes, or `call` raises.
    """
    try:
        return call()
    except (ModelError, RequestError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise told(one_line(str(error), _LONGEST_REASON) or type(error).__name__) from error


_CONFIG, _NAMES, _TOKENS = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, slots=True)
class AddedTokens:
    """What the files say of added and special tokens.

    Args:
        where: the file that lists them.
        tokens: by id.
        named: text by name, as `eos_token`; special, however they are listed.
        special: texts that are special unless they are listed as ordinary ones.
    """

    where: str
    tokens: Mapping[int, AddedToken]
    named: Mapping[str, str]
    special: tuple[str, ...]


def read_added_tokens(files: SmallFiles) -> AddedTokens:
    """What a model directory says of added and special tokens.

    `special_tokens_map.json` and `added_tokens.json` count as far as `tokenizer_config.json` is of the old kind that
    does not list added tokens itself, as in transformers.

    Raises:
        ModelError: a file says it in a way that makes no sense.
    """
    config, names = files.read_json(_CONFIG), files.read_json(_NAMES)
    listed = config.get("added_tokens_decoder")
    merged = {**config, **names} if listed is None else {**names, **config}
    named = {name: text for name, value in merged.items() if name.endswith("_token") and (text := token_text(value))}
    special = [*named.values(), *_texts(merged)]
    if listed is not None:
        return AddedTokens(_CONFIG, dict(_listed(files.path / _CONFIG, listed)), named, tuple(special))
    tokens = dict(_numbered(files, frozenset(special)))
    return AddedTokens(_TOKENS, tokens, named, tuple(special))


def token_text(value: object) -> str:
    """The text of a token that is given as text or as an object with its flags; empty where it is neither."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def add_missing(tokenizer: Tokenizer, added: AddedTokens, where: str) -> None:
    """Makes `tokenizer` know `added`. Ids that it has already stay; what is told of a token's flags counts.

    Args:
        tokenizer: changed in place.
        added: what the companions say.
        where: the directory, for the error.

    Raises:
        ModelError: a token has an id that it cannot get.
    """
    known = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    told = [token for _, token in sorted(added.tokens.items())]
    wanted = {**known, **{token.content: token for token in told}}
    for text in dict.fromkeys(added.special):
        if text not in wanted and tokenizer.token_to_id(text) is not None:
            wanted[text] = AddedToken(text, normalized=False, special=True)
    for text in {*added.named.values()} & wanted.keys():
        # As in transformers: a name makes a token special, whatever the lists say of it.
        wanted[text] = AddedToken(text, **{name: getattr(wanted[text], name) for name in _FLAGS} | {"special": True})
    new = [
        (index, token.content) for index, token in added.tokens.items() if tokenizer.token_to_id(token.content) is None
    ]
    # All at once: the library prepares its search anew for every call.
    tokenizer.add_tokens([token for text, token in wanted.items() if _differs(known.get(text), token)])
    for index, text in new:
        if tokenizer.token_to_id(text) != index:
            raise ModelError(
                f"{where}/{added.where}: gives {text[:40]!r} the id {index}, but the vocabulary leaves it "
                f"{tokenizer.token_to_id(text)}; take all tokenizer files from the original model"
            )


def _differs(known: AddedToken | None, wanted: AddedToken) -> bool:
    """Whether the library does not know `wanted` yet, flags and all, which only its `repr` shows."""
    return repr(known) != repr(wanted)


def _texts(config: Mapping[str, Any]) -> Iterator[str]:
    for key in _LISTS:
        value = config.get(key)
        entries = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        yield from filter(None, map(token_text, entries))


def _listed(file: Path, listed: object) -> Iterator[tuple[int, AddedToken]]:
    """Entries of `added_tokens_decoder`: a token with flags by its id, which JSON writes as text."""
    entries = listed.items() if isinstance(listed, dict) else [(repr(listed)[:40], None)]
    for index, entry in entries:
        text = token_text(entry)
        flags = {name: entry[name] for name in _FLAGS if name in entry} if isinstance(entry, dict) else {}
        sensible = index.isdecimal() and len(index) < 10 and all(isinstance(flag, bool) for flag in flags.values())
        if not text or not sensible:
            raise _senseless(file, "added_tokens_decoder", index)
        yield int(index), _token(file, text, **flags)


def _numbered(files: SmallFiles, special: frozenset[str]) -> Iterator[tuple[int, AddedToken]]:
    """Entries of `added_tokens.json`: ids by text."""
    for text, index in files.read_json(_TOKENS).items():
        if not text or isinstance(index, bool) or not isinstance(index, int) or index < 0:
            raise _senseless(files.path / _TOKENS, "the entry", text)
        is_special = text in special
        yield index, _token(files.path / _TOKENS, text, normalized=not is_special, special=is_special)


def _token(file: Path, text: str, **flags: bool) -> AddedToken:
    return guarded(lambda: AddedToken(text, **flags), lambda _: _senseless(file, "the token", text))


def _senseless(file: Path, key: str, entry: str) -> ModelError:
    return ModelError(f"{file}: {key} {entry[:40]!r} is no token with an id; take the file from the original model")


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
