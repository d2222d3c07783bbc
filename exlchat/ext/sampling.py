"""The sampler as an operation: from the logits of a step to the next token, on the device.

It ends a step. The token goes where the next step's embedding reads it, the position is counted on, and one word with
token, status and sequence number goes to the host, which finds it in a `TokenRing` without waiting for the stream.
`tests/ext/reference_sampling.py` defines the draw.
"""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from exlchat.ext import functions as c
from exlchat.ext.job import Job, check, check_on_gpu
from exlchat.ext.library import Library

MAX_VOCAB = c.MAX_VOCAB
RING_SLOTS = 64
"""A power of two, and more steps than ever run ahead of the host."""
DRAWN, NOT_NUMBERS, NOTHING_ALLOWED = 0, 1, 2

_STEEPEST = 1e30
_SEQUENCES = 2**32


class TokenRing:
    """Page-locked host memory, int64 `[RING_SLOTS]`, in which every step leaves one word.

    A step writes its word whole in one store, so that a word with the expected sequence number is complete: sequence
    number in the upper 32 bits, status in the next 8, token in the lowest 24.

    Args:
        words: its memory, filled with -1; its own unless given.
        pinned: page-locked, as a GPU needs it. Its address is the same for both on 64-bit Linux (unified addressing).
    """

    def __init__(self, words: Tensor | None = None, *, pinned: bool = True) -> None:
        # No step is -1: its sequence number would be 2**32 - 1 with a status that does not exist.
        if words is None:
            words = torch.full((RING_SLOTS,), -1, dtype=torch.int64, pin_memory=pinned)
        self.words = words
        self._view = self.words.numpy().data

    @torch.inference_mode()
    def clear(self) -> None:
        """Forgets every word. No step may be under way."""
        self.words.fill_(-1)

    def read(self, sequence: int) -> tuple[int, int] | None:
        """Token and status of step `sequence`, or `None` while it has not ended. Waits for nothing."""
        word: int = self._view[sequence % RING_SLOTS]
        if (word >> 32) % _SEQUENCES != sequence % _SEQUENCES:
            return None
        return word & 0xFFFFFF, word >> 24 & 0xFF


class SamplerMemory:
    """Of so many samplers."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.words = torch.full((rows, RING_SLOTS), -1, dtype=torch.int64, pin_memory=device.type == "cuda")
        self.draws = torch.zeros(rows, ctypes.sizeof(c.CDraw), dtype=torch.uint8, device=device)
        """The `CDraw` of each."""
        self.scratch = torch.zeros(rows, c.SAMPLE_SCRATCH_BYTES, dtype=torch.uint8, device=device)


def c_draw(
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int,
    index: int,
    sequence: int,
    attempt: int = 0,
    mu: float = 0.0,
) -> c.CDraw:
    """The C structure of a distribution and of the next draw from it.

    Args:
        temperature: logits are divided by it; 0 takes the best.
        top_k, top_p, min_p: as `exlchat.llm.sampling` has them; 0, 1 and 0 are off.
        seed, index, attempt: of the next draw, see `philox.uniform_bits`.
        sequence: number of the last step before; the next reports one more.
        mu: Mirostat's, of a chain that has it.
    """
    steepness = math.log2(math.e) / temperature if temperature > 0.0 else _STEEPEST
    return c.CDraw(
        top_p=top_p,
        seed=seed & 2**64 - 1,
        index=index,
        mu=mu,
        octaves_per_logit=min(max(steepness, 1 / _STEEPEST), _STEEPEST),
        deepest=-math.log2(min_p) if min_p > 0.0 else math.inf,
        top_k=min(top_k, MAX_VOCAB),
        greedy=temperature == 0.0 or top_k == 1,
        sequence=sequence % _SEQUENCES,
        attempt=attempt % _SEQUENCES,
    )


class SamplerState:
    """What a sampler keeps on the device between steps, and the host's end of it.

    Captured graphs hold its addresses: settings change by `set`, without capturing again.

    Args:
        among: of many, the number of this one and the memory of all.
    """

    def __init__(self, device: torch.device, among: tuple[int, SamplerMemory] | None = None) -> None:
        row, memory = among or (0, SamplerMemory(1, device))
        self.ring = TokenRing(memory.words[row])
        self.draw, self.scratch = memory.draws[row], memory.scratch[row]
        self._staging = torch.zeros(len(self.draw), dtype=torch.uint8, pin_memory=device.type == "cuda")

    def set(self, draw: c.CDraw) -> None:
        """Takes effect for the steps launched on the current stream from now on.

        The steps before, and a copy that an earlier `set` began, must have ended.
        """
        self._staging.copy_(torch.frombuffer(bytearray(draw), dtype=torch.uint8))
        self.draw.copy_(self._staging, non_blocking=True)

    def mu(self) -> float:
        """Mirostat's, after the steps that have been launched; waits for them."""
        return float(c.CDraw.from_buffer_copy(bytes(self.draw.tolist())).mu)


class SamplerKernels:
    def __init__(self, library: Library) -> None:
        self._sample = library.function("exl_sample")
        self._scale_logits = library.function("exl_scale_logits")

    def scale_logits(self, logits: Tensor, *, scale: float = 1.0, softcap: float = 0.0) -> Job:
        """Logits times `scale`, then `softcap * tanh(logits / softcap)`, in place.

        Args:
            logits: float32 `[rows, vocab]`, 1 to 8 rows of at most `MAX_VOCAB`.
            softcap: 0 leaves the scaled logits as they are.

        Raises:
            ValueError: a tensor of another device, dtype, shape or layout, or neither a scale nor a softcap.
        """
        if scale == 1.0 and softcap == 0.0:
            raise ValueError("there is neither a scale nor a softcap; leave the operation out")
        if not (math.isfinite(scale) and math.isfinite(softcap) and softcap >= 0.0):
            raise ValueError(f"scale is {scale} and softcap {softcap}; they must be finite, the softcap not below 0")
        rows, vocab = logits.shape
        if not (1 <= rows <= c.MAX_ROWS and 1 <= vocab <= MAX_VOCAB):
            raise ValueError(
                f"logits are {rows} rows of {vocab:,}; there can be 1 to {c.MAX_ROWS} of 1 to {MAX_VOCAB:,}"
            )
        check("logits", logits, torch.float32, (rows, vocab))
        check_on_gpu(logits=logits)
        job = c.CScaleLogits(logits=logits.data_ptr(), scale=scale, softcap=softcap, count=logits.numel())
        return Job(self._scale_logits, job, (logits,))

    def sample(
        self,
        logits: Tensor,
        state: SamplerState,
        *,
        token: Tensor,
        position: Tensor,
        context: Tensor | None = None,
        numbers: Tensor | None = None,
    ) -> Job:
        """Four kernels that draw a token and end the step.

        Args:
            logits: float32 `[vocab]`, at most `MAX_VOCAB`.
            state: of this sampler alone.
            token: int64 `[1]`, becomes the token; 0 where there is none, which the status says.
            position: int32 `[1]`, grows by one.
            context, numbers: of `chain.ChainState`, where the logits are its adjusted ones: the token goes there too.

        Raises:
            ValueError: a tensor of another device, dtype, shape or layout.
        """
        check_logits(logits)
        check("token", token, torch.int64, (1,))
        check("position", position, torch.int32, (1,))
        check_on_gpu(logits=logits, token=token, position=position, state=state.draw)
        return Job(self._sample, *sample_structure(logits, state, token, position, context=context, numbers=numbers))


def sample_structure(
    logits: Tensor,
    state: SamplerState,
    token: Tensor,
    position: Tensor,
    *,
    context: Tensor | None,
    numbers: Tensor | None,
) -> tuple[c.CSample, tuple[Tensor, ...]]:
    """The C structure of checked tensors, and all that it points to."""
    optional = tuple(tensor for tensor in (context, numbers) if tensor is not None)
    structure = c.CSample(
        logits=logits.data_ptr(),
        draw=state.draw.data_ptr(),
        token=token.data_ptr(),
        position=position.data_ptr(),
        ring=state.ring.words.data_ptr(),
        context=None if context is None else context.data_ptr(),
        numbers=None if numbers is None else numbers.data_ptr(),
        scratch=state.scratch.data_ptr(),
        vocab=len(logits),
        ring_slots=RING_SLOTS,
        room=0 if context is None else len(context),
    )
    return structure, (logits, state.draw, token, position, state.ring.words, state.scratch, *optional)


def check_logits(logits: Tensor) -> None:
    """Raises `ValueError` where they are not float32 `[vocab]`, at most `MAX_VOCAB`."""
    if logits.ndim != 1 or not 1 <= len(logits) <= MAX_VOCAB:
        raise ValueError(f"logits is {tuple(logits.shape)}; it must be one row of 1 to {MAX_VOCAB} logits")
    check("logits", logits, torch.float32, (len(logits),))
