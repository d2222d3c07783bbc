"""`exlchat remotes`: servers by name. Results go to standard output, notices and errors to standard error."""

from __future__ import annotations

import argparse
import getpass
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from exlchat.app.library.remotes import NamedRemote, drop, keep, keep_key, named, named_remotes, remote_called
from exlchat.cli.options import some_text, whole
from exlchat.cli.parser import Parser, about_group, add_command, json_option
from exlchat.remote.address import LEVELS, MOST_ADDRESSES, Address, RemoteError
from exlchat.remote.keys import HOW
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import ErrorLines, print_json, print_lines
from exlchat.ui.terminal.typed_text import PromptInputError, read_text
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.remote.engine import RemoteEngine

_ABOUT = """Servers by name, for `exlchat --remote NAME`. They lie in remotes.toml, in the
folder of the settings, without their keys."""
_EPILOG = """examples:
  exlchat remotes find
  exlchat remotes add box http://127.0.0.1:8080
  exlchat remotes add pair http://10.0.0.5:8000 http://10.0.0.6:8000 -m llama
  exlchat remotes key box
  exlchat remotes show box

exit codes:
  0 ok   1 error   2 usage"""
_SHOWN = 200
_LACKS = "not with this server"


def build_parser() -> argparse.ArgumentParser:
    parser = Parser("exlchat remotes", _ABOUT, _EPILOG, "exlchat remotes COMMAND [options]")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, title="commands")
    command = partial(add_command, commands, "exlchat remotes")
    listing = command("list", "", "list the servers that have a name")
    json_option(listing)
    find = command("find", "", "look for servers on this machine, at the ports that they usually take")
    json_option(find)
    add = command("add", "NAME URL...", "give a server a name, or several that have the same model")
    add.add_argument("name", metavar="NAME", help="letters, digits, - and _")
    add.add_argument("urls", metavar="URL", nargs="+", help="its address, as http://127.0.0.1:8080")
    add.add_argument("-m", "--model", metavar="MODEL", type=some_text, help="which of its models")
    add.add_argument("--key", metavar="WHERE", type=some_text, help=f"where its key is kept: {HOW}")
    add.add_argument("--level", metavar="NAME", choices=LEVELS, help="send prompts as ids, text or messages")
    add.add_argument("--context", metavar="N", type=whole(1), help="tokens, where the server does not say how many")
    add.add_argument("--force", action="store_true", help="replace one of the same name")
    remove = command("remove", "NAME", "forget one, with the key that was written for it")
    remove.add_argument("name", metavar="NAME", help="the server")
    key = command("key", "NAME", "type the key of one, or pipe it; it is kept in a file that only you read")
    key.add_argument("name", metavar="NAME", help="the server")
    show = command("show", "NAME|URL", "ask a server what it is, and say what it can do")
    show.add_argument("name", metavar="NAME|URL", help="the server")
    show.add_argument("-m", "--model", metavar="MODEL", type=some_text, help="which of its models")
    show.add_argument("--key", metavar="WHERE", type=some_text, help=f"where its key is kept: {HOW}")
    json_option(show)
    for one in (listing, find, add, remove, key, show, parser):
        about_group(one)
    return parser


def run(arguments: Sequence[str]) -> ExitCode:
    """Run one command. Raises `RemoteError` and `FolderError` in one line."""
    typed = build_parser().parse_args(arguments)
    commands: dict[str, Callable[[], ExitCode]] = {
        "list": lambda: _list(as_json=typed.json),
        "find": lambda: _find(as_json=typed.json),
        "add": lambda: _add(typed),
        "remove": lambda: _remove(typed.name),
        "key": lambda: _key(typed.name),
        "show": lambda: _show(typed),
    }
    return commands[typed.command]()


def _list(*, as_json: bool) -> ExitCode:
    known = named_remotes().values()
    if as_json:
        return print_json([{key: value for key, value in asdict(one).items() if value} for one in known])
    if not known:
        ErrorLines().say("no server has a name; exlchat remotes add NAME URL gives it one, find looks for some")
    width = max((len(one.name) for one in known), default=0)
    return print_lines(f"{one.name:<{width}}  {_described(one)}" for one in known)


def _described(one: NamedRemote) -> str:
    told = [" ".join(Address.parse(url).shown for url in one.urls)]
    told += [one.model] if one.model else []
    told += [f"level {one.level}"] if one.level else []
    told += [f"context {one.context:,}"] if one.context else []
    told += [f"key in {one.key}"] if one.key else []
    return one_line(", ".join(told), _SHOWN)


def _find(*, as_json: bool) -> ExitCode:
    # Only here is somebody looked for.
    from exlchat.remote.finding import PORTS, find

    found = find(PORTS)
    if as_json:
        return print_json(
            [{"url": one.address.shown, "kind": one.kind, "models": list(map(_line, one.models))} for one in found]
        )
    if not found:
        ports = ", ".join(map(str, PORTS))
        ErrorLines().say(f"no server answers on this machine at the ports {ports}")
        return ExitCode.ERROR
    return print_lines(
        f"{one.address.shown}  {one.kind or 'needs a key'}  {', '.join(map(_line, one.models))}".rstrip()
        for one in found
    )


def _line(text: str) -> str:
    return one_line(text, 80)


def _add(typed: argparse.Namespace) -> ExitCode:
    if len(typed.urls) > MOST_ADDRESSES:
        raise RemoteError(f"{len(typed.urls)} addresses; a name has at most {MOST_ADDRESSES}")
    made = NamedRemote(typed.name, tuple(typed.urls), typed.model or "", typed.key or "", typed.level, typed.context)
    if typed.name in named_remotes() and not typed.force:
        raise RemoteError(f"there is a server called {typed.name} already; replace it with --force, or remove it")
    keep(made)
    return ExitCode.OK


def _remove(name: str) -> ExitCode:
    drop(name)
    return ExitCode.OK


def _key(name: str) -> ExitCode:
    # Before somebody types it in vain.
    named(name)
    try:
        if sys.stdin is not None and sys.stdin.isatty():
            key = getpass.getpass(f"The key of {name} (it is not shown): ")
        else:
            key = read_text(None, None if sys.stdin is None else sys.stdin.buffer)
    except (PromptInputError, EOFError):
        raise RemoteError("no key was given; type it, or pipe it in") from None
    return print_lines([str(keep_key(name, key.strip()))])


def _show(typed: argparse.Namespace) -> ExitCode:
    # No other command of these needs it.
    from exlchat.remote.engine import connect

    engine = connect(remote_called(typed.name, model=typed.model, key=typed.key))
    lines = ErrorLines()
    for notice in engine.info.notices:
        lines.say(notice)
    told = _told(engine)
    if typed.json:
        return print_json(told)
    reasons = dict.fromkeys(told.pop(_LACKS).values())
    rows = [f"{name}: {_as_text(value)}" for name, value in told.items() if value not in ("", [])]
    return print_lines([*rows, f"{_LACKS}:", *(f"  {reason}" for reason in reasons)])


def _as_text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else ", ".join(value) if isinstance(value, list) else str(value)


def _told(engine: RemoteEngine) -> dict[str, Any]:
    from exlchat.llm.constraint import KINDS
    from exlchat.llm.sampling import SamplingSettings
    from exlchat.remote.fields import constraints_of, sampling_of
    from exlchat.remote.lacks import NO_SCORES

    server = engine.server
    sampling, held = sampling_of(server.kind), constraints_of(server.kind)
    controls = {control.name for control in fields(SamplingSettings)} | set(KINDS)
    return {
        "url": engine.info.path,
        "kind": server.kind,
        "model": _line(server.model),
        "level": server.level,
        "context": server.context,
        "sampling": sorted(sampling),
        "answers held to": [one.replace("_", " ") for one in sorted(held)],
        # The controls and forms that there are, are above.
        _LACKS: {
            **{name: why for name, why in engine.info.lacks.items() if name not in controls},
            "scores": NO_SCORES,
        },
    }
