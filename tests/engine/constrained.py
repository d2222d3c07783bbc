"""Answers that are held to a constraint, drawn by the host, with nothing around them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from exlchat.engine.grammar import GrammarMatcher, GrammarVocabulary
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.text.tokenizer import Tokenizer
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.llm.constraint import Constraint
from tests.engine.decoding import open_transformer

_ENDS = '}]",:'


@dataclass(frozen=True)
class SmallModel:
    """What a constrained answer needs of a model."""

    transformer: Transformer
    tokenizer: Tokenizer
    vocabulary: GrammarVocabulary
    stop_ids: tuple[int, ...]


@dataclass(frozen=True)
class Answer:
    """`ended`: by a stop token, or because nothing else could follow."""

    text: str
    ids: tuple[int, ...]
    ended: bool


def with_layers(path: Path, layers: int, to: Path) -> Path:
    """The model of a folder without its upper layers: worse answers in less time."""
    for file in path.iterdir():
        if file.name != "config.json":
            (to / file.name).symlink_to(file)
    config = json.loads((path / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    return to


def open_small(path: Path) -> SmallModel:
    checkpoint = Checkpoint(path)
    transformer = open_transformer(path, context=1024)
    size = transformer.spec.vocab_size
    tokenizer = Tokenizer(checkpoint, size)
    return SmallModel(
        transformer, tokenizer, GrammarVocabulary(tokenizer, size), tokenizer.stop_ids(checkpoint.config, size)
    )


def answer(
    model: SmallModel,
    prompt: Sequence[int],
    constraint: Constraint,
    *,
    seed: int = 0,
    temperature: float = 1.0,
    most: int = 500,
    hurry: int | None = None,
    through_words: bool = False,
) -> Answer:
    """An answer of at most `most` tokens.

    `temperature` 0 is greedy. From token `hurry` on what ends something is taken where it may stand: small models
    do not know when a number has digits enough. `through_words`: the mask comes as bits.
    """
    transformer, draw = model.transformer, random.Random(seed)
    matcher = GrammarMatcher(constraint, model.vocabulary, model.stop_ids)
    cache = KVSequence(KVCache(transformer.spec, "fp32", transformer.dtype, transformer.device, len(prompt) + most + 1))
    ids: list[int] = []
    fed = list(prompt)
    ends = [*model.stop_ids, *(model.tokenizer.encode(mark)[0] for mark in _ENDS)]
    while len(ids) < most and not matcher.finished:
        start = len(cache)
        cache.reserve(start + len(fed))
        logits = transformer.forward(torch.tensor(fed), cache, start=start)[-1].double()
        cache.extend(fed)
        mask = unpacked(matcher.words(), len(logits)) if through_words else matcher.allowed()
        token = _drawn(logits.masked_fill(~mask, float("-inf")), temperature, draw.random())
        if hurry is not None and len(ids) >= hurry:
            token = next((end for end in ends if mask[end]), token)
        if token in model.stop_ids:
            return Answer(model.tokenizer.decode(ids), tuple(ids), ended=True)
        matcher.accept(token)
        ids.append(token)
        fed = [token]
    return Answer(model.tokenizer.decode(ids), tuple(ids), ended=matcher.finished)


def unpacked(words: torch.Tensor, size: int) -> torch.Tensor:
    """bool `[size]` of the bits of uint32 words, the lowest first."""
    wide = words.to(torch.int64)
    return (wide[:, None] >> torch.arange(32) & 1).flatten()[:size].bool()


def _drawn(logits: torch.Tensor, temperature: float, chance: float) -> int:
    if temperature == 0:
        return int(logits.argmax())
    sums = (logits / temperature).softmax(-1).cumsum(-1)
    return int(torch.searchsorted(sums, chance * float(sums[-1]), right=True))
