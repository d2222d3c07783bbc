"""`exlchat completions`: what a shell offers after tab. `shtab` writes the scripts; names are asked for at each tab."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module

import shtab

from exlchat import paths
from exlchat.app.commands.actions import ACTIONS
from exlchat.app.library.memory import ModelMemory
from exlchat.app.library.places import all_models
from exlchat.chat.personas.registry import PERSONAS
from exlchat.chat.presets.registry import PRESETS
from exlchat.chat.prompt.formats.catalog import FORMATS
from exlchat.chat.prompt_format import MODEL_FORMAT, format_files
from exlchat.cli.parser import Parser, about_group
from exlchat.config.files import load_settings
from exlchat.config.schema import SETTINGS
from exlchat.config.themes import read_shelf
from exlchat.llm.controls import CONTROLS
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import print_lines

_ABOUT = """Print a script that has the shell complete what is typed after exlchat: commands,
options, files, and the names of models, personas, presets, prompt formats,
themes and settings."""
_EPILOG = """examples:
  eval "$(exlchat completions bash)"          in ~/.bashrc
  eval "$(exlchat completions zsh)"           in ~/.zshrc, after compinit
  exlchat completions fish > ~/.config/fish/completions/exlchat.fish

exit codes:
  0 ok   1 error   2 usage"""
_SHELLS = ("bash", "zsh", "fish")
_PLAIN = re.compile(r"[\w.@:+,/-]+", re.ASCII)
"""What is put into a command line as it is. Who names a folder `$(...)` has no shell run it at a tab."""


def _models() -> Iterable[str]:
    used = ModelMemory(paths.folders().model_memory).used_models()
    return ["guide", *(one.name for one in all_models(load_settings().model_folders, used))]


def _settings() -> Iterable[str]:
    keys = (f"keys.{action.id}" for action in ACTIONS if action.keys)
    return [*SETTINGS, *keys, *(f"sampling.{name}" for name in CONTROLS)]


_NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "models": _models,
    "personas": lambda: (one.id for one in PERSONAS.all().entries),
    "presets": lambda: (one.id for one in PRESETS.all().entries),
    "settings": _settings,
    "templates": lambda: [MODEL_FORMAT, *(one.name for one in FORMATS), *format_files(paths.folders().templates)],
    "themes": lambda: read_shelf(paths.shipped_themes(), paths.folders().themes).themes,
}
_SENTENCE_END = re.compile(r"\.(?: |$)|: \*")
_OPTIONS = {"model": "models", "persona": "personas", "preset": "presets", "template": "templates", "theme": "themes"}
"""What options are completed with, by what they are kept as."""
_ARGUMENTS = {
    "personas": ("name", "base", "personas"),
    "presets": ("name", "", "presets"),
    "template": ("name", "", "templates"),
    "themes": ("name", "base", "themes"),
    "config": ("key", "", "settings"),
}
"""The same for each command's own: its argument, an option, and with what."""
_OR_FILES = ("models", "personas", "presets", "templates")
"""What can be named by a path as well."""


def build_parser() -> argparse.ArgumentParser:
    parser = Parser("exlchat completions", _ABOUT, _EPILOG, "exlchat completions SHELL [options]")
    parser.add_argument("shell", metavar="SHELL", nargs="?", choices=_SHELLS, help="bash, zsh or fish")
    parser.add_argument(
        "--of", metavar="NAMES", choices=sorted(_NAMES), help=f"only list these, by line: {', '.join(sorted(_NAMES))}"
    )
    about_group(parser)
    return parser


def run(arguments: Sequence[str]) -> ExitCode:
    """Prints the script of a shell, or names. Raises `SettingsError` and `FolderError`, one line."""
    parser = build_parser()
    typed = parser.parse_args(arguments)
    if (typed.shell is None) == (typed.of is None):
        parser.error(f"a shell is needed: {', '.join(_SHELLS)}")
    if typed.of is not None:
        return print_lines(name for name in dict.fromkeys(_NAMES[typed.of]()) if _PLAIN.fullmatch(name))
    return print_lines(shtab.complete(_whole(), typed.shell).split("\n"))


def _whole() -> argparse.ArgumentParser:
    """One parser of all commands, and of the options that the chat has."""
    # It finds this module by its name.
    from exlchat.cli.main import ALIASES, CHAT, COMMANDS

    def parser_of(module: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = import_module(module).build_parser()
        return made

    chat = parser_of(CHAT)
    whole = argparse.ArgumentParser("exlchat", description="Chat in the terminal", parents=[chat], add_help=False)
    # Shells complete commands only where no other words can stand: models stand behind `chat`, `ask` and `-m`.
    for action in whole._get_positional_actions():
        whole._remove_action(action)
    below = whole.add_subparsers(dest="command", parser_class=argparse.ArgumentParser)
    _offer(whole, "")
    for name, module in {**COMMANDS, **ALIASES}.items():
        parser = parser_of(module)
        about = _SENTENCE_END.split(" ".join((parser.description or "").split()))[0]
        made = below.add_parser(name, help=about, description=about, parents=[parser], add_help=False)
        _offer(made, name)
    return whole


def _offer(parser: argparse.ArgumentParser, command: str) -> None:
    """Say what each argument is completed with, in a parser and those below it."""
    argument, base, kind = _ARGUMENTS.get(command, ("", "", ""))
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in set(action.choices.values()):
                _offer(one, command)
            continue
        named = _OPTIONS.get(action.dest) if action.option_strings else None
        if action.dest in (argument, base):
            # A new name is nobody's yet.
            named = None if parser.prog.endswith(" new") and action.dest == argument else kind
        if command in ("", "ask", "chat") and action.dest == "words":
            named = "models"
        if action.dest == "model" and not action.option_strings:
            named = "models"
        if named is not None:
            action.complete = _names(named)  # type: ignore[attr-defined]
        elif action.choices is None and "FILE" in str(action.metavar):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.choices is None and "DIR" in str(action.metavar):
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]


def _names(kind: str) -> shtab.CompleteType:
    """How a shell completes names of one kind. shtab's own way has bash and zsh expand them as if they were typed."""
    files = kind in _OR_FILES
    # shtab has bash treat what functions of such a name find as files.
    function = f"_exlchat_{kind}{'_or_files' if files else ''}"
    asked = f"exlchat completions --of {kind} 2>/dev/null"
    bash = [
        f"{function}() {{",
        "  local name",
        '  while IFS= read -r name; do [[ $name == "$1"* ]] && printf "%s\\n" "$name"; done < <(' + asked + ")",
        *(['  compgen -f -- "$1"'] if files else []),
        "}",
    ]
    zsh = [
        f"{function}() {{",
        "  local -a names",
        f'  names=(${{(f)"$({asked})"}})',
        "  compadd -a names",
        *(["  _files"] if files else []),
        "}",
    ]
    path = "; __fish_complete_path (commandline -ct)" if files else ""
    return {
        "bash": function,
        "zsh": function,
        "fish": f"({asked}{path})",
        "preamble": {"bash": "\n".join(bash), "zsh": "\n".join(zsh)},
    }
