"""What windows cost that wait on one conversation: one alone, then two on the same database.

    python -m benchmarks.idle [--seconds 60]

Processor time of each program over that minute, on pseudo-terminals of 120 x 40 cells, the bundled model loaded and
nothing running.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

CELLS = 120, 40
_STARTED = 25.0
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    typed = parser.parse_args()
    print("| windows | each, % of a core |\n|--:|---|")
    for count in (1, 2):
        with tempfile.TemporaryDirectory() as home:
            shares = measured(count, home, typed.seconds)
        print(f"| {count} | {', '.join(f'{100 * share:.2f}' for share in shares)} |", flush=True)


def measured(count: int, home: str, seconds: float) -> list[float]:
    """The share of a core that each of so many programs takes."""
    programs = [start(home) for _ in range(count)]
    # Starting and loading are over, whatever else the machine does.
    time.sleep(_STARTED)
    before = [spent(program) for program in programs]
    time.sleep(seconds)
    shares = [(spent(program) - was) / seconds for program, was in zip(programs, before, strict=True)]
    for program in programs:
        program.terminate()
        program.wait()
    return shares


def start(home: str) -> subprocess.Popen[bytes]:
    terminal, program = pty.openpty()
    fcntl.ioctl(program, termios.TIOCSWINSZ, struct.pack("HHHH", CELLS[1], CELLS[0], 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "EXLCHAT_HOME": home}
    command = [sys.executable, "-m", "exlchat", "--device", "cpu"]
    process = subprocess.Popen(command, stdin=program, stdout=program, stderr=program, env=environment)
    os.close(program)
    threading.Thread(target=drain, args=(terminal,), daemon=True).start()
    return process


def drain(terminal: int) -> None:
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:
        os.close(terminal)


def spent(process: subprocess.Popen[bytes]) -> float:
    """Seconds of processor time of a program and of those that it has started."""
    total = 0.0
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) in family(process.pid):
            with open(f"/proc/{entry}/stat", encoding="utf-8") as file:
                fields = file.read().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / _TICKS
    return total


def family(pid: int) -> set[int]:
    found, waiting = {pid}, [pid]
    while waiting:
        one = waiting.pop()
        try:
            with open(f"/proc/{one}/task/{one}/children", encoding="utf-8") as file:
                children = [int(child) for child in file.read().split()]
        except OSError:
            continue
        found.update(children)
        waiting += children
    return found


if __name__ == "__main__":
    main()
