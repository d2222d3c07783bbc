"""`exlchat pull` against a hub on this machine: what it fetches, how it goes on, how it fails."""

from __future__ import annotations

import errno
import json
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
from exlchat.app.library.download import fetch
from exlchat.app.library.hub import HubFile, HubModel, HubName, PullError, parse_name, said_in_one_line
from exlchat.app.library.places import all_models
from exlchat.engine.model_card import describe, look_around
from tests.engine.convert.sources import save_source
from tests.ui.library.fake_hub import FakeHub, serving

GUIDE = {file.name: file.read_bytes() for file in paths.bundled_model().iterdir()}
ALL_BYTES = sum(map(len, GUIDE.values()))
# What the hub says of a model, and what its answers are wrapped in.
SMALL = 200_000
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


def pull(hub: FakeHub, *arguments: str, token: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "exlchat", "pull", *arguments]
    known = {**environment(hub), **({"HF_TOKEN": token} if token else {})}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=90, env=known)


def complaint(hub: FakeHub, *arguments: str, token: str | None = None) -> str:
    result = pull(hub, *arguments, token=token)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    return result.stderr.splitlines()[-1]


def test_a_model_comes_whole_and_without_anything_that_could_run(hub: FakeHub) -> None:
    result = pull(hub, "org/llama@4.0bpw")
    assert result.returncode == 0, result.stderr
    folder = paths.folders().models / "org--llama@4.0bpw"
    assert result.stdout == f"{folder}\nexlchat org/llama@4.0bpw\n"
    assert "--advise" not in result.stderr
    assert describe(folder, look_around("cpu")).problem is None
    assert "org/llama@4.0bpw" in [one.name for one in all_models(())]
    main = pull(hub, "org/llama")
    assert main.returncode == 0
    files = {file.name for file in (paths.folders().models / "org--llama").iterdir() if not file.name.startswith(".")}
    assert files == set(GUIDE)
    assert not set(hub.fetched) & set(TRASH)


def test_of_floats_it_says_where_to_ask_what_a_card_holds(tmp_path: Path) -> None:
    source = save_source("llama", tmp_path / "dense")
    with serving(FakeHub({"org/dense": {"main": {file.name: file.read_bytes() for file in source.iterdir()}}})) as hub:
        result = pull(hub, "org/dense")
    folder = paths.folders().models / "org--dense"
    assert f"it is F32; exlchat convert {folder} --advise says" in result.stderr
    assert result.stdout == f"{folder}\nexlchat org/dense\n"


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


def test_a_cut_connection_is_taken_up_where_it_was_cut(hub: FakeHub) -> None:
    hub.break_after["output.safetensors"] = 3_000_000
    assert pull(hub, "org/llama").returncode == 0
    assert hub.fetched.count("output.safetensors") == 2
    assert hub.ranges == ["bytes=3000000-"]
    assert hub.sent < ALL_BYTES + SMALL


def begun(hub: FakeHub, ending: int) -> subprocess.CompletedProcess[str]:
    """A pull that is ended by a signal when 3,000,000 bytes of the weights are on the disk."""
    hub.held["output.safetensors"], hub.stall_after = threading.Event(), 3_000_000
    command = [sys.executable, "-m", "exlchat", "pull", "org/llama"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(hub)) as process:
        end = time.monotonic() + 60
        while sum(part.stat().st_size for part in parts()) < 3_000_000:
            assert time.monotonic() < end
            time.sleep(0.01)
        process.send_signal(ending)
        _, said = process.communicate(timeout=30)
    hub.held.pop("output.safetensors").set()
    hub.fetched.clear()
    hub.sent = 0
    return subprocess.CompletedProcess(command, process.returncode, "", said)


def parts() -> list[Path]:
    """Of the weights; other files come before them, and are gone from here in between."""
    return list((paths.folders().models / "org--llama" / ".cache").rglob("output.safetensors.*.part"))


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_what_an_ended_program_has_fetched_is_not_fetched_again(hub: FakeHub, ending: int) -> None:
    begun(hub, ending)
    result = pull(hub, "org/llama")
    assert result.returncode == 0, result.stderr
    assert hub.fetched == ["output.safetensors"]
    assert hub.ranges == ["bytes=3000000-"]
    assert hub.sent < ALL_BYTES - 3_000_000 + SMALL
    assert parts() == []
    assert (paths.folders().models / "org--llama" / "output.safetensors").read_bytes() == GUIDE["output.safetensors"]


def test_a_server_without_ranges_sends_all_of_it_again(hub: FakeHub) -> None:
    begun(hub, signal.SIGKILL)
    hub.takes_ranges = False
    assert pull(hub, "org/llama").returncode == 0
    assert hub.sent > ALL_BYTES - SMALL


def test_a_part_that_was_damaged_meanwhile_is_found_out_at_the_end(hub: FakeHub) -> None:
    begun(hub, signal.SIGKILL)
    part = parts()[0]
    part.write_bytes(b"x" * 1000 + part.read_bytes()[1000:])
    assert "output.safetensors: is not what the hub has (its sha256 differs)" in complaint(hub, "org/llama")
    assert pull(hub, "org/llama").returncode == 0


def test_a_part_longer_than_the_file_is_begun_anew(hub: FakeHub) -> None:
    begun(hub, signal.SIGKILL)
    parts()[0].write_bytes(b"x" * (ALL_BYTES + 1))
    assert pull(hub, "org/llama").returncode == 0


def test_a_branch_that_was_moved_on_is_fetched_anew_in_one_go(hub: FakeHub) -> None:
    assert pull(hub, "org/llama").returncode == 0
    weights = bytearray(GUIDE["output.safetensors"])
    weights[-1] ^= 1
    hub.repositories["org/llama"]["main"]["output.safetensors"] = bytes(weights)
    hub.pushes += 1
    hub.fetched.clear()
    assert pull(hub, "org/llama").returncode == 0
    assert "output.safetensors" in hub.fetched
    assert (paths.folders().models / "org--llama" / "output.safetensors").read_bytes() == weights


@pytest.mark.parametrize("lost", ["output.safetensors", "tokenizer_config.json"])
def test_a_file_that_the_hub_names_and_does_not_have(hub: FakeHub, lost: str) -> None:
    hub.lost.add(lost)
    assert f"org/llama: the hub names {lost} but does not have it" in complaint(hub, "org/llama")
    hub.lost.clear()
    assert pull(hub, "org/llama").returncode == 0


def test_a_server_that_fails_while_files_come_is_asked_again_and_then_told(hub: FakeHub) -> None:
    hub.file_status = 500
    assert "the hub answers 500; try again later, the same command goes on" in complaint(hub, "org/llama")


def test_files_that_came_whole_are_not_fetched_again(hub: FakeHub) -> None:
    hub.damaged.add("output.safetensors")
    assert pull(hub, "org/llama").returncode == 1
    part = paths.folders().models / "org--llama" / ".cache" / "exlchat" / f"model.safetensors.{'0' * 64}.part"
    part.write_bytes(b"of another commit")
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
    stopped = begun(hub, signal.SIGINT)
    assert stopped.returncode == 130
    assert "stopped; the same command goes on from here" in stopped.stderr
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


@pytest.mark.parametrize("token", [None, "hf_somebody"])
@pytest.mark.parametrize("shut", ["gated", "gated_files"])
def test_a_gated_model_says_how_to_log_in(
    hub: FakeHub, shut: str, token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    getattr(hub, shut).add("org/llama")
    line = complaint(hub, "org/llama", token=token)
    assert "org/llama: only for those who accepted its terms: do that at https://huggingface.co/org/llama" in line
    assert "hf auth login (or set HF_TOKEN)" in line


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "the hub does not take the token that is used here; log in anew"),
        (403, "see that the token used here may read it: hf auth login (or set HF_TOKEN)"),
    ],
)
def test_a_hub_that_refuses_says_how_to_log_in(hub: FakeHub, status: int, words: str) -> None:
    hub.status = status
    line = complaint(hub, "org/llama", token="hf_somebody")
    assert words in line
    assert "hf auth login" in line


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["config.json", "llama.Q4_K_M.gguf"], "no *.safetensors file is there, only GGUF, which exlchat does not"),
        (["llama.Q4_K_M.gguf"], "only GGUF"),
        (["config.json", "pytorch_model.bin"], "only pickles, which can run code when read"),
        (["adapter_config.json", "adapter_model.safetensors"], "this is an adapter (LoRA), not a model"),
        (["model_index.json", "x.safetensors"], "this is a diffusion model"),
        (["x.safetensors"], "no config.json is there"),
    ],
)
def test_repositories_of_other_things_are_told_before_anything_is_fetched(
    hub: FakeHub, files: list[str], words: str
) -> None:
    hub.repositories["org/other"] = {"main": dict.fromkeys(files, b"{}")}
    assert words in complaint(hub, "org/other")
    assert hub.fetched == []


def test_a_quantization_that_does_not_run_is_said_before_its_weights_are_fetched(hub: FakeHub) -> None:
    config = {**json.loads(GUIDE["config.json"]), "quantization_config": {"quant_method": "exl3"}}
    hub.repositories["org/exl3"] = {"main": {**GUIDE, "config.json": json.dumps(config).encode()}}
    line = complaint(hub, "org/exl3")
    assert "quant_method is 'exl3', which exlchat does not read" in line
    assert "its weights were not fetched" in line
    assert "output.safetensors" not in hub.fetched


def test_mistrals_own_copy_of_the_weights_is_not_fetched(hub: FakeHub) -> None:
    hub.repositories["org/llama"]["main"]["consolidated.safetensors"] = b"the same again"
    assert pull(hub, "org/llama").returncode == 0
    assert "consolidated.safetensors" not in hub.fetched


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
    model = HubModel(name, "c", (HubFile("output.safetensors", 1 << 60, "0" * 64),))
    with pytest.raises(PullError, match="make room there, or take fewer bits"):
        fetch(model, lambda *_: None)
    with pytest.raises(PullError, match="the disk is full; make room"), said_in_one_line(name):
        raise OSError(errno.ENOSPC, "No space left on device")


def on_a_small_disk(hub: FakeHub, home: Path, megabytes: int, script: str) -> subprocess.CompletedProcess[str]:
    """A script of the shell that sees a disk of that size at `$EXLCHAT_HOME`, and that alone."""
    home.mkdir(exist_ok=True)
    mounted = f'mount -t tmpfs -o size={megabytes}m none "$EXLCHAT_HOME" && {script}'
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c", mounted]
    known = {**environment(hub), "HF_HOME": str(home.parent / "hf"), "PYTHON": sys.executable}
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90, env=known)
    if "unshare" in result.stderr or "mount:" in result.stderr:
        pytest.skip(f"no disk of one's own here: {result.stderr.strip()}")
    return result


def test_a_disk_that_is_too_small_is_said_before_the_weights_are_fetched(hub: FakeHub, home: Path) -> None:
    result = on_a_small_disk(hub, home, 6, '"$PYTHON" -m exlchat pull org/llama')
    assert result.returncode == 1
    line = result.stderr.splitlines()[-1]
    assert "MiB are to be fetched, and" in line
    assert "make room there, or take fewer bits" in line
    assert "output.safetensors" not in hub.fetched


def test_a_disk_that_fills_up_meanwhile_loses_nothing(hub: FakeHub, home: Path) -> None:
    """Another program takes the room when 3,000,000 bytes have come, and gives it back before the second try."""
    hub.held["output.safetensors"], hub.stall_after = threading.Event(), 3_000_000
    signals = home.parent
    script = f"""
        "$PYTHON" -m exlchat pull org/llama & pulling=$!
        while [ "$(find "$EXLCHAT_HOME" -name "*.part" -size +2900k | wc -l)" = 0 ]; do sleep 0.05; done
        head -c 14000000 /dev/zero > "$EXLCHAT_HOME/ballast"; touch "{signals}/filled"
        wait $pulling; echo "first: $?" >&2
        rm "$EXLCHAT_HOME/ballast"
        exec "$PYTHON" -m exlchat pull org/llama
    """

    def release() -> None:
        while not (signals / "filled").exists():
            time.sleep(0.05)
        hub.held["output.safetensors"].set()

    releasing = threading.Thread(target=release, daemon=True)
    releasing.start()
    result = on_a_small_disk(hub, home, 20, script)
    assert "org/llama: the disk is full; make room, then the same command goes on" in result.stderr
    assert "first: 1" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.returncode == 0, result.stderr
    (begin,) = (int(asked.removeprefix("bytes=").removesuffix("-")) for asked in hub.ranges)
    assert begin > 3_000_000
