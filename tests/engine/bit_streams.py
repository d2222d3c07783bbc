"""Packed codes taken apart with numpy, from the descriptions of the formats alone: `../shared/formats/gptq.md` 1, 2
and 4, and for AWQ the order in which AutoAWQ's `WQLinear_GEMM.from_linear` packs (`order_map`)."""

from __future__ import annotations

import numpy as np
import torch

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def down_columns(words: torch.Tensor, bits: int) -> np.ndarray:
    """int64 `[rows * 32 / bits, columns]`: each column is a stream of bits, the lowest of each word first."""
    stored = words.numpy().view(np.uint32).astype("<u4")
    columns = []
    for column in range(stored.shape[1]):
        stream = np.unpackbits(np.ascontiguousarray(stored[:, column]).view(np.uint8), bitorder="little")
        columns.append(stream.reshape(-1, bits) @ (1 << np.arange(bits)))
    return np.stack(columns, axis=1)


def awq_rows(words: torch.Tensor) -> np.ndarray:
    """int64 `[rows, 8 * columns]`."""
    stored = words.numpy().view(np.uint32).astype(np.int64)
    codes = np.zeros((stored.shape[0], 8 * stored.shape[1]), dtype=np.int64)
    for place, output in enumerate(AWQ_ORDER):
        codes[:, output::8] = stored >> 4 * place & 15
    return codes


def gptq_weights(tensors: dict[str, torch.Tensor], bits: int, groups: np.ndarray, *, exact_zeros: bool) -> torch.Tensor:
    """float16 `[K, N]`."""
    zeros = down_columns(tensors["qzeros"].T.contiguous(), bits).T + (0 if exact_zeros else 1)
    return scaled(down_columns(tensors["qweight"], bits), zeros, tensors["scales"], groups)


def scaled(codes: np.ndarray, zeros: np.ndarray, scales: torch.Tensor, groups: np.ndarray) -> torch.Tensor:
    """float16 `(code - zero) * scale`, exact in float64 until the one rounding."""
    exact = (codes - zeros[groups]) * scales.half().numpy().astype(np.float64)[groups]
    return torch.from_numpy(exact.astype(np.float16))


def random_words(seed: int, rows: int, columns: int) -> torch.Tensor:
    """int32 words of random bits."""
    draws = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, (rows, columns), dtype=torch.int64, generator=draws).to(torch.int32)


def random_gptq(bits: int, features: int, outputs: int, groups: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random codes, zero points and scales, without `g_idx`."""
    draws = torch.Generator().manual_seed(seed)
    return {
        "qweight": random_words(seed, features * bits // 32, outputs),
        "qzeros": random_words(seed + 1, groups, outputs * bits // 32),
        "scales": (torch.rand(groups, outputs, generator=draws) * 0.02).half(),
    }


def random_awq(features: int, outputs: int, groups: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """The same for AWQ."""
    draws = torch.Generator().manual_seed(seed)
    return {
        "qweight": random_words(seed, features, outputs // 8),
        "qzeros": random_words(seed + 1, groups, outputs // 8),
        "scales": (torch.rand(groups, outputs, generator=draws) * 0.02).half(),
    }
