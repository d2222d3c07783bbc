"""Answers that are held to a schema, a regex, choices or a grammar; and constraints that are refused."""

from __future__ import annotations

import contextlib
import datetime
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from safetensors.torch import save_file
from sentencepiece import SentencePieceTrainer
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models

from exlchat.engine.grammar import ConstraintError, GrammarMatcher, GrammarVocabulary, check_constraint
from exlchat.engine.text.token_bytes import token_bytes
from exlchat.engine.text.tokenizer import Tokenizer
from exlchat.engine.text.tokenizer_files import open_tokenizer
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.llm.constraint import Constraint, ConstraintKind
from exlchat.llm.info import ModelError
from tests.engine.constrained import SmallModel, answer, open_small, unpacked, with_layers
from tests.engine.random_schemas import RandomSchemas
from tests.patience import within
from tests.shared_data import DATA, needs_shared

GUIDE = Path(__file__).parents[2] / "exlchat" / "models" / "guide"
LINES = [line for line in (Path(__file__).parents[2] / "README.md").read_text().splitlines() if line]
AS_IT_IS = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
TRAINING: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "bpe", "byte_fallback": True, **AS_IT_IS},
    "gemma": {"model_type": "bpe", "byte_fallback": True, "add_dummy_prefix": False, **AS_IT_IS},
    "unigram": {"model_type": "unigram", "byte_fallback": True},
    "no bytes": {"model_type": "unigram"},
}
KINDS = ("guide", "llama", "gemma", "unigram")
# More rows than tokens, and no whole number of 32.
SPARE = 37


class Kind:
    """A tokenizer with its vocabulary; `stops` are two special tokens."""

    def __init__(self, folder: Path) -> None:
        self.tokens = open_tokenizer(Checkpoint(folder)).fast.get_vocab_size(with_added_tokens=True)
        size = self.tokens + SPARE
        self.tokenizer = Tokenizer(Checkpoint(folder), size)
        self.vocabulary = GrammarVocabulary(self.tokenizer, size)
        special = [self.tokenizer.id_of(token) for token in self.tokenizer.special_tokens]
        self.special = [index for index in special if index is not None]
        self.stops = tuple(self.special[-2:])

    def matcher(self, kind: ConstraintKind, text: str, *, at_start: bool = True) -> GrammarMatcher:
        return GrammarMatcher(Constraint(kind, text), self.vocabulary, self.stops, at_start=at_start)

    def walk(self, matcher: GrammarMatcher, seed: int, most: int = 400) -> list[int]:
        """Random allowed tokens until the end: without a model each that is allowed is as likely."""
        source = random.Random(seed)
        ids: list[int] = []
        while not matcher.finished:
            token = source.choice(allowed_ids(matcher))
            if token in self.stops:
                break
            matcher.accept(token)
            ids.append(token)
            assert len(ids) < most
        return ids

    def said(self, kind: ConstraintKind, text: str, seed: int) -> str:
        return self.tokenizer.decode(self.walk(self.matcher(kind, text), seed))


def allowed_ids(matcher: GrammarMatcher) -> list[int]:
    return [int(token) for token in torch.nonzero(matcher.allowed()).flatten()]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kind]:
    found = {"guide": Kind(GUIDE)}
    for name, options in TRAINING.items():
        folder = tmp_path_factory.mktemp("sentencepiece")
        SentencePieceTrainer.train(
            sentence_iterator=iter(LINES),
            model_prefix=str(folder / "tokenizer"),
            vocab_size=700,
            hard_vocab_limit=False,
            minloglevel=2,
            **options,
        )
        (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
        save_file({"x": torch.zeros(1)}, folder / "model.safetensors")
        found[name] = Kind(folder)
    return found


# The bytes of tokens


@pytest.mark.parametrize("name", KINDS)
def test_bytes_of_tokens_together_are_the_text_of_the_tokens(name: str, kinds: dict[str, Kind]) -> None:
    kind, source = kinds[name], random.Random(3)
    found = kind.tokenizer.token_bytes(kind.tokens)
    plain = [index for index, token in enumerate(found.tokens) if token]
    whole = [index for index in plain if found.tokens[index].isascii()]
    sequences = [source.choices(whole, k=source.randint(1, 8)) for _ in range(300)]
    sequences += [kind.tokenizer.encode(line, special=False) for line in (*LINES, "größer 日本 😀\n\n  x")]
    for ids in sequences:
        text = b"".join(found.tokens[index] for index in ids).decode()
        if found.swallowed == "one space":
            text = text.removeprefix(" ")
        assert kind.tokenizer.decode(ids) == text, ids


def test_a_tokenizer_without_bytes_for_its_tokens_is_refused_in_a_line() -> None:
    fast = FastTokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    for decoder in (decoders.WordPiece(), decoders.CTC()):
        fast.decoder = decoder
        with pytest.raises(ModelError, match=r"^the tokenizer decodes with \w+, .*cannot be constrained$"):
            token_bytes(fast, 3)


# Answers


@pytest.fixture(autouse=True)
def one_core() -> Iterator[None]:
    """So small a model only waits for a second core, the more so where other tests run beside it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    """The bundled model with one layer of six: the cheapest real one."""
    return open_small(with_layers(GUIDE, 1, tmp_path_factory.mktemp("shallow")))


def check_schema_answers(model: SmallModel, seeds: range) -> None:
    prompt = model.tokenizer.encode("Say it as JSON: ")
    for seed in seeds:
        schema = RandomSchemas(seed).root()
        Draft202012Validator.check_schema(schema)
        constraint = Constraint("json_schema", json.dumps(schema))
        check_constraint(constraint, model.vocabulary)
        said = answer(model, prompt, constraint, seed=seed, hurry=30, most=900, through_words=seed % 2 == 0)
        assert said.ended, (seed, said.text)
        checks = Draft202012Validator.FORMAT_CHECKER
        Draft202012Validator(schema, format_checker=checks).validate(json.loads(said.text))


@pytest.mark.parametrize("first", range(0, 500, 25))
@pytest.mark.sweep(4)
def test_answers_validate_against_random_schemas(first: int, shallow: SmallModel) -> None:
    check_schema_answers(shallow, range(first, first + 25))


def test_and_those_of_the_whole_bundled_model() -> None:
    check_schema_answers(open_small(GUIDE), range(500, 520))


@needs_shared
def test_and_those_of_the_prepared_one() -> None:
    check_schema_answers(open_small(DATA / "tiny-llama"), range(520, 540))


def test_an_answer_validates_where_it_is_greedy(shallow: SmallModel) -> None:
    schema = {"type": "object", "properties": {"day": {"type": "string", "format": "date"}}, "required": ["day"]}
    constraint = Constraint("json_schema", json.dumps({**schema, "additionalProperties": False}))
    said = answer(shallow, shallow.tokenizer.encode("When?"), constraint, temperature=0)
    datetime.date.fromisoformat(json.loads(said.text)["day"])


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    "pattern",
    [
        r"(red|green|größer){1,3}",
        r"[a-f]{2,9}-\d{1,4}",
        r"[A-Za-zäöü]{1,5} \d{1,5}",
        r" ?x y{0,3}",
        r" {1,3}ab",
        r"(?i)yes|no",
        r"日本|日光|😀😁?",
        r"a/b\\c\"?",
        r"\s?[^a-z]{1,4}",
        r"<\|im_end\|>|</s>",
        r".{0,6}",
    ],
)
def test_a_regex_matches_the_whole_answer(name: str, pattern: str, kinds: dict[str, Kind]) -> None:
    for seed in range(8):
        said = kinds[name].said("regex", pattern, seed)
        assert re.fullmatch(pattern, said), said


@pytest.mark.parametrize("name", KINDS)
def test_an_answer_is_one_of_the_choices_to_the_last_byte(name: str, kinds: dict[str, Kind]) -> None:
    choices = [
        "yes",
        "yes, of course",
        " no",
        "日本",
        "日光",
        "größer",
        "😀",
        "😁 x",
        "a.b*c(d)[e]{2}^$",
        'say "x"\\',
        "/",
    ]
    text = "\n".join(choices)
    said = {kinds[name].said("choice", text, seed) for seed in range(80)}
    assert said <= set(choices)
    assert len(said) >= 8


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8), min_size=1, max_size=5))
def test_any_text_can_be_a_choice(guide: Kind, choices: list[str]) -> None:
    text = "\n".join(choices)
    if not text.strip():
        return
    constraint = Constraint("choice", text)
    said = guide.said("choice", text, 1)
    assert said in constraint.choices


@pytest.fixture(scope="module")
def guide() -> Kind:
    return Kind(GUIDE)


@pytest.mark.parametrize("name", KINDS)
def test_a_grammar_is_followed(name: str, kinds: dict[str, Kind]) -> None:
    grammar = """
        // Sums in brackets, at most four numbers long
        start: sum | start_of_none
        start_of_none: " none"
        sum: NUMBER (" + " NUMBER){0,3} | "(" NUMBER ")"
        NUMBER: /[1-9][0-9]{0,3}/
    """
    for seed in range(12):
        said = kinds[name].said("grammar", grammar, seed)
        assert re.fullmatch(r" none|\([1-9]\d{0,3}\)|[1-9]\d{0,3}( \+ [1-9]\d{0,3}){0,3}", said), said


@pytest.mark.parametrize("name", KINDS)
def test_behind_other_text_no_space_is_swallowed(name: str, kinds: dict[str, Kind]) -> None:
    kind = kinds[name]
    before = kind.tokenizer.encode("x:")
    for seed in range(10):
        ids = kind.walk(kind.matcher("choice", " yes\nno", at_start=False), seed)
        assert kind.tokenizer.decode([*before, *ids]) in ("x: yes", "x:no")


def test_a_grammar_that_ignores_white_space_keeps_to_it_at_the_start(kinds: dict[str, Kind]) -> None:
    for seed in range(10):
        said = kinds["llama"].said("grammar", '%ignore /[ ]{1,2}/\nstart: "a" "b"', seed)
        assert re.fullmatch("a *b", said), said


# Between values


@pytest.mark.parametrize(
    "text", ['{"a":[1,2]}', '{"a": [1, 2]}', '{\n  "a": [\n    1,\n    2\n  ]\n}', '{\n\t"a": [1, 2]\n}']
)
def test_json_may_be_written_close_spaced_or_indented(text: str, guide: Kind) -> None:
    matcher = guide.matcher("json_schema", '{"properties": {"a": {"items": {"enum": [1, 2]}}}}')
    for token in guide.tokenizer.encode(text):
        matcher.accept(token)
    assert matcher.finished


def test_white_space_has_an_end_whatever_the_schema_says(guide: Kind) -> None:
    wishes = {"whitespace_flexible": True, "whitespace_pattern": "\\s*", "lenient": True}
    text = json.dumps({"type": "array", "maxItems": 3, "x-guidance": wishes})
    matcher = guide.matcher("json_schema", text)
    matcher.accept(guide.tokenizer.encode("[")[0])
    new_line = guide.tokenizer.encode("\n")[0]
    matcher.accept(new_line)
    assert not matcher.allowed()[new_line]
    with pytest.raises(ConstraintError, match="not supported"):
        check_constraint(Constraint("json_schema", json.dumps({"contains": {}, "x-guidance": wishes})))


# The mask


def test_stop_tokens_are_allowed_exactly_when_the_answer_may_end(guide: Kind) -> None:
    matcher = guide.matcher("regex", "a{2,3}")
    a = guide.tokenizer.encode("a")[0]
    for count, may_end in enumerate((False, False, True, True)):
        assert [bool(matcher.allowed()[stop]) for stop in guide.stops] == [may_end] * 2, count
        assert matcher.finished == (count == 3)
        if count < 3:
            matcher.accept(a)
    assert allowed_ids(matcher) == sorted(guide.stops)
    matcher.accept(guide.stops[0])
    assert matcher.finished
    matcher.back(2)
    assert not matcher.finished
    assert a in allowed_ids(matcher)


def test_a_stop_token_with_text_is_no_text_any_more(guide: Kind) -> None:
    comma = guide.tokenizer.encode(",")[0]
    matcher = GrammarMatcher(Constraint("regex", "[a,]{1,4}"), guide.vocabulary, (comma,))
    assert not matcher.allowed()[comma]
    matcher.accept(guide.tokenizer.encode("a")[0])
    assert matcher.allowed()[comma]
    matcher.accept(comma)
    assert matcher.finished


@pytest.mark.parametrize("name", KINDS)
def test_special_tokens_and_ids_without_a_token_are_never_allowed(name: str, kinds: dict[str, Kind]) -> None:
    kind = kinds[name]
    matcher = kind.matcher("regex", r"(?s).{1,40}")
    mask = matcher.allowed()
    assert (mask.shape, mask.dtype) == ((kind.tokens + SPARE,), torch.bool)
    assert not mask[kind.tokens :].any()
    assert not mask[kind.special].any()
    assert mask.sum() > kind.tokens // 3


@pytest.mark.parametrize("name", KINDS)
def test_words_hold_the_bits_of_the_mask(name: str, kinds: dict[str, Kind]) -> None:
    kind = kinds[name]
    matcher = kind.matcher("json_schema", "{}")
    for _ in range(3):
        words, mask = matcher.words(), matcher.allowed()
        assert (words.dtype, words.shape) == (torch.uint32, ((len(mask) + 31) // 32,))
        assert torch.equal(unpacked(words, len(mask)), mask)
        matcher.accept(allowed_ids(matcher)[0])


def test_what_is_not_allowed_is_not_accepted_and_changes_nothing(guide: Kind) -> None:
    matcher = guide.matcher("choice", "yes\nno")
    before = matcher.allowed()
    for token in (guide.tokenizer.encode("x")[0], guide.stops[0], guide.special[0], guide.tokens + 3, 10**6, -1):
        with pytest.raises(ConstraintError, match="is not allowed by the choice"):
            matcher.accept(token)
    assert torch.equal(matcher.allowed(), before)
    with pytest.raises(ValueError, match="cannot be taken back"):
        matcher.back(1)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", r" ?(\w{1,4} ){1,3}[.!]"),
        ("choice", " 日本\nyes\n größer"),
        ("json_schema", json.dumps(RandomSchemas(11).root())),
        ("grammar", 'start: word (", " word)*\nword: /[a-d]{1,3}/'),
    ],
)
def test_behind_taken_back_tokens_masks_are_those_of_a_new_matcher(
    name: str, kind: ConstraintKind, text: str, kinds: dict[str, Kind]
) -> None:
    source, one = random.Random(5), kinds[name]
    matcher = one.matcher(kind, text)
    ids: list[int] = []
    for _ in range(40):
        choices = allowed_ids(matcher)
        if source.random() < 0.3 or not choices or matcher.finished:
            count = source.randint(0, len(ids))
            matcher.back(count)
            ids = ids[: len(ids) - count]
        else:
            ids.append(source.choice(choices))
            matcher.accept(ids[-1])
        fresh = one.matcher(kind, text)
        for token in ids:
            fresh.accept(token)
        assert torch.equal(matcher.words(), fresh.words())
        assert matcher.finished == fresh.finished


def test_characters_that_the_vocabulary_lacks_are_refused(kinds: dict[str, Kind]) -> None:
    vocabulary = kinds["no bytes"].vocabulary
    with pytest.raises(ConstraintError, match="a character that the model lacks"):
        check_constraint(Constraint("choice", "\U00012345"), vocabulary)
    check_constraint(Constraint("choice", "the\n\U00012345"), vocabulary)


# What is refused


def nested(levels: int) -> str:
    return '{"items":' * levels + "{}" + "}" * levels


BAD: list[tuple[ConstraintKind, str, str]] = [
    ("json_schema", "{", "not JSON .line 1, column 2"),
    ("json_schema", "{'a': 1}", "not JSON"),
    ("json_schema", '{"minimum": NaN}', "NaN"),
    ("json_schema", '{"minimum": 1e999}', "too large"),
    ("json_schema", '{"const": "\\ud800"}', "half of a character"),
    ("json_schema", "[]", "must be an object"),
    ("json_schema", "null", "must be an object"),
    ("json_schema", "false", "no value matches"),
    ("json_schema", '{"type": "text"}', "text is no type"),
    ("json_schema", '{"properties": []}', "properties must be an object"),
    ("json_schema", '{"enum": []}', "nothing matches"),
    ("json_schema", '{"type": "integer", "minimum": 3, "maximum": 1}', "minimum .3. is greater than maximum .1."),
    ("json_schema", '{"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}', "nothing matches"),
    ("json_schema", '{"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 6}', "nothing matches"),
    ("json_schema", '{"type": "string", "minLength": 3, "maxLength": 1}', "minLength"),
    ("json_schema", '{"type": "string", "pattern": "^a$", "minLength": 2}', "no string matches"),
    ("json_schema", '{"type": "array", "minItems": 3, "maxItems": 1}', "minItems"),
    ("json_schema", '{"type": "array", "items": false, "minItems": 1}', "nothing matches"),
    ("json_schema", '{"properties": {"a": false}, "required": ["a"], "type": "object"}', "'a' is unsatisfiable"),
    ("json_schema", '{"type": "object", "required": ["b"], "additionalProperties": false}', "'b' is unsatisfiable"),
    ("json_schema", '{"allOf": [{"type": "string"}, {"type": "integer"}]}', "incompatible types"),
    ("json_schema", '{"allOf": [{"const": 1}, {"const": 2}]}', "nothing matches"),
    ("json_schema", '{"type": "string", "enum": [1, 2]}', "incompatible types"),
    ("json_schema", '{"$ref": "#"}', "the whole asks for itself"),
    (
        "json_schema",
        '{"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, '
        '"required": ["n"]}}}',
        "asks for itself inside of itself",
    ),
    ("json_schema", '{"type": "array", "minItems": 1, "items": {"$ref": "#"}}', "#/items asks for itself"),
    ("json_schema", '{"anyOf": [{"type": "null"}, {"$ref": "#/anyOf/1"}]}', "#/anyOf/1 asks for itself"),
    ("json_schema", '{"$ref": "#/$defs/x"}', "leads nowhere"),
    ("json_schema", '{"$ref": "https://example.org/x.json"}', "another document"),
    ("json_schema", '{"type": "array", "contains": {}}', '"contains" is not supported'),
    ("json_schema", '{"type": "object", "minProperties": 2}', "minProperties 2"),
    ("json_schema", '{"type": "string", "pattern": "("}', "not a regex .unclosed group"),
    ("json_schema", '{"type": "string", "pattern": "(?=a)b"}', "look-around"),
    ("json_schema", nested(120), "deeper than 100"),
    ("json_schema", nested(50_000), "deeper than 100"),
    ("json_schema", "[" * 400_000, "deeper than 100"),
    ("regex", "(", "not a regex .unclosed group"),
    ("regex", "[z-a]", "not a regex"),
    ("regex", r"(a)\1", "backreferences are not supported"),
    ("regex", r"(?<=a)b", "look-around"),
    ("regex", r"\bfoo", "not supported"),
    ("regex", "a^b", "not supported"),
    ("regex", "()", "only the empty text"),
    ("regex", r"[^\x00-\U0010ffff]", "nothing matches"),
    (
        "json_schema",
        json.dumps(
            {"$ref": "#/$defs/0", "$defs": {str(n): {"$ref": f"#/$defs/{(n + 1) % 5000}"} for n in range(5000)}}
        ),
        "chain of more than 400",
    ),
    (
        "grammar",
        "".join(f"r{n}: r{n + 1}\n" for n in range(20_000)) + 'start: r0\nr20000: "a"',
        "chain of more than 400",
    ),
    (
        "grammar",
        "".join(f"R{n}: R{n + 1}\n" for n in range(20_000)) + 'start: R0\nR20000: "a"',
        "chain of more than 400",
    ),
    ("regex", "(" * 3000 + "a" + ")" * 3000, "nested"),
    ("regex", "\udc80", "half of one"),
    ("grammar", 'start "a"', "line 1: Expected token"),
    ("grammar", 'start: "a"\n\nb: "c\n', "line 3"),
    ("grammar", 'start: "a" b', 'line 1: unknown name: "b"'),
    ("grammar", 'foo: "a"', "no start rule"),
    ("grammar", 'start: ""', "only the empty text"),
    ("grammar", 'start: "a" start', "the rule start comes back to itself"),
    ("grammar", 'start: "a"\n     | "b" b\nb: (b | "c" b) "d"?', "line 3: .* the rule b comes back"),
    ("grammar", 'start: "a"\n     | "b" c\nc: "c"+ d*\n  | d\nd: ("x" d){2,3}', "line 5: .* the rule d comes back"),
    ("grammar", 'start: "x" A\n\nA: /a+/ & /b+/', "line 3: nothing matches A"),
    ("grammar", 'start: "x" A\nB: /c/\nA: "d"\n  | B & ~/c/', "line 3: nothing matches A"),
    ("grammar", "start: /a(/", "line 1: not a regex"),
    ("grammar", 'start: "a"\n  | %json {"enum": []}', "line 1: nothing matches it .anyOf"),
    ("grammar", 'start: "a"\n <|im_end|>', "line 2: <|im_end|> names a token".replace("|", "[|]")),
    ("grammar", "start: <[1-9]>", "names a token"),
    ("grammar", "start: " + "(" * 5000 + '"a"' + ")" * 5000, "nested deeper"),
    ("choice", "\ud800", "half of one"),
]


@pytest.mark.parametrize(("kind", "text", "reason"), BAD, ids=[f"{kind} {text[:50]!a}" for kind, text, _ in BAD])
def test_what_no_answer_can_match_is_refused_in_a_line(
    kind: ConstraintKind, text: str, reason: str, guide: Kind
) -> None:
    with pytest.raises(ConstraintError, match=reason) as error:
        check_constraint(Constraint(kind, text), guide.vocabulary)
    line = str(error.value)
    assert line.isprintable()
    assert len(line) <= 260


FINE: list[tuple[ConstraintKind, str]] = [
    ("json_schema", "true"),
    ("json_schema", "{}"),
    ("json_schema", '{"type": "object", "properties": {"next": {"$ref": "#"}}}'),
    ("json_schema", '{"type": "array", "items": {"$ref": "#"}}'),
    ("json_schema", '{"type": ["object", "null"], "required": ["a"], "properties": {"a": {"$ref": "#"}}}'),
    ("json_schema", '{"anyOf": [{"type": "array", "minItems": 1, "items": {"$ref": "#"}}, {"const": 1}]}'),
    ("json_schema", '{"type": "object", "properties": {"a": {"type": "integer", "minimum": 2, "maximum": 1}}}'),
    ("json_schema", '{"oneOf": [{"type": "string"}, {"type": "integer"}]}'),
    ("json_schema", nested(90)),
    ("regex", "a*"),
    ("regex", "^a+$"),
    ("grammar", 'start: ("(" start ")")?'),
    (
        "grammar",
        'start: item ("," item)* # many\nitem: "[" start "]" | %json {"type": "null"}\n  | WORD -> word\nWORD: /x+/',
    ),
    ("grammar", 'start: [start] "a"~2..3 | start{0,2}\n%ignore " "'),
]


@pytest.mark.parametrize(("kind", "text"), FINE)
def test_what_has_an_end_is_taken(kind: ConstraintKind, text: str, guide: Kind) -> None:
    check_constraint(Constraint(kind, text), guide.vocabulary)


HOSTILE: list[tuple[ConstraintKind, str]] = [
    ("regex", "(a{1000}){1000}"),
    ("regex", "((a{100}){100}){100}"),
    ("regex", "(a|b)*a(a|b){200}"),
    ("regex", "(.*a){50}x"),
    ("regex", "|".join(f"x{number}" for number in range(100_000))),
    ("choice", "\n".join(f"choice {number}" for number in range(60_000))),
    ("grammar", 'start: x{1000000}\nx: "a"'),
    (
        "grammar",
        "start: " + " ".join(f"r{n}" for n in range(20_000)) + "\n" + "\n".join(f'r{n}: "a"?' for n in range(20_000)),
    ),
    ("json_schema", '{"type": "integer", "multipleOf": 999983}'),
    ("json_schema", '{"type": "array", "minItems": 100000, "maxItems": 1000000}'),
    ("json_schema", '{"type": "string", "maxLength": 100000000}'),
    ("json_schema", json.dumps({"enum": [f"choice {number}" for number in range(40_000)]})),
    ("json_schema", json.dumps({"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(5000)}})),
    (
        "json_schema",
        json.dumps(
            {
                "allOf": [
                    {"anyOf": [{"properties": {f"a{n}{m}": {"type": "null"}}} for m in range(8)]} for n in range(12)
                ]
            }
        ),
    ),
]


@pytest.mark.parametrize(("kind", "text"), HOSTILE, ids=[f"{kind} {text[:30]!a}" for kind, text in HOSTILE])
def test_hostile_ones_are_taken_or_refused_in_a_moment(kind: ConstraintKind, text: str, guide: Kind) -> None:
    with within(6), contextlib.suppress(ConstraintError):
        check_constraint(Constraint(kind, text), guide.vocabulary)
