"""`exlchat [MODEL] [PROMPT]`: the chat app, or the line mode in its place."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from exlchat.cli.options import model_options, prompt_options, remote_options, sampling_group
from exlchat.cli.parser import Parser, about_group
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import complain, print_lines

if TYPE_CHECKING:
    from exlchat.app.options import AppOptions

_USAGE = """exlchat [MODEL] [PROMPT] [options]
       exlchat ask [MODEL] [PROMPT] [options]
       exlchat models [options]
       exlchat personas COMMAND [options]
       exlchat presets COMMAND [options]
       exlchat pull ORG/NAME[@REVISION] [options]
       exlchat remotes COMMAND [options]
       exlchat run FILE -o FILE [options]
       exlchat serve [MODEL] [options]
       exlchat sessions COMMAND [options]
       exlchat themes [COMMAND] [options]
       exlchat bench [MODEL] [options]
       exlchat template list|show|import [options]
       exlchat build-ext [options]
       exlchat config COMMAND [options]
       exlchat convert SOURCE [OUT] [options]
       exlchat evaluate MODEL... [options]
       exlchat completions SHELL
       exlchat doctor"""
_ABOUT = """Chat in the terminal with quantized language models, on your own NVIDIA card or
on the CPU.

  exlchat           open the chat app (F1 in it shows all keys and commands)
  exlchat ask       answer one prompt on standard output, for pipes and scripts
  exlchat models    list the models there are, and whether they fit
  exlchat personas  list, import and export personas and character cards
  exlchat presets   list, show and import sampling presets
  exlchat pull      fetch a model from Hugging Face into the library
  exlchat remotes   keep servers that answer in the place of a model here
  exlchat run       answer a whole file of requests into another file
  exlchat serve     answer other programs by OpenAI's API
  exlchat template  list prompt formats, show exact prompts
  exlchat sessions  list, search, edit, check, export and import conversations
  exlchat themes    list the themes in their colours, begin one of your own
  exlchat build-ext compile the CUDA kernels now, not at the first start
  exlchat config    show, edit and change the settings
  exlchat completions
                    print a script that has bash, zsh or fish complete commands
  exlchat convert   make EXL2 files of a float, GPTQ or AWQ model
  exlchat evaluate  measure what models lose beside the one they were made of
  exlchat bench     measure how fast a model runs here
  exlchat doctor    check this machine: Python, torch, driver, GPU, folders"""
_EPILOG = """examples:
  exlchat                   the model used last, else the bundled guide
  exlchat ~/models/llama-3  a model folder of your own
  exlchat guide             the bundled model, which knows exlchat
  exlchat "What is EXL2?"   begin with this message
  exlchat -c                go on with the most recent conversation
  exlchat --line            chat line by line, in the terminal's own scrollback
  git diff | exlchat ask "Write a commit message for this:"

files:
  settings.toml, themes/, templates/, personas/ and presets/ lie in the config
  folder, the conversations in the data folder; `exlchat doctor` shows where.
  EXLCHAT_HOME=FOLDER puts everything under one folder.

exit codes:
  0 ok   1 error   2 usage   3 the prompt does not fit   130 stopped by ctrl+c"""


def build_parser() -> Parser:
    parser = Parser("exlchat", _ABOUT, _EPILOG, _USAGE)
    model = parser.add_argument_group("model and first message")
    model.add_argument(
        "words",
        metavar="[MODEL] [PROMPT]",
        nargs="*",
        help="folder with an EXL2, GPTQ, AWQ or float model, its name in the library, or the word guide (default: the "
        "last used, else guide); and the first message: alone it is one if it has a space and no model is called so",
    )
    model.add_argument("-m", "--model", metavar="MODEL", help="the model, so that an argument is the first message")
    model_options(model)
    remote_options(model)
    chat = parser.add_argument_group("chat")
    begins = chat.add_mutually_exclusive_group()
    begins.add_argument(
        "-c", "--continue", dest="continue_last", action="store_true", help="open the last conversation"
    )
    begins.add_argument(
        "--incognito", action="store_true", help="keep nothing of what is said: no conversation, no draft, no history"
    )
    chat.add_argument(
        "--line",
        action="store_true",
        help="chat line by line in the terminal's own scrollback, with the same commands and conversations",
    )
    chat.add_argument(
        "--plain",
        action="store_true",
        help="the same for screen readers and simple terminals: nothing is painted twice, no colours, no frames",
    )
    chat.add_argument("--theme", metavar="NAME", help="colours of this start, of exlchat themes list")
    prompt_options(chat)
    sampling_group(parser)
    about_group(parser)
    return parser


def run(arguments: Sequence[str]) -> ExitCode:
    """Opens the app, or the line mode where that was asked for or the terminal draws no app."""
    parser = build_parser()
    typed = parser.parse_words(arguments)
    # What is made until the first screen stands is there to stay. Looking for garbage among it was 11 % of the start.
    gc.disable()
    try:
        return _start(parser, typed)
    finally:
        gc.enable()


def _start(parser: argparse.ArgumentParser, typed: argparse.Namespace) -> ExitCode:
    from dataclasses import replace

    from exlchat.cli.first_message import model_and_message
    from exlchat.cli.typed_options import app_options

    # With a server a word alone is the message: the model is one of that server's.
    named = "" if typed.remote is not None and typed.model is None else typed.model
    model, message = model_and_message(parser, named, typed.words)
    options = app_options(parser, typed, model, theme=typed.theme, continue_last=typed.continue_last, message=message)
    options = replace(options, incognito=typed.incognito)
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
    from exlchat.ui.tui.app import run_app

    return _until_quit(lambda: run_app(options))


def _in_lines(options: AppOptions, why: str | None, *, plain: bool) -> ExitCode:
    """The line mode; `why` it takes the place of the app, where it was not asked for."""
    from dataclasses import replace

    from exlchat.ui.line.run import run_line

    gc.enable()
    if why is not None:
        mode = "exlchat --plain" if plain else "exlchat --line"
        options = replace(options, notices=(f"{why}, which the app needs; this is {mode}", *options.notices))
    return _until_quit(lambda: run_line(options, plain=plain))


def _until_quit(work: Callable[[], int]) -> ExitCode:
    from exlchat.chat.store.conversations import StoreError
    from exlchat.config.themes import ThemeError

    try:
        return ExitCode(work())
    except (ThemeError, StoreError) as error:
        complain(str(error))
        return ExitCode.ERROR


def _is_terminal(stream: object) -> bool:
    """Python sets a standard stream that was closed by the caller to `None`."""
    isatty = getattr(stream, "isatty", None)
    return isatty is not None and bool(isatty())
