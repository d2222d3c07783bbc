"""Whatever ids a model draws, streamed text is the text that the tokenizers library makes of all of them at once."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.torch import save_file
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from exlchat.engine.text.stream import TextStream
from exlchat.engine.text.tokenizer import Tokenizer
from exlchat.engine.weights.checkpoint import Checkpoint
from tests.patience import within
from tests.random_models import save_tokenizer

WORDS = ("▁", "a", "b", "▁a", "▁é", "▁Hello", "!", "\ufffd", "<think>")
BYTES = {f"<0x{byte:02X}>": byte + 3 for byte in range(256)}
PERCENT, BROKEN = BYTES["<0x25>"], BYTES["<0xFF>"]
KINDS = ("bytes", "BPE of bytes", "Unigram of bytes")


def falling_back(kind: str) -> FastTokenizer:
    """As Llama's and Gemma's: three special tokens, 256 bytes, some pieces."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, **BYTES}
    vocab |= {piece: len(vocab) + place for place, piece in enumerate(WORDS)}
    model = (
        models.BPE(vocab, [("▁", "a"), ("▁", "é")][:1], unk_token="<unk>", byte_fallback=True)
        if kind == "BPE of bytes"
        else models.Unigram([(piece, -1.0) for piece in vocab], 0, byte_fallback=True)
    )
    tokenizer = FastTokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    tokenizer.add_tokens([AddedToken(text, special=True) for text in ("<unk>", "<s>", "</s>")])
    return tokenizer


@functools.cache
def opened(kind: str) -> tuple[Tokenizer, FastTokenizer, int]:
    """Ours, the library's, and one more than the highest id."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        if kind == "bytes":
            save_tokenizer(folder)
        else:
            falling_back(kind).save(str(folder / "tokenizer.json"))
        (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
        save_file({"x": torch.zeros(1)}, folder / "model.safetensors")
        peer = FastTokenizer.from_file(str(folder / "tokenizer.json"))
        return Tokenizer(Checkpoint(folder), 400), peer, peer.get_vocab_size()


def stream_of(tokenizer: Tokenizer, stop: tuple[str, ...] = (), banned: tuple[str, ...] = ()) -> TextStream:
    return TextStream(tokenizer.decode, stop, banned=banned, fallback=tokenizer.fallback)


@pytest.mark.parametrize("kind", KINDS)
@example(ids=[PERCENT, BROKEN])
@example(ids=[BYTES["<0xC3>"], BYTES["<0xA9>"], 1, BYTES["<0xE2>"], 262])
@example(ids=[BYTES["<0xE2>"]] * 80 + [PERCENT])
@given(ids=st.lists(st.one_of(st.integers(0, 399), st.integers(120, 262), st.integers(30, 60)), max_size=120))
def test_a_stream_is_what_the_library_makes_of_all_ids(kind: str, ids: list[int]) -> None:
    """Two ids more than there are tokens: embeddings are padded, and a model may draw what nothing stands for."""
    tokenizer, peer, size = opened(kind)
    ids = [token % (size + 2) for token in ids]
    stream = stream_of(tokenizer)
    assert "".join(map(stream.push, ids)) + stream.finish() == peer.decode(ids, skip_special_tokens=True)


def test_an_ascii_byte_before_a_broken_one_is_broken_too() -> None:
    tokenizer, peer, _ = opened("BPE of bytes")
    stream = stream_of(tokenizer)
    assert stream.push(PERCENT) + stream.push(BROKEN) + stream.finish() == "\ufffd\ufffd"
    assert peer.decode([PERCENT, BROKEN]) == "\ufffd\ufffd"


@pytest.mark.parametrize("kind", KINDS)
def test_characters_of_bytes_come_when_their_run_ends(kind: str) -> None:
    tokenizer, _, _ = opened(kind)
    ids = [*tokenizer.encode("Hello"), *tokenizer.encode("😀\n")[-5:], *tokenizer.encode("!")[-1:]]
    stream = stream_of(tokenizer)
    shown = [stream.push(token) for token in ids]
    assert "".join(shown) == "Hello😀\n!"
    assert "\ufffd" not in "".join(shown)


def test_a_stop_string_of_bytes_ends_the_answer_at_once() -> None:
    """Llama's line break is a byte; an answer that ends there must not take another token to see it."""
    tokenizer, _, _ = opened("BPE of bytes")
    hello, line_break = tokenizer.encode("Hello"), BYTES["<0x0A>"]
    stream = stream_of(tokenizer, stop=("\n",))
    shown = "".join(map(stream.push, [*hello, line_break]))
    assert stream.stopped
    assert shown == "Hello"


def test_a_banned_string_that_begins_in_bytes_is_taken_back_from_there() -> None:
    tokenizer, _, _ = opened("BPE of bytes")
    a, line_break, mark = tokenizer.encode("a")[-1], BYTES["<0x0A>"], tokenizer.encode("!")[-1]
    stream = stream_of(tokenizer, banned=("\n!",))
    assert [stream.push(token) for token in (a, line_break)] == ["a", ""]
    assert stream.push(mark) == ""
    assert stream.back == 2
    assert stream.push(a) + stream.finish() == " a"


def test_thousands_of_bytes_in_a_row_take_seconds_at_most() -> None:
    tokenizer, peer, _ = opened("BPE of bytes")
    ids = [PERCENT, BROKEN] * 2000
    for stop in ((), ("never",)):
        stream = stream_of(tokenizer, stop=stop)
        with within(5):
            assert "".join(map(stream.push, ids)) + stream.finish() == peer.decode(ids)
