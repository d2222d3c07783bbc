"""What cards that compute every layer together send each other.

Exchanges are numbered: each has a number in its list of operations, and `count` at the end of a list moves on. So the
lists of all cards have the same ones in the same order, and every card waits where it needs what the others have: a
list that runs while another's is not launched waits for it, two seconds at most.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exlchat.ext import functions as c
from exlchat.ext.job import Job, check, check_on_gpu, check_together
from exlchat.ext.library import Library

MAX_CARDS, MAX_SENT = c.MAX_CARDS, c.MAX_SENT
PATIENCE = 2.0
"""Seconds after which nobody waits any more for a card that sends nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Peers:
    """One of several cards, and how it reaches the others. Made by `make_peers`.

    Args:
        card, cards: its number, and how many there are.
        inbox: int64 `[2, cards, words]`, where the others leave words for it.
        state: int32 `[2]` on the card: exchanges so far, and whether one has failed.
        trouble: int32 `[1]` in the machine's memory: 1 + the card that did not answer.
        table: the C structure, on the card.
    """

    card: int
    cards: int
    inbox: Tensor
    state: Tensor
    trouble: Tensor
    table: Tensor

    @property
    def words(self) -> int:
        """Of one card in one exchange."""
        return self.inbox.shape[2]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A sum over all cards: which exchange of its list it is."""

    peers: Peers
    number: int


def make_peers(devices: Sequence[torch.device], words: int, *, staged: bool) -> list[Peers]:
    """One for each card.

    Args:
        words: of the largest exchange.
        staged: words go through the machine's memory, as cards do not reach each other.
    """
    cards = len(devices)
    inboxes = [_memory((2, cards, words), torch.int64, device, host=staged) for device in devices]
    found = []
    for card, device in enumerate(devices):
        state = torch.zeros(2, dtype=torch.int32, device=device)
        trouble = _memory((1,), torch.int32, device, host=True)
        outboxes = (ctypes.c_void_p * MAX_CARDS)(*(inbox.data_ptr() for inbox in inboxes))
        structure = c.CPeers(
            inbox=inboxes[card].data_ptr(),
            outbox=outboxes,
            state=state.data_ptr(),
            trouble=trouble.data_ptr(),
            patience=int(PATIENCE * 1e9),
            card=card,
            cards=cards,
            words=words,
        )
        table = torch.frombuffer(bytearray(structure), dtype=torch.uint8).to(device)
        found.append(Peers(card, cards, inboxes[card], state, trouble, table))
    return found


def _memory(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, *, host: bool) -> Tensor:
    if not host or device.type == "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.zeros(shape, dtype=dtype, pin_memory=True)


def silent_card(peers: Sequence[Peers]) -> int | None:
    """Which card others have waited for in vain."""
    # Asked of every token: by numpy it takes half a microsecond.
    found = (int(one.trouble.numpy()[0]) for one in peers)
    return next((card - 1 for card in found if card), None)


class ExchangeKernels:
    def __init__(self, library: Library) -> None:
        self._exchange_sums = library.function("exl_exchange_sums")
        self._exchange_parts = library.function("exl_exchange_parts")
        self._count_exchanges = library.function("exl_count_exchanges")
        self._send = library.function("exl_send")
        self._reach = library.function("exl_reach")

    def exchange_sums(self, values: Tensor, exchange: Exchange) -> Job:
        """`values`, float32 or float16 `[rows, columns]`, become their sums over all cards, the same on each.

        Sums of float16 are float32 until they are rounded; `columns` is even then.

        Raises:
            ValueError: a tensor of another device, dtype, shape or layout, or one that is too large.
        """
        rows, columns = values.shape
        halves = values.dtype == torch.float16
        check("values", values, torch.float16 if halves else torch.float32, (rows, columns))
        if halves and columns % 2:
            raise ValueError(f"values has {columns} columns of float16; two are a word")
        job = self._exchange_job(values, exchange, columns // 2 if halves else columns)
        job.halves = halves
        return Job(self._exchange_sums, job, (values, exchange.peers.table), meets=True)

    def exchange_parts(self, values: Tensor, exchange: Exchange, *, ends: Sequence[int], to: Sequence[int]) -> Job:
        """Columns of which each card has some come to the cards `to`.

        Args:
            values: of 32 bits, `[rows, columns]`, 1 to 8 rows, of which this card's are there; on a card that gets
                none its own columns alone.
            ends: of each card the column behind its last one.

        Raises:
            ValueError: as `exchange_sums`.
        """
        card = exchange.peers.card
        begin = 0 if card in to or not card else ends[card - 1]
        if values.ndim != 2 or values.shape[1] < ends[-1 if card in to else card] - begin or values.stride(1) != 1:
            raise ValueError(f"values is {tuple(values.shape)}; it must hold the columns of its card")
        if values.element_size() != 4:
            raise ValueError(f"values is {values.dtype}; words have 32 bits")
        job = self._exchange_job(values, exchange, ends[-1])
        job.stride, job.first, job.receivers = values.stride(0), begin, sum(1 << one for one in to)
        job.ends[:] = [*ends, *[ends[-1]] * (MAX_CARDS - len(ends))]
        return Job(self._exchange_parts, job, (values, exchange.peers.table), meets=True)

    def count_exchanges(self, peers: Peers, count: int) -> Job:
        """At the end of a list with so many."""
        return Job(
            self._count_exchanges, c.CCount(peers=peers.table.data_ptr(), count=count), (peers.table, peers.state)
        )

    def send(self, parts: Sequence[tuple[Tensor, Tensor]]) -> Job:
        """Copies tensors of this card to others that it reaches, at most 8 of whole 4 bytes.

        Raises:
            ValueError: as `exchange_sums`.
        """
        if not 1 <= len(parts) <= c.MAX_SENT:
            raise ValueError(f"{len(parts)} tensors; {c.MAX_SENT} are sent at once")
        job = c.CSend(count=len(parts))
        for index, (source, target) in enumerate(parts):
            check("target", target, source.dtype, tuple(source.shape))
            check("source", source, source.dtype, tuple(source.shape))
            if source.nbytes % 4 or not source.nbytes:
                raise ValueError(f"source has {source.nbytes} bytes; they must be whole words of 4")
            job.source[index], job.target[index] = source.data_ptr(), target.data_ptr()
            job.words[index] = source.nbytes // 4
        check_on_gpu(source=parts[0][0])
        check_together(*(source for source, _ in parts))
        return Job(self._send, job, tuple(tensor for part in parts for tensor in part))

    def reach(self, devices: Sequence[torch.device]) -> bool:
        """Lets kernels of each card write to the memory of the others; whether they can.

        Raises:
            ExtensionError: a card has failed, or has no memory for the kernels.
        """
        numbers, found = [device.index for device in devices], ctypes.c_int32(1)
        # All are asked, which loads the code of exchanges on every card.
        for one in numbers:
            for other in numbers:
                if one != other:
                    self._reach(one, other, ctypes.addressof(found))
        # Memory that torch maps in pieces is mapped for other cards only where torch copies to them itself.
        said = (os.environ.get(name, "").lower() for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"))
        in_pieces = any("expandable_segments:true" in one for one in said)
        return bool(found.value) and not in_pieces

    def _exchange_job(self, values: Tensor, exchange: Exchange, columns: int) -> c.CExchange:
        peers, rows = exchange.peers, len(values)
        if rows * columns > peers.words:
            raise ValueError(f"{rows} rows of {columns} words; cards exchange {peers.words} at once")
        check_on_gpu(values=values)
        check_together(values, peers.table)
        return c.CExchange(
            peers=peers.table.data_ptr(),
            values=values.data_ptr(),
            number=exchange.number,
            rows=rows,
            columns=columns,
        )
