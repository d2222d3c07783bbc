"""Files `tokenizer.json` that an enemy would write, by what they try."""

from __future__ import annotations

import base64
from typing import Any

ALPHABET = {chr(code): code - 32 for code in range(32, 127)}
RARE = "\ufdfa"
"""Eighteen characters in the compatible normal forms."""

Part = dict[str, Any]


def content(**changes: Any) -> Part:
    """A plain tokenizer of ASCII characters, some of its parts replaced."""
    model = {"type": "BPE", "vocab": ALPHABET, "merges": [], **changes.pop("model", {})}
    plain = dict.fromkeys(["truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"])
    return {"version": "1.0", "added_tokens": [], **plain, "model": model, **changes}


def several(kind: str, parts: list[Part]) -> Part:
    return {"type": "Sequence", kind: parts}


def replace(old: Part, new: str) -> Part:
    return {"type": "Replace", "pattern": old, "content": new}


def pattern(regex: str) -> Part:
    return content(
        pre_tokenizer={"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    )


def charsmap(data: bytes) -> Part:
    return content(normalizer={"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()})


def added(*texts: str, **flags: Any) -> Part:
    plain = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized", "special"], False)
    tokens = [{"id": 95 + index, "content": text, **plain, **flags} for index, text in enumerate(texts)]
    return content(added_tokens=tokens)


def nested(depth: int) -> Part:
    part: Part = {"type": "NFC"}
    for _ in range(depth):
        part = several("normalizers", [part])
    return content(normalizer=part)


LONG = "x" * 20_000_000
GROWING: dict[str, Part] = {
    "forty doublings": content(normalizer=several("normalizers", [replace({"String": "a"}, "aa")] * 40)),
    "forty doublings of every character": content(
        normalizer=several("normalizers", [replace({"Regex": "(.)"}, "aa")] * 40)
    ),
    "forty doublings of a rare word": content(
        normalizer=several("normalizers", [replace({"String": "zq"}, "zqzq")] * 40)
    ),
    "forty that match nothing before a rare word": content(
        normalizer=several("normalizers", [replace({"Regex": "(?=zq)"}, "zq")] * 40)
    ),
    "20 MB for a space": content(normalizer=replace({"String": " "}, LONG)),
    "20 MB for a rare word": content(normalizer=replace({"String": "zq"}, LONG)),
    "20 MB in front": content(normalizer={"type": "Prepend", "prepend": LONG}),
    "normal forms of a rare letter": content(
        normalizer=several("normalizers", [replace({"String": "\u0644"}, RARE), {"type": "NFKC"}] * 12)
    ),
    "bytes of bytes as a normalizer": content(normalizer=several("normalizers", [{"type": "ByteLevel"}] * 40)),
    "bytes of bytes": content(
        pre_tokenizer=several(
            "pretokenizers",
            [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}] * 40,
        )
    ),
    "forty doublings while decoding": content(decoder=several("decoders", [replace({"String": "a"}, "aa")] * 40)),
    "20 MB while decoding": content(decoder=replace({"String": "a"}, LONG)),
    "spaces between all letters, forty times": content(
        decoder=several("decoders", [{"type": "BPEDecoder", "suffix": ""}] * 40)
    ),
    "a token of 20 MB": content(model={"vocab": {**ALPHABET, LONG: 95}}),
    "an added token of 20 MB": added(LONG),
    "sixty added tokens of 1 MB": added(*(f"{index}{'y' * 10**6}" for index in range(60))),
    "doublings of an added token": content(
        normalizer=several("normalizers", [replace({"String": "a"}, "aa")] * 40),
        added_tokens=added("aaaa", normalized=True)["added_tokens"],
    ),
    "a rule of 10 MB in a charsmap": charsmap(b"\0\0\0\0" + b"z" * 10**7 + b"\0"),
}
"""What makes much of little."""

ENDLESS: dict[str, Part] = {
    "a pattern that never ends": pattern("(a+)+$"),
    "the same with a choice": pattern("(?:a|aa)+$"),
    "the same of white space": pattern(r"(\s+)+$"),
    "one that looks ahead": pattern("(?=(x+x+)+y)|(a*)*b"),
    "words of any length": content(
        model={
            "type": "WordPiece",
            "unk_token": " ",
            "continuing_subword_prefix": "#",
            "max_input_chars_per_word": 10**9,
            "vocab": {**ALPHABET, "#a": 95, "#!": 96},
        }
    ),
    "a prefix of 20 MB": content(model={"continuing_subword_prefix": LONG}),
    "a suffix of 20 MB": content(
        model={"end_of_word_suffix": LONG}, pre_tokenizer={"type": "CharDelimiterSplit", "delimiter": " "}
    ),
}
"""What takes much time."""

BROKEN: dict[str, Part] = {
    "a charsmap that is none": charsmap(b""),
    "a charsmap that leads nowhere": charsmap(b"\x04\0\0\0\xff\xff\xff\xff"),
    "a charsmap that ends too soon": charsmap(b"\x04\0\0\0\0\0\0\0abc"),
    "two hundred levels": nested(200),
    "no model": {**content(), "model": {"type": "Nothing"}},
    "a pattern that is none": pattern("(("),
    "a decoder that is none": content(decoder={"type": "Nothing"}),
    "merges of tokens that there are not": content(model={"merges": [["qq", "zz"]]}),
    "an id beyond all": content(model={"vocab": {**ALPHABET, "zz": 2**32}}),
    "an unknown piece that there is not": content(
        model={"type": "Unigram", "unk_id": 7, "vocab": [["a", -1.0]], "byte_fallback": False}
    ),
}
"""What is no tokenizer, or brings the library down."""

HARMLESS: dict[str, Part] = {
    "plain": content(),
    "no token for what it does not know": content(model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "<unk>"}),
    "no unknown piece": content(model={"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]]}),
    "an unknown token that there is not": content(model={"unk_token": "<unk>"}),
    "a template that repeats the text": content(
        post_processor={
            "type": "TemplateProcessing",
            "special_tokens": {},
            "pair": [],
            "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 100_000,
        }
    ),
    "padding to a thousand million": content(
        padding={
            "strategy": {"Fixed": 10**9},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": " ",
        }
    ),
}
"""What looks like it, and does no harm here."""
