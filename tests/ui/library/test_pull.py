"""`exlchat pull` against a hub on this machine: what it fetches, how it goes on, how it fails."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from exlchat import paths
from exlchat.engine.model_card import describe, look_around
from exlchat.ui.library.download import fetch
from exlchat.ui.library.hub import HubFile, HubModel, HubName, PullError, parse_name, said_in_one_line
from exlchat.ui.library.places import all_models
from tests.ui.library.fake_hub import FakeHub, serving

GUIDE = {file.name: file.read_bytes() for file in paths.bundled_model().iterdir()}
TRASH = {
    "pytorch_model.bin": b"pickle",
    "modeling_evil.py": b"import os",
    "original/output.safetensors": b"a copy",
    "model.gguf": b"gguf",
    "README.md": b"# hello",
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    repositories = {
        "org/llama": {"main": {**GUIDE, **TRASH}, "4.0bpw": dict(GUIDE)},
        "org/branches": {"main": {"README.md": b"see branches", "measurement.json": b"{}"}, "4.0bpw": dict(GUIDE)},
        "org/mamba": {"main": {"config.json": b'{"architectures": ["MambaForCausalLM"]}', "m.safetensors": b"x" * 99}},
    }
    with serving(FakeHub(repositories)) as served:
        yield served


def environment(hub: FakeHub) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    offline = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HOME": str(paths.folders().cache / "hf")}
    return {**kept, **offline, "HF_ENDPOINT": hub.url, "no_proxy": "*"}


def pull(hub: FakeHub, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "exlchat.cli", "pull", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=90, env=environment(hub))


def complaint(hub: FakeHub, *arguments: str) -> str:
    result = pull(hub, *arguments)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    return result.stderr.splitlines()[-1]


def test_a_model_comes_whole_and_without_anything_that_could_run(hub: FakeHub) -> None:
    result = pull(hub, "org/llama@4.0bpw")
    assert result.returncode == 0, result.stderr
    folder = paths.folders().models / "org--llama@4.0bpw"
    assert result.stdout == f"{folder}\nexlchat org/llama@4.0bpw\n"
    assert describe(folder, look_around("cpu")).problem is None
    assert "org/llama@4.0bpw" in [one.name for one in all_models(())]
    main = pull(hub, "org/llama")
    assert main.returncode == 0
    files = {file.name for file in (paths.folders().models / "org--llama").iterdir() if not file.name.startswith(".")}
    assert files == set(GUIDE)
    assert not set(hub.fetched) & set(TRASH)


def test_what_is_there_is_not_fetched_again(hub: FakeHub) -> None:
    assert pull(hub, "org/llama").returncode == 0
    before = list(hub.fetched)
    again = pull(hub, "org/llama")
    assert again.returncode == 0
    assert "is there already" in again.stderr
    assert hub.fetched == before


def test_include_takes_matching_files_only(hub: FakeHub) -> None:
    assert pull(hub, "org/llama", "--include", "*.safetensors", "--include", "config.json").returncode == 0
    assert set(hub.fetched) == {"output.safetensors", "config.json"}
    assert "matches *.txt" in complaint(hub, "org/llama", "--include", "*.txt")


def test_a_cut_connection_is_taken_up_again(hub: FakeHub) -> None:
    hub.break_after["output.safetensors"] = 3_000_000
    assert pull(hub, "org/llama").returncode == 0
    assert hub.fetched.count("output.safetensors") == 2


def test_files_that_came_whole_are_not_fetched_again(hub: FakeHub) -> None:
    hub.damaged.add("output.safetensors")
    assert pull(hub, "org/llama").returncode == 1
    part = paths.folders().models / "org--llama" / ".cache" / "huggingface" / "download" / "x.incomplete"
    part.write_bytes(b"left by a program that was killed")
    hub.damaged.clear()
    hub.fetched.clear()
    assert pull(hub, "org/llama").returncode == 0
    assert hub.fetched == ["output.safetensors"]
    assert not part.exists()


def test_two_programs_do_not_fetch_the_same_model(hub: FakeHub) -> None:
    folder = paths.folders().models / "org--llama"
    folder.mkdir(parents=True)
    with FileLock(folder / ".exlchat-pull.lock"):
        assert "another exlchat is fetching it" in complaint(hub, "org/llama")


def test_an_interrupted_download_is_listed_as_such_and_goes_on(hub: FakeHub) -> None:
    hub.held["output.safetensors"] = threading.Event()
    command = [sys.executable, "-m", "exlchat.cli", "pull", "org/llama"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(hub)) as process:
        end = time.monotonic() + 60
        while "output.safetensors" not in hub.fetched:
            assert time.monotonic() < end
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    hub.held["output.safetensors"].set()
    assert process.returncode == 130
    assert "stopped; the same command goes on from here" in said
    listed = {one.name: one.problem for one in all_models(())}
    assert "go on with: exlchat pull org/llama" in (listed["org/llama"] or "")
    assert pull(hub, "org/llama").returncode == 0
    assert {one.name: one.problem for one in all_models(())}["org/llama"] is None


def test_a_file_that_is_not_what_the_hub_says_is_removed(hub: FakeHub) -> None:
    hub.damaged.add("output.safetensors")
    assert "output.safetensors: is not what the hub has (its sha256 differs)" in complaint(hub, "org/llama")
    assert not (paths.folders().models / "org--llama" / "output.safetensors").exists()
    hub.damaged.clear()
    assert pull(hub, "org/llama").returncode == 0


def test_no_such_model_revision_or_weights(hub: FakeHub) -> None:
    assert "there is no such model on the hub, or it is private" in complaint(hub, "org/nothing")
    line = complaint(hub, "org/llama@5.0bpw")
    assert "has no revision 5.0bpw; there are main, 4.0bpw" in line
    line = complaint(hub, "org/branches")
    assert "no *.safetensors file is there; there are 4.0bpw: exlchat pull org/branches@4.0bpw" in line


def test_a_gated_model_says_how_to_log_in(hub: FakeHub) -> None:
    hub.gated.add("org/llama")
    line = complaint(hub, "org/llama")
    assert "accepted its terms" in line
    assert "hf auth login" in line


def test_an_architecture_that_does_not_run_is_said_before_its_weights_are_fetched(hub: FakeHub) -> None:
    line = complaint(hub, "org/mamba")
    assert "its weights were not fetched" in line
    assert "m.safetensors" not in hub.fetched


def test_a_hub_that_fails_or_is_away(hub: FakeHub) -> None:
    hub.status = 503
    assert "the hub answers 503" in complaint(hub, "org/llama")
    hub.url = "http://127.0.0.1:9"
    assert "the hub cannot be reached" in complaint(hub, "org/llama")


@pytest.mark.parametrize(
    "text", ["llama", "org/llama@", "org/../llama", "/org/llama", "org/llama@../..", "a--b/c", "o/n\x1b[2J"]
)
def test_what_is_no_name_is_not_asked_for(text: str) -> None:
    with pytest.raises(PullError, match="no name on Hugging Face"):
        parse_name(text)


def test_a_full_disk_is_said_before_anything_large_is_fetched(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    name = HubName("org/llama")
    model = HubModel(name, "c", (HubFile("output.safetensors", 1 << 60, None),))
    with pytest.raises(PullError, match="make room there, or take fewer bits"):
        fetch(model, lambda *_: None)
    with pytest.raises(PullError, match="the disk is full; make room"), said_in_one_line(name):
        raise OSError(errno.ENOSPC, "No space left on device")
