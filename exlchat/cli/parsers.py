"""The command line's words and options, as argparse parsers. What is done with them is decided in `cli.main`."""

from __future__ import annotations

import argparse
from typing import NoReturn

from exlchat import __version__
from exlchat.chat.speech import MOST_LOGPROBS
from exlchat.cli.argument_types import program, some_id, some_text, targets, whole
from exlchat.cli.option_groups import (
    extension_option,
    memory_options,
    model_options,
    prompt_options,
    sampling_group,
    speech_options,
)
from exlchat.llm.request import MOST_ANSWERS
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import complain, print_text
from exlchat.untrusted.text import one_line, visible

_WIDTH = 80
_LONGEST_MISTAKE = 1000

_CHAT_USAGE = """exlchat [MODEL_DIR] [options]
       exlchat ask [MODEL] [PROMPT] [options]
       exlchat models [options]
       exlchat personas COMMAND [options]
       exlchat presets COMMAND [options]
       exlchat pull ORG/NAME[@REVISION] [options]
       exlchat sessions COMMAND [options]
       exlchat themes [COMMAND] [options]
       exlchat bench [MODEL] [options]
       exlchat template list|show|import [options]
       exlchat build-ext [options]
       exlchat config COMMAND [options]
       exlchat doctor"""
_CHAT_ABOUT = """Chat in the terminal with quantized language models, on your own NVIDIA card or
on the CPU.

  exlchat           open the chat app (F1 in it shows all keys and commands)
  exlchat ask       answer one prompt on standard output, for pipes and scripts
  exlchat models    list the models there are, and whether they fit
  exlchat personas  list, import and export personas and character cards
  exlchat presets   list, show and import sampling presets
  exlchat pull      fetch a model from Hugging Face into the library
  exlchat template  list prompt formats, show exact prompts
  exlchat sessions  list, search, edit, check, export and import conversations
  exlchat themes    list the themes in their colours, begin one of your own
  exlchat build-ext compile the CUDA kernels now, not at the first start
  exlchat config    show, edit and change the settings
  exlchat bench     measure how fast a model runs here
  exlchat doctor    check this machine: Python, torch, driver, GPU, folders"""
_CHAT_EPILOG = """examples:
  exlchat                   the model used last, else the bundled guide
  exlchat ~/models/llama-3  a model folder of your own
  exlchat guide             the bundled model, which knows exlchat
  exlchat -c                go on with the most recent conversation
  exlchat --line            chat line by line, in the terminal's own scrollback
  git diff | exlchat ask "Write a commit message for this:"

files:
  settings.toml, themes/, templates/, personas/ and presets/ lie in the config
  folder, the conversations in the data folder; `exlchat doctor` shows where.
  EXLCHAT_HOME=FOLDER puts everything under one folder.

exit codes:
  0 ok   1 error   2 usage   3 the prompt does not fit   130 stopped by ctrl+c"""
_ASK_ABOUT = """Answer one prompt and print only the answer on standard output; progress,
notices and errors go to standard error. The prompt is the argument, standard
input, or both: the argument first, a blank line, then standard input. It begins
a new conversation, or goes on with one that is there (-c)."""
_ASK_EPILOG = """examples:
  exlchat ask "How do I load a model?"
  exlchat ask -m ~/models/llama-3 "Three names for a cat"
  cat notes.txt | exlchat ask "Summarise in one line:" --max-tokens 60
  exlchat ask -c last "And in German?"
  exlchat ask --schema person.json "A made-up person" | jq .name
  exlchat ask --choice yes --choice no "Is this spam?" < mail.txt
  exlchat ask --answers 3 "A name for a cat"
  exlchat ask --jsonl --no-save "Hello" | jq -r 'select(.type=="text").text'

exit codes:
  0 ok   1 error   2 usage   3 the prompt does not fit   130 stopped by ctrl+c"""

_BUILD_EXT_ABOUT = """Compile the CUDA kernels for the cards of this machine, or for those named.
Without this the first start on a card does it. It takes about a minute, needs
nvcc and g++ (pip install 'exlchat[build]' brings nvcc) and no GPU. Standard
output says where the library lies; progress goes to standard error."""
_BUILD_EXT_EPILOG = """examples:
  exlchat build-ext                  for the cards of this machine
  exlchat build-ext --arch 8.6,8.9   for RTX 30 and RTX 40 cards
  exlchat build-ext --arch all       for every supported card, as a wheel has it

exit codes:
  0 ok   1 error   2 usage   130 stopped by ctrl+c"""
_DOCTOR_ABOUT = """Check this machine: a line for each thing, ok, warn or missing, and how to
mend it. The exit code is 1 if something is missing that exlchat cannot do
without."""


_MODELS_ABOUT = """List the models of the folders in settings.toml (model_folders), of the library
that exlchat pull fills, and of the Hugging Face cache: format, bits, size,
context, and whether each fits into the memory that is free now. Only headers
are read."""
_MODELS_EPILOG = """examples:
  exlchat models
  exlchat models --folder ~/models --context 8192 --kv-cache q8
  exlchat models --json | jq -r '.[] | select(.problem == null).name'

exit codes:
  0 ok   1 error   2 usage   130 stopped by ctrl+c"""
_PULL_ABOUT = """Fetch a model from Hugging Face into the library, and see that it is whole:
*.safetensors, *.json, *.txt, *.model and *.jinja files, never pickles or code.
Of EXL2 models each size is often a branch of its own: name it after an @.
Stop at any time; the same command goes on. Standard output says where the
model lies; progress goes to standard error."""
_PULL_EPILOG = """examples:
  exlchat pull turboderp/Llama-3.2-1B-Instruct-exl2@4.0bpw
  exlchat turboderp/Llama-3.2-1B-Instruct-exl2@4.0bpw     chat with it then

exit codes:
  0 ok   1 error   2 usage   130 stopped by ctrl+c"""


class Parser(argparse.ArgumentParser):
    """argparse with mistakes answered in one line instead of the whole usage."""

    def __init__(self, prog: str, description: str, epilog: str | None = None, usage: str | None = None) -> None:
        super().__init__(
            prog=prog,
            usage=usage,
            description=description,
            epilog=epilog,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=_WIDTH, max_help_position=24),
            allow_abbrev=False,
            add_help=False,
        )

    def error(self, message: str) -> NoReturn:
        """Names the mistake and where the options are listed."""
        complain(f"{one_line(visible(message), _LONGEST_MISTAKE)} ({self.prog} --help lists the options)", self.prog)
        raise SystemExit(ExitCode.USAGE)

    def _print_message(self, message: str, file: object = None) -> None:
        """By this argparse writes help and version, to standard output."""
        del file
        if code := print_text(message):
            raise SystemExit(code)


def new_parser(prog: str, about: str, epilog: str | None, usage: str) -> argparse.ArgumentParser:
    """A parser in the manner of this program, for a command that lives in a package of its own."""
    return Parser(prog, about, epilog, usage)


def chat_parser() -> argparse.ArgumentParser:
    """The options of `exlchat [MODEL_DIR]`."""
    parser = Parser("exlchat", _CHAT_ABOUT, _CHAT_EPILOG, _CHAT_USAGE)
    model = parser.add_argument_group("model")
    model.add_argument(
        "model",
        metavar="MODEL_DIR",
        nargs="?",
        help="folder with an EXL2, GPTQ, AWQ or float model, or the word guide (default: the last used, else guide)",
    )
    model_options(model)
    chat = parser.add_argument_group("chat")
    chat.add_argument("-c", "--continue", dest="continue_last", action="store_true", help="open the last conversation")
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


def ask_parser() -> argparse.ArgumentParser:
    """The options of `exlchat ask`."""
    parser = Parser("exlchat ask", _ASK_ABOUT, _ASK_EPILOG, "exlchat ask [MODEL] [PROMPT] [options]")
    model = parser.add_argument_group("prompt and model")
    model.add_argument(
        "words",
        metavar="[MODEL] [PROMPT]",
        nargs="*",
        help="one argument alone is the model if it is a folder or the word guide, else the prompt",
    )
    model.add_argument("-m", "--model", metavar="MODEL", help="model folder, or the word guide")
    model_options(model)
    there = parser.add_argument_group("a conversation that is there")
    there.add_argument(
        "-c",
        "--conversation",
        metavar="ID",
        type=some_id,
        help="ask at the end of this conversation: the beginning of its id, or last",
    )
    again = there.add_mutually_exclusive_group()
    again.add_argument(
        "--retry",
        dest="again",
        action="store_const",
        const="retry",
        help="instead of a prompt: answer the last one again, beside the answer there is",
    )
    again.add_argument(
        "--continue",
        dest="again",
        action="store_const",
        const="continue",
        help="instead of a prompt: go on with the last answer, which was cut or edited",
    )
    answer = parser.add_argument_group("answer")
    answer.add_argument("--jsonl", action="store_true", help="print one JSON object for each event instead of the text")
    answer.add_argument("--no-save", dest="save", action="store_false", help="do not keep this as a conversation")
    answer.add_argument(
        "--logprobs",
        metavar="N",
        type=whole(0, MOST_LOGPROBS),
        help="with --jsonl, print each token with its log-probability and the N likeliest ones there",
    )
    answer.add_argument(
        "--answers",
        metavar="N",
        type=whole(1, MOST_ANSWERS),
        default=1,
        help=f"so many answers, up to {MOST_ANSWERS}, from one reading of the prompt",
    )
    prompt_options(answer)
    speech_options(parser)
    sampling_group(parser)
    about_group(parser)
    return parser


def build_ext_parser() -> argparse.ArgumentParser:
    """The options of `exlchat build-ext`."""
    parser = Parser("exlchat build-ext", _BUILD_EXT_ABOUT, _BUILD_EXT_EPILOG, "exlchat build-ext [options]")
    build = parser.add_argument_group("build")
    build.add_argument(
        "--arch",
        metavar="LIST",
        type=targets,
        help="compute capabilities, such as 8.6,8.9 or 86,89, or all (default: the cards here)",
    )
    build.add_argument("--force", action="store_true", help="build again what is there")
    build.add_argument(
        "--nvcc", metavar="PATH", type=program, help="the CUDA compiler to use (default: the first found)"
    )
    about_group(parser)
    return parser


def models_parser() -> argparse.ArgumentParser:
    """The options of `exlchat models`."""
    parser = Parser("exlchat models", _MODELS_ABOUT, _MODELS_EPILOG, "exlchat models [options]")
    listing = parser.add_argument_group("list")
    listing.add_argument("--folder", metavar="DIR", type=some_text, help="look in and below this folder alone")
    listing.add_argument("--json", action="store_true", help="print JSON")
    fit = parser.add_argument_group("what is to fit")
    memory_options(fit)
    extension_option(fit)
    about_group(parser)
    return parser


def pull_parser() -> argparse.ArgumentParser:
    """The options of `exlchat pull`."""
    parser = Parser("exlchat pull", _PULL_ABOUT, _PULL_EPILOG, "exlchat pull ORG/NAME[@REVISION] [options]")
    model = parser.add_argument_group("model")
    model.add_argument("name", metavar="ORG/NAME[@REVISION]", help="a model on Hugging Face; a branch, tag or commit")
    model.add_argument(
        "--include",
        metavar="GLOB",
        type=some_text,
        action="append",
        default=[],
        help="only files whose names match, such as '*.json' (may be repeated)",
    )
    about_group(parser)
    return parser


def doctor_parser() -> argparse.ArgumentParser:
    """`exlchat doctor` has no options of its own."""
    parser = Parser("exlchat doctor", _DOCTOR_ABOUT, usage="exlchat doctor")
    about_group(parser)
    return parser


def about_group(parser: argparse.ArgumentParser) -> None:
    """The options that every command has."""
    group = parser.add_argument_group("about")
    group.add_argument("-h", "--help", action="help", help="show this and exit")
    group.add_argument(
        "--version", action="version", version=f"exlchat {__version__}", help="show the version and exit"
    )


def add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], program: str, name: str, arguments: str, about: str
) -> argparse.ArgumentParser:
    """A command of a program that has several.

    Args:
        commands: of the program.
        program: as it is typed, as in "exlchat personas".
        name: of the command.
        arguments: what its usage line says after the name; may be empty.
        about: what it does, in a line.
    """
    prog = f"{program} {name}"
    usage = " ".join(part for part in (prog, arguments, "[options]") if part)
    return commands.add_parser(name, help=about, prog=prog, description=about, usage=usage)
