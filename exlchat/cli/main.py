"""The front door: finds the subcommand, runs it, returns the exit code.

Nothing here imports torch or textual; `exlchat --version` and a mistyped option answer at once.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Sequence
from importlib import import_module

from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.interrupts import at_a_sudden_end, comes_of_signal, is_ending, signals_end_in_order
from exlchat.ui.terminal.standard_streams import CLOSED, complain, let_go, take_over

CHAT = "exlchat.cli.chat"
COMMANDS = {
    "ask": "exlchat.cli.ask",
    "bench": "exlchat.cli.bench.command",
    "build-ext": "exlchat.cli.build_ext",
    "completions": "exlchat.cli.completions",
    "config": "exlchat.cli.config",
    "convert": "exlchat.cli.convert.command",
    "doctor": "exlchat.cli.doctor.command",
    "evaluate": "exlchat.cli.evaluate.command",
    "models": "exlchat.cli.models",
    "personas": "exlchat.cli.personas",
    "presets": "exlchat.cli.presets",
    "pull": "exlchat.cli.pull",
    "remotes": "exlchat.cli.remotes",
    "run": "exlchat.cli.run.command",
    "serve": "exlchat.cli.serve.command",
    "sessions": "exlchat.cli.sessions.command",
    "template": "exlchat.cli.templates.command",
    "themes": "exlchat.cli.themes.command",
}
"""Each subcommand's module: it has `build_parser()` and `run(arguments)`. One start imports one of them."""
ALIASES = {"chat": CHAT, "list": COMMANDS["models"]}
"""What other programs call the chat and the list of models."""


def program() -> int:
    """`main` for a process of its own."""
    codes: list[int] = []
    # What is registered first comes last.
    atexit.register(_end_beside_threads, codes)
    codes.append(main())
    return codes[0]


def main(argv: Sequence[str] | None = None) -> int:
    take_over()
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = {**COMMANDS, **ALIASES}.get(arguments[0]) if arguments else None
    if command not in (None, CHAT) and sys.stdout is None:
        complain(CLOSED)
        return ExitCode.ERROR
    at_a_sudden_end(_end_compilers)
    with signals_end_in_order() as ending:
        code = _run(CHAT, arguments) if command is None else _run(command, arguments[1:])
        if ending.heard is not None:
            let_go()
    return ending.code(code)


def _end_beside_threads(codes: list[int]) -> None:
    # A load that nobody waits for may still be in C++, where Python's end would break it off: that aborts the process.
    if codes and threading.active_count() > 1:
        let_go()
        os._exit(codes[0])


def _end_compilers() -> None:
    # No start needs it.
    from exlchat.ext.compiling import end_compilers

    end_compilers()


def _run(module: str, arguments: Sequence[str]) -> ExitCode:
    try:
        code: ExitCode = import_module(module).run(arguments)
        return code
    except MemoryError:
        complain("memory ran out; close other programs, raise the limit of this one (ulimit -v), or ask for less")
        return ExitCode.ERROR
    except KeyboardInterrupt:
        return ExitCode.STOPPED
    except OSError:
        if not is_ending():
            raise
        # The terminal has gone.
        return ExitCode.ERROR
    except Exception as error:
        if isinstance(error, _refusals()):
            complain(str(error))
            return ExitCode.ERROR
        if comes_of_signal(error):
            return ExitCode.STOPPED
        raise


def _refusals() -> tuple[type[Exception], ...]:
    """Errors that say all in their line. No help needs them."""
    from exlchat.cli.typed_options import StartRefusedError
    from exlchat.config.files import SettingsError
    from exlchat.llm.info import ModelError
    from exlchat.llm.request import RequestError
    from exlchat.paths import FolderError

    return ModelError, RequestError, SettingsError, StartRefusedError, FolderError


if __name__ == "__main__":
    sys.exit(program())
