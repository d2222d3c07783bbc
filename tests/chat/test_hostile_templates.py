"""What templates of strangers try is ended within bounds and told in one line; what was said stays as it was."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from exlchat.chat.prompt import template_process
from exlchat.chat.prompt.errors import PromptError
from exlchat.chat.prompt_format import BUILT_IN, render
from exlchat.untrusted.child import Child
from tests.chat import hostile_templates
from tests.patience import PATIENCE, within

HELLO = {"role": "user", "content": "Hello"}
SECONDS, MEMORY = 0.25, 300_000_000


@pytest.fixture
def seconds() -> float:
    return SECONDS


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Iterator[None]:
    """So that what runs into them does so soon."""
    child = Child("exlchat.chat.prompt.template_sandbox", seconds=seconds, memory=MEMORY, largest=5_000_000)
    monkeypatch.setattr(template_process, "_CHILD", child)
    yield
    child.close()


@pytest.mark.usefixtures("small_bounds")
@pytest.mark.parametrize("source", hostile_templates.ALL, ids=range(len(hostile_templates.ALL)))
@pytest.mark.sweep(24)
def test_a_hostile_template_is_ended_and_told_in_one_line(source: str) -> None:
    messages = [dict(HELLO)]
    began = time.monotonic()
    line = ""
    # Some of what looks hostile is done in no time; none of it takes the time or the memory of this process.
    with within(1):
        try:
            assert len(render(messages, source)) < 5_000_000
        except PromptError as error:
            line = str(error)
    assert time.monotonic() - began < PATIENCE
    assert line.isprintable()
    assert messages == [HELLO]
    assert render(messages, "{{ messages[0].content }}") == "Hello"


@pytest.mark.usefixtures("small_bounds")
@pytest.mark.parametrize("source", hostile_templates.ESCAPING)
def test_a_template_cannot_leave_its_sandbox(source: str) -> None:
    with pytest.raises(PromptError):
        render([HELLO], source)


@pytest.mark.usefixtures("small_bounds")
@pytest.mark.parametrize(
    ("source", "seconds", "wrong"),
    [
        (hostile_templates.ENDLESS[0], SECONDS, rf"it ran longer than {SECONDS:g} s"),
        ("{{ 'x' * 10**10 }}", PATIENCE, "it needs more than 300 MB"),
        ("{{ 'x' * 10**7 }}", PATIENCE, "it makes more than 5 MB"),
        ("{#" + "x" * template_process.MOST_CHARACTERS, PATIENCE, "it has more than 1,000,000 characters"),
    ],
)
def test_the_line_says_which_bound_it_ran_into(source: str, wrong: str) -> None:
    with pytest.raises(PromptError, match=wrong):
        render([HELLO], source)


def test_a_template_of_a_program_in_use_is_ended_by_the_timer_of_its_processor_time() -> None:
    # Another child's time would count with this one's, so what is asked is who ended it: a clock of two seconds that
    # counts computing alone.
    with pytest.raises(PromptError, match="longer than 2 s"):
        render([HELLO], hostile_templates.ENDLESS[0])


def test_twenty_thousand_messages_are_rendered_within_the_bounds() -> None:
    words = "the quick brown fox jumps over the lazy dog " * 5
    messages = [{"role": role, "content": words} for _ in range(10_000) for role in ("user", "assistant")]
    source = "{% for m in messages %}<|{{ m.role }}|>{{ m['content'] | trim }}\n{% endfor %}"
    assert render(messages, source).count(words.strip()) == 20_000


def test_the_renderings_of_a_slow_template_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_process, "ALLOWANCE", 0.3)
    slow = "{% for i in range(20) %}{% for j in range(99999) %}{% endfor %}{% endfor %}x"
    refused = ""
    for _ in range(20):
        try:
            assert render([HELLO], slow) == "x"
        except PromptError as error:
            refused = str(error)
            break
    assert "its renderings took more than 0.3 s" in refused
    assert render([HELLO], "{{ messages[0].content }}") == "Hello"


def test_a_built_in_format_needs_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_process, "_CHILD", None)
    for name in BUILT_IN:
        assert "Hello" in render([HELLO], name)


def test_the_process_ends_with_the_program_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys; from exlchat.chat.prompt import template_process\n"
        "from exlchat.chat.prompt_format import render\n"
        "print(render([], '{{ 1 }}'), template_process._CHILD._process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    text, pid = said.stdout.split()
    assert text == "1"
    until = time.monotonic() + PATIENCE
    while _runs(int(pid)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not _runs(int(pid))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_file_of_the_users_folder_is_not_taken_for_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jinja2.py").write_text(f"open({str(tmp_path / 'was here')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    assert render([], "{{ 2 }}") == "2"
    assert not (tmp_path / "was here").exists()


def test_a_process_that_was_lost_is_replaced() -> None:
    assert render([], "{{ 1 }}") == "1"
    process = template_process._CHILD._process
    assert process is not None
    os.kill(process.pid, 9)
    process.wait()
    assert render([], "{{ 2 }}") == "2"
