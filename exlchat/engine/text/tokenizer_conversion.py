"""Tokenizers that come without `tokenizer.json`, built from the files that models had before it.

What a SentencePiece model says about itself is followed: its normalizer, its space before a text, its byte pieces. For
the models of Llama's and Gemma's kind that is id for id what transformers 5 makes of them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from exlchat.engine.text.sentencepiece_model import SPACE, PieceKind, SentencePieceModel
from exlchat.untrusted.json_reader import read_json

# Where the model families of a byte-level vocabulary cut text before merging. GPT-2's is the library's own.
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITTING = {
    "GPT2Tokenizer": "GPT-2",
    "Qwen2Tokenizer": "Qwen2",
    "gpt2": "GPT-2",
    "qwen2": "Qwen2",
    "qwen2_moe": "Qwen2",
    "qwen3": "Qwen2",
    "qwen3_moe": "Qwen2",
}
"""Whose splitting belongs to a `tokenizer_class` of `tokenizer_config.json` or a `model_type` of `config.json`."""
END_OF_TEXT = "<|endoftext|>"
"""What ends a text in GPT-2's and Qwen2's vocabularies, where no file says otherwise."""


def from_sentencepiece(model: SentencePieceModel, config: Mapping[str, Any], renamed: Mapping[int, str]) -> Tokenizer:
    """A tokenizer of the same pieces.

    Args:
        model: `tokenizer.model`.
        config: `tokenizer_config.json`, of which `add_prefix_space` and `legacy` count: a legacy tokenizer puts a space
            before the text behind each special token, others before the first text alone. (One with a normalizer of its
            own is always of the legacy kind.)
        renamed: pieces that got another text after training, by id, as unused ones do that become markers.

    Raises:
        Exception: the library refuses what is in the file.
    """
    texts = [renamed.get(index, piece.text) for index, piece in enumerate(model.pieces)]
    tokenizer = Tokenizer(_unigram(model, texts) if model.algorithm == "unigram" else _bpe(model, texts))
    prefix = config.get("add_prefix_space")
    prefix = prefix if isinstance(prefix, bool) else model.add_dummy_prefix
    steps: list[normalizers.Normalizer] = []
    if model.character_map:
        steps.append(normalizers.Precompiled(model.character_map))
    if model.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    scheme = "never" if not prefix else "always" if config.get("legacy") is True else "first"
    if steps and prefix:
        # A text whose beginning was normalized is no first text any more to the library.
        steps.append(normalizers.Prepend(SPACE))
        scheme = "never"
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, scheme, split=False)
    parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        parts.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(parts)
    special = {PieceKind.UNKNOWN, PieceKind.CONTROL}
    tokenizer.add_tokens(
        [
            AddedToken(text, normalized=False, special=piece.kind in special)
            for text, piece in zip(texts, model.pieces, strict=True)
            if piece.kind in special or piece.kind is PieceKind.USER_DEFINED
        ]
    )
    return tokenizer


def from_vocabulary(vocabulary: bytes, merges: bytes, splitting: str, config: Mapping[str, Any]) -> Tokenizer:
    """A byte-level BPE of `vocab.json` and `merges.txt`.

    Args:
        vocabulary, merges: what the two files hold.
        splitting: "GPT-2" or "Qwen2".
        config: `tokenizer_config.json`, of which `add_prefix_space` counts.

    Raises:
        Exception: the library refuses what is in the files, or they hold something else.
    """
    ids = read_json(vocabulary, most=len(vocabulary))
    tokenizer = Tokenizer(models.BPE(ids, list(_pairs(merges.decode("utf-8")))))
    prefix = config.get("add_prefix_space") is True
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    if splitting == "Qwen2":
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_QWEN2_SPLIT), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False),
            ]
        )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pairs(merges: str) -> Iterator[tuple[str, str]]:
    """The pairs of a `merges.txt`, one in a line, below a line with the version."""
    # Only "\n" ends a line: tokens may hold what else Unicode calls a line's end.
    for number, line in enumerate(io.StringIO(merges), start=1):
        if line.startswith("#version"):
            continue
        left, space, right = line.rstrip("\r\n").partition(" ")
        if not space or " " in right:
            raise ValueError(f"merges.txt: line {number} is no pair")
        yield left, right


def _unigram(model: SentencePieceModel, texts: list[str]) -> models.Model:
    scored = [(text, piece.score) for text, piece in zip(texts, model.pieces, strict=True)]
    return models.Unigram(scored, model.unknown_id, model.byte_fallback)


def _bpe(model: SentencePieceModel, texts: list[str]) -> models.Model:
    ids = {text: index for index, text in enumerate(texts)}
    return models.BPE(
        ids,
        list(_merges(model, ids)),
        unk_token=texts[model.unknown_id],
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
    )


def _merges(model: SentencePieceModel, ids: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Pairs that become one piece, the earliest piece first.

    SentencePiece merges whatever pair makes the piece with the best score, and numbers pieces by score. Of the pairs
    that make one piece the order is transformers': a shorter left half first.
    """
    mergeable = {PieceKind.NORMAL, PieceKind.USER_DEFINED}
    for piece in model.pieces:
        text = piece.text
        if piece.kind not in mergeable or text not in ids:
            continue
        for cut in range(1, len(text)):
            if text[:cut] in ids and text[cut:] in ids:
                yield text[:cut], text[cut:]
