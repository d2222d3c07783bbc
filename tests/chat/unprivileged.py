"""Runs a check as a user whom file permissions bind, because root is not bound by them."""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_NOBODY = 65534


@contextmanager
def public_folder() -> Iterator[Path]:
    """A folder that any user can reach and write."""
    folder = Path(tempfile.mkdtemp(prefix="exlchat-test-"))
    folder.chmod(0o777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def assert_unprivileged(check: Callable[[], None]) -> None:
    """Run `check` in a forked child without root's rights; its failure is a failure here, with its traceback."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        status = 0
        try:
            if os.getuid() == 0:
                os.setgid(_NOBODY)
                os.setuid(_NOBODY)
            check()
        except BaseException:
            os.write(write_end, traceback.format_exc().encode()[-60000:])
            status = 1
        finally:
            os._exit(status)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as report:
        text = report.read().decode()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, text
