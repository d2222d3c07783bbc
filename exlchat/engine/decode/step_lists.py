"""What the graphs of a step launch: operations of every card, by what a graph does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch

from exlchat.engine.decode.draws import RowDraws, jobs_of_rows
from exlchat.engine.decode.kernels import AfterTheLast, TorchJob
from exlchat.engine.decode.plan import DecodePlan, Tables
from exlchat.engine.layers.quantized_linear import Launch
from exlchat.engine.sampling.device import DrawKind
from exlchat.ext.exchange import Exchange
from exlchat.ext.many_draws import DrawTable
from exlchat.ext.ops import Kernels
from exlchat.ext.products import MAX_ROWS

NO_TOKEN = -1


class GraphKey(NamedTuple):
    """What a graph does.

    Args:
        rows: tokens that it feeds; 0: it only draws, of logits from elsewhere or, `masked`, of the step before.
        draw: how the next token of each row is drawn, or that the best behind each goes to the host; nothing: no draw.
    """

    rows: int
    tables: Tables
    draw: tuple[DrawKind, ...] | Literal["best"] = ()
    masked: bool = False

    @property
    def from_elsewhere(self) -> bool:
        """Whether it draws of logits that are not the step's own."""
        return not (self.rows or self.masked)


class HostTokens:
    """Pinned memory: what the host feeds, and the best token behind each, or `NO_TOKEN`."""

    def __init__(self) -> None:
        self.ids = torch.zeros(MAX_ROWS, dtype=torch.int64, pin_memory=True)
        self.positions = torch.zeros(MAX_ROWS, dtype=torch.int32, pin_memory=True)
        self.best = torch.zeros(MAX_ROWS, dtype=torch.int64, pin_memory=True)


class StepLists:
    """Makes them.

    Args:
        plans: of each card, in order.
        kernels: on the last of them, where logits come out and the next tokens are drawn.
    """

    def __init__(self, plans: Sequence[DecodePlan], kernels: Kernels, host: HostTokens) -> None:
        self._plans, self._plan = plans, plans[-1]
        self._kernels, self._host = kernels, host
        self.table = DrawTable(MAX_ROWS, self._plan.device)
        """Of the draws of several rows."""
        self.peers = [plan.together.peers for plan in plans if plan.together is not None]

    def of(
        self, key: GraphKey, known: Callable[[GraphKey], list[list[Launch]]], draws: Sequence[RowDraws]
    ) -> list[list[Launch]]:
        """Of each card, none where it has nothing to do.

        Args:
            known: the lists of another key.
            draws: of each row.
        """
        fed = GraphKey(key.rows, key.tables)
        if key == fed:
            return self._counted([plan.jobs(key.rows, key.tables) for plan in self._plans])
        *before, jobs = known(fed) if key.rows else [list[Launch]() for _ in self._plans]
        if key.draw == "best":
            fed_by_host = [
                self._fed_by_host(plan, of_card, key.rows)
                for plan, of_card in zip(self._plans, [*before, jobs], strict=True)
            ]
            fed_by_host[-1].append(self._tell_best(key.rows))
            return fed_by_host
        drawn = jobs_of_rows(self._kernels, self.table, draws[: len(key.draw)], key.draw)
        if self._plan.direct and not key.from_elsewhere:
            drawn.append(self._kernels.send([(self._plan.fed, plan.fed) for plan in self._plans[:-1]]))
        if key.from_elsewhere or not self.peers:
            return [*before, [*jobs, *drawn]]
        told = self._counted([*([] for _ in before), drawn], self._tell_drawn())
        return [[*of_card, *more] for of_card, more in zip([*before, jobs], told, strict=True)]

    def _counted(self, lists: list[list[Launch]], last: Sequence[Launch] = ()) -> list[list[Launch]]:
        """Lists of all cards with `last` behind them, an operation of each; and their exchanges counted."""
        if not self.peers:
            return lists
        counted = []
        for number, (jobs, peers) in enumerate(zip(lists, self.peers, strict=True)):
            own = [*jobs, *last[number : number + 1]]
            counted.append([*own, self._kernels.count_exchanges(peers, sum(job.meets for job in own))])
        return counted

    def _tell_drawn(self) -> list[Launch]:
        """The other cards get what the last one has drawn."""
        words, last = len(self._plan.fed), len(self._plans) - 1
        ends, to = (*(0 for _ in range(last)), words), range(last)
        return [
            self._kernels.exchange_parts(plan.fed.view(1, words), Exchange(peers, 0), ends=ends, to=to)
            for plan, peers in zip(self._plans, self.peers, strict=True)
        ]

    def _fed_by_host(self, plan: DecodePlan, jobs: list[Launch], rows: int) -> list[Launch]:
        """The same, fed from pinned memory."""

        def feed() -> None:
            plan.token[:rows].copy_(self._host.ids[:rows], non_blocking=True)
            plan.position[:rows].copy_(self._host.positions[:rows], non_blocking=True)

        return [TorchJob(feed), AfterTheLast(jobs[0]), *jobs[1:]]

    def _tell_best(self, rows: int) -> Launch:
        """The best tokens into pinned memory."""
        plan = self._plan

        def tell() -> None:
            # Of equal values torch gives the first one's place, and NaN where there is one.
            values, places = plan.logits[:rows].max(dim=1)
            self._host.best[:rows].copy_(places.masked_fill(~values.isfinite(), NO_TOKEN), non_blocking=True)

        return TorchJob(tell)
