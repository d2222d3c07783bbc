"""A model from the hub into the library: fetched, resumed, and compared with what the hub says it is.

A file is taken up where an earlier try ended, even one of another run of the program.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

from filelock import FileLock, Timeout

from exlchat import paths
from exlchat.app.library.hub import (
    WEIGHTS,
    HubAnswerError,
    HubFile,
    HubModel,
    PullError,
    answer,
    file_url,
    said_in_one_line,
)
from exlchat.app.library.listing import size_text
from exlchat.app.library.pulled import Marker, folder_for, read_marker, write_marker
from exlchat.engine.formats.methods import check_config
from exlchat.engine.model.architecture import read_spec
from exlchat.engine.weights.files import read_object
from exlchat.llm.info import ModelError
from exlchat.untrusted.files import UntrustedFileError, open_plain

_TRIES = 5
_PAUSE_SECONDS = 1.0
_PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)


class StoppedError(Exception):
    """Another file's transfer has failed, so that this one is not needed now."""


def transfer(url: str, part: Path, size: int, given_up: threading.Event) -> None:
    """Fetches what is missing of a file.

    Args:
        url: of the file on the hub, of one commit.
        part: what is there of it; made if it is not there, and whole afterwards.
        size: in bytes, of which no more are taken.
        given_up: once it is set, nothing more is fetched.

    Raises:
        StoppedError: `given_up` was set.
        HubAnswerError: the hub refuses, or sends something else.
        Exception: of its HTTP client or the disk; `part` then keeps what has come.
    """
    fruitless = 0
    part.touch()
    while (begin := size_on_disk(part)) != size:
        if begin > size:
            part.unlink()
            begin = 0
        try:
            _receive(url, part, begin, size, given_up)
            if size_on_disk(part) == size:
                return
            raise ConnectionError("the connection was cut")
        except Exception as error:
            fruitless = 0 if size_on_disk(part) > begin else fruitless + 1
            if fruitless == _TRIES or not _passes(error):
                raise
        given_up.wait(_PAUSE_SECONDS)


def size_on_disk(path: Path) -> int:
    """In bytes; 0 for what is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _receive(url: str, part: Path, begin: int, size: int, given_up: threading.Event) -> None:
    with answer(url, begin) as response:
        # A server that takes no ranges sends everything.
        resumed = response.status_code == HTTPStatus.PARTIAL_CONTENT
        left = size - begin if resumed else size
        with part.open("ab" if resumed else "wb") as stream:
            for block in response.iter_bytes():
                left -= len(block)
                if left < 0:
                    part.unlink()
                    raise HubAnswerError(f"the hub sends more than the {size:,} bytes that it says a file has")
                stream.write(block)
                if given_up.is_set():
                    raise StoppedError


def _passes(error: Exception) -> bool:
    """Whether it may be another time."""
    if isinstance(error, HubAnswerError):
        return error.status in _PASSING or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    # The HTTP client is httpx or httpx2, by the version of huggingface_hub.
    return isinstance(error, ConnectionError | TimeoutError) or type(error).__module__.startswith("httpx")


Progress = Callable[[str, int, int], None]
"""What is being done, bytes so far, bytes in all."""

_AT_ONCE = 4
_LOOK_EVERY_SECONDS = 0.5
_BLOCK = 1 << 20
_CONFIG = "config.json"
_LOCK = ".exlchat-pull.lock"


def is_there(model: HubModel) -> bool:
    """Whether this commit was fetched whole before and nothing has been taken away since."""
    folder = folder_for(model.name.repository, model.name.revision)
    marker = read_marker(folder)
    if marker is None or not marker.finished or marker.commit != model.commit:
        return False
    return all(size_on_disk(folder / file.name) == file.size for file in model.files)


def fetch(model: HubModel, progress: Progress) -> Path:
    """Brings all files into the model's folder of the library; those that are whole are not fetched again.

    Raises:
        PullError: it cannot be, in one line; files that came whole stay, and the next call goes on behind them.
    """
    folder = folder_for(model.name.repository, model.name.revision)
    try:
        paths.ensure_folder(folder)
        with FileLock(folder / _LOCK, timeout=0):
            _fetch(model, folder, progress)
    except Timeout as error:
        raise PullError(f"{model.name}: another exlchat is fetching it; wait for that one") from error
    except paths.FolderError as error:
        raise PullError(str(error)) from error
    return folder


def _fetch(model: HubModel, folder: Path, progress: Progress) -> None:
    marker = Marker(model.name.repository, model.name.revision, model.commit, finished=False)
    write_marker(folder, marker)
    wanted = {_part(folder, file) for file in model.files}
    for part in set(_parts(folder)) - wanted:
        # Of another commit.
        part.unlink(missing_ok=True)
    whole = _whole(model, folder, progress)
    missing = [file for file in model.files if file not in whole]
    # Small, and it tells whether gigabytes are worth fetching.
    _transfer(model, folder, [file for file in missing if file.name == _CONFIG])
    if any(file.name == _CONFIG for file in model.files):
        _check_config(folder / _CONFIG)
    _see_to_room(model, folder)
    weights = [file for file in missing if file.name.endswith(WEIGHTS)]
    with _watched(model, folder, progress):
        _transfer(model, folder, [file for file in missing if file.name != _CONFIG and file not in weights])
        _transfer(model, folder, weights)
    verify(model, folder, progress, known=whole)
    write_marker(folder, replace(marker, finished=True))


def verify(model: HubModel, folder: Path, progress: Progress, known: Sequence[HubFile] = ()) -> None:
    """Compares every file with the hub's sizes and hashes. One that differs is removed.

    Args:
        model: what should be there.
        folder: where.
        progress: told while large files are read.
        known: files that were compared already.

    Raises:
        PullError: a file is missing or not what it should be.
    """
    done = 0
    for file in model.files:
        path = folder / file.name
        problem = "" if file in known else "is missing"
        if path.is_file() and file not in known:
            problem = _difference(file, path, lambda count: progress("checking", count, model.bytes), done)
        if problem:
            path.unlink(missing_ok=True)
            raise PullError(f"{path}: {problem}; the same command fetches it again")
        done += file.size


def _whole(model: HubModel, folder: Path, progress: Progress) -> list[HubFile]:
    """The files that an earlier call has fetched. What is of another commit, or damaged, is removed."""
    whole = []
    for file in model.files:
        path = folder / file.name
        if not path.is_file():
            continue
        if _difference(file, path, lambda count: progress("checking", count, model.bytes), 0):
            path.unlink()
        else:
            whole.append(file)
    return whole


def _difference(file: HubFile, path: Path, progress: Callable[[int], None], done: int) -> str:
    size = size_on_disk(path)
    if size != file.size:
        return f"has {size:,} bytes of {file.size:,}"
    digest = hashlib.sha256() if len(file.digest) == hashlib.sha256().digest_size * 2 else hashlib.sha1()
    if digest.name == "sha1":
        # As git names what it holds itself.
        digest.update(b"blob %d\0" % size)
    try:
        with open_plain(path) as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
                done += len(block)
                progress(done)
    except (UntrustedFileError, OSError) as error:
        return f"cannot be compared with the hub's ({error})"
    return "" if digest.hexdigest() == file.digest else f"is not what the hub has (its {digest.name} differs)"


def _transfer(model: HubModel, folder: Path, files: Sequence[HubFile]) -> None:
    """Several side by side; each gets its name when it is whole."""
    given_up = threading.Event()

    def one(file: HubFile) -> None:
        part = _part(folder, file)
        part.parent.mkdir(parents=True, exist_ok=True)
        transfer(file_url(model.name.repository, model.commit, file.name), part, file.size, given_up)
        part.replace(folder / file.name)

    with said_in_one_line(model.name), ThreadPoolExecutor(_AT_ONCE) as pool:
        running = [pool.submit(one, file) for file in files]
        try:
            for future in as_completed(running):
                future.result()
        finally:
            given_up.set()
            pool.shutdown(cancel_futures=True)


def _check_config(file: Path) -> None:
    """Raises `PullError` for a model that this version cannot run."""
    try:
        config = read_object(file) or {}
        check_config(config, str(file))
        read_spec(config, str(file))
    except ModelError as error:
        raise PullError(f"{error}; its weights were not fetched") from error


def _see_to_room(model: HubModel, folder: Path) -> None:
    missing = model.bytes - _fetched(model, folder)
    free = shutil.disk_usage(folder).free
    if missing > free:
        raise PullError(
            f"{model.name}: {size_text(missing)} are to be fetched, and {folder.parent} has {size_text(free)} free; "
            "make room there, or take fewer bits"
        )


@contextmanager
def _watched(model: HubModel, folder: Path, progress: Progress) -> Iterator[None]:
    """Inside, tells how much has come, by what lies on the disk: files are fetched side by side."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_EVERY_SECONDS):
            progress("fetching", min(_fetched(model, folder), model.bytes), model.bytes)

    thread = threading.Thread(target=look, name="exlchat-pull", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _fetched(model: HubModel, folder: Path) -> int:
    whole = sum(size_on_disk(folder / file.name) for file in model.files)
    return whole + sum(map(size_on_disk, _parts(folder)))


def _parts(folder: Path) -> list[Path]:
    return list(_under_way(folder).glob("*.part"))


def _part(folder: Path, file: HubFile) -> Path:
    """Where a file grows: named for what it will be, so that it is gone on with only as that."""
    return _under_way(folder) / f"{file.name}.{file.digest}.part"


def _under_way(folder: Path) -> Path:
    return folder / ".cache" / "exlchat"
