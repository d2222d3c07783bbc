"""The front door: parse the command line, call one room, return the exit code.

Nothing here imports torch or textual; `exlchat --version` and a mistyped option answer at once.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from exlchat import paths
from exlchat.app.library.choice import GUIDE
from exlchat.app.options import AppOptions
from exlchat.cli.parsers import ask_parser, build_ext_parser, chat_parser, doctor_parser, models_parser, pull_parser
from exlchat.cli.typed_options import RefusedError, app_options
from exlchat.config.settings import SettingsError
from exlchat.llm.info import ModelError
from exlchat.llm.request import RequestError
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.interrupts import at_a_sudden_end, is_ending, signals_end_in_order
from exlchat.ui.terminal.standard_streams import CLOSED, complain, let_go, print_lines, take_over


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the `exlchat` command; returns the exit code."""
    take_over()
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = _COMMANDS.get(arguments[0]) if arguments else None
    if command is not None and sys.stdout is None:
        complain(CLOSED)
        return ExitCode.ERROR
    at_a_sudden_end(_end_compilers)
    with signals_end_in_order() as ending:
        code = _run(lambda: _chat(arguments) if command is None else command(arguments[1:]))
        if ending.heard is not None:
            let_go()
    return ending.code(code)


def _end_compilers() -> None:
    # No start needs it.
    from exlchat.ext.compiling import end_compilers

    end_compilers()


def _run(command: Callable[[], ExitCode]) -> ExitCode:
    try:
        return command()
    except (ModelError, RequestError, SettingsError, RefusedError, paths.FolderError) as error:
        complain(str(error))
        return ExitCode.ERROR
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


def _chat(arguments: Sequence[str]) -> ExitCode:
    parser = chat_parser()
    typed = parser.parse_args(arguments)
    options = replace(
        app_options(parser, typed, typed.model, theme=typed.theme, continue_last=typed.continue_last),
        context_policy=typed.context_policy,
    )
    if not (_is_terminal(sys.stdin) and _is_terminal(sys.stdout)):
        complain("the chat app needs a terminal for input and output; for pipes and scripts use: exlchat ask")
        return ExitCode.USAGE
    from exlchat.ui.line.choice import cannot_draw, cannot_move_cursor

    # The app draws on stderr; the line mode writes to stdout.
    drawn_on = [stream for stream in (sys.stdout, sys.stderr) if stream is not None]
    why = None if typed.line or typed.plain else cannot_draw(*drawn_on)
    if typed.line or typed.plain or why is not None:
        return _in_lines(options, why, plain=typed.plain or cannot_move_cursor() is not None)
    if not _is_terminal(sys.stderr):
        # The line goes to stdout, because that is where somebody looks.
        print_lines(["exlchat: the chat app draws on standard error; start it without redirecting that"])
        return ExitCode.USAGE
    # What is made until the first screen stands is there to stay. Looking for garbage among it was 11 % of the start.
    gc.disable()
    from exlchat.ui.tui.app import run_app

    return _until_quit(lambda: run_app(options))


def _in_lines(options: AppOptions, why: str | None, *, plain: bool) -> ExitCode:
    """The line mode; `why` it takes the place of the app, where it was not asked for."""
    from exlchat.ui.line.run import run_line

    if why is not None:
        mode = "exlchat --plain" if plain else "exlchat --line"
        options = replace(options, notices=(f"{why}, which the app needs; this is {mode}", *options.notices))
    return _until_quit(lambda: run_line(options, plain=plain))


def _until_quit(run: Callable[[], int]) -> ExitCode:
    from exlchat.chat.store.conversations import StoreError
    from exlchat.config.themes import ThemeError

    try:
        return ExitCode(run())
    except (ThemeError, StoreError) as error:
        complain(str(error))
        return ExitCode.ERROR


def _ask(arguments: Sequence[str]) -> ExitCode:
    parser = ask_parser()
    typed = parser.parse_args(arguments)
    model, prompt = model_and_prompt(parser, typed.model, typed.words)
    _require_sense(parser, typed, prompt)
    from exlchat.ui.headless.ask import AskOptions, run_ask

    app = replace(app_options(parser, typed, model), context_policy=typed.context_policy)
    return run_ask(
        AskOptions(
            app,
            prompt,
            jsonl=typed.jsonl,
            save=typed.save,
            conversation=typed.conversation,
            again=typed.again,
            answers=typed.answers,
        )
    )


def _require_sense(parser: argparse.ArgumentParser, typed: argparse.Namespace, prompt: str | None) -> None:
    """Refuses options of `exlchat ask` that contradict each other."""
    if typed.conversation is not None and not typed.save:
        parser.error("--no-save keeps nothing, and -c puts the answer into a conversation; leave one of them out")
    if typed.logprobs and not typed.jsonl:
        parser.error("--logprobs are printed with --jsonl; add that")
    if typed.answers > 1 and typed.again == "continue":
        parser.error("--continue goes on with one answer; leave out --answers, or take --retry")
    if typed.again is None:
        return
    if typed.begin is not None and typed.again == "continue":
        parser.error("--begin begins an answer, and --continue goes on with one; leave one of them out")
    if typed.conversation is None:
        parser.error(f"--{typed.again} needs the conversation: -c ID, or -c last")
    if prompt is not None:
        parser.error(f"--{typed.again} takes no prompt; leave out {prompt[:40]!r}")
    if typed.persona is not None or typed.system is not None:
        parser.error(f"--persona and --system speak from a prompt on, so they do not go with --{typed.again}")


def _build_ext(arguments: Sequence[str]) -> ExitCode:
    typed = build_ext_parser().parse_args(arguments)
    from exlchat.cli.build_ext import BuildExtOptions, run_build_ext

    return run_build_ext(BuildExtOptions(typed.arch, force=typed.force, nvcc=typed.nvcc))


def _bench(arguments: Sequence[str]) -> ExitCode:
    from exlchat.cli.bench.command_line import bench_parser

    parser = bench_parser()
    typed = parser.parse_args(arguments)
    from exlchat.cli.bench import bench_options, run_bench

    return run_bench(bench_options(parser, typed))


def _models(arguments: Sequence[str]) -> ExitCode:
    typed = models_parser().parse_args(arguments)
    from exlchat.cli.models import ModelsOptions, run_models

    app = AppOptions(
        None, device=typed.device, context=typed.context, kv_cache=typed.kv_cache, extension=typed.extension
    )
    return run_models(ModelsOptions(app, typed.folder, as_json=typed.json))


def _pull(arguments: Sequence[str]) -> ExitCode:
    typed = pull_parser().parse_args(arguments)
    from exlchat.cli.models import PullOptions, run_pull

    return run_pull(PullOptions(typed.name, tuple(typed.include)))


def _template(arguments: Sequence[str]) -> ExitCode:
    from exlchat.cli.templates.arguments import template_parser

    typed = template_parser().parse_args(arguments)
    from exlchat.cli.templates.commands import run_template

    return run_template(typed)


def _sessions(arguments: Sequence[str]) -> ExitCode:
    from exlchat.cli.sessions.parser import sessions_parser

    typed = sessions_parser().parse_args(arguments)
    from exlchat.cli.sessions import run_sessions

    return run_sessions(typed)


def _doctor(arguments: Sequence[str]) -> ExitCode:
    doctor_parser().parse_args(arguments)
    from exlchat.cli.doctor import run_doctor

    return run_doctor()


def _personas(arguments: Sequence[str]) -> ExitCode:
    from exlchat.cli.personas.command_line import personas_parser
    from exlchat.cli.personas.commands import run_personas

    parser = personas_parser()
    return run_personas(parser, parser.parse_args(arguments))


def _presets(arguments: Sequence[str]) -> ExitCode:
    from exlchat.cli.presets.command_line import presets_parser
    from exlchat.cli.presets.commands import run_presets

    parser = presets_parser()
    return run_presets(parser, parser.parse_args(arguments))


def _config(arguments: Sequence[str]) -> ExitCode:
    from exlchat.cli.config.command_line import config_parser

    typed = config_parser().parse_args(arguments)
    from exlchat.cli.config.commands import run_config

    return run_config(typed)


def _themes(arguments: Sequence[str]) -> ExitCode:
    from exlchat.cli.themes.command_line import themes_parser

    typed = themes_parser().parse_args(arguments)
    from exlchat.cli.themes.commands import run_themes

    return run_themes(typed)


_COMMANDS: dict[str, Callable[[Sequence[str]], ExitCode]] = {
    "ask": _ask,
    "bench": _bench,
    "build-ext": _build_ext,
    "config": _config,
    "doctor": _doctor,
    "models": _models,
    "personas": _personas,
    "presets": _presets,
    "pull": _pull,
    "template": _template,
    "sessions": _sessions,
    "themes": _themes,
}


def model_and_prompt(
    parser: argparse.ArgumentParser, model: str | None, words: Sequence[str]
) -> tuple[str | None, str | None]:
    """Which of the free arguments is which."""
    if len(words) > (2 if model is None else 1):
        parser.error("too many arguments; put the prompt in quotes")
    if model is not None:
        return model, words[0] if words else None
    if len(words) == 2:
        return words[0], words[1]
    if words and (words[0] == GUIDE or _is_folder(words[0])):
        return words[0], None
    return None, words[0] if words else None


def _is_folder(text: str) -> bool:
    try:
        # An empty prompt, as an unset shell variable gives, is not the current folder.
        return bool(text) and paths.expanded(text).is_dir()
    except (OSError, ValueError):
        # A long prompt is no possible file name.
        return False


def _is_terminal(stream: object) -> bool:
    """Python sets a standard stream that was closed by the caller to `None`."""
    isatty = getattr(stream, "isatty", None)
    return isatty is not None and bool(isatty())


if __name__ == "__main__":
    sys.exit(main())
