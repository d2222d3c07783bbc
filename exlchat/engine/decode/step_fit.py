"""Whether a model decodes by a captured step, and by which chain of operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from exlchat.engine.decode.settled_chain import SettledChain
from exlchat.engine.decode.settled_experts import UnfitError, packed_experts
from exlchat.engine.decode.step_chain import StepChain, why_not_fused
from exlchat.engine.decode.step_kernels import StepKernels
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.memory import PageTables
from exlchat.engine.layers.experts import Experts
from exlchat.engine.layers.quantized_linear import Launch
from exlchat.engine.layers.transformer import Transformer
from exlchat.ext.attention import HEAD_DIMS
from exlchat.ext.layout import TILE_COLUMNS
from exlchat.ext.sampling import MAX_VOCAB
from exlchat.ext.settle import MAX_WIDTH

_MOST_HEADS_A_KEY = 16


class Chain(Protocol):
    """The operations of a step and the tensors between them."""

    @property
    def token(self) -> Tensor:
        """int64 `[1]`: the token that the step feeds."""

    @property
    def position(self) -> Tensor:
        """int32 `[1]`: how many tokens are cached."""

    @property
    def tables(self) -> PageTables:
        """Show the sequence that the next step is about."""

    @property
    def logits(self) -> Tensor:
        """float32 `[vocab]`, of the step that ran last."""

    def jobs(self) -> Sequence[Launch]:
        """The operations in order."""


def why_not(transformer: Transformer, cache: KVCache) -> str | None:
    """Why a model has no captured step and decodes through plain torch, or `None` if it has one."""
    spec = transformer.spec
    if transformer.dtype != torch.float16 or cache.kind.name == "fp32":
        return f"it computes in {transformer.dtype} with a cache in {cache.kind.name}"
    if spec.head_dim not in HEAD_DIMS or spec.num_heads > _MOST_HEADS_A_KEY * spec.num_kv_heads:
        return f"its {spec.num_heads} heads over {spec.num_kv_heads} have {spec.head_dim} elements"
    if spec.vocab_size > MAX_VOCAB or spec.hidden_size % TILE_COLUMNS or spec.hidden_size > MAX_WIDTH:
        return f"it has {spec.vocab_size} tokens of {spec.hidden_size} numbers"
    if spec.learned_positions:
        return "its positions are an embedding"
    try:
        for layer in transformer.layers:
            if isinstance(layer.mlp, Experts):
                packed_experts(layer.mlp)
    except UnfitError as error:
        return str(error)
    return None


def open_chain(transformer: Transformer, cache: KVCache, kernels: StepKernels, *, splits: int) -> Chain:
    """The chain that suits a model for which `why_not` gives `None`.

    Args:
        splits: blocks over which the attention of a head is spread.
    """
    if why_not_fused(transformer) is None:
        return StepChain(transformer, cache, kernels, splits=splits)
    return SettledChain(transformer, cache, kernels, splits=splits)
