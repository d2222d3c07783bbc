"""What an answer says of single tokens, as the captured step takes it."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from exlchat.engine.sampling.device import DeviceDraws
from exlchat.engine.schedule.generation import GenerationState
from exlchat.engine.text.vocabulary import Vocabulary
from exlchat.ext.chain import FOREVER, ChainRules
from exlchat.llm.sampling import SamplingSettings


class DeviceRules:
    """Made of settings; sets of tokens are kept from answer to answer.

    Args:
        vocabulary: of the model.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._sets: dict[tuple[str, ...], Tensor] = {}
        self._last: tuple[object, ChainRules] | None = None

    def draws(self, state: GenerationState) -> DeviceDraws:
        parts = state.parts
        sampling = parts.request.sampling
        return DeviceDraws(
            sampling,
            parts.clock.seed,
            index=state.count,
            attempt=parts.sampler.attempt,
            rules=self.of(sampling, parts.stop_ids, parts.request.min_new_tokens),
            mu=parts.sampler.surprise,  # the host has drawn the first token
        )

    def of(self, settings: SamplingSettings, stop_ids: Collection[int], least: int) -> ChainRules:
        """The rules of an answer.

        Args:
            settings: name tokens of the model.
            stop_ids: come only when the answer has `least` tokens.
        """
        # Asked again behind every draft that was checked, and names of tokens take the tokenizer.
        asked = (settings, frozenset(stop_ids), least)
        if self._last is None or self._last[0] != asked:
            self._last = asked, self._made(settings, stop_ids, least)
        return self._last[1]

    def _made(self, settings: SamplingSettings, stop_ids: Collection[int], least: int) -> ChainRules:
        barred = dict.fromkeys(stop_ids, least) if least else {}
        if not (settings.logit_bias or settings.banned_tokens or settings.dry_multiplier or settings.xtc_probability):
            return ChainRules(barred=barred)
        texts = self._vocabulary.of_samplers
        barred |= {texts.token(name): FOREVER for name in settings.banned_tokens}
        return ChainRules(
            bias={texts.token(name): bias for name, bias in settings.logit_bias},
            barred=barred,
            breakers=self._bits(settings.dry_breakers, texts.breakers(settings.dry_breakers))
            if settings.dry_multiplier
            else None,
            sheltered=self._bits(("\n",), texts.protected()) if settings.xtc_probability else None,
        )

    def _bits(self, name: tuple[str, ...], found: NDArray[np.bool_]) -> Tensor:
        """int32 `[ceil(vocab / 32)]`, as `chain.token_words` has it."""
        if name not in self._sets:
            packed = np.packbits(found, bitorder="little")
            words = packed.tobytes().ljust(-(-len(found) // 32) * 4, b"\0")
            self._sets[name] = torch.frombuffer(bytearray(words), dtype=torch.int32)
        return self._sets[name]
