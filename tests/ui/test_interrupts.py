"""ctrl+c in a stretch of code that catches every exception, as the import of torch does."""

from __future__ import annotations

import signal
import subprocess
import sys

PROGRAM = """
import sys, time
from exlchat.ui.interrupts import ctrl_c_ends_at_once

with ctrl_c_ends_at_once(before=lambda: print("tidied", end="", file=sys.stderr, flush=True)):
    try:
        print("ready", flush=True)
        time.sleep(20)
    except BaseException:
        pass
print("went on", flush=True)
"""


def test_ctrl_c_ends_the_program_although_the_code_catches_everything() -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    program.send_signal(signal.SIGINT)
    rest, stderr = program.communicate(timeout=15)
    assert (program.returncode, rest, stderr) == (130, "", "tidied")
