"""Operations between the products of a prompt, many tokens at a time. They run at once, on torch's current stream.

`tests/ext/reference_prompt.py` defines what they compute.
"""

from __future__ import annotations

import torch
from torch import Tensor

from exlchat.ext import functions as c
from exlchat.ext.job import check, check_on_gpu
from exlchat.ext.library import Library
from exlchat.ext.products import ACTIVATIONS, Activation


class PromptKernels:
    def __init__(self, library: Library) -> None:
        self._add_norm = library.function("exl_add_norm")
        self._gate = library.function("exl_gate")
        self._turn = library.function("exl_turn")

    def add_norm(
        self, hidden: Tensor, added: Tensor | None, weight: Tensor, eps: float, *, permutation: Tensor | None = None
    ) -> Tensor:
        """`hidden += added`, then its RMS norm.

        Args:
            hidden: float32 `[rows, width]`, changed; width a multiple of 4, with permutation of 8.
            added: float16 `[rows, width]`.
            weight: float16 `[width]`.
            permutation: int16 (holding uint16) `[width]`, where in the result each number goes, no two to one.

        Returns:
            float16 `[rows, width]`.

        Raises:
            ValueError: a tensor of another device, dtype, shape or layout.
        """
        rows, width = hidden.shape
        check("hidden", hidden, torch.float32, (rows, width))
        check("weight", weight, torch.float16, (width,))
        check_on_gpu(hidden=hidden, weight=weight)
        job = c.CAddNorm(hidden=hidden.data_ptr(), weight=weight.data_ptr(), rows=rows, width=width, eps=eps)
        if added is not None:
            check("added", added, torch.float16, (rows, width))
            check_on_gpu(added=added)
            job.added = added.data_ptr()
        if permutation is not None:
            check("permutation", permutation, torch.int16, (width,))
            check_on_gpu(permutation=permutation)
            job.permutation = permutation.data_ptr()
        y = torch.empty(rows, width, dtype=torch.float16, device=hidden.device)
        job.y = y.data_ptr()
        self._add_norm(c.address(job), _stream())
        return y

    def gate(self, x: Tensor, activation: Activation = "silu") -> Tensor:
        """float16 `[rows, 2 * inner]` -> `[rows, inner]`: `activation(first half) * second half`; inner of 8.

        Raises:
            ValueError: a tensor of another device, dtype or layout.
        """
        rows, columns = x.shape
        check("x", x, torch.float16, (rows, columns))
        check_on_gpu(x=x)
        y = torch.empty(rows, columns // 2, dtype=torch.float16, device=x.device)
        self._gate(x.data_ptr(), y.data_ptr(), rows, columns // 2, ACTIVATIONS[activation], _stream())
        return y

    def turn(self, x: Tensor, turns: Tensor, heads: int, *, interleaved: bool = False) -> None:
        """Turns the first `rotary_dim` elements of the first `heads` heads of every row in place.

        Args:
            x: float16 `[rows, all heads, head_dim]`; head_dim a multiple of 4.
            turns: float32 `[rows, rotary_dim / 2, 2]`: cos and sin; rotary_dim a multiple of 4.
            interleaved: elements 2 i and 2 i + 1 are turned together (GPT-J), not i and i + rotary_dim / 2.

        Raises:
            ValueError: a tensor of another device, dtype, shape or layout.
        """
        rows, all_heads, head_dim = x.shape
        check("x", x, torch.float16, (rows, all_heads, head_dim))
        if turns.ndim != 3 or turns.shape[1] < 2 or turns.shape[1] % 2 or 2 * turns.shape[1] > head_dim:
            raise ValueError(
                f"turns is {tuple(turns.shape)}; it must have {rows} rows and an even number of at most "
                f"{head_dim // 2} pairs"
            )
        pairs = turns.shape[1]
        check("turns", turns, torch.float32, (rows, pairs, 2))
        check_on_gpu(x=x, turns=turns)
        sizes = (rows, heads, all_heads, head_dim, 2 * pairs)
        self._turn(x.data_ptr(), turns.data_ptr(), *sizes, interleaved, _stream())


def _stream() -> int:
    return torch.cuda.current_stream().cuda_stream
