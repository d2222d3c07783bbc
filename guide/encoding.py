"""Dialogs -> token ids and loss weights, and the tokenizer that makes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from guide.corpus import Dialog

SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
BOS, EOS, IM_START, IM_END = range(4)
QUESTION_WEIGHT = 0.3
"""Loss weight of the questions' tokens: predicting them teaches what words mean, the answers matter more."""
SUBWORD_DROPOUT = 0.1
"""Share of merges left out in questions (Provilkov et al. 2020, arXiv 1910.13267): rare words are seen in pieces."""
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Sample = tuple["np.ndarray[tuple[int], np.dtype[np.uint16]]", "np.ndarray[tuple[int], np.dtype[np.float16]]"]


def train_tokenizer(texts: Iterable[str], vocab: int) -> Tokenizer:
    """A byte-level BPE tokenizer with exactly `vocab` entries, the special tokens first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab:
        raise ValueError(f"the corpus gives only {tokenizer.get_vocab_size()} of {vocab} tokens; make it larger")
    return tokenizer


def write_tokenizer_files(tokenizer: Tokenizer, folder: Path) -> list[Path]:
    """`tokenizer.json`, `tokenizer_config.json` and `generation_config.json`."""
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    special = {str(index): {"content": token, "special": True} for index, token in enumerate(SPECIAL)}
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[BOS], "eos_token": SPECIAL[IM_END],
        "add_bos_token": False, "clean_up_tokenization_spaces": False, "model_max_length": 2048,
        "added_tokens_decoder": special, "chat_template": CHAT_TEMPLATE,
    }  # fmt: skip
    generation = {"bos_token_id": BOS, "eos_token_id": [IM_END, EOS], "do_sample": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2) + "\n", "utf-8")
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", "utf-8")
    return [folder / name for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json")]


class Encoder:
    """Dialogs to ids. One a process: it keeps the ids of the answers, which are few.

    Only the frame of a conversation uses special tokens; one that is written in a message stays ordinary text.
    """

    def __init__(self, tokenizer_json: str) -> None:
        self._exact, self._loose = (Tokenizer.from_str(tokenizer_json) for _ in range(2))
        self._exact.encode_special_tokens = self._loose.encode_special_tokens = True
        self._loose.model.dropout = SUBWORD_DROPOUT
        self._kept = cache(self._ids)

    def sample(self, dialog: Dialog, longest: int, *, dropout: bool) -> Sample:
        """Ids and loss weights of a dialog, cut off at `longest` tokens."""
        ids: list[int] = [BOS]
        weights: list[float] = [0.0]
        for tokens, weight in self._plain(dialog, dropout) if dialog.plain else self._chatml(dialog, dropout):
            ids.extend(tokens)
            weights.extend([weight] * len(tokens))
        return np.array(ids[:longest], np.uint16), np.array(weights[:longest], np.float16)

    def prompt(self, earlier: list[tuple[str, str]], question: str) -> list[int]:
        """The ChatML prompt of a question after earlier (question, answer) pairs."""
        ids = [BOS]
        for asked, answered in earlier:
            ids += self._message("user", self._ids(asked)) + self._message("assistant", self._ids(answered))
        return ids + self._message("user", self._ids(question)) + [IM_START] + self._kept("assistant\n")

    def decode(self, ids: list[int]) -> str:
        """The text of ids, without special tokens."""
        text: str = self._exact.decode(ids)
        return text

    def _chatml(self, dialog: Dialog, dropout: bool) -> Iterator[tuple[list[int], float]]:
        if dialog.system:
            yield self._message("system", self._kept(dialog.system)), 0.0
        for turn in dialog.turns:
            yield [IM_START, *self._kept("user\n")], 0.0
            yield self._question(turn.question, dropout), QUESTION_WEIGHT
            yield [IM_END, *self._kept("\n"), IM_START, *self._kept("assistant\n")], 0.0
            yield [*self._kept(turn.answer), IM_END], 1.0
            yield self._kept("\n"), 0.0

    def _plain(self, dialog: Dialog, dropout: bool) -> Iterator[tuple[list[int], float]]:
        yield self._kept(f"{dialog.system}\n\nUser:" if dialog.system else "User:"), 0.0
        for turn in dialog.turns:
            yield self._question(f" {turn.question}", dropout), QUESTION_WEIGHT
            yield self._kept("\n\nAssistant:"), 0.0
            yield self._kept(f" {turn.answer}\n\nUser:"), 1.0

    def _message(self, role: str, content: list[int]) -> list[int]:
        return [IM_START, *self._kept(f"{role}\n"), *content, IM_END, *self._kept("\n")]

    def _question(self, text: str, dropout: bool) -> list[int]:
        ids: list[int] = (self._loose if dropout else self._exact).encode(text, add_special_tokens=False).ids
        return ids

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._exact.encode(text, add_special_tokens=False).ids
        return ids
