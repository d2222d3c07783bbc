"""Sampling settings as the captured step takes them: whether the device can draw by them, and with which kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from exlchat.ext.chain import DRY_MOST, STEP_NAMES, ChainRules
from exlchat.ext.functions import CChain, CDraw
from exlchat.ext.sampling import MAX_VOCAB, c_draw
from exlchat.llm.sampling import SamplingSettings

DrawKind = Literal["plain", "adjusted", "chain"]
"""`plain`: the four kernels of `exlchat.ext.sampling` from the logits. `adjusted`: the same, from adjusted logits.
`chain`: any steps, from adjusted logits."""

_PLAIN_STEPS = ("temperature", "top_k", "top_p", "min_p")
_LEAST, _MOST = 1e-30, 1e30  # temperatures, so that quotients stay finite


@dataclass(frozen=True, slots=True)
class DeviceDraws:
    """How the device draws the tokens of an answer from some index on.

    Args:
        settings: for which `why_not_on_device` gives `None`.
        seed: of the answer.
        index: of the next token in the answer.
        attempt: how often that was drawn before and taken back; holds for all that follow.
        rules: of single tokens; what `settings` say of them by name has to be in there.
        mu: Mirostat's; `None` where it begins.
    """

    settings: SamplingSettings
    seed: int
    index: int
    attempt: int = 0
    rules: ChainRules = field(default_factory=ChainRules)
    mu: float | None = None

    @property
    def kind(self) -> DrawKind:
        settings = self.settings
        if settings.dynatemp_high > 0.0 or settings.steps != tuple(s for s in _PLAIN_STEPS if s in settings.steps):
            return "chain"
        return "adjusted" if settings.looks_back or self.rules.bias or self.rules.barred else "plain"

    def c_draw(self, sequence: int = 0) -> CDraw:
        """As the device has it before the first step, which reports one more than `sequence`."""
        settings = self.settings
        return c_draw(
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            min_p=settings.min_p,
            seed=self.seed,
            index=self.index,
            attempt=self.attempt,
            sequence=sequence,
            mu=2.0 * settings.mirostat_tau if self.mu is None else self.mu,
        )

    def c_chain(self) -> CChain:
        """The rest, but for what `exlchat.ext.chain.ChainState.set` finds out."""
        return c_chain(self.settings)


def why_not_on_device(settings: SamplingSettings) -> str | None:
    """Why the host draws by these settings, or `None` if a captured step does."""
    if settings.is_on("guidance_scale"):
        return "guidance mixes the logits of two prompts"
    if "skew" in settings.steps:
        return "skew gives each token a weight of its own"
    return None


def is_steered(settings: SamplingSettings) -> bool:
    """Whether a draw depends on how surprising the tokens before it were."""
    return "mirostat" in settings.steps


def c_chain(settings: SamplingSettings) -> CChain:
    """Everything of the settings but names of tokens, and what `CDraw` has."""
    steps = [STEP_NAMES.index(step) for step in settings.steps if step != "skew"]
    looks = settings.is_on
    chain = CChain(
        repetition=settings.repetition_penalty,
        frequency=settings.frequency_penalty,
        presence=settings.presence_penalty,
        smoothing_factor=settings.smoothing_factor,
        smoothing_curve=settings.smoothing_curve,
        temperature=min(max(settings.temperature, _LEAST), _MOST),
        dynatemp_low=settings.dynatemp_low,
        dynatemp_high=settings.dynatemp_high,
        dynatemp_exponent=settings.dynatemp_exponent,
        top_n_sigma=settings.top_n_sigma,
        top_p=settings.top_p,
        top_a=settings.top_a,
        min_p=settings.min_p,
        tfs=settings.tfs,
        typical=settings.typical_p,
        epsilon=settings.epsilon_cutoff,
        eta=settings.eta_cutoff,
        mirostat_tau=settings.mirostat_tau,
        mirostat_eta=settings.mirostat_eta,
        xtc_probability=settings.xtc_probability,
        xtc_threshold=settings.xtc_threshold,
        penalties=looks("repetition_penalty") or looks("frequency_penalty") or looks("presence_penalty"),
        penalty_range=settings.penalty_range,
        penalty_decay=settings.penalty_decay if settings.penalty_range else 0,
        dry_on=looks("dry_multiplier"),
        dry_range=settings.dry_range,
        ngram=settings.no_repeat_ngram,
        top_k=min(settings.top_k, MAX_VOCAB),
        step_count=len(steps),
    )
    chain.dry[:] = dry_table(settings)
    chain.steps[: len(steps)] = steps
    return chain


def dry_table(settings: SamplingSettings) -> list[float]:
    """What DRY takes off for a passage of 1, 2, ... tokens."""
    allowed = settings.dry_allowed_length
    return [
        settings.dry_multiplier * settings.dry_base ** (n - allowed) if n >= allowed else 0.0
        for n in range(1, DRY_MOST + 1)
    ]
