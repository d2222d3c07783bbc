"""The line mode as it is seen in a real terminal, which is tmux."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import uuid
from shlex import join
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from tools.pictures.cells import row_of
from tools.pictures.stage import folders

if TYPE_CHECKING:
    from collections.abc import Callable

    from tools.pictures.cells import Row

_PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.3
_SETTLED_LOOKS = 4


async def line_mode(size: tuple[int, int], question: str) -> tuple[Row, ...]:
    """What is on the screen once the guide has answered a question there."""
    return await asyncio.to_thread(_played, size, question)


def _played(size: tuple[int, int], question: str) -> tuple[Row, ...]:
    columns, rows = size
    server = f"exlchat-picture-{uuid.uuid4().hex[:8]}"

    def tmux(*arguments: str) -> str:
        return subprocess.run(["tmux", "-L", server, *arguments], capture_output=True, check=True, text=True).stdout

    with folders():
        given = {"COLORTERM": "truecolor", "PROMPT_TOOLKIT_COLOR_DEPTH": "DEPTH_24_BIT", "PYTHONPATH": _HERE}
        command = ["env", *(f"{name}={value}" for name, value in given.items()), sys.executable, "-m", "exlchat"]
        tmux(
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            str(columns),
            "-y",
            str(rows),
            join([*command, "--line", "--temperature", "0"]),
        )
        try:
            screen = _settled(tmux, lambda text: "guide" in text)
            tmux("send-keys", "-l", question)
            tmux("send-keys", "Enter")
            screen = _settled(tmux, lambda text: "tokens/s" in text)
        finally:
            tmux("kill-server")
    console = Console(width=columns, force_terminal=True, color_system="truecolor")
    return tuple(row_of(Text.from_ansi(line).render(console), columns) for line in screen.split("\n")[:rows])


def _settled(tmux: Callable[..., str], ready: Callable[[str], bool]) -> str:
    """The screen with its colours, once it is ready and has stopped changing."""
    end, same, before = time.monotonic() + _PATIENCE_SECONDS, 0, ""
    while same < _SETTLED_LOOKS:
        if time.monotonic() > end:
            raise TimeoutError(f"the line mode did not come to rest; it shows:\n{before}")
        time.sleep(_LOOK_SECONDS)
        now = tmux("capture-pane", "-e", "-p")
        same = same + 1 if now == before and ready(tmux("capture-pane", "-p")) else 0
        before = now
    return before


_HERE = os.pathsep.join(sys.path)
