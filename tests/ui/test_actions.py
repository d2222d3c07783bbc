"""The registry of actions, and what typed text means."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat.app.commands.action import Situation
from exlchat.app.commands.actions import ACTIONS, BY_NAME, completions
from exlchat.app.composer.other_programs import HERE, SET
from exlchat.app.composer.typed_input import BadCommand, Command, Prompt, parse_input
from exlchat.app.generation_settings import NAMES, GenerationSettings
from exlchat.chat.presets.overrides import SamplingOverrides
from exlchat.llm.sampling import SamplingSettings


def test_ids_and_slash_commands_are_unique() -> None:
    assert len({action.id for action in ACTIONS}) == len(ACTIONS)
    slashes = [action.slash for action in ACTIONS if action.slash]
    assert len(set(slashes)) == len(slashes)


def test_every_name_means_one_command() -> None:
    names = [name for action in ACTIONS for name in (action.slash, *action.aliases) if name]
    assert len(set(names)) == len(names)
    assert not {name for name in names if name in HERE}
    assert not set(SET) & set(NAMES)


def test_the_names_that_other_programs_have_for_what_is_here_are_aliases() -> None:
    for typed, action_id in (
        ("/exit /bye /q", "quit"),
        ("/clear /reset", "new"),
        ("/regenerate /swipe", "retry"),
        ("/export", "save"),
        ("/title", "rename"),
        ("/? /commands", "help"),
        ("/load /show", "model"),
        ("/list", "models"),
        ("/character", "persona"),
        ("/fork", "branch"),
    ):
        assert {BY_NAME[name].id for name in typed.split()} == {action_id}
    command = parse_input("/title A better title")
    assert isinstance(command, Command)
    assert (command.action.id, command.argument) == ("rename", "A better title")
    assert [action.slash for action in completions("/exi")] == ["/quit"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((name, f"There is no command {name}; here: {here}") for name, here in HERE.items()),
        ("/lorebook world.json", "a persona or a character card brings them"),
        ("exit", "To do that here: /quit; to send exit as text, add a full stop"),
        (":q", "/quit"),
        ("!multi", "shift+enter"),
        (".model llama", "Commands begin with a slash here: /model llama"),
    ],
)
def test_what_other_programs_have_and_this_one_not_says_what_does_it_here(text: str, said: str) -> None:
    bad = parse_input(text)
    assert isinstance(bad, BadCommand)
    assert said in bad.line
    assert "\n" not in bad.line


@pytest.mark.parametrize("text", ["exit.", "exit the program", "quit smoking?", ".5 is a half", "... and then", "!"])
def test_what_only_looks_like_a_command_of_another_program_is_a_prompt(text: str) -> None:
    assert parse_input(text) == Prompt(text)


@pytest.mark.parametrize("place", ["composer", "message", "sidebar"])
def test_no_key_means_two_things_in_one_place(place: str) -> None:
    keys = [key for action in ACTIONS if action.place in (place, "everywhere") for key in action.keys]
    shared = {"escape"}  # stops an answer from the composer, leaves the sidebar from there
    assert sorted(key for key in keys if keys.count(key) > 1 and key not in shared) == []


def test_keys_that_terminals_cannot_tell_apart_are_not_used() -> None:
    assert not {"ctrl+i", "ctrl+m", "ctrl+h", "ctrl+["} & {key for action in ACTIONS for key in action.keys}


def test_the_commands_of_the_product_exist() -> None:
    named = (
        "/help /new /open /rename /delete /undo /retry /continue /system /persona /preset /template /theme /set /model "
        "/serve /models /stats /copy /pin /unpin /leave-out /take-in /summary /cache /cost /sidebar /settings /quit "
        "/messages /edit /alternative "
        "/note /group /speak /branch /cut /redo /find /tree /search /compare /prompt /history /editor "
        "/save /tab /close /incognito /keep /tag /folder /ontop /archive /archived /import /code /source "
        "/probabilities /sampling /log "
        "/schema /regex /choice /grammar /ban /stop /begin /think /negative /draft /logprobs"
    )
    assert set(named.split()) == {action.slash for action in ACTIONS if action.slash}


def test_importing_the_registry_loads_no_terminal_library() -> None:
    code = """import sys, exlchat.app.commands.actions
print([m for m in ('textual', 'prompt_toolkit', 'torch') if m in sys.modules])"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_text_is_a_prompt() -> None:
    assert parse_input("  hello\nworld \n") == Prompt("hello\nworld")


def test_two_slashes_send_one() -> None:
    assert parse_input("//etc/passwd is what?") == Prompt("/etc/passwd is what?")


def test_a_command_with_an_argument() -> None:
    command = parse_input("/rename  A better title ")
    assert isinstance(command, Command)
    assert (command.action.id, command.argument) == ("rename", "A better title")


def test_a_system_prompt_may_have_lines() -> None:
    command = parse_input("/system You are\na pirate.")
    assert isinstance(command, Command)
    assert command.argument == "You are\na pirate."
    below = parse_input("/system\nYou are a pirate.")
    assert isinstance(below, Command)
    assert below.argument == "You are a pirate."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/hlep", "did you mean /help?"),
        ("/quti", "did you mean /quit?"),
        ("/xyzzy", "There is no command /xyzzy; /help lists all"),
        ("/temperature 0.3", "There is no command /temperature; here: /set temperature VALUE"),
        ("/max-tokens 90", "here: /set max_tokens VALUE"),
        ("/rename", "/rename needs TITLE"),
        ("/new please", "takes nothing after it"),
        ("/", "There is no command /"),
        ("/usr/bin/env what is this", "begin it with //"),
    ],
)
def test_a_bad_command_is_explained_in_one_line(text: str, expected: str) -> None:
    bad = parse_input(text)
    assert isinstance(bad, BadCommand)
    assert expected in bad.line
    assert "\n" not in bad.line


@given(st.text())
def test_any_text_means_something_and_nothing_is_lost(text: str) -> None:
    meaning = parse_input(text)
    if isinstance(meaning, Prompt):
        assert meaning.text in text


def test_completion_lists_commands_while_only_a_command_is_typed() -> None:
    assert [action.slash for action in completions("/ret")] == ["/retry", "/preset"]
    assert [action.slash for action in completions("/RET")] == ["/retry", "/preset"]
    assert completions("/rename x") == []
    assert completions("//re") == []
    assert completions("re") == []
    assert len(completions("/")) == sum(1 for action in ACTIONS if action.slash)


def test_availability_follows_the_situation() -> None:
    by_id = {action.id: action for action in ACTIONS}
    assert not by_id["stop"].available(Situation())
    assert by_id["stop"].available(Situation(can_stop=True))
    assert by_id["retry"].available(Situation(can_retry=True))
    assert not by_id["retry"].available(Situation(can_retry=True, answering=True))


DEFAULTS = GenerationSettings(SamplingSettings(temperature=0.7, min_p=0.05))


def test_set_changes_one_value() -> None:
    assert DEFAULTS.with_value("temperature", "0").sampling == SamplingSettings(temperature=0.0, min_p=0.05)
    assert DEFAULTS.with_value("top_k", "40").sampling.top_k == 40
    assert DEFAULTS.with_value("top_p", "0.9").sampling.top_p == 0.9
    assert DEFAULTS.with_value("min_p", "0").sampling.min_p == 0.0
    assert DEFAULTS.with_value("seed", "7").seed == 7
    assert DEFAULTS.with_value("seed", "7").with_value("seed", "none").seed is None
    assert DEFAULTS.with_value("max_tokens", "64").max_tokens == 64
    assert DEFAULTS.with_value("context_policy", "drop").context_policy == "drop"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("temprature", "1", "did you mean temperature?"),
        ("zzz", "1", "there are temperature, top_k"),
        ("temperature", "warm", "must be a number"),
        ("temperature", "nan", "temperature is nan"),
        ("temperature", "-1", "must be a number, 0 or more"),
        ("top_k", "1.5", "must be a whole number"),
        ("top_p", "0", "must be a number above 0"),
        ("max_tokens", "0", "at least 1"),
        ("seed", "-1", "seed is -1"),
        ("context_policy", "forget", "must be one of drop, summarise, stop"),
        ("seed", "9223372036854775808", "from 0 to 9223372036854775807"),
    ],
)
def test_set_refuses_what_is_impossible(name: str, value: str, expected: str) -> None:
    with pytest.raises(ValueError) as error:
        DEFAULTS.with_value(name, value)
    assert expected in str(error.value)


def test_settings_are_described_in_one_line() -> None:
    line = DEFAULTS.with_value("seed", "3").describe()
    assert line == (
        "temperature 0.7 · top_k 0 · top_p 1 · min_p 0.05 · seed 3 · max_tokens until the context is full · "
        "context_policy drop"
    )


def test_only_typed_sampling_values_override() -> None:
    base = SamplingSettings(temperature=0.7, min_p=0.05)
    assert SamplingOverrides().apply(base) == base
    assert SamplingOverrides(temperature=0.0, top_k=5).apply(base) == SamplingSettings(0.0, 5, 1.0, 0.05)
    with pytest.raises(ValueError, match="top_p"):
        SamplingOverrides(top_p=2.0).apply(base)
