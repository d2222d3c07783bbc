"""Which fact a question is about, in everyday words, misspelt ones and those of other programs; or that none is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from exlchat.app.guide.facts import load_facts
from exlchat.app.guide.lookup import LONGEST, Lookup
from exlchat.app.guide.quoting import Quoting
from exlchat.llm.port import Engine
from exlchat.paths import bundled_model
from guide.asking import Conversation, load_on_cpu
from guide.evaluate import answered
from guide.everyday import load_everyday, refusals

ROOT = Path(__file__).parents[2]
TALK = {
    *("later", "hello", "how-are-you", "who-are-you", "guide-size", "guide-training", "what-can-you-do", "mistakes"),
    *("thanks", "goodbye", "joke", "insult", "feelings", "gibberish", "english-only", "english-foreign", "no-more"),
    "not-known",
}


@pytest.fixture(scope="module")
def lookup() -> Lookup:
    return Lookup(load_facts())


@pytest.fixture(scope="module")
def guide() -> Engine:
    return load_on_cpu(bundled_model())


def test_held_out_questions_in_everyday_words_are_answered(guide: Engine) -> None:
    """At least 250, 85 % of them right; and it is rather silent than wrong where it is not."""
    verdicts = [verdict for _, _, verdict in answered(guide, Quoting(), load_everyday("held_out"))]
    assert len(verdicts) >= 250
    assert verdicts.count("right") >= 0.85 * len(verdicts)
    assert verdicts.count("wrong") <= 0.1 * len(verdicts)


def test_no_question_is_in_both_parts() -> None:
    assert not {one.ask for one in load_everyday("tuning")} & {one.ask for one in load_everyday("held_out")}


@pytest.mark.parametrize(
    "question",
    ["who directed Blade Runner?", "my neighbour's dog barks all night", "do you know a dentist in Rotterdam"],
)
def test_it_says_that_it_does_not_know(guide: Engine, question: str) -> None:
    assert Conversation(guide, Quoting()).ask(question) in refusals()


@pytest.mark.parametrize(
    ("question", "fact"),
    [
        ("can you do GGUF?", "gguf"),
        ("what does 0+19 mean", "cached"),
        ("hi", "hello"),
        ("REGEN", "retry"),
        ("how do i swich the modle", "switch-model"),
        ("how do I set num_ctx???", "context"),
        ("is there a Modelfile", "modelfile"),
        ("what's a token", "token"),
        ("My model is larger than my card. What can I do?", "offload"),
    ],
)
def test_it_is_found(lookup: Lookup, question: str, fact: str) -> None:
    found = lookup.find(question)
    assert (found.facts[0].id, found.sure) == (fact, True)


def test_of_a_long_question_several_facts_are_left(lookup: Lookup) -> None:
    """The bundled model says which of them was meant."""
    found = lookup.find("where on the internet would I find models for this")
    assert not found.sure
    assert "where-models" in [fact.id for fact in found.facts[:8]]


@pytest.mark.parametrize(
    "question",
    [
        "zxcvb mnbvc",
        "\x1b[31m\x07",
        "",
        "?!",
        "最好的餐厅在哪里",
    ],
)
def test_what_nothing_is_written_about_finds_nothing(lookup: Lookup, question: str) -> None:
    assert lookup.find(question).facts == ()


@pytest.mark.parametrize("question", ['"gguf" AND NOT (', "gguf*", "answer:gguf", "NEAR(gguf)", "gguf' OR 1=1 --"])
def test_a_question_is_no_query(lookup: Lookup, question: str) -> None:
    assert lookup.find(question).facts


def test_only_the_beginning_of_a_long_text_is_looked_at(lookup: Lookup) -> None:
    assert lookup.find("gguf " + " " * LONGEST + "themes " * 100_000).facts[0].id == "gguf"


def headings(page: Path) -> set[str]:
    """As the links of the docs name them."""
    lines = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


def test_facts_name_pages_and_sections_that_there_are() -> None:
    for fact in load_facts().values():
        if fact.page:
            name, _, section = fact.page.partition("#")
            assert (ROOT / name).is_file(), fact.id
            assert not section or section in headings(ROOT / name), f"{fact.id}: {fact.page}"


def test_every_fact_about_the_program_names_its_page() -> None:
    named = {fact.id for fact in load_facts().values() if fact.page or fact.out_of_scope}
    assert load_facts().keys() - named == TALK
