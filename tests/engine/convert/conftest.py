"""Conversions of the same texts, which take half of the time of so small a model's."""

from __future__ import annotations

import pytest

from exlchat.engine.text.tokenizer import Tokenizer

_LONG = 100_000
_known: dict[tuple[object, ...], list[int]] = {}


@pytest.fixture(autouse=True)
def texts_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    really = Tokenizer.encode

    def encode(self: Tokenizer, text: str, *, special: bool = True) -> list[int]:
        if len(text) < _LONG:
            return really(self, text, special=special)
        key = (text, self._fast.to_str(), special)
        if key not in _known:
            _known[key] = really(self, text, special=special)
        return _known[key]

    monkeypatch.setattr(Tokenizer, "encode", encode)
