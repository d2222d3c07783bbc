"""`exlchat ask --answers`: several answers with a real model, a real database and real pipes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.ui.test_headless import ask, conversations, endless, home

__all__ = ["ask", "endless", "home"]
WARM = ("--temperature", "0.9", "--max-tokens", "12")


def test_each_stands_below_its_number_and_is_what_it_is_alone(ask: Any, home: Path) -> None:
    code, out, err = ask("Hello", "--answers", "3", "--seed", "5", *WARM)
    assert code == 0
    assert err.count("\n") == 1, "what is said of the model is said once"
    parts = re.split(r"^--- (\d) of 3 ---\n", out, flags=re.MULTILINE)
    assert parts[0] == ""
    assert parts[1::2] == ["1", "2", "3"]
    alone = [ask("Hello", "--seed", str(seed), *WARM)[1] for seed in (5, 6, 7)]
    assert parts[2::2] == alone
    assert len(set(alone)) == 3


def test_all_are_kept_as_alternatives_in_one_conversation(ask: Any, home: Path) -> None:
    ask("Hello", "--answers", "3", "--seed", "5", *WARM)
    (conversation,) = conversations(home)
    assert [message.role for message in conversation.branch] == ["user", "assistant"]
    code, out, _ = ask("-c", "last", "--retry", "--answers", "2", "--seed", "9", *WARM)
    assert code == 0
    assert out.startswith("--- 1 of 2 ---\n")
    (conversation,) = conversations(home)
    assert len(conversation.branch) == 2


def test_json_lines_come_side_by_side_and_say_of_which_they_are(ask: Any) -> None:
    code, out, _ = ask("Hello", "--answers", "3", "--jsonl", "--logprobs", "1", "--no-save", *WARM)
    assert code == 0
    events = [json.loads(line) for line in out.splitlines()]
    assert {event["type"] for event in events if "answer" not in event} == {"prefill_progress"}
    for number in (1, 2, 3):
        mine = [event for event in events if event.get("answer") == number]
        assert mine[0]["type"] == "start"
        assert mine[-1]["type"] == "finished"
        assert "".join(event["text"] for event in mine if event["type"] == "text") == mine[-1]["text"]
        assert sum(len(event["tokens"]) for event in mine if event["type"] == "tokens") == 12
    order = [event["answer"] for event in events if event["type"] == "tokens"]
    assert order[:6] == [1, 2, 3, 1, 2, 3]
    assert [event["stats"]["cached_tokens"] > 0 for event in events if event["type"] == "finished"][1:] == [True, True]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("Hello", "--answers", "9"), "8"),
        (("Hello", "--answers", "0"), "1"),
        (("-c", "last", "--continue", "--answers", "2"), "--continue goes on with one answer"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(
    ask: Any, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        ask(*arguments)
    assert ended.value.code == 2
    assert said in capfd.readouterr().err


def test_at_temperature_0_all_would_be_the_same(ask: Any, home: Path) -> None:
    code, out, err = ask("Hello", "--answers", "2")
    assert (code, out) == (2, "")
    assert err == "exlchat: all 2 answers would be the same at temperature 0; give --temperature 0.7\n"
    assert not (home / "data" / "conversations.db").exists()


def test_ctrl_c_keeps_what_was_said_of_each(endless: Path, home: Path) -> None:
    command = [sys.executable, "-m", "exlchat", "ask", "-m", str(endless), "--device", "cpu", "--answers", "3"]
    command += ["--jsonl", "--temperature", "0.9", "Hello"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ)) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line).get("answer") == 3 and json.loads(line)["type"] == "text":
                break
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        out = process.stdout.read().decode()
        assert process.wait(30) == 130
    ends = [event for event in map(json.loads, out.splitlines()) if event["type"] == "finished"]
    assert {event["reason"] for event in ends} == {"cancelled"}
    texts = {event["answer"]: event["text"] for event in ends}
    assert sorted(texts) == [1, 2, 3]
    (conversation,) = conversations(home)
    assert conversation.branch[-1].text == texts[3]
    assert conversation.branch[-1].status == "partial"
