"""The decode step of any architecture: a list of launches from a token, or a few, to logits.

A layer is attention, a join, its MLP or experts, a join. A join adds to the residual stream and leaves the normed row
for each reader behind it, in that one's stored order (`exlchat.engine.decode.joins`). What the kernels do not hold, as
float layers, torch computes between them. Everything that changes from one step to the next lies in tensors with fixed
addresses, so that the list can be captured once and replayed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from exlchat.engine.decode.experts import ExpertJobs, FloatExperts, PackedExperts, Router, packed_experts
from exlchat.engine.decode.fit import norms_heads_inside, why_not_fused
from exlchat.engine.decode.joins import Exchanges, FusedJoins, Joins, SettledJoins
from exlchat.engine.decode.kernels import StepKernels, TorchJob, torch_rows
from exlchat.engine.decode.parts import FirstReaders, Half, Join, Reader, Together, attention_rules
from exlchat.engine.decode.tensors import Between, Stream, WalkTensors
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.memory import PageTables
from exlchat.engine.layers.experts import Experts, Mlp
from exlchat.engine.layers.linear import Joined, Linear, is_whole, only_matrix, takes_rows_alike
from exlchat.engine.layers.norms import Norm
from exlchat.engine.layers.operations import KERNEL_ACTIVATIONS, TorchOperations
from exlchat.engine.layers.quantized_linear import Launch
from exlchat.engine.layers.transformer import DecoderLayer, Transformer
from exlchat.ext.attention import AttentionRules, AttentionScratch
from exlchat.ext.functions import HEAD_INPUTS
from exlchat.ext.heads import HeadNormKind, HeadNorms
from exlchat.ext.kv_formats import PAGE_TOKENS
from exlchat.ext.products import MAX_ROWS
from exlchat.ext.settle import Joining

Tables = Literal["shared", "own"]
"""Whether the tokens of a pass follow each other in one sequence, or are of a sequence each."""


class DecodePlan:
    """The operations of a step on one card, and the tensors that go in, out and between them.

    Args:
        transformer, cache: of one model for which `fit.why_not` gives `None`.
        kernels: on the model's devices.
        splits: blocks over which the attention of a head is spread; sums depend on it.
        rows: the most tokens of a step, 1 to 8. What each comes to, to the last bit, is what it would alone.
        behind: of the next card, where layers lie on one each; this is the one before it. The last card's unless given.
        together: this card has a part of every layer.
        direct: what is left for the next card goes there at the end of the operations, as kernels reach its memory.

    Raises:
        ValueError: another number of rows.
        UnfitError: the kernels do not hold the experts of a layer.
    """

    def __init__(
        self,
        transformer: Transformer,
        cache: KVCache,
        kernels: StepKernels,
        *,
        splits: int,
        rows: int = 1,
        behind: DecodePlan | None = None,
        together: Together | None = None,
        direct: bool = False,
    ) -> None:
        if not 1 <= rows <= MAX_ROWS:
            raise ValueError(f"{rows} rows; a step takes 1 to {MAX_ROWS}")
        split, spec, head = transformer.split, transformer.spec, transformer.head
        self.card: int = len(split.devices) - 1 if behind is None else behind.card - 1
        self.device = device = split.devices[self.card]
        self.fed = torch.zeros(3 * rows, dtype=torch.int32, device=device)
        """`token` and `position` one behind the other, so that one copy brings both from card to card."""
        self.token = self.fed[: 2 * rows].view(torch.int64)
        """int64 `[rows]`: the tokens that the step feeds; the first card reads them."""
        self.position = self.fed[2 * rows :]
        """int32 `[rows]`: how many tokens are before each."""
        self.together, self.direct = together, direct
        self.tables: PageTables = self._tables_of(behind, together) or cache.tables.alike(rows)
        """int32 `[rows, pages]`: show the sequences that the next step is about, one, or one a token."""
        outputs = 0
        if behind is None:
            outputs = len(head.weight) if isinstance(head, Linear) else head.matrices[0].outputs
        first = 0 if together is None else together.first_logit
        self._all_logits = torch.zeros(rows, first + outputs, device=device)
        self._own_logits = self._all_logits[:, first:]
        self.logits = self._all_logits[:, : spec.vocab_size]
        """float32 `[rows, vocab]`, of the step that ran last; on the last card."""
        self._transformer = transformer
        self._cache = cache
        self._kernels = kernels
        self._fused = why_not_fused(transformer) is None
        self._stream = Stream.of(rows, spec.hidden_size, defers=self._fused and spec.norm_after, device=device)
        self._scratch = AttentionScratch(spec.num_heads, spec.num_kv_heads, spec.head_dim, splits, device, rows=rows)
        self._between = Between(rows, device)
        self._tickets = torch.zeros(rows, dtype=torch.int32, device=device)
        self._mixtures: dict[int, tuple[Router, PackedExperts | FloatExperts]] = {}
        self._query_scales: dict[int, Tensor] = {}
        self._behind = behind
        self._arrival: FirstReaders | None = None
        self._left: FirstReaders | None = None
        self._sent: list[tuple[Tensor, Tensor]] = []

    @staticmethod
    def _tables_of(behind: DecodePlan | None, together: Together | None) -> PageTables | None:
        if together is not None:
            return together.tables
        return None if behind is None else behind.tables

    @property
    def part(self) -> int:
        """Which card's part of every layer this is."""
        return self._transformer.part

    def jobs(self, rows: int | None = None, tables: Tables = "shared") -> list[Launch]:
        """The operations in order, of the first so many tokens, or of all."""
        return _Walk(self, len(self.token) if rows is None else rows, tables).jobs()

    @torch.inference_mode()
    def send(self, rows: int) -> None:
        """Has the next card get what this one's operations have left for it, unless they sent it. Enqueued on both."""
        for source, target in () if self.direct else self._sent:
            self._transformer.split.carry(source[:rows], target[:rows])

    def _left_for_next(self) -> FirstReaders:
        """The first readers on the next card, with copies of what they read that lie on this one."""
        behind = self._behind
        assert behind is not None
        if self._left is None:
            if behind._arrival is None:
                behind.jobs()
            assert behind._arrival is not None
            norm, there = behind._arrival.norm, behind._arrival.readers
            here = [reader.filled_on(self.device) for reader in there]
            self._sent = list(zip(self._stream.tensors, behind._stream.tensors, strict=True))
            self._sent += [(one.filled, other.filled) for one, other in zip(here, there, strict=True)]
            self._left = FirstReaders(None if norm is None else norm.on(self.device), here)
        return self._left


class _Walk:
    """Goes through a model once, for one list of operations."""

    def __init__(self, plan: DecodePlan, rows: int, tables: Tables) -> None:
        self._plan, self._rows, self._tables = plan, rows, tables
        self._transformer, self._spec, self._kernels = plan._transformer, plan._transformer.spec, plan._kernels
        self._device, self._layers = plan.device, self._transformer.split.layers(plan.card)
        self._logits = plan._own_logits[:rows]
        self._tensors = WalkTensors(plan._between, rows)
        self._exchanges = Exchanges(plan.together)
        kind = FusedJoins if plan._fused else SettledJoins
        self._joins: Joins = kind(
            plan._kernels, self._spec, plan._stream.first_rows(rows), self._tensors, self._exchanges
        )
        self._experts = ExpertJobs(plan._kernels, self._tensors.make)
        tokens = plan.tables.longest * PAGE_TOKENS
        self._turns = [rope.slice(0, tokens) for rope in self._transformer.ropes[plan.card]]
        self._unturned = torch.zeros(tokens, 0, 2, device=self._device)

    def jobs(self) -> list[Launch]:
        jobs: list[Launch] = []
        token = self._plan.token[: self._rows]
        join = self._arrive if self._plan.card else self._joins.embed(self._transformer.embedding, token)
        for index in self._layers:
            layer = self._transformer.layers[index]
            self._tensors.begin(index)
            attention, mlp = self._attention(index, layer), self._mlp(index, layer)
            if self._spec.parallel:
                jobs += join(layer.attention_norm, [*attention.readers, *mlp.readers])
                jobs += [*attention.jobs, *mlp.jobs]
                both = replace(attention, joining=replace(attention.joining, added=mlp.joining.y))
                join = self._joins.behind(both, None)
                continue
            jobs += [*join(layer.attention_norm, attention.readers), *attention.jobs]
            join = self._joins.behind(attention, layer.attention_post_norm)
            jobs += [*join(layer.mlp_norm, mlp.readers), *mlp.jobs]
            join = self._joins.behind(mlp, layer.mlp_post_norm)
        return [*jobs, *(self._head(join) if self._plan._behind is None else self._leave(join))]

    # From card to card.

    def _arrive(self, norm: Norm | None, readers: list[Reader]) -> list[Launch]:
        """The card before joins for these readers."""
        if self._rows == len(self._plan.token):
            self._plan._arrival = FirstReaders(norm, readers)
        return []

    def _leave(self, join: Join) -> list[Launch]:
        """Joins the last half of this card, and norms for the first readers of the next."""
        left, rows = self._plan._left_for_next(), self._rows
        jobs = join(left.norm, [reader.first_rows(rows) for reader in left.readers])
        if self._plan.direct:
            jobs.append(self._kernels.send([(source[:rows], target[:rows]) for source, target in self._plan._sent]))
        return jobs

    # Attention.

    def _attention(self, index: int, layer: DecoderLayer) -> Half:
        plan, spec, norm = self._plan, self._spec, layer.attention_norm
        readers = self._joins.readers(layer.qkv, norm) if layer.head_order is None else [self._joins.by_features(norm)]
        row = self._tensors.halves((spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim)
        heads = row.view(self._rows, -1, spec.head_dim)
        output = only_matrix(layer.output)
        width = spec.num_heads * spec.head_dim
        stored = width if output is None else output.stored
        mixed = self._tensors.halves(stored, padded=stored != width)
        jobs = [*self._multiply(layer.qkv, readers, row, layer.head_order), *self._norm_heads(layer, heads)]
        rope = spec.layer_ropes[index]
        if rope is not None and spec.ropes[rope].query_beta:
            jobs.append(self._scale_queries(heads, rope))
        table = plan.tables.of(spec.windows[index] > 0, plan.card if plan.together is None else plan.part)
        jobs.append(
            self._kernels.attention(
                heads,
                mixed,
                pages=plan._cache.layer(index, plan.part),
                page_table=table[: self._rows] if self._tables == "own" else table[0],
                position=plan.position[: self._rows],
                turns=self._unturned if rope is None else self._turns[rope],
                rules=self._attention_rules(index, layer),
                scratch=plan._scratch,
                scatter=None if output is None else output.scatter,
            )
        )
        return self._joins.out(readers, jobs, layer.output, mixed)

    def _attention_rules(self, index: int, layer: DecoderLayer) -> AttentionRules:
        inside = norms_heads_inside(layer)
        return replace(
            attention_rules(self._spec, index, layer),
            query_norm=layer.query_norm.weight if inside and layer.query_norm is not None else None,
            key_norm=layer.key_norm.weight if inside and layer.key_norm is not None else None,
            eps=self._spec.norm_eps,
        )

    def _norm_heads(self, layer: DecoderLayer, heads: Tensor) -> list[Launch]:
        """Norms queries and keys of `[rows, heads + 2 * kv_heads, head_dim]`, where attention does not do so itself."""
        query, key = layer.query_norm, layer.key_norm
        if query is None or key is None or norms_heads_inside(layer):
            return []
        first, end = self._spec.num_heads, self._spec.num_heads + self._spec.num_kv_heads
        queries, keys = heads[:, :first], heads[:, first:end]
        if query.kind == "rms":  # the kernels have none with a weight of each head
            return [torch_rows(norm, part, part, alike=False) for norm, part in ((query, queries), (key, keys))]
        kind: HeadNormKind = "layer" if query.kind == "layer" else "rms_together"
        weights = (norm.weight.view(-1, self._spec.head_dim) for norm in (query, key))
        of_query, of_key = (
            weight.expand(part.shape[1], -1).contiguous() for weight, part in zip(weights, (queries, keys), strict=True)
        )
        norms = HeadNorms(kind, of_query, of_key, query.eps)
        return [self._kernels.norm_heads(heads, norms, kv_heads=keys.shape[1])]

    def _scale_queries(self, heads: Tensor, rope: int) -> Launch:
        """The queries of a row by the factor of its position: before they are turned, which comes to the same."""
        known = self._plan._query_scales
        if rope not in known:
            known[rope] = self._transformer.ropes[self._plan.card][rope].query_scales(0, len(self._unturned))
        scales, queries, position = known[rope], heads[:, : self._spec.num_heads], self._plan.position[: self._rows]
        return TorchJob(lambda: queries.mul_(scales[position].view(-1, 1, 1)))

    # MLP and experts.

    def _mlp(self, index: int, layer: DecoderLayer) -> Half:
        if isinstance(layer.mlp, Experts):
            return self._mixture(index, layer.mlp, layer.mlp_norm)
        return self._plain_mlp(layer.mlp, layer.mlp_norm)

    def _plain_mlp(self, mlp: Mlp, norm: Norm | None) -> Half:
        down, activation = only_matrix(mlp.down), KERNEL_ACTIVATIONS.get(mlp.activation)
        runs = mlp.gate_up.runs if is_whole(mlp.gate_up) else ()
        if down is None or activation is None or [len(run.matrices) for run in runs] != [2 if mlp.gated else 1]:
            reader, y = self._joins.by_features(norm), self._tensors.floats(self._spec.hidden_size)
            operations = TorchOperations(torch.float16)
            alike = takes_rows_alike(mlp.gate_up) and takes_rows_alike(mlp.down)
            job = torch_rows(lambda x: mlp(x, operations), reader.row, y, alike=alike)
            return Half([reader], [job], Joining(y=y))
        readers = self._joins.readers(mlp.gate_up, norm)
        inner = self._tensors.halves(down.stored, padded=down.stored != down.features)
        first = self._kernels.product(
            readers[0].matrices,
            readers[0].x,
            inner,
            "gated" if mlp.gated else "activated",
            scatter=down.scatter,
            activation=activation,
        )
        return self._joins.out(readers, [first], mlp.down, inner)

    def _mixture(self, index: int, experts: Experts, norm: Norm | None) -> Half:
        reader, known = self._joins.by_features(norm), self._plan._mixtures
        if index not in known:
            known[index] = Router.of(experts), packed_experts(experts)
        router, packed = known[index]
        tickets = self._plan._tickets[: self._rows]
        if self._plan._fused:
            assert isinstance(packed, PackedExperts)
            jobs = self._experts
            route, choice = jobs.score(router, reader.x) if self._rows == 1 else jobs.route(router, reader.x, tickets)
            gated, add = jobs.added(packed, choice, reader.x, experts.experts[0])
            return Half([reader], [route, gated], Joining(), add)
        route, choice = self._experts.route(router, reader.row, tickets)
        assert choice.made is not None
        products, y = self._experts.products(packed, choice.made[0], reader.row, experts.experts[0])
        joining = Joining(y=y, weights=choice.made[1])
        if experts.shared is None:
            return Half([reader], [route, *products], joining)
        shared = self._plain_mlp(experts.shared.mlp, norm)
        joining = replace(joining, added=shared.joining.y, gate=choice.logits[:, len(experts.experts)])
        return Half([reader, *shared.readers], [route, *products, *shared.jobs], joining)

    # Products.

    def _multiply(self, part: Joined, readers: list[Reader], y: Tensor, order: Tensor | None) -> list[Launch]:
        """`y` float16 becomes the normed row times all matrices of a part, its heads in the model's order."""
        if not readers[0].matrices:
            head_dim = self._spec.head_dim

            def work(x: Tensor) -> Tensor:
                found = part(x)
                return found if order is None else found.view(len(x), -1, head_dim)[:, order].flatten(1)

            return [torch_rows(work, readers[0].row, y, alike=takes_rows_alike(part))]
        places = [(one, one.column + sum(matrix.outputs for matrix in one.matrices)) for one in readers]
        return [self._kernels.product(one.matrices, one.x, y[:, one.column : end], "half") for one, end in places]

    def _head(self, join: Join) -> list[Launch]:
        """The head, which reads features in their own order where it is in float16 (GPTQ files, tied embeddings)."""
        spec, head, norm, logits = self._spec, self._transformer.head, self._transformer.norm, self._logits
        readers = [self._joins.by_features(norm)] if isinstance(head, Linear) else self._joins.by_runs(head, norm)
        jobs, reader = join(norm, readers), readers[0]
        if not isinstance(head, Linear):
            jobs.append(self._kernels.product(head.matrices, reader.x, logits, "float"))
        elif spec.hidden_size % HEAD_INPUTS == 0:
            jobs.append(self._kernels.head_product(head.weight, reader.x, logits))
        else:
            weight = head.weight
            jobs.append(torch_rows(lambda x: functional.linear(x, weight), reader.row, logits, alike=False))
        together, whole = self._plan.together, self._plan._all_logits[: self._rows]
        exchange = self._exchanges.next()
        if together is not None and exchange is not None:
            here = whole if together.is_last else logits
            jobs.append(self._kernels.exchange_parts(here, exchange, ends=together.logit_ends, to=[together.last]))
        if (spec.logit_scale != 1.0 or spec.logit_softcap) and (together is None or together.is_last):
            jobs.append(self._kernels.scale_logits(whole, scale=spec.logit_scale, softcap=spec.logit_softcap))
        return jobs
