"""The shipped guide: small enough, honest about what it was trained on, and able to answer what it never saw."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator

import pytest

from exlchat.app.commands.actions import ACTIONS, BY_SLASH
from exlchat.app.generation_settings import NAMES
from exlchat.app.guide.facts import load_facts
from exlchat.app.keys.names import EDITING
from exlchat.cli import main as cli
from exlchat.cli.ask import build_parser as ask_parser
from exlchat.cli.bench.command import build_parser as bench_parser
from exlchat.cli.build_ext import build_parser as build_ext_parser
from exlchat.cli.chat import build_parser as chat_parser
from exlchat.cli.completions import build_parser as completions_parser
from exlchat.cli.config import build_parser as config_parser
from exlchat.cli.convert.command import build_parser as convert_parser
from exlchat.cli.doctor.command import build_parser as doctor_parser
from exlchat.cli.evaluate.command import build_parser as evaluate_parser
from exlchat.cli.models import build_parser as models_parser
from exlchat.cli.personas import build_parser as personas_parser
from exlchat.cli.presets import build_parser as presets_parser
from exlchat.cli.pull import build_parser as pull_parser
from exlchat.cli.remotes import build_parser as remotes_parser
from exlchat.cli.run.command import build_parser as run_parser
from exlchat.cli.serve.command import build_parser as serve_parser
from exlchat.cli.sessions.command import build_parser as sessions_parser
from exlchat.cli.templates.command import build_parser as template_parser
from exlchat.cli.themes.command import build_parser as themes_parser
from exlchat.config.schema import Settings
from exlchat.ext.kv_formats import KINDS
from exlchat.paths import bundled_model
from guide.corpus import dialogs
from guide.held_out import load_held_out, normalised

KEYS = {key for action in ACTIONS for key in action.keys}
PARSERS = {
    "ask": ask_parser,
    "bench": bench_parser,
    "build-ext": build_ext_parser,
    "completions": completions_parser,
    "config": config_parser,
    "convert": convert_parser,
    "doctor": doctor_parser,
    "evaluate": evaluate_parser,
    "models": models_parser,
    "personas": personas_parser,
    "presets": presets_parser,
    "pull": pull_parser,
    "remotes": remotes_parser,
    "run": run_parser,
    "serve": serve_parser,
    "sessions": sessions_parser,
    "template": template_parser,
    "themes": themes_parser,
}


def answers() -> Iterator[tuple[str, str]]:
    for fact in load_facts().values():
        for text in (*fact.answers, fact.more):
            yield fact.id, text


def options(parser: argparse.ArgumentParser) -> set[str]:
    """Its own, and those of the commands below it."""
    found = {name for action in parser._actions for name in action.option_strings}
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return found.union(*(options(one) for action in below for one in action.choices.values()))


def options_of(code: str) -> set[str]:
    """Those of the command that the code runs, or all where it names an option alone."""
    words = code.split()
    if words[0] == "exlchat":
        return options(PARSERS.get(words[1] if len(words) > 1 else "", chat_parser)())
    return set().union(*(options(parser()) for parser in (chat_parser, *PARSERS.values())))


def test_the_folder_is_small() -> None:
    assert sum(file.stat().st_size for file in bundled_model().iterdir()) <= 12_000_000


@pytest.mark.timeout(600)
def test_it_answers_what_it_never_saw() -> None:
    """The model alone, with nothing quoted: an eighth of the questions, because all of them take minutes."""
    from guide.asking import answer_held_out, load_on_cpu

    model = load_on_cpu(bundled_model())
    questions = load_held_out()[::8]
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
    for code in re.findall(r"`([^`\n]+)`", answer):
        for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", code):
            assert option in options_of(code), f"{fact} names the option {option}"
        if re.match(r"exlchat (bench|build-ext) -", code) and not re.search(r"\b[A-Z]+\b", code):
            # Values too: shapes, mixes and architectures are checked where they are read.
            command, *arguments = shlex.split(code)[1:]
            PARSERS[command]().parse_args(arguments)
        if setting := re.fullmatch(r"(\w+) = \w+", code):
            assert hasattr(Settings(), setting[1]), f"{fact} names the setting {setting[1]}"
        if re.fullmatch(r"/[a-z]+( .*)?", code):
            assert code.split()[0] in BY_SLASH, f"{fact} names the command {code}"
        if re.match(r"/set \w", code):
            assert code.split()[1] in {*NAMES, "NAME"}, f"{fact} names the setting {code}"
    for key in re.findall(r"\b(?:ctrl|shift|alt)\+\w+", answer):
        assert key in KEYS | EDITING | {"ctrl+shift"}, f"{fact} names the key {key}"
    for key in re.findall(r"\b[fF][1-9]\b", answer):
        assert key.lower() in KEYS, f"{fact} names the key {key}"


def test_sidebar_letters_are_what_the_guide_says() -> None:
    letters = {action.id: action.keys for action in ACTIONS if action.place == "sidebar"}
    assert "r" in letters["rename-selected"]
    assert "d" in letters["delete-selected"]
    assert "u" in letters["undo-delete"]


def test_letters_on_a_message_are_what_the_guide_says() -> None:
    on_message = {key: action.id for action in ACTIONS if action.place == "message" for key in action.keys}
    told = {
        "e": "edit",
        "r": "answer-again",
        "b": "branch",
        "d": "cut",
        "u": "undo",
        "c": "copy-message",
        "s": "save-code",
        "o": "source",
        "w": "open-link",
        "z": "fold-code",
        "i": "probabilities",
    }
    assert {letter: on_message[letter] for letter in told} == told
    assert set(re.findall(r"`(\w)`", load_facts()["message-keys"].answers[0])) == set(told)


def test_function_keys_are_what_the_guide_says() -> None:
    keys = {action.id: action.keys for action in ACTIONS}
    told = ("help", "settings", "search", "prompt", "models", "sampling", "persona", "template", "stats")
    assert [keys[name] for name in told] == [(f"f{number}",) for number in range(1, 10)]


def test_every_slash_command_has_a_fact() -> None:
    told = [text for _, text in answers()]
    named = " ".join([*told, *(name for fact in load_facts().values() for name in fact.names)])
    assert not [slash for slash in BY_SLASH if not re.search(rf"{slash}\b", named)]


def test_every_command_and_every_option_of_the_chat_has_a_fact() -> None:
    assert PARSERS.keys() == cli.COMMANDS.keys()
    told = [text for _, text in answers()]
    named = " ".join([*told, *(name for fact in load_facts().values() for name in fact.names)])
    for command in PARSERS:
        assert f"`exlchat {command}" in named
    for option in options(chat_parser()) | options(ask_parser()):
        assert not option.startswith("--") or re.search(rf"{option}\b", named), f"no fact names {option}"


def test_every_kind_of_cache_is_named() -> None:
    for answer in load_facts()["kv-cache"].answers:
        assert all(f"`{kind}`" in answer for kind in KINDS)
