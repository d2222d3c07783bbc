"""Counts the tokens that pass through the decoder."""

from __future__ import annotations

import pytest
import torch

from exlchat.engine.layers.transformer import Transformer


class PassedTokens:
    """`count` grows with every token that any decoder computes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        features = Transformer.features

        def counted(transformer: Transformer, ids: torch.Tensor, *arguments: object, **options: object) -> torch.Tensor:
            self.count += len(ids)
            return features(transformer, ids, *arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(Transformer, "features", counted)
