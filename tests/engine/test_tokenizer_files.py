"""Tokenizers from every kind of file: ids against `transformers` and `sentencepiece`, and what is wrong in a line."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer as PeerTokenizer
from transformers import GPT2Tokenizer, LlamaTokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer

from exlchat.engine import load
from exlchat.engine.text.stream import TextStream
from exlchat.engine.text.tokenizer import Tokenizer
from exlchat.engine.text.tokenizer_conversion import parse
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.llm.events import Finished
from exlchat.llm.info import ModelError
from exlchat.llm.request import GenerationRequest
from tests.patience import within
from tests.random_models import save_random_llama

SENTENCES = [line for line in (Path(__file__).parents[2] / "README.md").read_text().splitlines() if line]
AS_IT_IS = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
LLAMA = {"model_type": "bpe", "byte_fallback": True, "split_digits": True, **AS_IT_IS}
MARKERS = ["<start_of_turn>", "<end_of_turn>", "<unused0>", "\n", "\n\n", "▁▁", "▁▁▁"]
KINDS: dict[str, dict[str, Any]] = {
    "llama": {**LLAMA, "allow_whitespace_only_pieces": True},
    "gemma": {
        **LLAMA,
        "allow_whitespace_only_pieces": True,
        "add_dummy_prefix": False,
        "pad_id": 0,
        "eos_id": 1,
        "bos_id": 2,
        "unk_id": 3,
        "pad_piece": "<pad>",
        "eos_piece": "<eos>",
        "bos_piece": "<bos>",
        "user_defined_symbols": MARKERS,
    },
    "unigram": {"model_type": "unigram"},
    "unigram of bytes": {"model_type": "unigram", "byte_fallback": True},
    "words": {"model_type": "word"},
}
PARTS = [
    "the",
    "tokenizer",
    "  ",
    "   ",
    " ",
    "\n",
    "\n\n",
    "\t",
    "ä",
    "😀",
    "==",
    "aaaa",
    "123",
    "CUDA",
    "engine",
    ".",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`KIND.model` of each kind, trained on the README."""
    folder = tmp_path_factory.mktemp("trained")
    for name, options in KINDS.items():
        SentencePieceTrainer.train(
            sentence_iterator=iter(SENTENCES),
            model_prefix=str(folder / name),
            vocab_size=700,
            hard_vocab_limit=False,
            minloglevel=2,
            **options,
        )
    return folder


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """What a model directory has beside its tokenizer."""
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    write(tmp_path, "config.json", model_type="llama")
    return tmp_path


def write(folder: Path, name: str, /, **content: Any) -> None:
    (folder / name).write_text(json.dumps(content))


def with_sentencepiece(folder: Path, trained: Path, kind: str) -> None:
    (folder / "tokenizer.model").write_bytes((trained / f"{kind}.model").read_bytes())


def opened(folder: Path, vocab_size: int = 1000) -> Tokenizer:
    return Tokenizer(Checkpoint(folder), vocab_size)


def problem(folder: Path) -> str:
    with pytest.raises(ModelError) as error:
        opened(folder)
    line = str(error.value)
    assert "\n" not in line
    assert str(folder) in line
    return line


def texts(count: int, parts: list[str]) -> Iterator[str]:
    source = random.Random(7)
    for _ in range(count):
        yield "".join(source.choice(parts) + source.choice(["", " ", ""]) for _ in range(source.randint(1, 9)))


# SentencePiece


@pytest.mark.parametrize("legacy", [None, False, True])
def test_a_model_of_llamas_kind_gives_the_ids_of_transformers(
    legacy: bool | None, model_folder: Path, trained: Path
) -> None:
    with_sentencepiece(model_folder, trained, "llama")
    flags = {} if legacy is None else {"legacy": legacy}
    write(model_folder, "tokenizer_config.json", tokenizer_class="LlamaTokenizer", **flags)
    same_as(model_folder, LlamaTokenizer.from_pretrained(model_folder), [*PARTS, "<s>", "</s>", "▁"])


def test_and_one_of_gemmas(model_folder: Path, trained: Path) -> None:
    with_sentencepiece(model_folder, trained, "gemma")
    write(model_folder, "config.json", model_type="gemma")
    special = {
        str(4 + index): {"content": marker, "special": True, "normalized": False}
        for index, marker in enumerate(MARKERS[:2])
    }
    write(model_folder, "tokenizer_config.json", tokenizer_class="GemmaTokenizer", added_tokens_decoder=special)
    same_as(model_folder, PeerTokenizer.from_pretrained(model_folder), [*PARTS, *MARKERS, "<bos>"])
    assert {"<start_of_turn>", "<bos>"} <= set(opened(model_folder).special_tokens)


def same_as(folder: Path, peer: Any, parts: list[str]) -> None:
    tokenizer = opened(folder)
    for text in texts(400, parts):
        ids = tokenizer.encode(text)
        assert ids == peer.encode(text, add_special_tokens=False), text
        assert tokenizer.decode(ids) == peer.decode(ids, skip_special_tokens=True), text


@pytest.mark.parametrize("kind", ["unigram", "unigram of bytes", "llama", "gemma"])
def test_text_without_markers_gives_the_ids_of_sentencepiece(kind: str, model_folder: Path, trained: Path) -> None:
    with_sentencepiece(model_folder, trained, kind)
    tokenizer = opened(model_folder)
    peer = SentencePieceProcessor(model_file=str(trained / f"{kind}.model"))
    # Of runs of spaces Llama's and Gemma's tokenizer.json do not make the same as SentencePiece.
    spaced = kind.startswith("unigram")
    for text in [*SENTENCES, *texts(400, PARTS)]:
        plain = text if spaced else "x" + " ".join(text.split())
        assert tokenizer.encode(plain) == peer.encode(plain), plain


def test_names_of_special_tokens_come_from_the_model_where_no_file_has_them(model_folder: Path, trained: Path) -> None:
    with_sentencepiece(model_folder, trained, "gemma")
    tokenizer = opened(model_folder)
    assert (tokenizer.named_tokens["bos_token"], tokenizer.named_tokens["eos_token"]) == ("<bos>", "<eos>")
    assert tokenizer.stop_ids({}, 1000) == (1,)


@pytest.mark.parametrize("kind", ["llama", "gemma", "unigram of bytes"])
def test_a_stream_shows_what_decoding_at_once_does(kind: str, model_folder: Path, trained: Path) -> None:
    with_sentencepiece(model_folder, trained, kind)
    tokenizer = opened(model_folder)
    for text in texts(200, [*PARTS, "<s>", "€"]):
        ids = tokenizer.encode(text)
        stream = TextStream(tokenizer.decode)
        shown = [stream.push(token) for token in ids]
        assert not any("\ufffd" in piece for piece in shown)
        assert "".join(shown) + stream.finish() == tokenizer.decode(ids)


def test_text_of_control_pieces_can_stay_text(model_folder: Path, trained: Path) -> None:
    with_sentencepiece(model_folder, trained, "llama")
    tokenizer = opened(model_folder)
    special = {tokenizer.id_of(token) for token in tokenizer.special_tokens}
    ids = tokenizer.encode("a<s></s><unk>b", special=False)
    assert not special & set(ids)
    assert tokenizer.decode(ids) == "a<s></s><unk>b"


def test_a_model_without_tokenizer_json_answers(tmp_path: Path, trained: Path) -> None:
    save_random_llama(tmp_path, vocab_size=700, eos_token_id=[2, 5])
    (tmp_path / "tokenizer.json").unlink()
    with_sentencepiece(tmp_path, trained, "llama")
    engine = load(tmp_path, device="cpu")
    assert engine.info.stop_ids == (2, 5)
    events = list(engine.generate(GenerationRequest(engine.encode("<s>Hello there"), max_new_tokens=40)))
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert finished.token_ids
    assert finished.text == engine.decode(finished.token_ids)


# Added tokens


def added_by_config(folder: Path, size: int) -> None:
    tokens = {str(size + index): {"content": text, "special": index == 0} for index, text in enumerate(["<A>", "<B>"])}
    end = {"content": "<A>", "__type": "AddedToken"}
    write(folder, "tokenizer_config.json", added_tokens_decoder=tokens, eos_token=end)


def added_by_older_files(folder: Path, size: int) -> None:
    write(folder, "added_tokens.json", **{"<B>": size + 1, "<A>": size})
    write(folder, "special_tokens_map.json", eos_token={"content": "<A>", "lstrip": False})


@pytest.mark.parametrize("add", [added_by_config, added_by_older_files])
def test_added_tokens_get_their_ids(add: Callable[[Path, int], None], model_folder: Path, trained: Path) -> None:
    with_sentencepiece(model_folder, trained, "llama")
    size = SentencePieceProcessor(model_file=str(trained / "llama.model")).get_piece_size()
    add(model_folder, size)
    tokenizer = opened(model_folder)
    assert (tokenizer.id_of("<A>"), tokenizer.id_of("<B>")) == (size, size + 1)
    peer = LlamaTokenizer.from_pretrained(model_folder)
    for text in texts(100, [*PARTS, "<A>", "<B>", "</s>"]):
        assert tokenizer.encode(text) == peer.encode(text, add_special_tokens=False)
    assert "<A>" in tokenizer.special_tokens
    assert "<B>" not in tokenizer.special_tokens
    assert set(tokenizer.special_tokens) | {"<B>"} == set(tokenizer.added_tokens)
    assert tokenizer.stop_ids({}, 1000) == (size,)


def test_a_piece_may_be_renamed_by_an_added_token(model_folder: Path, trained: Path) -> None:
    with_sentencepiece(model_folder, trained, "gemma")
    index = 4 + MARKERS.index("<unused0>")
    token = {"content": "<|tool|>", "special": True}
    write(model_folder, "tokenizer_config.json", added_tokens_decoder={str(index): token})
    tokenizer = opened(model_folder)
    assert tokenizer.encode("<|tool|>") == [index]
    assert tokenizer.id_of("<unused0>") is None


def test_a_tokenizer_json_may_lack_tokens_that_its_companion_has(model_folder: Path) -> None:
    byte_level(special=["<|endoftext|>"]).save(str(model_folder / "tokenizer.json"))
    size = opened(model_folder, 512).id_of("<|endoftext|>")
    assert size == 0
    count = byte_level(special=["<|endoftext|>"]).get_vocab_size()
    end = {"content": "<|im_end|>", "special": True}
    write(model_folder, "tokenizer_config.json", added_tokens_decoder={str(count): end}, eos_token="<|im_end|>")
    tokenizer = opened(model_folder, 512)
    assert tokenizer.encode("a<|im_end|>")[1:] == [count]
    assert tokenizer.stop_ids({}, 512) == (count,)


def test_flags_of_the_companion_count(model_folder: Path) -> None:
    byte_level(special=["<|end|>", "<|user|>"]).save(str(model_folder / "tokenizer.json"))
    tokens = {"0": {"content": "<|end|>", "special": False}, "1": {"content": "<|user|>", "rstrip": True}}
    write(model_folder, "tokenizer_config.json", added_tokens_decoder=tokens)
    same_as(model_folder, PreTrainedTokenizerFast.from_pretrained(model_folder), [*PARTS, "<|end|>", "<|user|>"])
    tokenizer = opened(model_folder, 512)
    assert len(tokenizer.encode("<|user|> \n x")) == 1 + len(tokenizer.encode("x"))
    assert tokenizer.special_tokens == ()
    assert tokenizer.added_tokens == ("<|end|>", "<|user|>")


def test_thousands_of_added_tokens_do_not_take_long(model_folder: Path) -> None:
    byte_level(special=[]).save(str(model_folder / "tokenizer.json"))
    size = byte_level(special=[]).get_vocab_size()
    tokens = {str(size + index): {"content": f"<unused{index}>", "special": True} for index in range(6000)}
    write(model_folder, "tokenizer_config.json", added_tokens_decoder=tokens)
    with within(5):
        assert opened(model_folder, 8000).encode("<unused5999>") == [size + 5999]


def test_a_named_token_of_the_vocabulary_becomes_a_special_one(model_folder: Path) -> None:
    content = json.loads(byte_level(special=["<|im_end|>"]).to_str())
    content["added_tokens"] = []
    write(model_folder, "tokenizer.json", **content)
    assert len(opened(model_folder, 512).encode("<|im_end|>")) > 1
    write(model_folder, "special_tokens_map.json", additional_special_tokens=["<|im_end|>", {"content": "<|none|>"}])
    tokenizer = opened(model_folder, 512)
    assert tokenizer.encode("<|im_end|>") == [0]
    assert tokenizer.special_tokens == ("<|im_end|>",)
    assert tokenizer.id_of("<|none|>") is None


@pytest.mark.parametrize("listed", [True, False])
def test_a_name_makes_a_token_special_however_it_is_listed(listed: bool, model_folder: Path) -> None:
    content = json.loads(byte_level(special=["<|im_end|>", "<|user|>"]).to_str())
    for token in content["added_tokens"]:
        token["special"] = False
    write(model_folder, "tokenizer.json", **content)
    tokens = {str(index): {"content": text} for index, text in enumerate(["<|im_end|>", "<|user|>"])}
    config: dict[str, Any] = {"eos_token": "<|im_end|>", "additional_special_tokens": ["<|user|>"]}
    write(model_folder, "tokenizer_config.json", **config, **({"added_tokens_decoder": tokens} if listed else {}))
    peer = PreTrainedTokenizerFast.from_pretrained(model_folder)
    same_as(model_folder, peer, [*PARTS, "<|im_end|>", "<|user|>"])
    assert opened(model_folder, 512).special_tokens == ("<|im_end|>",)
    same_as_ordinary_text(model_folder, peer, "a<|im_end|>b<|user|>c")


@pytest.mark.parametrize("flag", [None, False])
@pytest.mark.parametrize("named", [{}, {"mask_token": "<mask>"}])
def test_gemmas_mask_is_special_and_can_stay_text(flag: bool | None, named: dict[str, str], model_folder: Path) -> None:
    """transformers names that token even where no file does."""
    options = {**KINDS["gemma"], "user_defined_symbols": ["<mask>", *MARKERS]}
    SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_prefix=str(model_folder / "tokenizer"),
        vocab_size=700,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    listed = {} if flag is None else {"added_tokens_decoder": {"4": {"content": "<mask>", "special": flag}}}
    write(model_folder, "tokenizer_config.json", tokenizer_class="GemmaTokenizer", **named, **listed)
    write(model_folder, "config.json", model_type="gemma")
    peer = PeerTokenizer.from_pretrained(model_folder)
    same_as(model_folder, peer, [*PARTS, "<mask>"])
    same_as_ordinary_text(model_folder, peer, "a<mask>b <mask>")


def same_as_ordinary_text(folder: Path, peer: Any, text: str) -> None:
    ids = peer.encode(text, add_special_tokens=False, split_special_tokens=True)
    assert opened(folder).encode(text, special=False) == ids


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer_config.json", {"added_tokens_decoder": [1]}, "added_tokens_decoder '[1]' is no token with an id"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "<A>"}}}, "'x' is no token"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"9": {"content": 3}}}, "'9' is no token"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"9": {"content": "a", "lstrip": "b"}}}, "'9' is no token"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"900": {"content": "<A>"}}}, "gives '<A>' the id 900"),
        ("added_tokens.json", {"<A>": 900}, "gives '<A>' the id 900"),
        ("added_tokens.json", {"<A>": "900"}, "'<A>' is no token with an id"),
    ],
)
def test_added_tokens_that_make_no_sense(
    name: str, content: dict[str, Any], words: str, model_folder: Path, trained: Path
) -> None:
    with_sentencepiece(model_folder, trained, "llama")
    write(model_folder, name, **content)
    line = problem(model_folder)
    assert words in line
    assert name in line


# tokenizer.json


def of_kind(kind: str) -> FastTokenizer:
    """A tokenizer of one of the library's models, with the pre-tokenizer and decoder that go with it."""
    special = ["<unk>", "</s>"]
    if kind == "BPE of spaces":
        tokenizer = FastTokenizer(models.BPE(unk_token="<unk>"))
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    elif kind == "Unigram":
        tokenizer = FastTokenizer(models.Unigram())
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=400, special_tokens=special, unk_token="<unk>", show_progress=False
        )
    elif kind == "WordPiece":
        tokenizer = FastTokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    else:
        tokenizer = FastTokenizer(models.WordLevel(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer = trainers.WordLevelTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


@pytest.mark.parametrize("kind", ["BPE of spaces", "Unigram", "WordPiece", "WordLevel"])
def test_every_kind_of_tokenizer_json_gives_the_ids_of_transformers(kind: str, model_folder: Path) -> None:
    of_kind(kind).save(str(model_folder / "tokenizer.json"))
    write(model_folder, "tokenizer_config.json", eos_token="</s>", unk_token="<unk>")
    peer = PreTrainedTokenizerFast.from_pretrained(model_folder)
    same_as(model_folder, peer, [part for part in PARTS if "\n" not in part] + ["</s>"])


def test_merges_may_be_written_as_text(model_folder: Path) -> None:
    content = json.loads(byte_level(special=[]).to_str())
    write(model_folder, "tokenizer.json", **content)
    ids = opened(model_folder, 512).encode("the tokenizer of the engine")
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    write(model_folder, "tokenizer.json", **content)
    assert opened(model_folder, 512).encode("the tokenizer of the engine") == ids


# vocab.json with merges.txt


def byte_level(special: list[str]) -> FastTokenizer:
    tokenizer = FastTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


@pytest.mark.parametrize(
    ("peer", "config", "tokenizer_config"),
    [
        (GPT2Tokenizer, {"model_type": "gpt2"}, {}),
        (GPT2Tokenizer, {"model_type": "llama"}, {"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": True}),
        (Qwen2Tokenizer, {"model_type": "qwen3"}, {}),
        (Qwen2Tokenizer, {"model_type": "llama"}, {"tokenizer_class": "Qwen2Tokenizer"}),
    ],
)
def test_a_byte_level_vocabulary_gives_the_ids_of_transformers(
    peer: Any, config: dict[str, Any], tokenizer_config: dict[str, Any], model_folder: Path
) -> None:
    byte_level(special=["<|endoftext|>"]).model.save(str(model_folder))
    write(model_folder, "config.json", **config)
    write(model_folder, "tokenizer_config.json", **tokenizer_config)
    parts = [*PARTS, "don't", "I'LL", "e\u0301", "2024", "a1", "<|endoftext|>", "\r\n", "…"]
    same_as(model_folder, peer.from_pretrained(model_folder), parts)
    assert opened(model_folder).named_tokens["eos_token"] == "<|endoftext|>"


def test_one_of_another_kind_says_what_would_work(model_folder: Path) -> None:
    byte_level(special=[]).model.save(str(model_folder))
    write(model_folder, "tokenizer_config.json", tokenizer_class="CodeGenTokenizer")
    assert "not CodeGenTokenizer; take tokenizer.json" in problem(model_folder)
    (model_folder / "merges.txt").write_text("a b c d\n")
    write(model_folder, "tokenizer_config.json", tokenizer_class="GPT2Tokenizer")
    assert "vocab.json: not a tokenizer" in problem(model_folder)


# What is wrong


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer.model", b"", "not a SentencePiece model (it has no pieces)"),
        ("tokenizer.model", b"\xff" * 40, "not a SentencePiece model (byte 0 begins a number without end)"),
        ("tokenizer.model", b"version https://git-lfs.github.com/spec/v1\n", "run `git lfs pull`"),
        ("tokenizer.json", b"version https://git-lfs.github.com/spec/v1\n", "run `git lfs pull`"),
        ("tokenizer.model", base64.b64encode(b"hello") + b" 0\n", "is a tiktoken vocabulary"),
        ("tekken.json", b"{}", "tekken.json is a Tekken vocabulary; take tokenizer.json"),
        ("qwen.tiktoken", b"", "qwen.tiktoken is a tiktoken vocabulary; take tokenizer.json"),
        ("vocab.json", b"{}", "tokenizer.json is missing; take it from the original model"),
    ],
)
def test_files_that_are_no_tokenizer(name: str, content: bytes, words: str, model_folder: Path) -> None:
    (model_folder / name).write_bytes(content)
    assert words in problem(model_folder)


def test_a_model_of_whole_words(model_folder: Path, trained: Path) -> None:
    with_sentencepiece(model_folder, trained, "words")
    assert "it cuts text into whole words, and exlchat knows unigram and BPE" in problem(model_folder)


@given(data=st.data())
def test_a_damaged_model_is_one_line_or_still_a_model(trained: Path, data: st.DataObject) -> None:
    content = bytearray((trained / f"{data.draw(st.sampled_from(sorted(KINDS)))}.model").read_bytes())
    # Most bytes at the end are those of the settings, which a byte changes more.
    for position in data.draw(st.lists(st.integers(1, 400), max_size=6)):
        content[-position] = data.draw(st.integers(0, 255))
    keep = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
    trouble, model = "", None
    try:
        model = parse(bytes(content[:keep]))
    except ValueError as error:
        trouble = str(error)
    assert (model is not None and model.pieces) or (trouble and "\n" not in trouble)


def test_the_pieces_are_those_that_sentencepiece_reads(trained: Path) -> None:
    for kind in KINDS:
        if kind == "words":
            continue
        peer = SentencePieceProcessor(model_file=str(trained / f"{kind}.model"))
        model = parse((trained / f"{kind}.model").read_bytes())
        ids = range(peer.get_piece_size())
        assert [piece.text for piece in model.pieces] == [peer.id_to_piece(index) for index in ids]
        assert [piece.score for piece in model.pieces] == [peer.get_score(index) for index in ids]
        assert (model.unknown_id, model.bos_id, model.eos_id) == (peer.unk_id(), peer.bos_id(), peer.eos_id())
