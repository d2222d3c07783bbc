"""What tokenizers of strangers try costs a process and a line; and no text brings the library's own errors out."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer as FastTokenizer

from exlchat.engine import load
from exlchat.engine.text import tokenizer_process
from exlchat.engine.text.tokenizer import Tokenizer
from exlchat.engine.text.tokenizer_alone import TokenizerAlone
from exlchat.engine.text.tokenizer_growth import encoding_growth
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.llm.info import ModelError
from exlchat.llm.request import RequestError
from exlchat.untrusted.child import Child
from tests.engine import hostile_tokenizers as hostile
from tests.patience import PATIENCE, within
from tests.random_models import save_random_llama

REFUSED = {**hostile.GROWING, **hostile.ENDLESS, **hostile.BROKEN}
TEXTS = ["", "a", "a" * 3000, " " * 3000 + "!", "zq", "日本 \u0644\ufdfa 👍", "x<s>y", "aaaa aaaa\n"]


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that what runs into them does so soon."""
    child = Child("exlchat.engine.text.tokenizer_trial", seconds=2, memory=300_000_000, largest=100_000)
    monkeypatch.setattr(tokenizer_process, "_CHILD", child)
    yield
    child.close()


def folder_of(tmp_path: Path, content: dict[str, Any], **config: Any) -> Path:
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def opened(folder: Path) -> Tokenizer:
    """Of a model that has as many rows as there are tokens."""
    rows = len(json.loads((folder / "tokenizer.json").read_bytes())["model"].get("vocab", ()))
    return Tokenizer(Checkpoint(folder), rows)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.sweep(18)
def test_a_hostile_tokenizer_is_refused_in_one_line_and_breaks_nothing_here(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A panic in this process would be on its standard error."""
    folder = folder_of(tmp_path, REFUSED[name])
    began = time.monotonic()
    with within(2), pytest.raises(ModelError) as caught:
        opened(folder)
    assert time.monotonic() - began < PATIENCE
    line = str(caught.value)
    assert line.startswith(str(folder))
    assert line.isprintable()
    assert "take " in line or "download" in line
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", hostile.HARMLESS)
def test_what_only_looks_hostile_answers_or_says_in_one_line_why_not(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tokenizer = opened(folder_of(tmp_path, hostile.HARMLESS[name]))
    for text in TEXTS:
        try:
            ids = tokenizer.encode(text)
            assert len(ids) <= 4 * len(text)
            assert len(tokenizer.decode(ids)) <= 3 * len(text)
        except RequestError as error:
            line = str(error)
            assert line.startswith(str(tmp_path / "tokenizer.json"))
            assert line.isprintable()
    assert capfd.readouterr().err == ""


def test_the_line_says_what_it_does(tmp_path: Path) -> None:
    for name, words in {
        "20 MB for a rare word": "it may make more than 1,000 characters of one",
        "a pattern that never ends": "it breaks down at some texts",
        "a charsmap that leads nowhere": "it breaks down at some texts (index out of bounds",
        "a charsmap that is none": "not a tokenizer (Precompiled",
    }.items():
        with pytest.raises(ModelError) as caught:
            opened(folder_of(tmp_path, REFUSED[name]))
        assert words in str(caught.value)


def test_a_missing_unknown_token_is_told_with_the_file(tmp_path: Path) -> None:
    tokenizer = opened(folder_of(tmp_path, hostile.HARMLESS["no token for what it does not know"]))
    assert tokenizer.encode("a") == [0]
    with pytest.raises(RequestError, match=r"tokenizer.json: cannot encode this text \(.*Missing \[UNK\]"):
        tokenizer.encode("b")


@pytest.mark.parametrize("text", ["\ud800", "ab\udcffc"])
def test_half_a_character_is_told_with_its_place(text: str, tmp_path: Path) -> None:
    tokenizer = opened(folder_of(tmp_path, hostile.content()))
    place = next(index for index, character in enumerate(text) if ord(character) >= 0xD800)
    for special in (True, False):
        with pytest.raises(RequestError, match=f"half a character .U.{ord(text[place]):X}, character {place} of"):
            tokenizer.encode(text, special=special)


@pytest.mark.parametrize("ids", [[-1], [2**32], [2**70]])
def test_ids_that_are_none_are_told(ids: list[int], tmp_path: Path) -> None:
    tokenizer = opened(folder_of(tmp_path, hostile.content()))
    for special in (False, True):
        with pytest.raises(RequestError, match="cannot decode these ids"):
            tokenizer.decode(ids, special=special)


def test_a_text_beyond_all_prompts_never_reaches_the_library(tmp_path: Path) -> None:
    tokenizer = opened(folder_of(tmp_path, hostile.content(normalizer={"type": "Prepend", "prepend": "▁" * 500})))
    assert len(tokenizer.encode("a" * 10_000)) == 10_000
    with pytest.raises(RequestError, match="a text of 200,000 characters"):
        tokenizer.encode("a" * 200_000)


def test_growth_is_that_of_the_longest_way(tmp_path: Path) -> None:
    """By hand: twice for a space in front, eighteen times in a compatible form, four behind each match of nothing."""
    growth = {
        1.0: hostile.content(),
        2.0: hostile.content(normalizer={"type": "Prepend", "prepend": "▁"}),
        3.0: hostile.content(normalizer=hostile.replace({"String": "ab"}, "abcdef")),
        18.0 * 5: hostile.content(
            normalizer=hostile.several("normalizers", [{"type": "NFKC"}, hostile.replace({"Regex": "x"}, "four")])
        ),
        21.0: hostile.charsmap(b"\4\0\0\0trie" + b"ab\0" + b"\xc3\xa9" * 21 + b"\0c\0"),
    }
    for expected, content in growth.items():
        file = tmp_path / "tokenizer.json"
        file.write_text(json.dumps(content))
        assert encoding_growth(FastTokenizer.from_file(str(file))) == expected


@pytest.mark.parametrize(
    "config",
    [
        {"added_tokens_decoder": {"95": {"content": "\ud800"}}},
        {"eos_token": "\ud800"},
        {"additional_special_tokens": ["\udcff"]},
    ],
)
def test_companions_with_half_characters_are_one_line(config: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        opened(folder_of(tmp_path, hostile.content(), **config))
    assert str(caught.value).isprintable()


def test_a_model_with_one_is_not_loaded(tmp_path: Path) -> None:
    save_random_llama(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_bytes())
    content["normalizer"] = REFUSED["a charsmap that leads nowhere"]["normalizer"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ModelError, match="breaks down at some texts"):
        load(tmp_path, device="cpu")
    with pytest.raises(ModelError, match="breaks down at some texts"):
        TokenizerAlone(tmp_path)


def test_a_trial_may_begin_before_it_is_asked_for(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, REFUSED["forty doublings"])
    tokenizer_process.start(folder)
    (folder / "tokenizer.json").unlink()
    first, second = tokenizer_process.take(folder), tokenizer_process.take(folder)
    assert first is not second
    with pytest.raises(ModelError, match=r"tokenizer.json is missing"):
        second.require()


def test_a_trial_that_a_failed_load_has_ended_says_nothing_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, endless = tmp_path / "sound", tmp_path / "endless"
    endless.mkdir()
    folder.mkdir()
    child = Child("exlchat.engine.text.tokenizer_trial", seconds=600, memory=10**9, largest=100_000)
    monkeypatch.setattr(tokenizer_process, "_CHILD", child)
    folder_of(folder, hostile.content(), name=str(tmp_path))
    # What is before it keeps the process busy.
    tokenizer_process.start(folder_of(endless, hostile.ENDLESS["words of any length"]))
    while child._process is None:
        time.sleep(0.01)
    tokenizer_process.start(folder)
    tokenizer_process.close()
    assert not tokenizer_process._ahead
    tokenizer_process.take(folder).require()
    tokenizer_process.close()


def test_a_program_that_ends_does_not_wait_for_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child("exlchat.engine.text.tokenizer_trial", seconds=600, memory=10**9, largest=100_000)
    monkeypatch.setattr(tokenizer_process, "_CHILD", child)
    content = hostile.ENDLESS["words of any length"]
    trial = tokenizer_process.take(folder_of(tmp_path, content))
    while child._process is None:
        time.sleep(0.01)
    assert not trial.opened
    tokenizer_process.close()
    with pytest.raises(ModelError, match=r"the trial of its tokenizer crashed .SIGKILL."):
        trial.require()


def test_what_cannot_be_opened_there_is_not_opened_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exlchat.engine.text.tokenizer.open_tokenizer", None)
    for name in ("a charsmap that is none", "forty doublings", "20 MB while decoding", "two hundred levels"):
        with pytest.raises(ModelError):
            opened(folder_of(tmp_path, REFUSED[name]))


def test_what_is_sound_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path, hostile.content(), name=str(tmp_path))
    opened(folder)
    monkeypatch.setattr(tokenizer_process, "_CHILD", None)
    opened(folder)


def test_a_tokenizer_of_the_program_itself_needs_no_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_process, "take", None)
    assert Tokenizer(Checkpoint(folder_of(tmp_path, hostile.content())), 95, bundled=True).encode("a") == [65]


@pytest.mark.long
def test_a_quarter_of_a_million_tokens_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Gemma's: a piece for each pair of a letter and a piece before it, which every piece can be merged from."""
    vocab = {**hostile.ALPHABET}
    merges = []
    pieces = list(vocab)
    for piece in pieces:
        for letter in hostile.ALPHABET:
            if len(vocab) < 256_000 and piece + letter not in vocab:
                vocab[piece + letter] = len(vocab)
                merges.append([piece, letter])
                pieces.append(piece + letter)
    content = hostile.content(model={"vocab": vocab, "merges": merges})
    content["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
    child = Child(
        "exlchat.engine.text.tokenizer_trial",
        seconds=tokenizer_process.SECONDS,
        memory=tokenizer_process.MEMORY,
        largest=100_000,
    )
    monkeypatch.setattr(tokenizer_process, "_CHILD", child)
    tokenizer_process.take(folder_of(tmp_path, content)).require()
    child.close()
    assert FastTokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab_size() == 256_000
