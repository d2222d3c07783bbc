"""Streaming text: whole characters, no half stop strings, nothing lost."""

from __future__ import annotations

import functools
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from exlchat.engine.text.stream import TextStream, whole_characters
from tests.random_models import save_tokenizer


@functools.cache
def byte_level() -> Tokenizer:
    with TemporaryDirectory() as folder:
        save_tokenizer(Path(folder))
        return Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))


@functools.cache
def sentencepiece_style() -> Tokenizer:
    """Like Llama 2: a space is part of the next piece and dropped at the beginning of a text; bytes fall back."""
    vocab = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}}
    for piece in ("▁", "a", "b", "▁a", "▁b", "▁Hello", "▁world", "!"):
        vocab[piece] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, [("▁", "a"), ("▁", "b")], unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


TOKENIZERS = pytest.mark.parametrize("make", [byte_level, sentencepiece_style], ids=["bytes", "sentencepiece"])


@TOKENIZERS
@given(text=st.text(max_size=40))
def test_pieces_are_whole_characters_and_sum_to_the_text(
    make: functools._lru_cache_wrapper[Tokenizer], text: str
) -> None:
    tokenizer = make()
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    stream = TextStream(tokenizer.decode)
    pieces = [stream.push(token) for token in ids]
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) + stream.finish() == tokenizer.decode(ids)


@given(st.lists(st.integers(0, 383), max_size=60))
def test_random_ids_lose_nothing(ids: list[int]) -> None:
    """Broken UTF-8 shows replacement characters, as many as decoding at once or more, and all else in order."""
    tokenizer = byte_level()
    size = tokenizer.get_vocab_size()
    ids = [token % size for token in ids]
    stream = TextStream(tokenizer.decode)
    text = "".join(stream.push(token) for token in ids) + stream.finish()
    assert text.replace("\ufffd", "") == tokenizer.decode(ids).replace("\ufffd", "")


@TOKENIZERS
@given(
    before=st.text("ab! ", max_size=12),
    stop=st.text("ab!", min_size=1, max_size=4),
    after=st.text("ab! ", max_size=6),
    other=st.text("ab!", min_size=1, max_size=4),
)
def test_text_ends_before_the_first_complete_stop_string(
    make: functools._lru_cache_wrapper[Tokenizer], before: str, stop: str, after: str, other: str
) -> None:
    tokenizer = make()
    ids = tokenizer.encode(before + stop + after, add_special_tokens=False).ids
    whole = tokenizer.decode(ids)
    stream = TextStream(tokenizer.decode, [stop, other])
    shown = ""
    for token in ids:
        shown += stream.push(token)
        # Nothing is shown that has to be taken back.
        assert whole.startswith(shown)
        if stream.stopped:
            break
    found = [(start + len(text), start) for text in (stop, other) if (start := whole.find(text)) >= 0]
    assert stream.stopped == bool(found)
    assert shown + stream.finish() == (whole[: min(found)[1]] if found else whole)


def test_held_text_comes_out_when_it_was_no_stop_string() -> None:
    tokenizer = byte_level()
    stream = TextStream(tokenizer.decode, ["</answer>"])
    shown = [stream.push(token) for token in tokenizer.encode("x </answ", add_special_tokens=False).ids]
    assert "".join(shown) == "x "
    assert stream.finish() == "</answ"


def test_special_tokens_do_not_use_up_the_patience_for_a_character() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("🙈", add_special_tokens=False).ids
    stream = TextStream(tokenizer.decode)
    assert "".join(stream.push(token) for token in [0, 1, 0, 1, 0, *ids]) == "🙈"


def test_an_emoji_of_four_bytes_appears_at_once() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("🙈", add_special_tokens=False).ids
    assert len(ids) >= 3
    stream = TextStream(tokenizer.decode)
    assert [stream.push(token) for token in ids] == [""] * (len(ids) - 1) + ["🙈"]


def test_text_goes_on_behind_what_was_said_before() -> None:
    words = sentencepiece_style()
    hello, world = words.encode("Hello").ids, words.encode("Hello world").ids
    assert world[: len(hello)] == hello
    stream = TextStream(words.decode, before=hello)
    pieces = [stream.push(token) for token in world[len(hello) :]]
    assert "".join(pieces) + stream.finish() == " world"


@pytest.mark.parametrize("said", ["", "a", "long before " * 20])
def test_a_character_that_was_begun_before_is_finished(said: str) -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode(f"{said}😀!").ids
    for cut in range(len(tokenizer.encode(said).ids), len(ids)):
        stream = TextStream(tokenizer.decode, before=ids[:cut])
        pieces = [stream.push(token) for token in ids[cut:]]
        shown = whole_characters(tokenizer.decode(ids[:cut]))
        assert shown + "".join(pieces) + stream.finish() == f"{said}😀!"
