"""Tokens that a model has beside its vocabulary, as `tokenizer_config.json` and its older companions list them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from exlchat.engine.text.tokenizer_library import guarded
from exlchat.engine.weights.files import SmallFiles
from exlchat.llm.info import ModelError

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
