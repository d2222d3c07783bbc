"""Where the tokens of an answer that has the model to itself come from: the device, the host, or checked guesses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import Tensor

from exlchat.engine.draft.drafting import DraftedTokens, Drafter, DraftLength
from exlchat.engine.draft.ngram_drafter import NgramDrafter
from exlchat.engine.sampling.device import is_steered, why_not_on_device
from exlchat.engine.sampling.device_rules import DeviceRules
from exlchat.engine.schedule.generation import GenerationState
from exlchat.engine.schedule.host_draws import may_go_back
from exlchat.engine.schedule.runner import Runner
from exlchat.engine.schedule.token_sources import MaskedTokens, RunAheadTokens, SynchronousTokens, TokenSource
from exlchat.llm.request import GenerationRequest

_Row = TypeVar("_Row")
# What each row more of a pass costs beside the first, before one was measured. A GPU reads the weights once for all; a
# CPU computes each row.
_GPU_ROW, _CPU_ROW = 0.05, 0.5


class AnswerSources:
    """Of one model.

    Args:
        device_rules: of the model.
        draft_model: guesses by a smaller model.
    """

    def __init__(self, runner: Runner, device_rules: DeviceRules, draft_model: Drafter | None) -> None:
        self._runner = runner
        self._device_rules = device_rules
        row = _GPU_ROW if runner.transformer.device.type == "cuda" else _CPU_ROW
        self._drafters: dict[str, tuple[Drafter, DraftLength]] = {"ngram": (NgramDrafter(), DraftLength(row))}
        if draft_model is not None:
            self._drafters["model"] = (draft_model, DraftLength(row))

    def open(self, state: GenerationState) -> TokenSource:
        """A source behind the last token of an answer, which is not in its sequence yet."""
        runner, sequence = self._runner, state.parts.sequence
        drafter = self._drafter(state.parts.request)
        if drafter is None or state.parts.guidance is not None:
            return self._plain(state)
        if runner.step is not None and _takes_the_best(state):
            return self._drafted(state, drafter, lambda ids: runner.best_of_rows(sequence, ids), lambda best: best)
        return self._drafted(state, drafter, lambda ids: list(runner.row_logits(sequence, ids)), self._drawer(state))

    def foreseen(self, state: GenerationState) -> TokenSource:
        """Tokens that a device has drawn already, each of which is fed as a prompt is."""
        runner, sequence = self._runner, state.parts.sequence
        return SynchronousTokens(lambda token: runner.last_logits(sequence, [token]), self._drawer(state))

    def _drafter(self, request: GenerationRequest) -> tuple[Drafter, DraftLength] | None:
        kind = request.draft
        if kind == "auto":
            # Mirostat stays on the device where nothing is guessed.
            kind = "off" if self._runner.step is not None and is_steered(request.sampling) else "ngram"
        return self._drafters.get(kind)

    def _drafted(
        self,
        state: GenerationState,
        drafter: tuple[Drafter, DraftLength],
        check: Callable[[list[int]], Sequence[_Row]],
        draw: Callable[[_Row], int],
    ) -> TokenSource:
        return DraftedTokens(
            plain=lambda: self._plain(state),
            check=check,
            cut=lambda length: self._runner.cut(state.parts.sequence, length),
            draw=draw,
            context=state.context,
            room=state.room,
            drafter=drafter[0],
            length=drafter[1],
            count=state.parts.clock.drafts,
        )

    def _plain(self, state: GenerationState) -> TokenSource:
        step, sequence, rules = self._runner.step, state.parts.sequence, state.parts.rules
        if step is None or not self._on_device(state):
            return SynchronousTokens(lambda token: self._runner.next_logits(sequence, token), self._drawer(state))
        draws = self._device_rules.draws(state)
        if rules.hold:
            return MaskedTokens(step, sequence, state.context, draws, lambda _: rules.mask)
        leaves = state.foresee if is_steered(state.parts.request.sampling) else None
        return RunAheadTokens(step, sequence, state.context, draws, most=state.most, leaves=leaves)

    def _drawer(self, state: GenerationState) -> Callable[[Tensor], int]:
        """Draws on the host."""
        return lambda logits: self._runner.checked(state.draw(logits))

    def _on_device(self, state: GenerationState) -> bool:
        request = state.parts.request
        if request.alternatives or state.parts.guidance is not None or why_not_on_device(request.sampling) is not None:
            return False
        if state.foresees:
            return False
        # Mirostat's state is on the device then, and what goes back would begin without it.
        anew = may_go_back(request) or request.constraint or self._drafter(request) is not None
        return not (is_steered(request.sampling) and anew)


def _takes_the_best(state: GenerationState) -> bool:
    """Whether each token is the best of its logits, and nothing else is asked of them."""
    request, rules = state.parts.request, state.parts.rules
    sampling = request.sampling
    bare = not (sampling.looks_back or sampling.logit_bias or sampling.banned_tokens)
    early = state.count < request.min_new_tokens
    return sampling.greedy and bare and not (rules.hold or early or request.alternatives)
