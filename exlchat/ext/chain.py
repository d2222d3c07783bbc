"""What the sampler does beyond temperature, top-k, top-p and min-p: adjusted logits, and any chain of steps.

`tests/ext/reference_adjust.py` and `reference_chain.py` define both. They are jobs of their own, so that a captured
step without them stays what it was.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from exlchat.ext import functions as c
from exlchat.ext.job import Job, check, check_on_gpu
from exlchat.ext.library import Library
from exlchat.ext.sampling import SamplerState, check_logits, sample_structure

STEP_NAMES = (
    "smoothing",
    "temperature",
    "top_n_sigma",
    "top_k",
    "top_p",
    "top_a",
    "min_p",
    "tfs",
    "typical",
    "epsilon_cutoff",
    "eta_cutoff",
    "mirostat",
    "xtc",
)
"""By the numbers of `exlchat.h`."""
DRY_MOST = c.DRY_MOST
FOREVER = 2**32 - 1
"""Of `TokenRules.barred`: at no draw."""

_WORD = 32


def token_words(ids: Sequence[int], vocab: int) -> Tensor:
    """A set of tokens as bits: int32 `[ceil(vocab / 32)]`, on the CPU; bit `id % 32` of word `id // 32`.

    Raises:
        ValueError: an id that is not one of `vocab`.
    """
    wrong = next((index for index in ids if not 0 <= index < vocab), None)
    if wrong is not None:
        raise ValueError(f"id {wrong} is in a set of tokens, but the vocabulary has {vocab:,}")
    bits = torch.zeros(-(-vocab // _WORD) * _WORD, dtype=torch.int64)
    bits[list(ids)] = 1
    words = (bits.view(-1, _WORD) << torch.arange(_WORD)).sum(1)
    return torch.where(words >= 2**31, words - 2**32, words).int()


@dataclass(frozen=True, slots=True)
class ChainRules:
    """What an answer says of single tokens.

    Args:
        bias: added to their logits.
        barred: id -> the draw from which on it may come: the index of the token in the answer; `FOREVER` for never.
        breakers: tokens over which DRY's passages do not go on, by `token_words`.
        sheltered: tokens that XTC leaves alone, by `token_words`.
    """

    bias: Mapping[int, float] = field(default_factory=dict)
    barred: Mapping[int, int] = field(default_factory=dict)
    breakers: Tensor | None = None
    sheltered: Tensor | None = None


def chain_bytes(vocab: int, room: int) -> int:
    """What a `ChainState` takes of the device, rounded up."""
    return (30 + c.CHAIN_SCRATCH_BYTES_A_TOKEN) * vocab + 4 * room + c.CHAIN_SCRATCH_BYTES + 2**20


class ChainState:
    """What the jobs of this module keep on the device, with fixed addresses.

    Args:
        vocab: of the logits.
        room: tokens that a context may have.
    """

    def __init__(self, vocab: int, room: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        words = -(-vocab // _WORD)

        def zeros(count: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(count, dtype=dtype, device=device)

        self.vocab, self.room = vocab, room
        self.chain = zeros(ctypes.sizeof(c.CChain), torch.uint8)
        self.adjusted = zeros(vocab, torch.float32)
        """float32 `[vocab]`: the logits that are drawn from."""
        self.context = zeros(room, torch.int32)
        self.bias = zeros(vocab, torch.float32)
        self.barred_until = zeros(vocab, torch.int32)
        self.mask = zeros(words + 1, torch.int32)
        self.breakers = zeros(words, torch.int32)
        self.sheltered = zeros(words, torch.int32)
        self.counted = zeros(vocab, torch.int64)
        self.newest = zeros(vocab, torch.int32)
        self.repeated = zeros(vocab, torch.int32)
        self.numbers = zeros(1, torch.int32)
        self.ends = zeros(2 * -(-vocab // c.ADJUST_IDS), torch.int64)
        self.scratch = zeros(c.CHAIN_SCRATCH_BYTES + c.CHAIN_SCRATCH_BYTES_A_TOKEN * vocab, torch.uint8)
        self._staged_mask = torch.zeros(words + 1, dtype=torch.int32, pin_memory=pinned)
        self._masked = False

    def set(self, chain: c.CChain, context: Sequence[int], rules: ChainRules) -> None:
        """Takes effect for the steps launched on the current stream from now on. No step may be under way.

        Args:
            chain: its `biased` and `barred` are set here.
            context: prompt and answer so far, with the token that the next step feeds.

        Raises:
            ValueError: more context than there is room for, or a rule for an id that is not in the vocabulary.
        """
        if not 1 <= len(context) <= self.room:
            raise ValueError(f"the context has {len(context):,} tokens; the sampler has room for 1 to {self.room:,}")
        self._check_ids(rules)
        device = self.chain.device
        chain.biased, chain.barred = int(bool(rules.bias)), int(bool(rules.barred))
        self.chain.copy_(torch.frombuffer(bytearray(chain), dtype=torch.uint8))
        self.context[: len(context)] = torch.tensor(context, dtype=torch.int32).to(device)
        self.numbers.zero_()
        for target, given in ((self.bias, rules.bias), (self.barred_until, rules.barred)):
            target.zero_()
            if given:
                places = torch.tensor(list(given), device=device)
                values = [value - 2**32 if value > 2**31 - 1 else value for value in given.values()]
                target[places] = torch.tensor(values, dtype=target.dtype, device=device)
        for target, words in ((self.breakers, rules.breakers), (self.sheltered, rules.sheltered)):
            if words is None:
                target.zero_()
            else:
                target.copy_(words)
        self.set_mask(None)

    def set_mask(self, words: Tensor | None) -> None:
        """The tokens that the steps launched from now on may draw. No draw may be under way.

        Args:
            words: by `token_words`, on the CPU; `None` for all of them.
        """
        if words is None:
            if self._masked:
                self.mask.zero_()
        else:
            check("mask", words, torch.int32, (len(self.mask) - 1,))
            self._staged_mask[:-1].copy_(words)
            self._staged_mask[-1] = 1
            self.mask.copy_(self._staged_mask, non_blocking=True)
        self._masked = words is not None

    def _check_ids(self, rules: ChainRules) -> None:
        for name, ids in (("bias", rules.bias), ("barred", rules.barred)):
            wrong = next((index for index in ids if not 0 <= index < self.vocab), None)
            if wrong is not None:
                raise ValueError(f"{name} holds id {wrong}, but the vocabulary has {self.vocab:,}")
        for name, words in (("breakers", rules.breakers), ("sheltered", rules.sheltered)):
            if words is not None:
                check(name, words, torch.int32, (len(self.breakers),))


class ChainKernels:
    def __init__(self, library: Library) -> None:
        self._adjust = library.function("exl_adjust")
        self._chain = library.function("exl_chain")

    def adjust(self, logits: Tensor, state: ChainState, sampler: SamplerState, *, position: Tensor) -> Job:
        """Two kernels: `state.adjusted` from logits.

        Args:
            logits: float32 `[state.vocab]`, which stay as they are.
            sampler: whose draw it is for.
            position: int32 `[1]`, of the token that was fed: the context ends with it.

        Raises:
            ValueError: a tensor of another device, dtype, shape or layout.
        """
        check("logits", logits, torch.float32, (state.vocab,))
        check("position", position, torch.int32, (1,))
        check_on_gpu(logits=logits, position=position, state=state.chain, sampler=sampler.draw)
        return Job(self._adjust, *adjust_structure(logits, state, sampler, position))

    def draw_adjusted(self, state: ChainState, sampler: SamplerState, *, token: Tensor, position: Tensor) -> Job:
        """Any chain of steps over `state.adjusted`, as one kernel, which draws a token and ends the step.

        Args:
            token, position: see `SamplerKernels.sample`.

        Raises:
            ValueError: a tensor of another device, dtype, shape or layout.
        """
        check_logits(state.adjusted)
        check("token", token, torch.int64, (1,))
        check("position", position, torch.int32, (1,))
        check_on_gpu(state=state.adjusted, token=token, position=position, sampler=sampler.draw)
        return Job(self._chain, *chain_structure(state, sampler, token, position))


def adjust_structure(
    logits: Tensor, state: ChainState, sampler: SamplerState, position: Tensor
) -> tuple[c.CAdjust, tuple[Tensor, ...]]:
    """The C structure of checked tensors, and all that it points to."""
    tensors = (
        *(logits, state.adjusted, sampler.draw, state.chain, position, state.context, state.bias),
        *(state.barred_until, state.mask, state.breakers),
        *(state.counted, state.newest, state.repeated, state.numbers, state.ends),
    )
    pointers = [tensor.data_ptr() for tensor in tensors]
    blocks = min(-(-state.room // 256), 2 * _processors(logits.device))
    return c.CAdjust(*pointers, state.vocab, state.room, blocks), tensors


def chain_structure(
    state: ChainState, sampler: SamplerState, token: Tensor, position: Tensor
) -> tuple[c.CChainJob, tuple[Tensor, ...]]:
    """The C structure of checked tensors, and all that it points to."""
    sample, tensors = sample_structure(
        state.adjusted, sampler, token, position, context=state.context, numbers=state.numbers
    )
    more = (state.chain, state.sheltered, state.ends, state.scratch)
    blocks = min(_processors(token.device), c.CHAIN_BLOCKS)
    return c.CChainJob(sample, *(tensor.data_ptr() for tensor in more), blocks), (*tensors, *more)


def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
