"""The shipped guide: small enough, honest about what it was trained on, and able to answer what it never saw."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

import pytest

from exlchat.paths import bundled_model
from exlchat.ui.actions import ACTIONS, BY_SLASH
from exlchat.ui.command_line import ask_parser, chat_parser
from exlchat.ui.generation_settings import NAMES
from guide.corpus import dialogs
from guide.facts import load_facts
from guide.held_out import load_held_out, normalised

KEYS = {key for action in ACTIONS for key in action.keys}


def answers() -> Iterator[tuple[str, str]]:
    for fact in load_facts().values():
        for text in (*fact.answers, fact.more):
            yield fact.id, text


def options(parser: argparse.ArgumentParser) -> set[str]:
    return {name for action in parser._actions for name in action.option_strings}


def test_the_folder_is_small() -> None:
    assert sum(file.stat().st_size for file in bundled_model().iterdir()) <= 12_000_000


def test_it_answers_what_it_never_saw() -> None:
    from guide.asking import answer_held_out, load_on_cpu

    model = load_on_cpu(bundled_model())
    questions = load_held_out()
    wrong = [question.ask for question in questions if not question.passed_by(answer_held_out(model, question))]
    assert len(wrong) <= 0.2 * len(questions), wrong


def test_held_out_questions_are_many_and_distinct() -> None:
    asked = [(question.before, normalised(question.ask)) for question in load_held_out()]
    assert len(asked) >= 60
    assert len(set(asked)) == len(asked)


def test_no_held_out_question_is_in_the_corpus() -> None:
    held_out = {normalised(question.ask) for question in load_held_out()}
    written = {normalised(turn.question) for dialog in dialogs(20_000, "training 0") for turn in dialog.turns}
    assert len(written) > 20_000
    assert not held_out & written


def test_no_held_out_question_stands_in_the_facts() -> None:
    facts = load_facts().values()
    patterns = {normalised(text) for fact in facts for text in (*fact.asks, *fact.goals, *fact.topics)}
    assert not patterns & {normalised(question.ask) for question in load_held_out()}


def test_the_corpus_is_the_same_for_the_same_seed() -> None:
    assert list(dialogs(50, "a")) == list(dialogs(50, "a"))
    assert list(dialogs(50, "a")) != list(dialogs(50, "b"))


@pytest.mark.parametrize(("fact", "answer"), list(answers()))
def test_what_answers_name_exists(fact: str, answer: str) -> None:
    known = options(chat_parser()) | options(ask_parser())
    for code in re.findall(r"`([^`\n]+)`", answer):
        for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", code):
            assert option in known, f"{fact} names the option {option}"
        if re.fullmatch(r"/[a-z]+( .*)?", code):
            assert code.split()[0] in BY_SLASH, f"{fact} names the command {code}"
        if re.match(r"/set \w", code):
            assert code.split()[1] in {*NAMES, "NAME"}, f"{fact} names the setting {code}"
    for key in re.findall(r"\b(?:ctrl|shift|alt)\+\w+", answer):
        assert key in KEYS | {"ctrl+shift"}, f"{fact} names the key {key}"


def test_sidebar_letters_are_what_the_guide_says() -> None:
    letters = {action.id: action.keys for action in ACTIONS if action.place == "sidebar"}
    assert "r" in letters["rename-selected"]
    assert "d" in letters["delete-selected"]
    assert "u" in letters["undo-delete"]
