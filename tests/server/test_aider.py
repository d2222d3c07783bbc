"""aider against the bundled model, where it is installed: in an environment of its own, because its pins are others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.server.served import Served, until

AIDER = shutil.which("aider")
pytestmark = pytest.mark.skipif(AIDER is None, reason="aider is not on the PATH (pipx install aider-chat)")
LIMITS: dict[str, Any] = {"litellm_provider": "openai", "mode": "chat", "supports_assistant_prefill": True}


def aider(served: Served, folder: Path, *arguments: str, metadata: Any = None, settings: str = "") -> str:
    """What it prints for one message, in a folder of its own."""
    folder.joinpath("meta.json").write_text(json.dumps(metadata or {}), encoding="utf-8")
    folder.joinpath("settings.yml").write_text(settings or "[]", encoding="utf-8")
    command = [
        str(AIDER),
        *("--openai-api-base", served.url, "--openai-api-key", "any", "--model", "openai/guide"),
        *("--model-metadata-file", "meta.json", "--model-settings-file", "settings.yml"),
        *("--no-git", "--no-pretty", "--no-check-update", "--no-show-model-warnings", "--analytics-disable"),
        *("--map-tokens", "0", "--yes-always", "--edit-format", "ask", *arguments),
    ]
    # It looks for lists of prices on the net, and waits as long as that takes: nothing but this machine is asked.
    nowhere = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
    environment = {**os.environ, **nowhere, "HOME": str(folder), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout + done.stderr


def test_it_asks_by_a_stream_and_counts(guide: Served, tmp_path: Path) -> None:
    before = len(guide.records)
    said = aider(guide, tmp_path, "--message", "What is EXL2?")
    assert "EXL2 is a file format" in said
    until(lambda: len(guide.records) > before)
    record = guide.records[before]
    assert (record.path, record.status, record.ignored) == ("/v1/chat/completions", 200, ())


def test_what_is_cut_by_its_length_goes_on_where_it_was(guide: Served, tmp_path: Path) -> None:
    """Each request sends what was said as the beginning of an assistant's message, and gets what comes behind it."""
    whole = aider(guide, tmp_path, "--message", "What is EXL2?")
    answer = next(line for line in whole.splitlines() if line.startswith("EXL2 is"))
    before = len(guide.records)
    cut = "- name: openai/guide\n  extra_params:\n    max_tokens: 8\n"
    pieces = aider(guide, tmp_path, "--message", "What is EXL2?", metadata={"openai/guide": {**LIMITS}}, settings=cut)
    assert answer in pieces.splitlines()
    until(lambda: len(guide.records) >= before + 5)


def test_a_prompt_that_is_too_long_is_told_as_that(guide: Served, tmp_path: Path) -> None:
    tmp_path.joinpath("long.txt").write_text("many words " * 4000, encoding="utf-8")
    said = aider(guide, tmp_path, "--message", "What is in it?", "long.txt")
    assert "token limit" in said
    until(lambda: guide.records[-1].status == 400)
