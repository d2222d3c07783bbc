"""An engine whose answers are written beforehand, with a real tokenizer and an account of what a cache would hold."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from exlchat.engine.grammar import constraint_notice
from exlchat.llm.constraint import Constraint
from exlchat.llm.events import Event, Finished, FinishReason, GenerationStats, OneOfSeveral, PrefillProgress, TextDelta
from exlchat.llm.info import CacheReport, ModelInfo
from exlchat.llm.port import Capabilities, Running
from exlchat.llm.request import GenerationRequest
from exlchat.llm.thought_splitter import several_told_apart, told_apart

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
_TRAINING = [
    "the quick brown fox jumps over the lazy dog. ",
    "Hello there, how are you? ",
    "def f(x):\n    return x\n",
] * 9


def byte_level_tokenizer() -> Tokenizer:
    """A small byte-level BPE, in the manner of Llama 3 and Qwen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_TRAINING, trainer)
    return tokenizer


def space_prefixing_tokenizer() -> Tokenizer:
    """A small BPE that puts a space before a text and drops it when decoding, in the manner of Llama 2."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Metaspace()])
    bytes_as_tokens = [f"<0x{value:02X}>" for value in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=[*SPECIAL, "<unk>", *bytes_as_tokens], show_progress=False
    )
    tokenizer.train_from_iterator(_TRAINING, trainer)
    # The trainer takes fixed tokens only as special ones, but a byte is ordinary text.
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] not in bytes_as_tokens]
    return Tokenizer.from_str(json.dumps(content))


def tokenizer_from(folder: Path) -> Tokenizer:
    """The tokenizer of a model directory."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@dataclass
class Reply:
    """What to answer: ids, pauses in seconds before tokens (by number), and how it ends."""

    ids: Sequence[int]
    reason: FinishReason = "stop_token"
    pauses: dict[int, float] = field(default_factory=dict)
    raises: BaseException | None = None


class ScriptedEngine:
    """An `Engine`. `requests` are those it got; `closed` counts answers that were not read to their end."""

    def __init__(
        self,
        tokenizer: Tokenizer | None = None,
        *,
        chat_template: str | None = None,
        max_seq_len: int = 4096,
        bos_token: str = "<s>",
    ) -> None:
        self._tokenizer = tokenizer or byte_level_tokenizer()
        special = [token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special]
        self._info = ModelInfo(
            name="scripted",
            path="/models/scripted",
            architecture="Llama",
            quantization="fp16",
            parameters=1,
            vocab_size=self._tokenizer.get_vocab_size(),
            max_seq_len=max_seq_len,
            device="cpu",
            dtype="float32",
            bos_token=bos_token,
            eos_token="</s>",
            stop_ids=tuple(self.encode("</s>")),
            special_tokens=tuple(special),
            chat_template=chat_template,
        )
        self.replies: list[Reply] = []
        self.requests: list[GenerationRequest] = []
        self.closed = 0
        self._cache: list[int] = []

    @property
    def info(self) -> ModelInfo:
        return self._info

    def with_info(self, **changes: Any) -> None:
        self._info = replace(self._info, **changes)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(draft_model=False)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        self._tokenizer.encode_special_tokens = not special
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=not special))

    def _text_after(self, before: str, ids: Sequence[int]) -> str:
        return self.decode([*self.encode(before, special=False), *ids])[len(before) :]

    def text_with_special_tokens(self, ids: Sequence[int]) -> str:
        return self.decode(ids, special=True)

    def will_say(self, text: str, **how: Any) -> Reply:
        """Queue an answer whose ids are those of single characters: never what encoding its text gives."""
        reply = Reply(self.spelled(text), **how)
        self.replies.append(reply)
        return reply

    def spelled(self, text: str) -> list[int]:
        """`text` as one or more tokens per character."""
        alone = self.encode("x", special=False)
        ids: list[int] = []
        for character in text:
            joined = self.encode("x" + character, special=False)
            ids += joined[len(alone) :] if joined[: len(alone)] == alone else self.encode(character, special=False)
        return ids

    def cached_tokens(self, ids: Sequence[int]) -> int:
        return len(ids) // 2

    def cache_report(self) -> CacheReport:
        return CacheReport("fp16", 256, 2**20, 64, 3, 5, (), 2, 1000, 750, None)

    def check(self, request: GenerationRequest) -> None:
        """Everything goes."""

    def constraint_notice(self, constraint: Constraint) -> str | None:
        return constraint_notice(constraint)

    def generate(self, request: GenerationRequest) -> Running[Event]:
        cancelled = threading.Event()
        return Running(told_apart(self._events(request, cancelled), request.thoughts), cancelled.set)

    def _events(self, request: GenerationRequest, cancelled: threading.Event) -> Iterator[Event]:
        self.requests.append(request)
        reply = self.replies.pop(0)
        prompt = list(request.prompt_ids)
        cached = 0
        while cached < min(len(prompt) - 1, len(self._cache)) and prompt[cached] == self._cache[cached]:
            cached += 1
        finished = False
        try:
            yield PrefillProgress(cached, len(prompt), cached)
            yield PrefillProgress(len(prompt), len(prompt), cached)
            yield from self._decode(request, reply, prompt, cached, cancelled)
            finished = True
        finally:
            self.closed += not finished

    def generate_several(
        self, request: GenerationRequest, seeds: Sequence[int | None]
    ) -> Running[PrefillProgress | OneOfSeveral]:
        """The next replies, a token of each in turn."""
        cancelled = threading.Event()
        events = self._several(request, seeds, cancelled)
        return Running(several_told_apart(events, request.thoughts, len(seeds)), cancelled.set)

    def _several(
        self, request: GenerationRequest, seeds: Sequence[int | None], cancelled: threading.Event
    ) -> Iterator[PrefillProgress | OneOfSeveral]:
        going = {index: self._events(replace(request, seed=seed), cancelled) for index, seed in enumerate(seeds)}
        while going:
            for index, events in list(going.items()):
                event = next(events)
                while isinstance(event, PrefillProgress):
                    if index == 0:
                        yield event
                    event = next(events)
                yield OneOfSeveral(index, event)
                if isinstance(event, Finished):
                    del going[index]

    def _decode(
        self, request: GenerationRequest, reply: Reply, prompt: list[int], cached: int, cancelled: threading.Event
    ) -> Iterator[Event]:
        shown, reason, said = "", reply.reason, []
        held: list[int] = []
        limit = len(reply.ids) if request.max_new_tokens is None else request.max_new_tokens
        for number, token in enumerate(reply.ids):
            time.sleep(reply.pauses.get(number, 0.0))
            if cancelled.is_set() or number >= limit:
                reason = "cancelled" if cancelled.is_set() else "max_new_tokens"
                break
            said.append(token)
            held.append(token)
            fresh = self._text_after("x" if shown else "", held)
            if fresh.endswith("\ufffd"):
                fresh = ""
            else:
                held = []
            shown += fresh
            yield TextDelta(fresh, (token,))
        if reply.raises is not None:
            raise reply.raises
        self._cache = prompt + said
        stats = GenerationStats(len(prompt), cached, len(said), 0.25, 0.125, 0.5, request.seed or 7)
        yield Finished(reason, stats, shown, tuple(said))
