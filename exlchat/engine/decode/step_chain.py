"""The decode step as a chain of operations of the CUDA extension: five a layer, from a token, or a few, to logits.

Everything that changes from one step to the next lies in tensors with fixed addresses, so that the chain can be
captured once and replayed. Each product leaves its result where the next one reads it, in that one's stored order.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exlchat.engine.decode.step_kernels import StepKernels
from exlchat.engine.decode.step_parts import attention_rules, is_whole, norms_heads_inside
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.layers.experts import Mlp
from exlchat.engine.layers.linear import Joined, Linear
from exlchat.engine.layers.norms import Norm
from exlchat.engine.layers.quantized_linear import Launch, QuantizedLinear
from exlchat.engine.layers.transformer import DecoderLayer, Transformer
from exlchat.engine.model.spec import ModelSpec
from exlchat.ext.attention import AttentionScratch
from exlchat.ext.functions import HEAD_INPUTS
from exlchat.ext.kv_formats import PAGE_TOKENS
from exlchat.ext.layout import TILE_COLUMNS, PackedMatrix
from exlchat.ext.products import NormCopy, Normed, Residual


def why_not_fused(transformer: Transformer) -> str | None:
    """Why a model takes the other chain (`settled_chain`), or `None`."""
    if (why := _unlike_llama(transformer.spec)) is not None:
        return why
    for index, layer in enumerate(transformer.layers):
        if layer.query_norm is not None and not norms_heads_inside(layer):
            return "it norms heads in its own way"
        mlp = _mlp(layer)
        parts = (layer.qkv, layer.output, mlp.gate_up, mlp.down)
        if not all(is_whole(part) for part in parts) or len(_quantized(mlp.gate_up).matrices) != 2:
            return f"layer {index} is not quantized in a way that the kernels hold"
        if len(_quantized(mlp.gate_up).runs) > 1:
            return f"gate and up of layer {index} order their inputs differently"
    if isinstance(transformer.head, Linear) and transformer.spec.hidden_size % HEAD_INPUTS:
        return f"its head is not quantized and reads {transformer.spec.hidden_size} numbers"
    return None


def _unlike_llama(spec: ModelSpec) -> str | None:
    """What of the architecture this chain does not compute."""
    unlike = {
        "its norms subtract the mean": spec.norm_kind != "rms",
        "its norms stand behind attention and MLP": not spec.norm_before or spec.norm_after,
        "its attention and MLP work side by side": spec.parallel,
        "its positions are of another kind": spec.interleaved or spec.learned_positions or None in spec.layer_ropes,
        "its attention has sinks": spec.sinks,
        "its queries grow with their positions": any(rope.query_beta for rope in spec.ropes),
        "it scales embeddings, layers or logits": (spec.embedding_scale, spec.residual_scale, spec.logit_scale)
        != (1.0, 1.0, 1.0)
        or spec.logit_softcap > 0,
        "its MLP is of another kind": spec.activation != "silu" or not spec.gated,
        "it has experts": spec.experts is not None,
        "its projections are sorted by group": spec.heads_by_group,
    }
    return next((why for why, found in unlike.items() if found), None)


def _mlp(layer: DecoderLayer) -> Mlp:
    if not isinstance(layer.mlp, Mlp):
        raise TypeError("experts have no MLP of their own; `why_not_fused` tells before")
    return layer.mlp


def _norm(norm: Norm | None) -> Norm:
    if norm is None:
        raise TypeError("a layer reads the residual as it is; `why_not_fused` tells before")
    return norm


def _quantized(part: Joined) -> QuantizedLinear:
    if not isinstance(part, QuantizedLinear):
        raise TypeError(f"{type(part).__name__} has no stored order; `why_not_fused` tells before")
    return part


def _only_matrix(part: Joined) -> PackedMatrix:
    (matrix,) = _quantized(part).matrices
    return matrix


@dataclass(frozen=True, slots=True)
class _Reader:
    """Who reads one copy of the normed residual: `copy` as it is written, `x` as it is read.

    Args:
        matrices: none of a head that is not quantized.
        column: where their outputs begin among those of the part.
    """

    matrices: Sequence[PackedMatrix]
    column: int
    copy: NormCopy
    x: Normed

    def cut(self, rows: int) -> _Reader:
        """The first rows."""
        values = self.x.values[:rows]
        x = replace(self.x, values=values, squares=self.x.squares[:rows])
        return replace(self, copy=replace(self.copy, values=values), x=x)


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer and the vectors between its products, `[rows, n]`, each in the stored order of its reader."""

    qkv: list[_Reader]
    output: PackedMatrix
    gate_up: list[_Reader]
    down: PackedMatrix
    heads: Tensor
    mixed: Tensor
    inner: Tensor

    def cut(self, rows: int) -> _Layer:
        """The first rows."""
        return replace(
            self,
            qkv=[reader.cut(rows) for reader in self.qkv],
            gate_up=[reader.cut(rows) for reader in self.gate_up],
            heads=self.heads[:rows],
            mixed=self.mixed[:rows],
            inner=self.inner[:rows],
        )


class StepChain:
    """The operations of a step and the tensors between them.

    Args:
        transformer, cache: of one model for which `step_fit.why_not` and `why_not_fused` give `None`.
        kernels: on the model's device.
        splits: blocks over which the attention of a head is spread.
        rows: the most tokens of a step. What each comes to, to the last bit, is what it would alone.
    """

    def __init__(
        self, transformer: Transformer, cache: KVCache, kernels: StepKernels, *, splits: int, rows: int = 1
    ) -> None:
        spec, device = transformer.spec, transformer.device
        self.token = torch.zeros(rows, dtype=torch.int64, device=device)
        """int64 `[rows]`: the tokens that the step feeds."""
        self.position = torch.zeros(rows, dtype=torch.int32, device=device)
        """int32 `[rows]`: how many tokens are before each."""
        self._rows = rows
        self._apart = False
        self.tables = cache.tables.alike(rows)
        """Show the sequences that the next step is about: one, or one a token."""
        self._transformer = transformer
        self._cache = cache
        self._kernels = kernels
        self._hidden = torch.zeros(rows, spec.hidden_size, device=device)
        self._squares = torch.zeros(rows, spec.hidden_size // TILE_COLUMNS, device=device)
        self._scratch = AttentionScratch(spec.num_heads, spec.num_kv_heads, spec.head_dim, splits, device, rows=rows)
        self._layers = [self._layer(layer) for layer in transformer.layers]
        self._before_head = self._head_readers()
        self._logits = torch.zeros(rows, self._head_outputs(), device=device)

    @property
    def logits(self) -> Tensor:
        """float32 `[vocab]`, of the first token of the step that ran last."""
        return self.row_logits[0]

    @property
    def row_logits(self) -> Tensor:
        """float32 `[rows, vocab]`, of the step that ran last."""
        return self._logits[:, : self._transformer.spec.vocab_size]

    def jobs(self, rows: int | None = None) -> list[Launch]:
        """The operations in order; of the first so many tokens, or of all."""
        if rows is not None and rows != self._rows:
            return self._cut(rows).jobs()
        before = [layer.qkv for layer in self._layers] + [self._before_head]
        jobs = [self._kernels.embed(self._transformer.embedding, self.token, self._residual(before[0]))]
        turns = [rope.slice(0, self.tables.longest * PAGE_TOKENS) for rope in self._transformer.ropes]
        for index, layer in enumerate(self._layers):
            jobs += self._attention_jobs(index, layer, turns[self._transformer.spec.layer_ropes[index] or 0])
            jobs += self._mlp_jobs(layer, before[index + 1])
        return [*jobs, self._head_job()]

    def of_sequences(self) -> StepChain:
        """The same tensors, for tokens of a sequence each: row by row those of `tables`."""
        one = copy.copy(self)
        one._apart = True
        return one

    def _cut(self, rows: int) -> StepChain:
        """The first rows of all tensors."""
        one = copy.copy(self)
        one._rows = rows
        one.token, one.position, one._logits = self.token[:rows], self.position[:rows], self._logits[:rows]
        one._hidden, one._squares = self._hidden[:rows], self._squares[:rows]
        one._layers = [layer.cut(rows) for layer in self._layers]
        one._before_head = [reader.cut(rows) for reader in self._before_head]
        return one

    def _attention_jobs(self, index: int, layer: _Layer, turns: Tensor) -> list[Launch]:
        jobs = []
        for reader in layer.qkv:
            columns = sum(matrix.outputs for matrix in reader.matrices)
            place = layer.heads[:, reader.column : reader.column + columns]
            jobs.append(self._kernels.product(reader.matrices, reader.x, place, "half"))
        head_dim = self._transformer.spec.head_dim
        jobs.append(
            self._kernels.attention(
                layer.heads.view(self._rows, -1, head_dim),
                layer.mixed,
                pages=self._cache.layer(index),
                page_table=self._page_table(index),
                position=self.position,
                turns=turns,
                rules=attention_rules(self._transformer, index),
                scratch=self._scratch,
                scatter=layer.output.scatter,
            )
        )
        return [*jobs, self._kernels.add_product(layer.output, layer.mixed, self._residual(layer.gate_up))]

    def _page_table(self, layer: int) -> Tensor:
        table = self.tables.of(self._transformer.spec.windows[layer] > 0)
        return table[: self._rows] if self._apart else table[0]

    def _mlp_jobs(self, layer: _Layer, following: list[_Reader]) -> list[Launch]:
        (reader,) = layer.gate_up
        return [
            self._kernels.product(reader.matrices, reader.x, layer.inner, "gated", scatter=layer.down.scatter),
            self._kernels.add_product(layer.down, layer.inner, self._residual(following)),
        ]

    def _head_job(self) -> Launch:
        head, (reader,) = self._transformer.head, self._before_head
        if isinstance(head, Linear):
            return self._kernels.head_product(head.weight, reader.x, self._logits)
        return self._kernels.product(reader.matrices, reader.x, self._logits, "float")

    def _layer(self, layer: DecoderLayer) -> _Layer:
        mlp = _mlp(layer)
        output, down = _only_matrix(layer.output), _only_matrix(mlp.down)
        spec = self._transformer.spec
        columns = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
        return _Layer(
            qkv=self._readers(layer.qkv, _norm(layer.attention_norm)),
            output=output,
            gate_up=self._readers(mlp.gate_up, _norm(layer.mlp_norm)),
            down=down,
            heads=self._zeros(columns),
            # Nothing writes rows that take no feature, so they must be zeros from the start.
            mixed=self._zeros(output.stored),
            inner=self._zeros(down.stored),
        )

    def _zeros(self, columns: int) -> Tensor:
        return torch.zeros(self._rows, columns, dtype=torch.float16, device=self._transformer.device)

    def _readers(self, part: Joined, norm: Norm) -> list[_Reader]:
        """Who reads the residual behind a norm, each with a copy in its own order."""
        return [
            self._reader(run.matrices, run.column, run.matrices[0].stored, run.matrices[0].scatter, norm)
            for run in _quantized(part).runs
        ]

    def _head_readers(self) -> list[_Reader]:
        """The head, which reads features in their own order where it is in float16 (GPTQ files, tied embeddings)."""
        head, norm = self._transformer.head, self._transformer.norm
        if not isinstance(head, Linear):
            return self._readers(head, norm)
        width = self._transformer.spec.hidden_size
        order = torch.arange(width, device=self._transformer.device).to(torch.int16)
        return [self._reader((), 0, width, order, norm)]

    def _reader(
        self, matrices: Sequence[PackedMatrix], column: int, stored: int, scatter: Tensor, norm: Norm
    ) -> _Reader:
        values = torch.zeros(self._rows, stored, device=self._transformer.device)
        return _Reader(
            matrices, column, NormCopy(values, scatter, norm.weight), Normed(values, self._squares, norm.eps)
        )

    def _residual(self, following: list[_Reader]) -> Residual:
        """The residual stream as the product before these readers leaves it."""
        return Residual(self._hidden, self._squares, tuple(reader.copy for reader in following))

    def _head_outputs(self) -> int:
        head = self._transformer.head
        return len(head.weight) if isinstance(head, Linear) else _only_matrix(head).outputs
