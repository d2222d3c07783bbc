"""The decode step of any architecture as a chain of operations with fixed addresses, from a token to logits.

Where `step_chain` has the residual stream inside the products, as Llama's shape allows, here one operation stands
between them: it adds to the residual, norms what is added where the architecture does so, and leaves the normed row for
every product behind it in that one's stored order (`exlchat.ext.settle`). Parts that the kernels do not hold, as float
layers, are computed by torch inside the captured step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from exlchat.engine.decode.settled_experts import ExpertJobs, packed_experts
from exlchat.engine.decode.step_kernels import StepKernels, TorchJob
from exlchat.engine.decode.step_parts import attention_rules, is_whole, norms_heads_inside, only_matrix
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.layers.experts import Experts, Mlp
from exlchat.engine.layers.linear import Joined, Linear
from exlchat.engine.layers.norms import Norm
from exlchat.engine.layers.operations import KERNEL_ACTIVATIONS, TorchOperations
from exlchat.engine.layers.quantized_linear import Launch, QuantizedLinear
from exlchat.engine.layers.transformer import DecoderLayer, Transformer
from exlchat.ext.attention import AttentionScratch
from exlchat.ext.functions import MAX_MATRICES
from exlchat.ext.heads import HeadNormKind, HeadNorms
from exlchat.ext.kv_formats import PAGE_TOKENS
from exlchat.ext.layout import PackedMatrix
from exlchat.ext.settle import Joining, NormedCopy
from exlchat.ext.settle import Norm as SettleNorm


@dataclass(frozen=True, slots=True)
class _Input:
    """The normed row for one reader.

    Args:
        matrices: that read it in their stored order; none where a layer reads it in the order of the features.
        column: the first of their columns among all of the layer.
    """

    copy: NormedCopy
    matrices: tuple[PackedMatrix, ...] = ()
    column: int = 0


@dataclass(frozen=True, slots=True)
class _Half:
    """Attention or MLP: what it reads, and how its result joins the residual."""

    inputs: list[_Input]
    jobs: list[Launch]
    y: Tensor
    weights: Tensor | None = None
    added: Tensor | None = None
    gate: Tensor | None = None

    @property
    def copies(self) -> list[NormedCopy]:
        return [found.copy for found in self.inputs]


class SettledChain:
    """A `step_fit.Chain`.

    Args:
        transformer, cache: of one model for which `step_fit.why_not` gives `None`.
        kernels: on the model's device.
        splits: blocks over which the attention of a head is spread.

    Raises:
        UnfitError: the kernels do not hold the experts of a layer.
    """

    def __init__(self, transformer: Transformer, cache: KVCache, kernels: StepKernels, *, splits: int) -> None:
        spec, device = transformer.spec, transformer.device
        self.token = torch.zeros(1, dtype=torch.int64, device=device)
        """int64 `[1]`: the token that the step feeds."""
        self.position = torch.zeros(1, dtype=torch.int32, device=device)
        """int32 `[1]`: how many tokens are cached."""
        self.tables = cache.tables.alike(1)
        """Show the sequence that the next step is about."""
        self._transformer = transformer
        self._cache = cache
        self._kernels = kernels
        self._device = device
        self._hidden = torch.zeros(1, spec.hidden_size, device=device)
        self._scratch = AttentionScratch(spec.num_heads, spec.num_kv_heads, spec.head_dim, splits, device)
        self._experts = ExpertJobs(kernels, device)
        head = transformer.head
        rows = len(head.weight) if isinstance(head, Linear) else head.matrices[0].outputs
        self._logits = torch.zeros(1, rows, device=device)

    @property
    def logits(self) -> Tensor:
        """float32 `[vocab]`, of the step that ran last."""
        return self._logits[0, : self._transformer.spec.vocab_size]

    def jobs(self) -> list[Launch]:
        """The operations in order."""
        transformer, spec = self._transformer, self._transformer.spec
        jobs: list[Launch] = [
            self._kernels.embed(transformer.embedding, self.token, self._hidden, spec.embedding_scale)
        ]
        pending: Joining | None = None
        for index, layer in enumerate(transformer.layers):
            attention, mlp = self._attention(index, layer), self._mlp(layer)
            if spec.parallel:
                jobs += self._settle(pending, layer.attention_norm, [*attention.copies, *mlp.copies])
                jobs += [*attention.jobs, *mlp.jobs]
                pending = Joining(y=attention.y, added=mlp.y, multiplier=spec.residual_scale)
                continue
            jobs += [*self._settle(pending, layer.attention_norm, attention.copies), *attention.jobs]
            joining = self._joining(attention, layer.attention_post_norm)
            jobs += [*self._settle(joining, layer.mlp_norm, mlp.copies), *mlp.jobs]
            pending = self._joining(mlp, layer.mlp_post_norm)
        return [*jobs, *self._head(pending)]

    def _joining(self, half: _Half, after: Norm | None) -> Joining:
        return Joining(
            y=half.y,
            weights=half.weights,
            added=half.added,
            gate=half.gate,
            norm=_for_settling(after),
            multiplier=self._transformer.spec.residual_scale,
        )

    def _settle(self, joining: Joining | None, norm: Norm | None, copies: Sequence[NormedCopy]) -> list[Launch]:
        """What joins the residual, and the normed row for each reader; more than three take another round."""
        jobs = []
        for first in range(0, max(len(copies), 1), MAX_MATRICES):
            some = copies[first : first + MAX_MATRICES]
            joins = joining if first == 0 else None
            jobs.append(self._kernels.settle(self._hidden, some, norm=_for_settling(norm), joining=joins))
        return jobs

    def _inputs(self, part: Joined) -> list[_Input]:
        """How a part reads the normed row: quantized ones each in their own order, others by features."""
        return self._by_runs(part) if is_whole(part) else [self._by_features()]

    def _by_runs(self, part: QuantizedLinear) -> list[_Input]:
        inputs = []
        for run in part.runs:
            first = run.matrices[0]
            # Nothing writes rows that take no feature, so they must be zeros from the start.
            copy = NormedCopy(self._halves(first.stored), first.scatter)
            inputs.append(_Input(copy, run.matrices, run.column))
        return inputs

    def _by_features(self) -> _Input:
        return _Input(NormedCopy(self._halves(self._transformer.spec.hidden_size)))

    def _attention(self, index: int, layer: DecoderLayer) -> _Half:
        spec = self._transformer.spec
        inputs = self._inputs(layer.qkv) if layer.head_order is None else [self._by_features()]
        columns = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
        row, y = self._halves(columns), self._floats(spec.hidden_size)
        jobs = self._multiply(layer.qkv, inputs, row, layer.head_order)
        heads = row.view(-1, spec.head_dim)
        jobs += self._norm_heads(layer, heads)
        output = only_matrix(layer.output)
        mixed = self._halves(spec.num_heads * spec.head_dim if output is None else output.stored)
        rope = spec.layer_ropes[index]
        tokens = self.tables.longest * PAGE_TOKENS
        turns = self._floats(0).view(tokens, 0, 2) if rope is None else self._transformer.ropes[rope].slice(0, tokens)
        if rope is not None and spec.ropes[rope].query_beta:
            jobs.append(self._scale_queries(heads, self._transformer.ropes[rope].query_scales(0, tokens)))
        jobs.append(
            self._kernels.attention(
                heads,
                mixed[0],
                pages=self._cache.layer(index),
                page_table=self.tables.of(spec.windows[index] > 0)[0],
                position=self.position,
                turns=turns,
                rules=attention_rules(self._transformer, index),
                scratch=self._scratch,
                scatter=None if output is None else output.scatter,
            )
        )
        return _Half(inputs, [*jobs, self._out(layer.output, mixed, y)], y)

    def _norm_heads(self, layer: DecoderLayer, heads: Tensor) -> list[Launch]:
        """Norms queries and keys of `[heads + 2 * kv_heads, head_dim]`, where attention does not do that itself."""
        query, key = layer.query_norm, layer.key_norm
        if query is None or key is None or norms_heads_inside(layer):
            return []
        first, end = self._transformer.spec.num_heads, len(heads) - self._transformer.spec.num_kv_heads
        queries, keys = heads[:first].unsqueeze(0), heads[first:end].unsqueeze(0)
        if query.kind == "rms":  # the kernels have none with a weight of each head
            return [TorchJob(lambda: (queries.copy_(query(queries)), keys.copy_(key(keys))))]
        kind: HeadNormKind = "layer" if query.kind == "layer" else "rms_together"
        weights = (norm.weight.view(-1, heads.shape[1]) for norm in (query, key))
        of_query, of_key = (
            weight.expand(part.shape[1], -1).contiguous() for weight, part in zip(weights, (queries, keys), strict=True)
        )
        norms = HeadNorms(kind, of_query, of_key, query.eps)
        return [self._kernels.norm_heads(heads, norms, kv_heads=keys.shape[1])]

    def _scale_queries(self, heads: Tensor, scales: Tensor) -> Launch:
        """The queries of a row by the factor of its position: before they are turned, which comes to the same."""
        queries, position = heads[: self._transformer.spec.num_heads], self.position
        return TorchJob(lambda: queries.mul_(scales[position]))

    def _multiply(self, part: Joined, inputs: list[_Input], y: Tensor, order: Tensor | None) -> list[Launch]:
        """`y` float16 becomes the normed row times all matrices of a part, its heads in the model's order."""
        if not inputs[0].matrices:
            x = inputs[0].copy.x
            heads = self._transformer.spec.head_dim

            def work() -> None:
                found = part(x)
                y.copy_(found if order is None else found.view(-1, heads)[order].view(1, -1))

            return [TorchJob(work)]
        return [self._kernels.product(found.matrices, found.copy.x, self._place(y, found), "half") for found in inputs]

    @staticmethod
    def _place(y: Tensor, found: _Input) -> Tensor:
        return y[:, found.column : found.column + sum(matrix.outputs for matrix in found.matrices)]

    def _out(self, part: Linear | QuantizedLinear, x: Tensor, y: Tensor) -> Launch:
        """`y` float32 becomes x times a part that reads x in its own order."""
        matrix = only_matrix(part)
        if matrix is None:
            return TorchJob(lambda: y.copy_(part(x)))
        return self._kernels.product([matrix], x, y, "float")

    def _mlp(self, layer: DecoderLayer) -> _Half:
        return self._mixture(layer.mlp) if isinstance(layer.mlp, Experts) else self._plain_mlp(layer.mlp)

    def _plain_mlp(self, mlp: Mlp) -> _Half:
        down, y = only_matrix(mlp.down), self._floats(self._transformer.spec.hidden_size)
        kernels_hold = is_whole(mlp.gate_up) and mlp.activation in KERNEL_ACTIVATIONS
        inputs = self._inputs(mlp.gate_up) if kernels_hold else [self._by_features()]
        matrices = inputs[0].matrices
        if len(inputs) > 1 or len(matrices) != (2 if mlp.gated else 1) or down is None:
            inputs = [self._by_features()]
            x, operations = inputs[0].copy.x, TorchOperations(torch.float16)
            return _Half(inputs, [TorchJob(lambda: y.copy_(mlp(x, operations)))], y)
        inner, activation = self._halves(down.stored), KERNEL_ACTIVATIONS[mlp.activation]
        first = self._kernels.product(
            matrices,
            inputs[0].copy.x,
            inner,
            "gated" if mlp.gated else "activated",
            scatter=down.scatter,
            activation=activation,
        )
        return _Half(inputs, [first, self._out(mlp.down, inner, y)], y)

    def _mixture(self, experts: Experts) -> _Half:
        row = self._by_features()
        route, routed = self._experts.route(experts, row.copy.x)
        products, y = self._experts.products(packed_experts(experts), routed, row.copy.x, experts.experts[0])
        inputs, jobs = [row], [route, *products]
        if experts.shared is None:
            return _Half(inputs, jobs, y, routed.weights)
        shared = self._plain_mlp(experts.shared.mlp)
        gate = routed.logits[len(experts.experts) :]
        return _Half([*inputs, *shared.inputs], [*jobs, *shared.jobs], y, routed.weights, shared.y, gate)

    def _head(self, pending: Joining | None) -> list[Launch]:
        transformer, head = self._transformer, self._transformer.head
        inputs = [self._by_features()] if isinstance(head, Linear) else self._by_runs(head)
        jobs = self._settle(pending, transformer.norm, [found.copy for found in inputs])
        x, logits = inputs[0].copy.x, self._logits
        if isinstance(head, Linear):
            weight = head.weight
            jobs.append(TorchJob(lambda: logits.copy_(functional.linear(x, weight))))
        else:
            jobs.append(self._kernels.product(head.matrices, x, logits, "float"))
        spec = transformer.spec
        if spec.logit_scale != 1.0 or spec.logit_softcap:
            jobs.append(self._kernels.scale_logits(self.logits, scale=spec.logit_scale, softcap=spec.logit_softcap))
        return jobs

    def _halves(self, columns: int) -> Tensor:
        return torch.zeros(1, columns, dtype=torch.float16, device=self._device)

    def _floats(self, columns: int) -> Tensor:
        return torch.zeros(1, columns, device=self._device)


def _for_settling(norm: Norm | None) -> SettleNorm | None:
    return None if norm is None else SettleNorm(norm.weight, norm.eps, norm.kind, norm.bias)
