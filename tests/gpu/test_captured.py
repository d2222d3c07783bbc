"""Captures beside what Python does meanwhile."""

from __future__ import annotations

import gc

import pytest
import torch

from exlchat.engine.decode.captured import captured

pytestmark = pytest.mark.gpu


class Model:
    """Graphs of a model that is gone, which only the collector of cycles finds."""

    def __init__(self) -> None:
        self.itself = self
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            self.graph = captured(lambda: torch.zeros(4, device="cuda").add_(1), None)


def test_graphs_of_a_model_that_is_gone_are_not_destroyed_in_a_capture() -> None:
    x, models = torch.zeros(4, device="cuda"), [Model()]
    gc.collect()

    def work() -> None:
        models.clear()
        # The collector comes by for every so many new objects.
        cycles = [[[]] for _ in range(10 * gc.get_threshold()[0])]
        x.add_(len(cycles[0]))

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        captured(work, None).replay()
    torch.cuda.synchronize()
    assert gc.isenabled()
    assert x.tolist() == [1.0] * 4
