"""`exlchat remotes`: servers that answer in the place of a model here, by names of your own."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from exlchat.app.library.remotes import NamedRemote, drop, keep, named_remotes, remote_called
from exlchat.cli.options import some_text, whole
from exlchat.cli.parser import Parser, about_group, add_command, json_option
from exlchat.remote.address import LEVELS, Address, Remote, RemoteError
from exlchat.remote.http import Http
from exlchat.remote.keys import HOW
from exlchat.remote.server import Server, look_at
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import ErrorLines, print_json, print_lines
from exlchat.untrusted.text import one_line

USUAL_PORTS = {
    8765: "exlchat serve",
    8080: "llama-server",
    9931: "llama-server",
    8000: "vLLM",
    5000: "TabbyAPI",
    11434: "ollama",
    1234: "LM Studio",
}
_ABOUT = f"""Servers that answer in the place of a model here, by names of your own:
exlchat --remote NAME. They are kept in remotes.toml in the config folder; of
a key only where it is: {HOW}."""
_EPILOG = """examples:
  exlchat remotes find
  exlchat remotes add desk http://desk:8000 --key env:DESK_KEY --model qwen3
  exlchat remotes show desk
  exlchat --remote desk

exit codes:
  0 ok   1 error   2 usage"""


def build_parser() -> argparse.ArgumentParser:
    parser = Parser("exlchat remotes", _ABOUT, _EPILOG, "exlchat remotes COMMAND [options]")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, title="commands")
    command = partial(add_command, commands, "exlchat remotes")
    listing = command("list", "", "list the servers that are kept")
    show = command("show", "NAME|URL", "ask a server what it is and can do")
    show.add_argument("name", metavar="NAME|URL", help="one that is kept, or an address")
    add = command("add", "NAME URL", "keep a server, in the place of one of that name")
    add.add_argument("name", metavar="NAME", help="what it is to be called")
    add.add_argument("url", metavar="URL", help="where it is")
    add.add_argument("--model", metavar="NAME", default="", help="which of its models answers (default: the first)")
    add.add_argument("--key", metavar="WHERE", type=some_text, help=f"where its key is kept: {HOW}")
    add.add_argument("--level", choices=LEVELS, help="as what prompts go (default: the best that it can do)")
    add.add_argument("--context", metavar="N", type=whole(1), help="tokens, where it does not say how many it reads")
    remove = command("remove", "NAME", "forget one")
    remove.add_argument("name", metavar="NAME", help="the server")
    find = command("find", "", "look for servers on this machine, at the ports that they usually have")
    for one in (listing, show, find):
        json_option(one)
    for one in (listing, show, add, remove, find, parser):
        about_group(one)
    return parser


def run(arguments: Sequence[str]) -> ExitCode:
    """Run one command; a failure is one line on standard error."""
    typed = build_parser().parse_args(arguments)
    lines = ErrorLines()
    commands: dict[str, Callable[[], ExitCode]] = {
        "list": lambda: _list(lines, as_json=typed.json),
        "show": lambda: _show(typed.name, as_json=typed.json),
        "add": lambda: _add(typed, lines),
        "remove": lambda: _remove(typed.name),
        "find": lambda: _find(lines, as_json=typed.json),
    }
    try:
        return commands[typed.command]()
    except RemoteError as error:
        lines.say(str(error))
        return ExitCode.ERROR


def _list(lines: ErrorLines, *, as_json: bool) -> ExitCode:
    kept = named_remotes().values()
    if as_json:
        return print_json([{"name": one.name, "url": one.url, "model": one.model or None} for one in kept])
    if not kept:
        lines.say("no server is kept; exlchat remotes add NAME URL keeps one, exlchat remotes find looks for some here")
    width = max((len(one.name) for one in kept), default=0)
    return print_lines([f"{one.name:<{width}}  {one_line(' '.join((one.url, one.model)))}" for one in kept])


def _show(wanted: str, *, as_json: bool) -> ExitCode:
    remote = remote_called(wanted)
    told = _told(remote, look_at(remote, Http(remote.address, remote.key)))
    if as_json:
        return print_json(told)
    width = max(map(len, told))
    return print_lines([f"{name:<{width}}  {one_line(str(value), 300)}" for name, value in told.items()])


def _told(remote: Remote, server: Server) -> dict[str, str | int]:
    return {
        "address": remote.address.shown,
        "kind": server.kind,
        "model": server.model,
        "level": server.level,
        "context": server.context,
        **{f"note {number}": notice for number, notice in enumerate(server.notices, 1)},
    }


def _add(typed: argparse.Namespace, lines: ErrorLines) -> ExitCode:
    keep(NamedRemote(typed.name, typed.url, typed.model, typed.key or "", typed.level, typed.context))
    lines.say(f"kept; exlchat --remote {typed.name} chats with it")
    return ExitCode.OK


def _remove(name: str) -> ExitCode:
    drop(name)
    return ExitCode.OK


def _find(lines: ErrorLines, *, as_json: bool) -> ExitCode:
    """Nothing but this machine is asked."""
    with ThreadPoolExecutor(len(USUAL_PORTS)) as threads:
        found = [one for one in threads.map(_at_port, USUAL_PORTS) if one is not None]
    if as_json:
        return print_json(found)
    if not found:
        ports = ", ".join(str(port) for port in USUAL_PORTS)
        lines.say(f"no server answers on this machine at {ports}; exlchat --remote URL takes any address")
    return print_lines([f"{one['address']}  {one['kind']}  {one_line(str(one['model']))}" for one in found])


def _at_port(port: int) -> dict[str, str | int] | None:
    remote = Remote(f"127.0.0.1:{port}", Address("http", "127.0.0.1", port))
    try:
        return _told(remote, look_at(remote, Http(remote.address)))
    except RemoteError:
        return None
