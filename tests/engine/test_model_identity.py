"""The name of a model: another one for other weights, wherever they differ."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exlchat.engine import engine
from exlchat.engine.weights import checkpoint as model_identity
from exlchat.engine.weights.checkpoint import Checkpoint, identify
from tests.random_models import save_random_llama

SIZE = 2**20


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    file = tmp_path / "model.safetensors"
    file.write_bytes((64).to_bytes(8, "little") + bytes(SIZE - 8))
    return file


def change(file: Path, place: int) -> None:
    """In place, with the time of the last change as it was."""
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    with file.open("r+b") as stream:
        stream.seek(place)
        stream.write(b"\x01")
    os.utime(file, ns=times)


@pytest.mark.parametrize("place", [8, 4096 + 5000, SIZE // 2 + 9000, SIZE - 1])
def test_a_change_of_one_byte_anywhere_is_another_model(weights: Path, place: int) -> None:
    before = identify(b"{}", [weights])
    change(weights, place)
    assert identify(b"{}", [weights]) != before
    assert identify(b"{ }", [weights]) != before


def test_a_large_file_that_was_replaced_or_changed_is_another_model(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_identity, "WHOLE_BYTES", SIZE - 1)
    before = identify(b"{}", [weights])
    assert identify(b"{}", [weights]) == before
    times = weights.stat().st_atime_ns, weights.stat().st_mtime_ns
    os.utime(weights, ns=(times[0], times[1] + 1))
    changed = identify(b"{}", [weights])
    assert changed != before
    other = weights.with_name("other")
    other.write_bytes(weights.read_bytes())
    os.utime(other, ns=(times[0], times[1] + 1))
    os.replace(other, weights)
    assert identify(b"{}", [weights]) != changed
    change(weights, SIZE - 1)
    assert identify(b"{}", [weights]) not in (before, changed)


def test_a_model_is_named_before_its_weights_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_random_llama(tmp_path)
    order, read, name = [], Checkpoint.tensor, Checkpoint.identity.fget  # type: ignore[attr-defined]

    def named(checkpoint: Checkpoint) -> str:
        order.append("name")
        return str(name(checkpoint))

    def tensor(checkpoint: Checkpoint, key: str) -> object:
        order.append("weights")
        return read(checkpoint, key)

    monkeypatch.setattr(Checkpoint, "identity", property(named))
    monkeypatch.setattr(Checkpoint, "tensor", tensor)
    engine.load(tmp_path, device="cpu")
    assert "name" not in order
    order.clear()
    engine.load(tmp_path, device="cpu", page_folder=tmp_path / "cache", page_bytes=10**6)
    assert order[0] == "name"
    assert order.count("name") == 1
    assert "weights" in order
