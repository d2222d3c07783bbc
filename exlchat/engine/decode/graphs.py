"""Every CUDA graph of a model: of prompts (`prompts.py`), and of steps of a token or several, of a sequence or more.

A graph is captured when it is first asked for: pages stay where they are, and tables on the device say which of them
belong to whom. Each way of drawing (`sampling.device.DrawKind`) has graphs of its own, so that none pays for what
another needs; for draws that wait for a mask there is the step without its draw, and the draw without its step.

What each of several tokens comes to, and what is cached of it, equals to the last bit what single steps give. So
drafted tokens can be checked together, and what is written then is what would have been written without drafts; and
several answers can be made together, each as it would be alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from exlchat.engine.cards.split import current
from exlchat.engine.decode.captured import NO_MEMORY, CapturedSteps, launch_all, launches_dependently
from exlchat.engine.decode.chunk_attention import chunk_attention
from exlchat.engine.decode.draws import DecodeRow, RowDraws
from exlchat.engine.decode.over_cards import plans_of, splits_of
from exlchat.engine.decode.plan import Tables
from exlchat.engine.decode.prompts import PromptGraphs
from exlchat.engine.decode.step_lists import NO_TOKEN, GraphKey, HostTokens, StepLists
from exlchat.engine.decode.wide_rows import WideRows
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.quantized_linear import Launch
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.placement import card_failure
from exlchat.engine.sampling import NotNumbersError
from exlchat.engine.sampling.device import DeviceDraws, DrawKind
from exlchat.ext.ops import Kernels
from exlchat.ext.products import MAX_ROWS
from exlchat.ext.sampling import TokenRing, c_draw
from exlchat.llm.info import ModelError

_FORWARD = GraphKey(1, "shared")


class DecodeGraphs:
    """All work goes to one stream, in the order of the calls. What one kind of step has under way ends before another.

    Args:
        transformer, cache: of one model for which `fit.why_not` gives `None`.
        kernels: on the model's device.
        dependent: whether kernels may start before their predecessors end; as the card can unless given.

    Raises `ModelError` when there is no memory for it.
    """

    def __init__(
        self, transformer: Transformer, cache: KVCache, kernels: Kernels, *, dependent: bool | None = None
    ) -> None:
        self._split = split = transformer.split
        self._cache = cache
        self._kernels = kernels
        self._sequences = [KVSequence(cache)]
        self._transformer = transformer
        self._key = GraphKey(1, "shared", ("plain",))
        self._host = HostTokens()
        self._fed = torch.cuda.Event()  # type: ignore[no-untyped-call]
        try:
            self._plans = plans_of(transformer, cache, kernels, splits_of)
            self._plan = self._plans[-1]
            """Of the last card, where logits come out and the next tokens are drawn."""
            self._lists = StepLists(self._plans, kernels, self._host)
            self.prompts = PromptGraphs(transformer, chunk_attention(transformer, cache, kernels))
            self._drew = False
            """Whether the last step has told all cards what it drew."""
            dependent = launches_dependently(split.first) if dependent is None else dependent
            self.wide = WideRows(transformer, cache, kernels, splits=splits_of(transformer.spec, split.first))
            """Passes of more sequences than a step takes rows."""
            self._captured = CapturedSteps(self._plans, self._made, dependent=dependent)
            self._draws = [self._draw_of(0)]
            self._given: RowDraws | None = None
            """For logits that are not the step's own: those may still be wanted."""
            self._drawing = self._draws[0]
            self._warm_up()
        except torch.OutOfMemoryError as error:
            raise ModelError(NO_MEMORY) from error
        except torch.AcceleratorError as error:
            raise ModelError(card_failure(error) or str(error)) from error
        self._captured.prepare(self._key)

    @property
    def logits(self) -> Tensor:
        """float32 `[rows, vocab]`, of the last step that has ended."""
        return self._plan.logits

    # One sequence that feeds itself.

    @property
    def ring(self) -> TokenRing:
        return self._drawing.sampler.ring

    @property
    def capacity(self) -> int:
        """Tokens that the sequence holds without `grow`."""
        return self._sequences[0].capacity

    def grow(self, length: int) -> None:
        """Makes `capacity` at least `length`. Raises `PoolFullError`."""
        self._sequences[0].reserve(length)

    @torch.inference_mode()
    def begin(self, sequence: KVSequence, context: Sequence[int], draws: DeviceDraws, *, masked: bool = False) -> None:
        """The next step feeds the last token of the context, at its place, and draws by `draws`, which are numbered on.

        The first answer of a kind captures its graph, some tens of milliseconds.

        Args:
            masked: `launch_forward` and `launch_draw` follow, with `set_mask` between them.

        Raises:
            ModelError: no memory for that.
            PoolFullError: no room in the cache.
            ValueError: a rule for an id that is not in the vocabulary.
        """
        kind: DrawKind = "adjusted" if masked and draws.kind == "plain" else draws.kind
        self._key = GraphKey(0 if masked else 1, "shared", (kind,), masked)
        self._captured.prepare(self._key)
        if masked:
            self._captured.prepare(_FORWARD)
        self._sequences = [sequence]
        self.grow(len(context))
        self._begin_draw(self._draws[0], kind, context, draws)

    @torch.inference_mode()
    def begin_draw(self, logits: Tensor, context: Sequence[int], draws: DeviceDraws, mask: Tensor | None) -> None:
        """`launch_draw` follows: what `mask` allows of float32 `[vocab]` on the device, in the place of the step's own.

        The context is looked at only where draws depend on it. Raises `ModelError` for want of memory.
        """
        kind: DrawKind = "adjusted" if mask is not None and draws.kind == "plain" else draws.kind
        try:
            if self._given is None:
                token, position = torch.zeros_like(self._plan.token[:1]), torch.zeros_like(self._plan.position[:1])
                self._given = RowDraws(torch.zeros_like(self.logits[0]), token, position, self._cache.max_seq_len)
            self._key = GraphKey(0, "shared", (kind,))
            self._captured.prepare(self._key)
        except torch.OutOfMemoryError as error:
            raise ModelError(NO_MEMORY) from error
        self._begin_draw(self._given, kind, context, draws)
        self._given.logits.copy_(logits)
        if kind != "plain":
            self.set_mask(mask)

    def launch(self) -> None:
        """Enqueues one step, of one sequence or of several, and returns; each has room for the token that it feeds."""
        self._launch(self._key)

    def launch_forward(self) -> None:
        self._launch(_FORWARD)

    def set_mask(self, words: Tensor | None) -> None:
        """What the next draw may give: see `ChainState.set_mask`."""
        self._drawing.chain.set_mask(words)

    def launch_draw(self) -> None:
        self._launch(self._key)

    @torch.inference_mode()
    def forward(self, sequence: KVSequence, token: int, position: int) -> Tensor:
        """Feeds a token of a sequence and draws nothing: float32 `[vocab]` on the device, valid until the next call.

        Its key and value are stored; the sequence is not told.
        """
        self._sequences = [sequence]
        self.grow(position + 1)
        self._captured.prepare(_FORWARD)
        self._drew = False
        self._plan.token[:1].fill_(token)
        self._plan.position[:1].fill_(position)
        self._launch(_FORWARD)
        return self.logits[0]

    def mu(self) -> float:
        """Mirostat's, after the steps that have been launched; waits for them."""
        return self._drawing.sampler.mu()

    def running(self) -> bool:
        """Whether something launched has not ended. Raises `RuntimeError` when the device has failed."""
        # Each is asked: what waits for a card that has failed only seems to run.
        ended = [torch.cuda.current_stream(plan.device).query() for plan in self._plans]
        self._transformer.check()
        return not all(ended)

    def check(self) -> None:
        """Raises what a failed card does: see `Transformer.check`."""
        self._transformer.check()

    # Several sequences that feed themselves.

    @torch.inference_mode()
    def begin_rows(self, rows: Sequence[DecodeRow]) -> None:
        """The next step feeds the last token of each context, of up to 8. All steps before have reported.

        Raises `ModelError` for want of memory.
        """
        kinds = tuple(row.kind for row in rows)
        try:
            while len(self._draws) < len(rows):
                self._draws.append(self._draw_of(len(self._draws)))
            for draw, row, kind in zip(self._draws, rows, kinds, strict=False):
                draw.begin(kind, row.context, row.draws)
            if len(rows) > 1:
                self._lists.table.show([draw.drawn for draw in self._draws[: len(rows)]], kinds)
        except torch.OutOfMemoryError as error:
            raise ModelError(NO_MEMORY) from error
        self._plan.token[: len(rows)].copy_(torch.tensor([row.context[-1] for row in rows]))
        self._plan.position[: len(rows)].copy_(torch.tensor([len(row.context) - 1 for row in rows]))
        self._sequences, self._drew = [row.sequence for row in rows], False
        self._key = GraphKey(len(rows), "own", kinds)

    def row_ring(self, row: int) -> TokenRing:
        """Where the draws of a row report, numbered from 1 on."""
        return self._draws[row].sampler.ring

    # Tokens that the host feeds.

    @torch.inference_mode()
    def verify(self, sequence: KVSequence, ids: Sequence[int], position: int) -> Tensor:
        """Feeds tokens and gives the logits behind each.

        Their keys and values are stored; the sequence is not told. The caller does so (`KVSequence.extend`) with those
        that it keeps: what is behind them counts for nothing and is written over.

        Args:
            ids: the last token that was accepted, which is not cached yet, and drafted ones behind it.
            position: of the first of them, as many as are cached.

        Returns: float32 `[len(ids), vocab]` on the device, valid until the next call.

        Raises:
            ModelError: no memory for so many tokens.
            PoolFullError: no room in the cache.
            ValueError: no ids, or more than 8 of one sequence.
        """
        sequence.reserve(position + len(ids))
        return self._feed(ids, range(position, position + len(ids)), [sequence], "shared")

    @torch.inference_mode()
    def greedy(self, sequence: KVSequence, ids: Sequence[int], position: int) -> list[int]:
        """As `verify`, but waits and gives the best token behind each; of equal ones the lower id.

        Raises:
            NotNumbersError: logits are no numbers.
        """
        self.verify(sequence, ids, position)
        self._fed.synchronize()
        self._transformer.check()
        best: list[int] = self._host.best[: len(ids)].tolist()
        if NO_TOKEN in best:
            raise NotNumbersError
        return best

    @torch.inference_mode()
    def feed_each(self, ids: Sequence[int], sequences: Sequence[KVSequence]) -> Tensor:
        """Feeds a token to each of several sequences, and gives the logits behind each.

        Keys and values are stored; the sequences are not told, the caller does so (`KVSequence.extend`).

        Args:
            ids: one for each sequence.

        Returns, raises: as `verify`.
        """
        for sequence in sequences:
            sequence.reserve(len(sequence) + 1)
        return self._feed(ids, [len(sequence) for sequence in sequences], sequences, "own")

    def _feed(
        self, ids: Sequence[int], positions: Sequence[int], sequences: Sequence[KVSequence], tables: Tables
    ) -> Tensor:
        count = len(ids)
        if tables == "own" and count > MAX_ROWS:
            return self.wide.feed(ids, positions, sequences)
        if not 1 <= count <= MAX_ROWS:
            raise ValueError(f"{count} tokens at once; there can be 1 to {MAX_ROWS}")
        self._sequences = list(sequences)
        self._fed.synchronize()  # what is fed may still be read
        self._host.ids[:count].copy_(torch.tensor(ids))
        self._host.positions[:count].copy_(torch.tensor(positions))
        self._launch(GraphKey(count, tables, "best"))
        with current(self._plan.device):
            self._fed.record()
        return self.logits[:count]

    # Graphs.

    def _draw_of(self, row: int) -> RowDraws:
        plan, end = self._plan, row + 1
        return RowDraws(plan.logits[row], plan.token[row:end], plan.position[row:end], self._cache.max_seq_len)

    def _begin_draw(self, draw: RowDraws, kind: DrawKind, context: Sequence[int], draws: DeviceDraws) -> None:
        self._drawing, self._drew = draw, False
        draw.token.fill_(context[-1])
        draw.position.fill_(len(context) - 1)
        draw.begin(kind, context, draws)

    def _warm_up(self) -> None:
        """CUDA loads kernels when they are first launched, which must not fall into a capture.

        The one position that this writes is overwritten by the first token.
        """
        draw = self._draws[0]
        self.grow(1)
        self._show()
        draw.sampler.set(c_draw(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, index=0, sequence=0))
        adjusted, chain = (draw.jobs(self._kernels, kind) for kind in ("adjusted", "chain"))
        self._captured.run(_FORWARD, 1)
        with current(self._plan.device):
            launch_all([*adjusted, *chain], dependent=False)
        for plan in self._plans:
            torch.cuda.synchronize(plan.device)
        self._transformer.check()
        self._sequences[0].close()

    def _show(self) -> None:
        self._plan.tables.show(self._cache.tables, [sequence.row for sequence in self._sequences])

    def _launch(self, key: GraphKey) -> None:
        """Enqueues what a graph does; the first time one by one, as its kernels may have to be loaded."""
        self.wide.rest()
        self._transformer.check()
        tells = (bool(self._lists.peers) or self._plan.direct) and not key.from_elsewhere
        drew, self._drew = self._drew, tells and key.draw not in ((), "best")
        if key.rows:
            self._show()
            # Unless they have been told what the last one has drawn. The copy also has a card that has only sent its
            # logits wait until the last one has read them: see csrc/peers.cuh.
            for plan in self._plans[:-1] if not drew else ():
                self._split.carry(self._plan.fed, plan.fed)
        self._captured.launch(key, key.rows)

    def _made(self, key: GraphKey) -> list[list[Launch]]:
        given = self._given
        own = [given] if key.from_elsewhere and given is not None else self._draws
        return self._lists.of(key, self._captured.jobs, own)
