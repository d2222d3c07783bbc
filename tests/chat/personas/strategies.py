"""Personas and cards as hypothesis makes them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from exlchat.chat.personas.lorebook import SELECTIVE_LOGICS, Lorebook, LoreEntry
from exlchat.chat.personas.persona import Character, Example, Persona
from exlchat.chat.presets.overrides import SamplingOverrides
from exlchat.llm.constraint import Constraint
from exlchat.llm.controls import CONTROLS, STEPS

# What a store and a TOML file can hold: no lone surrogates. Carriage returns and control characters are in.
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=40) | st.sampled_from(
    [
        "",
        "two\nlines",
        'a "quoted" text\n',
        "'''",
        '"""\n"""',
        "back\\slash\nand more",
        "\n",
        "\r\n",
        "tab\there\n\n",
        "\x00",
    ]
)
lists_of_texts = st.lists(texts, max_size=3).map(tuple)
numbers = st.floats(-1000, 1000, allow_nan=False)
entries = st.builds(
    LoreEntry,
    content=texts,
    keys=lists_of_texts,
    secondary_keys=lists_of_texts,
    name=texts,
    enabled=st.booleans(),
    selective=st.booleans(),
    constant=st.booleans(),
    insertion_order=numbers,
    priority=st.none() | numbers,
    case_sensitive=st.booleans(),
    use_regex=st.booleans(),
    position=st.sampled_from(["before_char", "after_char"]),
    selective_logic=st.sampled_from(SELECTIVE_LOGICS),
    match_whole_words=st.booleans(),
    scan_depth=st.none() | st.integers(0, 9),
    probability=st.floats(0, 100),
    delay=st.integers(0, 9),
    group=texts,
    group_override=st.booleans(),
    group_weight=st.floats(0, 100),
    exclude_recursion=st.booleans(),
    prevent_recursion=st.booleans(),
    delay_until_recursion=st.integers(0, 3),
    ignore_budget=st.booleans(),
)
lorebooks = st.builds(
    Lorebook,
    entries=st.lists(entries, max_size=3).map(tuple),
    name=texts,
    description=texts,
    scan_depth=st.none() | st.integers(0, 100),
    token_budget=st.none() | st.integers(1, 5000),
    recursive_scanning=st.booleans(),
)
json_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)
json_values = st.recursive(
    json_scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
toml_values = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def control_values(name: str) -> st.SearchStrategy[Any]:
    """Values that one control of sampling can have, by itself."""
    control = CONTROLS[name]
    token = st.integers(0, 10**6) | st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=5)
    match control.kind:
        case "whole":
            return st.integers(
                max(int(control.low), 2 if name == "no_repeat_ngram" else 0), int(min(control.high, 5000))
            )
        case "texts":
            return st.lists(token.filter(lambda one: isinstance(one, str)), max_size=3).map(tuple)
        case "tokens":
            return st.lists(token, max_size=3).map(tuple)
        case "biases":
            return st.dictionaries(token, st.floats(-1000, 1000), max_size=3).map(lambda found: tuple(found.items()))
        case "order":
            return st.permutations(STEPS).map(tuple)
    return st.floats(control.low, min(control.high, 50), exclude_min=control.above)


def _possible(values: dict[str, Any]) -> bool:
    """Whether no two of the values contradict each other."""
    low, high = values.get("dynatemp_low"), values.get("dynatemp_high")
    contrary = low is not None and (high is not None or values.get("others_off")) and low > (high or 0.0)
    return not contrary and not (values.get("temperature") == 0 and high)


_some_texts = st.lists(texts.filter(bool), max_size=3).map(tuple)
_constraints = st.one_of(
    st.builds(Constraint, st.sampled_from(["json_schema", "regex", "grammar"]), texts.filter(str.strip)),
    st.lists(st.text("ab \"'", min_size=1), min_size=1, max_size=3)
    .map("\n".join)
    .filter(str.strip)
    .map(lambda text: Constraint("choice", text)),
)
answer_option_values = {
    "stop": _some_texts,
    "ban": _some_texts,
    "min_tokens": st.integers(0, 999),
    "begin": texts,
    "constraint": _constraints,
    "thinking_budget": st.integers(0, 999),
    "negative": texts,
    "stop_repeating": st.booleans(),
}
"""What files can wish for of what is said."""
sampling = (
    st.fixed_dictionaries(
        {},
        optional={
            **{name: control_values(name) for name in CONTROLS},
            **answer_option_values,
            "max_tokens": st.integers(1, 9999),
        },
    )
    .flatmap(lambda values: st.booleans().map(lambda off: {**values, "others_off": off}))
    .filter(_possible)
    .map(lambda values: SamplingOverrides(**values))
)
variables = st.dictionaries(st.sampled_from(["tone", "language", "x1"]), texts, max_size=2)
personas = st.builds(
    Persona,
    name=texts.filter(str.strip),
    description=texts,
    system=texts,
    greeting=texts,
    alternate_greetings=lists_of_texts,
    examples=st.lists(st.builds(Example, texts, texts), max_size=3).map(tuple),
    examples_as=st.sampled_from(["messages", "system"]),
    template=st.none() | texts,
    sampling=sampling,
    thinking=st.none() | st.booleans(),
    model=st.none() | texts,
    variables=variables,
    character=st.none() | st.builds(Character, texts, texts, texts, texts, texts),
    lorebook=st.none() | lorebooks,
    foreign=st.dictionaries(texts, toml_values, max_size=3),
)

_ENTRY_KEYS = ["keys", "key", "content", "enabled", "insertion_order", "constant", "extensions", "position", "x"]
_EXTENSIONS = ["position", "selectiveLogic", "delay", "group_weight", "probability"]
_BOOK_ENTRY = st.dictionaries(
    st.sampled_from(_ENTRY_KEYS),
    json_values | st.dictionaries(st.sampled_from(_EXTENSIONS), json_values),
    max_size=6,
)
_BOOK = st.fixed_dictionaries(
    {"entries": st.lists(_BOOK_ENTRY, max_size=3)}, optional={"scan_depth": json_values, "name": json_values}
)
_FIELDS = {
    key: st.text(max_size=30) | json_values
    for key in ("description", "personality", "scenario", "mes_example", "creator_notes", "system_prompt")
}
_MORE = {
    "alternate_greetings": json_values | st.lists(st.text(max_size=10), max_size=3),
    "extensions": json_values,
    "character_book": json_values | _BOOK,
    "tags": json_values,
    "nickname": json_values,
    "x_unknown": json_values,
}


def _data(more: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"name": st.text(max_size=20), "first_mes": st.text(max_size=20)}, optional=more)


v1_cards = _data({**_FIELDS, "x_unknown": json_values, "talkativeness": json_values})
v2_cards = st.fixed_dictionaries(
    {"spec": st.just("chara_card_v2"), "spec_version": st.just("2.0"), "data": _data({**_FIELDS, **_MORE})},
    optional={"x_top": json_values},
)
v3_cards = st.fixed_dictionaries(
    {"spec": st.just("chara_card_v3"), "spec_version": st.just("3.0"), "data": _data({**_FIELDS, **_MORE})},
    optional={"x_top": json_values},
)
cards = v1_cards | v2_cards | v3_cards
