"""The chain of the sampler without a GPU: its kernels run on the CPU, where they must draw as the reference does."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from exlchat.engine import GREEDY, SamplingSettings
from exlchat.engine.sampling.device import DeviceDraws, c_chain, dry_table, why_not_on_device
from exlchat.ext.chain import FOREVER, STEP_NAMES, ChainRules, ChainState, token_words
from exlchat.ext.job import Job
from exlchat.ext.sampling import DRAWN, NOT_NUMBERS, NOTHING_ALLOWED
from exlchat.llm.controls import STEPS
from tests.ext.chain_cases import CASES, SEED, Bench, Functions, check_draws, first, random_chain, shapes, unchecked
from tests.ext.emulation import emulated_library
from tests.ext.reference_adjust import adjusted, completing, repetitions
from tests.ext.reference_chain import Chain, draw

S = SamplingSettings
CPU = torch.device("cpu")
# Compiling takes half a minute on a busy machine.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Functions:
    return Functions(emulated_library(tmp_path_factory.mktemp("emulated")))


def launch(job: Job) -> None:
    assert job._function(job._argument, False, None) == 0


@pytest.fixture
def bench(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Bench]:
    unchecked(monkeypatch, processors=3)
    return lambda vocab: Bench(functions.library, vocab, launch, CPU)


@pytest.mark.parametrize("vocab", [1, 300, 3000])
def test_kernels_draw_as_the_reference(bench: Callable[[int], Bench], vocab: int) -> None:
    made, different = bench(vocab), 0
    for name, settings in CASES.items():
        for shape, logits in shapes(vocab, torch.Generator().manual_seed(vocab)):
            different += check_draws(made, settings, logits, f"{name}, {shape}", draws=1)
    assert different <= 3


def test_random_chains_draw_as_the_reference(bench: Callable[[int], Bench]) -> None:
    choice, made, different = random.Random(5), bench(3000), 0
    for number in range(8):
        settings = random_chain(choice)
        for shape, logits in shapes(3000, torch.Generator().manual_seed(number)):
            different += check_draws(made, settings, logits, f"{settings}, {shape}", draws=1)
    assert different <= 3


def test_a_vocabulary_that_is_sorted_by_all_blocks(bench: Callable[[int], Bench]) -> None:
    made = bench(9001)
    for name in ("tail free", "typical", "nearly all first"):
        for shape, logits in shapes(9001, torch.Generator().manual_seed(9)):
            check_draws(made, CASES[name], logits, f"{name}, {shape}", draws=1)


HISTORIES = {
    "none": [5],
    "loop": [1, 2, 3] * 40,
    "one token": [7] * 130,
    "text": [random.Random(3).choice([1, 2, 3, 4, 9, 30]) for _ in range(700)],
    "outside": [5, 10**9, 5, 10**9, 5],
}
LOOKS = {
    "penalties": S(repetition_penalty=1.3, frequency_penalty=0.2, presence_penalty=-0.4),
    "a range": S(repetition_penalty=0.8, frequency_penalty=0.3, penalty_range=30),
    "decay": S(repetition_penalty=1.2, frequency_penalty=0.1, presence_penalty=0.3, penalty_range=20, penalty_decay=33),
    "dry": S(dry_multiplier=0.8),
    "dry in a range": S(dry_multiplier=0.5, dry_base=1.1, dry_allowed_length=4, dry_range=60),
    "dry beyond floats": S(dry_multiplier=100.0, dry_base=10.0, dry_allowed_length=1),
    "two grams": S(no_repeat_ngram=2),
    "three grams": S(no_repeat_ngram=3),
    "long grams": S(no_repeat_ngram=70, dry_multiplier=0.8, dry_range=20),
    "all": S(repetition_penalty=1.1, frequency_penalty=0.1, dry_multiplier=0.8, no_repeat_ngram=6),
}


@pytest.mark.parametrize("history", HISTORIES)
def test_kernels_adjust_as_the_reference(bench: Callable[[int], Bench], history: str) -> None:
    made, context = bench(260), HISTORIES[history]
    logits = torch.randn(260, generator=torch.Generator().manual_seed(1)) * 4
    logits[11] = -math.inf
    breakers, bias, barred = [3, 40], {2: 0.1, 100: -5.0}, {30: FOREVER, 31: 5, 32: 4}
    allowed = [token for token in range(260) if token % 5]
    for name, settings in LOOKS.items():
        rules = ChainRules(bias, barred, breakers=token_words(breakers, 260))
        draws = DeviceDraws(settings, SEED, index=4, rules=rules)
        assert draws.kind == "adjusted"
        for mask in (None, allowed):
            made.logits.copy_(logits)
            made.begin(draws, context)
            made.state.set_mask(None if mask is None else token_words(mask, 260))
            wanted = adjusted(
                logits, c_chain(settings), context, index=4, bias=bias, barred=barred, breakers=breakers, allowed=mask
            )
            assert made.step()[1] == DRAWN
            assert torch.equal(made.state.adjusted, wanted), name
            assert torch.equal(made.logits, logits)
            for counters in (made.state.counted, made.state.newest, made.state.repeated):
                assert not counters.any(), name


def test_an_answer_is_the_same_as_by_the_reference(bench: Callable[[int], Bench]) -> None:
    settings = S(1.2, top_k=30, mirostat_tau=4.0, repetition_penalty=1.2, dry_multiplier=1.0, no_repeat_ngram=3)
    made, context, mu = bench(40), [1, 2, 3, 1, 2], 8.0
    logits = torch.randn(40, generator=torch.Generator().manual_seed(4))
    made.logits.copy_(logits)
    made.begin(DeviceDraws(settings, SEED, index=0), context)
    context = list(context)
    for index in range(25):
        changed = adjusted(logits, c_chain(settings), context, index=index)
        token, mu = draw(changed, c_chain(settings), seed=SEED, index=index, mu=mu)
        assert made.step() == (token, DRAWN)
        assert made.sampler.mu() == pytest.approx(mu, abs=1e-9)
        context.append(token)
    assert made.state.context[: len(context)].tolist() == context


@pytest.mark.parametrize("settings", [GREEDY, S(0.7), S(mirostat_tau=3.0)], ids=["greedy", "plain", "chain"])
def test_what_leaves_no_token_is_told_apart(bench: Callable[[int], Bench], settings: SamplingSettings) -> None:
    made = bench(500)
    everything = ChainRules(barred=dict.fromkeys(range(500), 1))
    for wrong, status in ((None, NOTHING_ALLOWED), (math.nan, NOT_NUMBERS), (math.inf, NOT_NUMBERS)):
        made.logits.fill_(1.0)
        if wrong is not None:
            made.logits[77] = wrong
        made.begin(DeviceDraws(settings, SEED, index=0, rules=everything), [1])
        assert made.step() == (0, status)
        if wrong is None:
            assert made.step()[1] == DRAWN  # the bars hold for the first token alone
    made.logits.fill_(-math.inf)
    made.begin(DeviceDraws(settings, SEED, index=0), [1])
    assert made.step() == (0, NOT_NUMBERS)


def test_passages_by_hand() -> None:
    # ... 1 2 3 | 4 ... 1 2 3: four would lengthen a passage of three, nine one of one.
    assert repetitions([1, 2, 3, 4, 3, 9, 1, 2, 3], ()) == {4: 3, 9: 1}
    assert repetitions([1, 2, 3, 4, 3, 9, 1, 2, 3], {1}) == {4: 2, 9: 1}
    assert repetitions([1, 2, 3, 4, 3, 9, 1, 2, 3], {3}) == {}
    assert repetitions([7] * 60, ()) == {7: 50}
    assert completing([1, 2, 3, 1, 2], 3) == {3}
    assert completing([1, 2, 3, 1, 2, 1], 2) == {2}
    assert completing([1, 2], 4) == set()


def test_penalties_by_hand() -> None:
    settings = S(repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25, penalty_range=1, penalty_decay=4)
    # Tokens 0, 1 and 2 stand 3, 1 and 0 back; weights 1 - 2/4, 1 and 1; token 1 also 2 back, with 3/4.
    found = adjusted(torch.tensor([3.0, -2.0, 4.0, 1.0]), c_chain(settings), [9, 0, 1, 1, 2])
    assert found.tolist() == [3 / 1.5 - 0.125 - 0.25, -4 - 0.25 - 0.5 * 1.75, 2 - 0.25 - 0.5, 1.0]


def test_steps_by_hand() -> None:
    p = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.0625])

    def kept(settings: SamplingSettings, coin: float = 0.0) -> list[int]:
        return sorted(Chain(p.log(), c_chain(settings), coin=coin).order.tolist())

    assert kept(S(top_a=0.49)) == [0, 1, 2]  # 0.49 * 0.25
    assert kept(S(epsilon_cutoff=0.2)) == [0, 1]
    assert kept(S(tfs=0.4)) == [0]  # bends 1/8, 1/16, 1/16
    assert kept(S(tfs=0.6)) == [0, 1]
    assert kept(S(tfs=0.8)) == [0, 1, 2]
    assert kept(S(typical_p=0.2)) == [1]  # entropy 1.875 bits; surprises 1, 2, 3, 4, 4
    assert kept(S(typical_p=0.5)) == [0, 1]
    assert kept(S(xtc_probability=0.5, xtc_threshold=0.1)) == [2, 3, 4]
    assert kept(S(xtc_probability=0.5, xtc_threshold=0.1), coin=0.5) == [0, 1, 2, 3, 4]
    found = Chain(p.log(), c_chain(S(mirostat_tau=1.0)), mu=2.5)
    assert found.order.tolist() == [0, 1]
    assert found.surprises == pytest.approx({0: math.log2(1.5), 1: math.log2(3.0)})
    cold = Chain(torch.zeros(4), c_chain(S(dynatemp_low=0.5, dynatemp_high=1.5)))
    assert cold.p.tolist() == pytest.approx([0.25] * 4)


def test_kernels_are_chosen_by_what_is_on() -> None:
    def kind(settings: SamplingSettings, **rules: dict[int, float]) -> str:
        return DeviceDraws(settings, 0, 0, rules=ChainRules(**rules)).kind  # type: ignore[arg-type]

    assert kind(S(0.7, top_k=5, top_p=0.9, min_p=0.1)) == "plain"
    assert kind(S(0.7, top_k=5, top_p=0.9, order=("top_p", *(s for s in STEPS if s != "top_p")))) == "chain"
    assert kind(S(mirostat_tau=1.0)) == "chain"
    assert kind(S(dynatemp_high=1.0)) == "chain"
    assert kind(S(repetition_penalty=1.1)) == "adjusted"
    assert kind(GREEDY, bias={3: 1.0}) == "adjusted"


def test_the_host_draws_what_the_device_cannot() -> None:
    assert "two prompts" in (why_not_on_device(S(guidance_scale=1.5)) or "")
    assert "weight" in (why_not_on_device(S(skew=0.5)) or "")
    assert why_not_on_device(CASES["everything"]) is None
    assert {*STEP_NAMES, "skew"} == set(STEPS)


def test_dry_grows_from_the_allowed_length_on() -> None:
    assert dry_table(S(dry_multiplier=0.5, dry_base=2.0, dry_allowed_length=3))[:5] == [0.0, 0.0, 0.5, 1.0, 2.0]


def test_rules_are_checked() -> None:
    state = ChainState(100, 8, CPU)
    with pytest.raises(ValueError, match="id 100 is in a set of tokens, but the vocabulary has 100"):
        token_words([3, 100], 100)
    for rules in (ChainRules(bias={100: 1.0}), ChainRules(barred={-1: 1})):
        with pytest.raises(ValueError, match="but the vocabulary has 100"):
            state.set(c_chain(GREEDY), [1], rules)
    with pytest.raises(ValueError, match="room for 1 to 8"):
        state.set(c_chain(GREEDY), [1] * 9, ChainRules())
    with pytest.raises(ValueError, match="breakers is"):
        state.set(c_chain(GREEDY), [1], ChainRules(breakers=token_words([1], 200)))
    with pytest.raises(ValueError, match="mask is"):
        state.set_mask(token_words([1], 200))
    assert token_words([0, 33, 63], 64).tolist() == [1, -(2**31) + 2]


@pytest.mark.long
def test_warps_that_come_late_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a block's threads share is not read before it is written, nor written while it is read."""
    unchecked(monkeypatch, processors=1)
    functions = Functions(emulated_library(tmp_path, flags=["-DEMULATED_DELAYS=4"]))
    made = Bench(functions.library, 2560, launch, CPU)
    many = first("top_k")
    alike = torch.arange(2560, 0, -1).float() * 1e-4 - 1.0
    for settings in (S(1.0, top_k=2060, order=many, min_p=1e-9), S(tfs=0.9), S(typical_p=0.8), CASES["everything"]):
        assert check_draws(made, settings, alike, "one behind the other", draws=4) == 0


@pytest.mark.parametrize("curve", [1.0, 2.0, 3.0])
def test_smoothing_leaves_barred_tokens_out(bench: Callable[[int], Bench], curve: float) -> None:
    """The vocabulary is sorted, barred tokens last; 0 times infinity is none of their logits."""
    logits = torch.randn(9001, generator=torch.Generator().manual_seed(1)) * 0.5
    logits[torch.rand(9001, generator=torch.Generator().manual_seed(2)) < 0.7] = -math.inf
    settings = S(typical_p=0.5, smoothing_factor=0.3, smoothing_curve=curve)
    assert check_draws(bench(9001), settings, logits, "most are barred", draws=4) == 0
