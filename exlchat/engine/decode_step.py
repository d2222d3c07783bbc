"""The whole decode step as one CUDA graph: what `run_ahead.RunAheadTokens` launches.

It is captured once: pages stay where they are, and a table on the device says which of them belong to the sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from exlchat.engine.events import ModelError
from exlchat.engine.kv_cache import KVCache
from exlchat.engine.quantized_linear import Launch
from exlchat.engine.spec import ModelSpec
from exlchat.engine.step_fit import open_chain
from exlchat.engine.transformer import Transformer
from exlchat.ext.attention import best_splits
from exlchat.ext.functions import CDraw
from exlchat.ext.ops import Kernels
from exlchat.ext.sampling import SamplerState, TokenRing, c_draw

# From this compute capability on a kernel may start while the one before it still runs.
_DEPENDENT_LAUNCH = (9, 0)
NO_MEMORY = "no memory for the decode step beside weights and cache; take a smaller --context"


class CapturedStep:
    """A `run_ahead.DecodeStep`.

    Args:
        transformer, cache: of one model for which `step_fit.why_not` gives `None`; the cache is empty.
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
            self._chain = open_chain(transformer, cache, kernels, splits=splits_of(spec, device))
            self._state = SamplerState(device)
            position = self._chain.position
            self._draw = kernels.sample(self._chain.logits, self._state, token=self._chain.token, position=position)
            cache.reserve(1)
            self._state.set(c_draw(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, index=0, sequence=0))
            # CUDA loads kernels when they are first launched, which must not fall into a capture. The one position
            # that this writes is overwritten by the first token.
            self._jobs = [*self._chain.jobs(), self._draw]
            """They keep alive what the graph points to."""
            for job in self._jobs:
                job.launch(dependent=False)
            torch.cuda.synchronize(device)
            cache.clear()
        except torch.OutOfMemoryError as error:
            raise ModelError(NO_MEMORY) from error
        self._graph = captured(device, lambda: launch_all(self._jobs, dependent=self._dependent))

    @property
    def ring(self) -> TokenRing:
        """Where the steps report."""
        return self._state.ring

    @property
    def logits(self) -> Tensor:
        """float32 `[vocab]`, of the last step that has ended."""
        return self._chain.logits

    @property
    def capacity(self) -> int:
        """Tokens that the cache holds without `grow`."""
        return self._cache.capacity

    def grow(self, length: int) -> None:
        """Makes `capacity` at least `length`. Raises `ModelError` when there are no pages left."""
        self._cache.reserve(length)

    def begin(self, token: int, position: int, draw: CDraw) -> None:
        """The next step feeds `token` at `position` and draws by `draw`."""
        self._chain.token.fill_(token)
        self._chain.position.fill_(position)
        self._state.set(draw)

    def launch(self) -> None:
        """Enqueues one step and returns."""
        self._graph.replay()

    def running(self) -> bool:
        """Whether a launched step has not ended. Raises `RuntimeError` when the device has failed."""
        return not torch.cuda.current_stream(self._chain.token.device).query()


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
