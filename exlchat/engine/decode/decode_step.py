"""The whole decode step as one CUDA graph: what `token_sources.RunAheadTokens` launches.

It is captured once: pages stay where they are, and a table on the device says which of them belong to the sequence.
Each way of drawing (`device_sampling.DrawKind`) has a graph of its own, so that none pays for what another needs; and
for answers whose next token a grammar has to allow there is the step without the draw, and the draw without the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from exlchat.engine.decode.plan import DecodePlan
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.quantized_linear import Launch
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.model.spec import ModelSpec
from exlchat.engine.sampling.device import DeviceDraws, DrawKind
from exlchat.ext.attention import best_splits
from exlchat.ext.chain import ChainState
from exlchat.ext.ops import Kernels
from exlchat.ext.sampling import SamplerState, TokenRing, c_draw
from exlchat.llm.info import ModelError

# From this compute capability on a kernel may start while the one before it still runs.
_DEPENDENT_LAUNCH = (9, 0)
NO_MEMORY = "no memory for the decode step beside weights and cache; take a smaller --context"


class CapturedStep:
    """A `token_sources.DecodeStep`.

    Args:
        transformer, cache: of one model for which `fit.why_not` gives `None`.
        kernels: on the model's device.
        dependent: whether kernels may start before their predecessors end; as the card can unless given.

    Raises:
        ModelError: no memory for it.
    """

    def __init__(
        self, transformer: Transformer, cache: KVCache, kernels: Kernels, *, dependent: bool | None = None
    ) -> None:
        spec, device = transformer.spec, transformer.device
        self._cache = cache
        self._dependent = launches_dependently(device) if dependent is None else dependent
        try:
            self._chain = DecodePlan(transformer, cache, kernels, splits=splits_of(spec, device))
            self._state = SamplerState(device)
            self._chain_state = ChainState(spec.vocab_size, cache.max_seq_len, device)
            self._forward = list(self._chain.jobs())
            self._draws = self._draw_jobs(kernels)
            """They keep alive what the graphs point to."""
            self._sequence = KVSequence(cache)
            self.grow(1)
            self._state.set(c_draw(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, index=0, sequence=0))
            # CUDA loads kernels when they are first launched, which must not fall into a capture. The one position
            # that this writes is overwritten by the first token.
            for job in [*self._forward, *self._draws["adjusted"], *self._draws["chain"]]:
                job.launch(dependent=False)
            torch.cuda.synchronize(device)
            self._sequence.close()
        except torch.OutOfMemoryError as error:
            raise ModelError(NO_MEMORY) from error
        self._kind: DrawKind = "plain"
        self._steps: dict[DrawKind, torch.cuda.CUDAGraph] = {}
        self._steps["plain"] = self._capture([*self._forward, *self._draws["plain"]])
        self._apart: tuple[torch.cuda.CUDAGraph, dict[DrawKind, torch.cuda.CUDAGraph]] | None = None

    def _draw_jobs(self, kernels: Kernels) -> dict[DrawKind, list[Launch]]:
        logits, token, position = self._chain.logits[0], self._chain.token, self._chain.position
        state, chain = self._state, self._chain_state
        adjust = kernels.adjust(logits, chain, state, position=position)
        fours = kernels.sample(
            *(chain.adjusted, state), token=token, position=position, context=chain.context, numbers=chain.numbers
        )
        return {
            "plain": [kernels.sample(logits, state, token=token, position=position)],
            "adjusted": [adjust, fours],
            "chain": [adjust, kernels.draw_adjusted(chain, state, token=token, position=position)],
        }

    def _capture(self, jobs: list[Launch]) -> torch.cuda.CUDAGraph:
        return captured(self._chain.token.device, lambda: launch_all(jobs, dependent=self._dependent))

    @property
    def ring(self) -> TokenRing:
        """Where the steps report."""
        return self._state.ring

    @property
    def logits(self) -> Tensor:
        """float32 `[vocab]`, of the last step that has ended."""
        return self._chain.logits[0]

    @property
    def capacity(self) -> int:
        """Tokens that the sequence holds without `grow`."""
        return self._sequence.capacity

    def grow(self, length: int) -> None:
        """Makes `capacity` at least `length`. Raises `PoolFullError`."""
        self._sequence.reserve(length)
        self._chain.tables.show(self._cache.tables, [self._sequence.row])

    def begin(self, sequence: KVSequence, context: Sequence[int], draws: DeviceDraws, *, masked: bool = False) -> None:
        """See `token_sources.DecodeStep`.

        The first answer of a kind captures its graph, some tens of milliseconds.

        Raises:
            ModelError: no memory for that.
            ValueError: a rule for an id that is not in the vocabulary.
        """
        kind: DrawKind = "adjusted" if masked and draws.kind == "plain" else draws.kind
        if masked:
            self._prepare_apart()
        elif kind not in self._steps:
            self._steps[kind] = self._capture([*self._forward, *self._draws[kind]])
        self._sequence = sequence
        self.grow(len(context))
        self._set(kind, context, draws)

    def begin_draw(self, logits: Tensor, context: Sequence[int], draws: DeviceDraws, mask: Tensor | None) -> None:
        """See `token_sources.DecodeStep`."""
        self._prepare_apart()
        self._set("adjusted" if mask is not None and draws.kind == "plain" else draws.kind, context, draws)
        self._chain.logits[0].copy_(logits)
        if self._kind != "plain":
            self.set_mask(mask)

    def _set(self, kind: DrawKind, context: Sequence[int], draws: DeviceDraws) -> None:
        self._kind = kind
        self._chain.token.fill_(context[-1])
        self._chain.position.fill_(len(context) - 1)
        self._state.set(draws.c_draw())
        if self._kind != "plain":
            self._chain_state.set(draws.c_chain(), context, draws.rules)

    def launch(self) -> None:
        """Enqueues one step and returns."""
        self._steps[self._kind].replay()

    def launch_forward(self) -> None:
        """Enqueues a step without its draw and returns."""
        self._prepare_apart()[0].replay()

    @torch.inference_mode()
    def forward(self, sequence: KVSequence, token: int, position: int) -> Tensor:
        """Feeds a token of a sequence and draws nothing: float32 `[vocab]` on the device, valid until the next call.

        Its key and value are stored; the sequence is not told.
        """
        self._sequence = sequence
        self.grow(position + 1)
        graph, _ = self._prepare_apart()
        self._chain.token.fill_(token)
        self._chain.position.fill_(position)
        graph.replay()
        return self._chain.logits[0]

    def set_mask(self, words: Tensor | None) -> None:
        """What the next draw may give: see `ChainState.set_mask`."""
        self._chain_state.set_mask(words)

    def launch_draw(self) -> None:
        """Enqueues the draw and returns."""
        self._prepare_apart()[1][self._kind].replay()

    def mu(self) -> float:
        """Mirostat's, after the steps that have been launched; waits for them."""
        return self._state.mu()

    def running(self) -> bool:
        """Whether a launched step has not ended. Raises `RuntimeError` when the device has failed."""
        return not torch.cuda.current_stream(self._chain.token.device).query()

    def _prepare_apart(self) -> tuple[torch.cuda.CUDAGraph, dict[DrawKind, torch.cuda.CUDAGraph]]:
        """The step without its draw, and the draws that a mask can hold back."""
        if self._apart is None:
            draws: dict[DrawKind, torch.cuda.CUDAGraph] = {
                kind: self._capture(jobs) for kind, jobs in self._draws.items()
            }
            self._apart = self._capture(self._forward), draws
        return self._apart


def launches_dependently(device: torch.device) -> bool:
    """Whether a kernel of a card may start while the one before it still runs."""
    card = torch.cuda.get_device_properties(device)
    return (card.major, card.minor) >= _DEPENDENT_LAUNCH


def splits_of(spec: ModelSpec, device: torch.device) -> int:
    """Blocks over which a step spreads the attention of a head: all steps of a model the same, as sums depend on it."""
    return best_splits(
        spec.num_heads, spec.num_kv_heads, torch.cuda.get_device_properties(device).multi_processor_count
    )


def launch_all(jobs: Sequence[Launch], *, dependent: bool) -> None:
    """One after the other; the first waits for what was launched before."""
    for index, job in enumerate(jobs):
        job.launch(dependent=dependent and index > 0)


def captured(device: torch.device, work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """What `work` launches, as a graph. Raises `ModelError` when there is no memory or the GPU refuses."""
    stream = torch.cuda.current_stream(device)
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
    except torch.OutOfMemoryError as error:
        raise ModelError(NO_MEMORY) from error
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(f"the GPU could not prepare the decode step ({reason}); start exlchat again") from error
    finally:
        torch.cuda.set_stream(stream)  # a capture that fails leaves torch on the stream of the capture
    return graph
