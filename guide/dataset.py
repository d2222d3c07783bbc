"""The corpus as token ids on the training device, in batches of dialogs of like length."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from torch import Tensor

from exlchat.app.guide.facts import Fact
from guide.corpus import dialogs
from guide.encoding import Encoder

_CHUNK = 5000


@dataclass(frozen=True)
class Batch:
    """`ids` and loss `weights`, both `[dialogs, length]`; weight 0 where there is padding."""

    ids: Tensor
    weights: Tensor


class Dataset:
    """All dialogs end to end; batches are gathered on the device."""

    def __init__(
        self,
        facts: dict[str, Fact],
        tokenizer_json: str,
        *,
        count: int,
        longest: int,
        device: torch.device,
        workers: int,
    ) -> None:
        jobs = [
            (facts, chunk, min(_CHUNK, count - start), tokenizer_json, longest)
            for chunk, start in enumerate(range(0, count, _CHUNK))
        ]
        with ProcessPoolExecutor(workers) as pool:
            parts = list(pool.map(_encode_chunk, jobs))
        self.lengths = np.concatenate([part[2] for part in parts])
        self._ids = torch.from_numpy(np.concatenate([part[0] for part in parts]).astype(np.int32)).to(device)
        self._weights = torch.from_numpy(np.concatenate([part[1] for part in parts])).to(device)
        self._starts = torch.from_numpy(np.concatenate(([0], np.cumsum(self.lengths)[:-1]))).to(device)
        self._device = device

    @property
    def tokens(self) -> int:
        """How many tokens there are."""
        return int(self.lengths.sum())

    def batches(self, tokens: int, seed: int) -> Iterator[Batch]:
        """Batches of at most `tokens` tokens with their padding, for ever, in another order each time round."""
        random = Random(seed)
        order = list(range(len(self.lengths)))
        while True:
            random.shuffle(order)
            groups: list[list[int]] = []
            for start in range(0, len(order), 20_000):
                pool = sorted(order[start : start + 20_000], key=lambda index: int(self.lengths[index]))
                groups += _cut(pool, self.lengths, tokens)
            random.shuffle(groups)
            for group in groups:
                yield self._gather(group)

    def _gather(self, group: list[int]) -> Batch:
        lengths = self.lengths[group]
        width = -(-int(lengths.max()) // 32) * 32
        columns = torch.arange(width, device=self._device)
        chosen = torch.tensor(group, device=self._device)
        inside = columns < torch.from_numpy(lengths).to(self._device)[:, None]
        where = (self._starts[chosen][:, None] + columns).clamp_max(len(self._ids) - 1)
        return Batch(
            torch.where(inside, self._ids[where], 0).long(), torch.where(inside, self._weights[where].float(), 0.0)
        )


def _cut(pool: list[int], lengths: np.ndarray[tuple[int], np.dtype[np.int64]], tokens: int) -> list[list[int]]:
    groups: list[list[int]] = []
    group: list[int] = []
    for index in pool:
        width = -(-int(lengths[index]) // 32) * 32
        if group and width * (len(group) + 1) > tokens:
            groups.append(group)
            group = []
        group.append(index)
    return [*groups, group] if group else groups


def _encode_chunk(job: tuple[dict[str, Fact], int, int, str, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    facts, chunk, count, tokenizer_json, longest = job
    encoder = Encoder(tokenizer_json)
    random = Random(chunk)
    samples = [
        encoder.sample(dialog, longest, dropout=random.random() < 0.5)
        for dialog in dialogs(count, f"training {chunk}", facts)
    ]
    ids = np.concatenate([sample[0] for sample in samples])
    weights = np.concatenate([sample[1] for sample in samples])
    return ids, weights, np.array([len(sample[0]) for sample in samples], np.int64)
