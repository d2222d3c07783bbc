"""`exlchat pull` from a hub that means harm or is out of its mind: one line, and nothing outside of the library."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from exlchat import paths
from tests.ui.library.fake_hub import FakeHub, serving
from tests.untrusted.trials import Trial, Trials, trials

GUIDE = {file.name: file.read_bytes() for file in paths.bundled_model().iterdir()}
WEIGHTS = "output.safetensors"
Listing = dict[str, Any]


@pytest.fixture(scope="module")
def served() -> Iterator[FakeHub]:
    with serving(FakeHub({"org/m": {"main": dict(GUIDE)}})) as hub:
        yield hub


@pytest.fixture(scope="module")
def ready(served: FakeHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trials]:
    home = tmp_path_factory.mktemp("around") / "home"
    variables = {"HF_ENDPOINT": served.url, "HF_HUB_DISABLE_TELEMETRY": "1", "no_proxy": "*", "HF_TOKEN": ""}
    with trials(home, "pull", "org/m", **variables) as made:
        assert made.warm.code == 0, made.warm.err
        yield made


@pytest.fixture
def hub(served: FakeHub, ready: Trials) -> Iterator[FakeHub]:
    served.told, served.odd = lambda listing: listing, lambda handler, path: False
    served.fetched.clear()
    shutil.rmtree(ready.home / "data", ignore_errors=True)
    before = around(ready.home)
    yield served
    assert around(ready.home) == before, "something was written outside of the library"


def around(home: Path) -> set[Path]:
    """Every file that is not in the folder of the model."""
    own = home / "data" / "models" / "org--m"
    return {path for path in home.parent.rglob("*") if path.is_file() and own not in path.parents}


def complaint(trial: Trial) -> str:
    """The line it ended with; others told what it did."""
    assert trial.fault is None
    assert trial.code == 1
    assert all(line.startswith("exlchat: ") for line in trial.err.splitlines())
    return trial.err.splitlines()[-1]


def sibling(listing: Listing, name: str) -> dict[str, Any]:
    return next(one for one in listing["siblings"] if one["rfilename"] == name)


def with_hash(value: object) -> Callable[[Listing], Listing]:
    def change(listing: Listing) -> Listing:
        sibling(listing, WEIGHTS)["lfs"]["sha256"] = value
        return listing

    return change


def with_file(name: str, **values: object) -> Callable[[Listing], Listing]:
    def change(listing: Listing) -> Listing:
        sibling(listing, name).update(values)
        return listing

    return change


ODD_LISTINGS: dict[str, tuple[Callable[[Listing], Any], str]] = {
    "hash that is a path": (with_hash("/tmp/any/folder/X"), f"gives {WEIGHTS} the hash '/tmp/any/folder/X'"),
    "hash that leaves": (with_hash("../../../x"), "the hash '../../../x'"),
    "hash in capitals": (with_hash("A" * 64), "the hash 'AAA"),
    "hash too short": (with_hash("a" * 63), "the hash 'aaa"),
    "hash of a small file": (with_hash("a" * 40), "the hash 'aaa"),
    "no hash": (with_hash(None), "the hash None"),
    "hash with a line": (with_hash("a" * 64 + "\n"), "the hash 'aaa"),
    "small file's hash": (with_file("config.json", blobId="../x"), "gives config.json the hash '../x'"),
    "lfs that is none": (with_file(WEIGHTS, lfs=[1]), "gives output.safetensors the hash"),
    "commit that leaves": (lambda listing: {**listing, "sha": "../../x"}, "names no commit ('../../x')"),
    "commit that is a branch": (lambda listing: {**listing, "sha": "main"}, "names no commit ('main')"),
    "no commit": (lambda listing: {**listing, "sha": None}, "names no commit (None)"),
    "size below nothing": (with_file(WEIGHTS, size=-1), "the size -1"),
    "size in words": (with_file(WEIGHTS, size="12"), "the size '12'"),
    "size that is true": (with_file(WEIGHTS, size=True), "the size True"),
    "size of a fraction": (with_file(WEIGHTS, size=1.5), "the size 1.5"),
    "no size": (with_file(WEIGHTS, size=None), "the size None"),
    "size beyond all disks": (with_file(WEIGHTS, size=10**30), "make room there"),
    "no list": (lambda listing: {**listing, "siblings": None}, "does not list its files"),
    "an object of files": (lambda listing: {**listing, "siblings": {"a": 1}}, "does not list its files"),
    "numbers for files": (lambda listing: {**listing, "siblings": [1, 2]}, "does not list its files"),
    "numbers for names": (lambda listing: {**listing, "siblings": [{"rfilename": 3}]}, "does not list its files"),
    "nothing at all": (lambda listing: {}, "names no commit (None)"),
    "a list": (lambda listing: [listing], "names no commit (None)"),
    "null": (lambda listing: None, "names no commit (None)"),
    "every file twice": (lambda listing: {**listing, "siblings": listing["siblings"] * 2}, "some perhaps twice"),
}


@pytest.mark.parametrize("of", [WEIGHTS, "config.json"])
def test_a_hash_that_is_a_path_writes_nothing_there(of: str, hub: FakeHub, ready: Trials) -> None:
    elsewhere = ready.home.parent / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    where = str(elsewhere / "X")
    change = with_hash(where) if of == WEIGHTS else with_file(of, blobId=where)
    hub.told = change
    assert f"gives {of} the hash" in complaint(ready.run("pull", "org/m"))
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("case", ODD_LISTINGS)
def test_what_the_hub_says_of_a_model_is_not_believed(case: str, hub: FakeHub, ready: Trials) -> None:
    hub.told, words = ODD_LISTINGS[case]
    assert words in complaint(ready.run("pull", "org/m"))
    assert WEIGHTS not in hub.fetched


@pytest.mark.parametrize(
    "name",
    [
        "../outside.json",
        "/tmp/exlchat-outside.json",
        "..\\outside.json",
        ".exlchat-pull.json",
        "a\0.json",
        "a\nexlchat: all is well.json",
        "\x1b[2J.json",
        "\ud800.json",
        "x" * 300 + ".json",
    ],
)
def test_files_whose_names_are_none_are_not_fetched(name: str, hub: FakeHub, ready: Trials) -> None:
    def named(listing: Listing) -> Listing:
        listing["siblings"].append({"rfilename": name, "size": 4, "blobId": "0" * 40})
        return listing

    hub.told = named
    trial = ready.run("pull", "org/m")
    assert (trial.code, trial.fault) == (0, None)
    assert set(hub.fetched) == set(GUIDE)
    assert {file.name for file in (ready.home / "data" / "models" / "org--m").iterdir() if file.suffix == ".json"} == {
        file for file in GUIDE if file.endswith(".json")
    } | {".exlchat-pull.json"}


def sending(
    status: int,
    headers: dict[str, str],
    *blocks: bytes,
    endless: bool = False,
    of: str = "/api/",
) -> Callable[[BaseHTTPRequestHandler, str], bool]:
    """An answer to what is asked for below a path."""

    def answer(handler: BaseHTTPRequestHandler, path: str) -> bool:
        if of not in path:
            return False
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        if endless:
            handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.close_connection = True
        with contextlib.suppress(OSError):
            for block in blocks:
                handler.wfile.write(b"%x\r\n%b\r\n" % (len(block), block) if endless else block)
            while endless:
                handler.wfile.write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        return True

    return answer


REACHED = "the hub cannot be reached"
ODD_ANSWERS: dict[str, tuple[Callable[[BaseHTTPRequestHandler, str], bool], str]] = {
    "no JSON": (sending(200, {}, b"<html>welcome</html>"), "answers what is no JSON"),
    "no text": (sending(200, {}, b"\xff\xfe\x00\xd8"), "answers what is no JSON"),
    "nothing": (sending(200, {"Content-Length": "0"}), "answers what is no JSON"),
    "nested": (sending(200, {}, b"[" * 10**6), "answers what is no JSON"),
    "endless": (sending(200, {}, endless=True), "answers with more than 32 MB"),
    "endless refusal": (sending(500, {}, endless=True), "the hub answers 500"),
    "a part": (sending(206, {"Content-Range": "bytes 5-9/10"}, b"{}"), "sends another part of a file"),
    "nothing new": (sending(304, {}), "the hub answers 304"),
    "a file of this machine": (sending(302, {"Location": "file:///etc/passwd"}), "leads from http to file"),
    "another scheme": (sending(302, {"Location": "ftp://127.0.0.1/x"}), "leads from http to ftp"),
    "round and round": (sending(302, {"Location": "/api/again"}), "leads on and on (8 redirects)"),
    "nowhere": (sending(302, {"Location": "http://[::bad/"}), "the hub answers 302"),
    "a redirect without place": (sending(302, {}), "the hub answers 302"),
    "chunks that are none": (sending(200, {"Transfer-Encoding": "chunked"}, b"zz\r\nnonsense"), REACHED),
    "less than it says": (sending(200, {"Content-Length": "999"}, b"{}"), REACHED),
    "two lengths": (sending(200, {"Content-Length": "2, 3"}, b"{}"), REACHED),
    "no compression": (sending(200, {"Content-Encoding": "gzip"}, b"no gzip"), REACHED),
}


@pytest.mark.parametrize("case", ODD_ANSWERS)
def test_an_odd_answer_is_a_line(case: str, hub: FakeHub, ready: Trials) -> None:
    hub.odd, words = ODD_ANSWERS[case]
    assert words in complaint(ready.run("pull", "org/m"))


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer_config.json", "config.json"])
def test_no_more_is_taken_than_the_size_that_was_named(name: str, hub: FakeHub, ready: Trials) -> None:
    hub.odd = sending(200, {}, endless=True, of=f"/{name}")
    line = complaint(ready.run("pull", "org/m"))
    assert f"the hub sends more than the {len(GUIDE[name]):,} bytes that it says a file has" in line
    folder = ready.home / "data" / "models" / "org--m"
    taken = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert taken <= sum(map(len, GUIDE.values())) + 1000


def test_a_small_file_that_is_another_is_found_out(hub: FakeHub, ready: Trials) -> None:
    other = bytes(len(GUIDE["tokenizer_config.json"]))
    hub.odd = sending(200, {}, other, of="/tokenizer_config.json")
    assert "tokenizer_config.json: is not what the hub has (its sha1 differs)" in complaint(ready.run("pull", "org/m"))


def test_a_part_from_elsewhere_in_the_file_is_not_put_behind_what_is_there(hub: FakeHub, ready: Trials) -> None:
    hub.break_after[WEIGHTS] = 100_000
    wrong = sending(206, {"Content-Range": "bytes 7-99/100"}, b"x" * 93, of=WEIGHTS)
    hub.odd = lambda handler, path: "Range" in handler.headers and wrong(handler, path)
    assert "sends another part of a file than was asked for" in complaint(ready.run("pull", "org/m"))
    hub.odd = lambda handler, path: False
    assert ready.run("pull", "org/m").code == 0


def test_a_file_behind_a_redirect_to_another_scheme_is_not_fetched(hub: FakeHub, ready: Trials) -> None:
    hub.odd = sending(302, {"Location": "file:///etc/passwd"}, of=WEIGHTS)
    assert "leads from http to file, which is not followed" in complaint(ready.run("pull", "org/m"))


def test_redirects_that_lead_to_the_file_are_followed(hub: FakeHub, ready: Trials) -> None:
    asked = []

    def moved(handler: BaseHTTPRequestHandler, path: str) -> bool:
        if WEIGHTS not in path or "?moved" in handler.path:
            return False
        asked.append(path)
        return sending(302, {"Location": f"{handler.path}?moved"}, of=WEIGHTS)(handler, path)

    hub.odd = moved
    assert ready.run("pull", "org/m").code == 0
    assert len(asked) == 1


def test_branches_with_names_that_are_none_are_not_shown(hub: FakeHub, ready: Trials) -> None:
    names = ["4.0bpw", "a\nexlchat: all is well", "\x1b[2J", "../..", 7, None]
    content = json.dumps({"branches": [{"name": name} for name in names], "tags": []}).encode()
    hub.odd = sending(200, {}, content, of="/refs")
    line = complaint(ready.run("pull", "org/m@gone"))
    assert "has no revision gone" in line
    assert "all is well" not in line
