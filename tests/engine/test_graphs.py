"""The owner of captured graphs: references stand for the kernels, and lists of launches for CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from exlchat.engine import GREEDY
from exlchat.engine.decode import captured, graphs
from exlchat.engine.decode.captured import by_turns
from exlchat.engine.decode.draws import DecodeRow
from exlchat.engine.decode.graphs import DecodeGraphs
from exlchat.engine.decode.wide import MOST_ROWS, WidePasses
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.quantized_linear import Launch
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.sampling import NotNumbersError
from exlchat.engine.sampling.device import DeviceDraws
from exlchat.engine.schedule.token_sources import wait_for
from exlchat.ext.functions import CDraw
from exlchat.ext.many_draws import DrawnRow, DrawTable, RowKind
from exlchat.ext.sampling import DRAWN, SamplerState
from exlchat.llm.info import ModelError
from tests.engine.decoding import relative_error
from tests.engine.reference_kernels import ReferenceJob, ReferenceKernels
from tests.engine.test_quantized_linear import open_quantized
from tests.engine.test_step_chain import one_order_for_gate_and_up, over_cards, over_cards_together, written

IDS = torch.randint(391, (40,), generator=torch.Generator().manual_seed(3)).tolist()
BEST = DeviceDraws(GREEDY, 0, index=0)


class Kernels(ReferenceKernels):
    """Draws take the best token, and adjusted ones do so of what a mask allows."""

    def sample(
        self, logits: Tensor, state: SamplerState, *, token: Tensor, position: Tensor, **_: Tensor
    ) -> ReferenceJob:
        def work() -> None:
            best = int(logits.argmax())
            state.drawn += 1  # type: ignore[attr-defined]
            state.ring.words[state.drawn % 64] = state.drawn << 32 | DRAWN << 24 | best  # type: ignore[attr-defined]
            token.fill_(best)
            position.add_(1)

        return ReferenceJob(work)

    def adjust(self, logits: Tensor, chain: Any, state: SamplerState, *, position: Tensor) -> ReferenceJob:
        return ReferenceJob(lambda: chain.adjusted.copy_(logits if chain.mask is None else logits + chain.mask))

    def draw_adjusted(self, chain: Any, state: SamplerState, *, token: Tensor, position: Tensor) -> ReferenceJob:
        return self.sample(chain.adjusted, state, token=token, position=position)

    def draw_rows(
        self, table: Table, rows: Sequence[DrawnRow], kinds: Sequence[RowKind], *, chains: bool = True
    ) -> list[ReferenceJob]:
        """Counted by the host's structures, where the device would read them; the table has to show these rows then."""
        table.show(rows, kinds)

        def work(row: DrawnRow) -> None:
            assert table.shown == (len(rows), *kinds)
            draw = CDraw.from_buffer(row.sampler.draw.numpy())
            draw.sequence += 1
            best = int(row.logits.argmax())
            row.sampler.ring.words[draw.sequence % 64] = draw.sequence << 32 | DRAWN << 24 | best
            row.token.fill_(best)
            row.position.add_(1)

        left_alone = {"none"} if chains else {"none", "chain"}
        return [
            ReferenceJob(partial(work, row)) for row, kind in zip(rows, kinds, strict=True) if kind not in left_alone
        ]


class Table(DrawTable):
    """Knows how many rows it shows, and of which kinds."""

    shown: tuple[int | RowKind, ...] = ()

    def show(self, rows: Sequence[DrawnRow], kinds: Sequence[RowKind]) -> None:
        self.shown = len(rows), *kinds


class Chain:
    """A `ChainState` whose mask is added to the logits."""

    def __init__(self, vocab: int, room: int, device: torch.device) -> None:
        self.adjusted, self.mask = torch.zeros(vocab), None
        self.context = self.numbers = torch.zeros(1)

    def set(self, *_: object) -> None:
        self.mask = None

    def set_mask(self, words: Any) -> None:
        self.mask = words


class Sampler(SamplerState):
    """Counts its draws where the device would."""

    drawn = 0

    def set(self, draw: Any) -> None:
        super().set(draw)
        self.drawn = draw.sequence


class Graph:
    """Launches again what was launched while it was captured: of cards that meet, by turns, when all are there."""

    jobs: Sequence[Launch] = ()
    launched: ClassVar[list[Graph]] = []

    def replay(self) -> None:
        self.launched.append(self)
        exchanges = {id(job): job for graph in self.launched for job in graph.jobs if job.meets}
        if len(self.launched) < (2 if exchanges else 1):
            return
        for _, job in by_turns([graph.jobs for graph in self.launched]):
            job.launch(dependent=False)
        self.launched.clear()


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU, and no page-locked memory."""
    zeros, capturing = torch.zeros, list[Graph]()

    def in_any_memory(*sizes: Any, pin_memory: bool = False, **known: Any) -> Tensor:
        return zeros(*sizes, **known)

    def capture(work: Callable[[], object], _other: object) -> Graph:
        graph = Graph()
        capturing.append(graph)
        work()
        capturing.clear()
        return graph

    def launch_all(jobs: Sequence[Launch], *, dependent: bool) -> None:
        if capturing:
            capturing[0].jobs = jobs
            return
        for job in jobs:
            job.launch(dependent=False)

    nothing = SimpleNamespace(synchronize=lambda: None, record=lambda: None, wait=lambda: None)
    for name, value in {
        "Event": lambda: nothing,
        "current_stream": lambda _device: None,
        "stream": lambda _stream: nullcontext(),
        "Stream": lambda _device: None,
        "synchronize": lambda _device: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch, "zeros", in_any_memory)
    monkeypatch.setattr(graphs, "launch_all", launch_all)
    monkeypatch.setattr(captured, "launch_all", launch_all)
    monkeypatch.setattr(captured, "captured", capture)
    monkeypatch.setattr(graphs, "splits_of", lambda _spec, _device: 3)
    for module in ("draws", "step_lists"):
        monkeypatch.setattr(f"exlchat.engine.decode.{module}.DrawTable", Table)
    monkeypatch.setattr("exlchat.engine.decode.draws.ChainState", Chain)
    monkeypatch.setattr("exlchat.engine.decode.draws.SamplerState", Sampler)


@pytest.fixture(scope="module")
def on_one_card(tmp_path_factory: pytest.TempPathFactory) -> Transformer:
    path: Path = written("gptq", tmp_path_factory.mktemp("model"), tied=False)
    one_order_for_gate_and_up(path)
    return open_quantized(path)


@pytest.fixture(
    scope="module",
    params=[(2,), (1, 1), (0, 2, 0), "staged", "together"],
    ids=["one card", "two cards", "ends on their own", "cards that do not reach each other", "together"],
)
def transformer(on_one_card: Transformer, request: pytest.FixtureRequest) -> Transformer:
    if request.param == "together":
        return over_cards_together(on_one_card, 1.0, 1.0)
    if request.param == "staged":
        apart = over_cards(on_one_card, 1, 1)
        apart.split = replace(apart.split, staged=True)
        return apart
    return over_cards(on_one_card, *request.param)


def opened(
    transformer: Transformer, count: int, kv_cache: str = "fp16", pages: int = 8
) -> tuple[DecodeGraphs, list[KVSequence]]:
    """Sequences of different texts, without the last token of each."""
    cache = KVCache(
        transformer.spec, kv_cache, torch.float16, torch.device("cpu"), 512, tokens=pages * 256, split=transformer.split
    )
    owner = DecodeGraphs(transformer, cache, Kernels(), dependent=False)  # type: ignore[arg-type]
    sequences = [KVSequence(cache) for _ in range(count)]
    for number, sequence in enumerate(sequences):
        ids = IDS[number : number + 20 + number]
        sequence.reserve(len(ids))
        transformer.forward(torch.tensor(ids), sequence, start=0)
        sequence.extend(ids)
    return owner, sequences


def alone(owner: DecodeGraphs, sequence: KVSequence, count: int) -> list[int]:
    """The best tokens behind 7, one step each."""
    found = [7]
    for place in range(count):
        found.append(int(owner.forward(sequence, found[-1], len(sequence) + place).argmax()))
    return found[1:]


@pytest.mark.usefixtures("decoded_once", "on_cpu")
@torch.inference_mode()
def test_a_sequence_goes_on_alike_by_whatever_step(transformer: Transformer) -> None:
    owner, (sequence, *_) = opened(transformer, 1)
    wanted = alone(owner, sequence, 5)
    context = [*sequence.ids, 7]
    for _ in range(2):  # what was captured, too
        owner.begin(sequence, context, BEST)
        for _ in wanted:
            owner.launch()
        assert [owner.ring.read(number) for number in range(1, 6)] == [(token, DRAWN) for token in wanted]
        assert owner.greedy(sequence, [7, *wanted[:-1]], len(sequence)) == wanted
        checked = owner.verify(sequence, [7, *wanted[:2]], len(sequence))
        assert checked.argmax(1).tolist() == wanted[:3]


@pytest.mark.usefixtures("decoded_once", "on_cpu")
@torch.inference_mode()
def test_rows_of_several_sequences_go_on_as_each_alone(transformer: Transformer) -> None:
    owner, sequences = opened(transformer, 3)
    wanted = [alone(owner, sequence, 4) for sequence in sequences]
    for count in (3, 2, 3):  # what was captured, too
        owner.begin_rows([DecodeRow(sequence, [*sequence.ids, 7], BEST) for sequence in sequences[:count]])
        for _ in range(4):
            for sequence in sequences:
                sequence.reserve(len(sequence) + 4)
            owner.launch()
        for row, tokens in enumerate(wanted[:count]):
            assert [owner.row_ring(row).read(number) for number in range(1, 5)] == [(one, DRAWN) for one in tokens]
    logits = owner.feed_each([7, 7, 7], sequences)
    assert logits.argmax(1).tolist() == [tokens[0] for tokens in wanted]


@pytest.mark.usefixtures("decoded_once", "on_cpu")
@torch.inference_mode()
def test_a_draw_from_given_logits_leaves_those_of_rows_alone(transformer: Transformer) -> None:
    owner, sequences = opened(transformer, 3)
    logits = owner.feed_each([7, 8, 9], sequences)
    before = logits.clone()
    for row in (2, 0, 1):
        owner.begin_draw(logits[row], [5], BEST, None)
        owner.launch_draw()
        assert owner.ring.read(1) == (int(before[row].argmax()), DRAWN)
        assert owner.ring.read(2) is None
    assert torch.equal(logits, before)


@pytest.mark.usefixtures("decoded_once", "on_cpu")
@torch.inference_mode()
def test_a_mask_stands_between_a_step_and_its_draw(transformer: Transformer) -> None:
    owner, (sequence, *_) = opened(transformer, 1)
    (first,) = alone(owner, sequence, 1)
    owner.begin(sequence, [*sequence.ids, 7], BEST, masked=True)
    mask = torch.zeros(391)
    mask[first] = -torch.inf
    owner.launch_forward()
    owner.set_mask(mask)
    owner.launch_draw()
    drawn = owner.ring.read(1)
    assert drawn is not None
    assert drawn[0] == int((owner.logits[0] + mask).argmax()) != first
    # The next step feeds what was drawn.
    owner.launch_forward()
    fed = owner.logits[0].clone()
    assert torch.equal(fed, owner.forward(sequence, drawn[0], len(sequence) + 1))


@pytest.mark.usefixtures("decoded_once", "on_cpu")
@torch.inference_mode()
def test_more_tokens_than_rows_and_logits_that_are_no_numbers(transformer: Transformer) -> None:
    owner, (sequence, *_) = opened(transformer, 1)
    for count in (0, 9):
        with pytest.raises(ValueError, match="there can be 1 to 8"):
            owner.verify(sequence, [1] * count, len(sequence))
    weight = transformer.embedding[3].clone()
    transformer.embedding[3] = torch.nan
    with pytest.raises(NotNumbersError):
        owner.greedy(sequence, [1, 3], len(sequence))
    transformer.embedding[3] = weight


@pytest.mark.usefixtures("decoded_once", "on_cpu")
@torch.inference_mode()
def test_once_a_card_was_waited_for_in_vain_nothing_is_computed(on_one_card: Transformer) -> None:
    """What stands in pages since is not to be trusted."""
    owner, (sequence, *_) = opened(over_cards_together(on_one_card, 1.0, 1.0), 1)
    owner.greedy(sequence, [7, 8], len(sequence))
    owner._lists.peers[0].trouble.fill_(2)
    for _ in range(2):
        with pytest.raises(torch.AcceleratorError, match=r"^cpu did not answer for 2 s$"):
            owner.greedy(sequence, [7, 8], len(sequence))
        with pytest.raises(torch.AcceleratorError, match=r"^cpu did not answer for 2 s$"):
            owner.prompts.forward(torch.tensor(IDS[:20]), sequence, start=len(sequence))


@pytest.mark.usefixtures("decoded_once", "on_cpu")
@torch.inference_mode()
def test_a_token_that_was_drawn_of_nothing_is_not_told(
    on_one_card: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, (sequence, *_) = opened(over_cards_together(on_one_card, 1.0, 1.0), 1)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: SimpleNamespace(query=lambda: True))
    owner.begin(sequence, [*sequence.ids, 7], BEST)
    owner.launch()
    assert wait_for(owner, 1)[1] == DRAWN
    owner.launch()
    owner._lists.peers[1].trouble.fill_(1)
    with pytest.raises(ModelError, match=r"^the GPU failed in a decode step \(cpu did not answer for 2 s\); start "):
        wait_for(owner, 2)


@pytest.fixture
def wide(on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is captured is computed again."""
    monkeypatch.setattr(WidePasses, "_capture", lambda self, size: SimpleNamespace(replay=lambda: self._compute(size)))


@pytest.mark.usefixtures("decoded_once", "wide")
@pytest.mark.parametrize("kv_cache", ["fp16", "q8"])
@pytest.mark.parametrize("pages", [30, 21], ids=["filled up", "no page to fill up"])
@torch.inference_mode()
def test_more_rows_than_a_step_takes_go_on_as_each_alone(kv_cache: str, pages: int, on_one_card: Transformer) -> None:
    count = 21
    owner, sequences = opened(on_one_card, count, kv_cache, pages)
    assert owner.wide.most == MOST_ROWS
    lengths, tokens = [len(one) for one in sequences], [[7] * count]
    for _ in range(3):  # one by one, captured, and what was captured
        singles = torch.stack(
            [owner.forward(one, token, len(one)).clone() for one, token in zip(sequences, tokens[-1], strict=True)]
        )
        logits = owner.feed_each(tokens[-1], sequences)
        assert relative_error(logits, singles) < 2e-2
        for one, token in zip(sequences, tokens[-1], strict=True):
            one.extend([token])
        tokens.append(logits.argmax(1).tolist())
    for one, length in zip(sequences, lengths, strict=True):
        one.cut(length)
        one.reserve(length + 3)
    begun = {place: DecodeRow(sequence, [*sequence.ids, 7], BEST) for place, sequence in enumerate(sequences)}
    assert owner.wide.put(sequences, begun) == 0
    for _ in range(3):
        owner.wide.launch()
    for row, drawn in enumerate(zip(*tokens[1:], strict=True)):
        assert [owner.wide.ring(row).read(number) for number in range(1, 4)] == [(one, DRAWN) for one in drawn]
    # What only fills up takes no page from anybody else.
    owner.forward(sequences[0], 7, len(sequences[0]))
    assert owner._cache.pool.free == pages - count


@pytest.mark.usefixtures("decoded_once", "wide")
@torch.inference_mode()
def test_a_wide_pass_gives_a_row_the_same_whatever_stands_beside_it(on_one_card: Transformer) -> None:
    owner, sequences = opened(on_one_card, 24, pages=40)
    all_of_them = owner.feed_each([7] * 24, sequences).clone()
    turned = owner.feed_each([7] * 24, sequences[::-1]).clone()
    assert relative_error(turned.flip(0), all_of_them) < 1e-6
    assert all_of_them.argmax(1).tolist() == turned.flip(0).argmax(1).tolist()
