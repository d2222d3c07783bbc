"""`exlchat serve`: a model for other programs, by OpenAI's API over HTTP."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exlchat.cli.options import model_options, not_negative, positive, sampling_group, some_text, voice_options, whole
from exlchat.cli.parser import Parser, about_group
from exlchat.cli.typed_options import StartRefusedError, app_options
from exlchat.llm.request import Rank
from exlchat.server.keys import RANKS
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import complain, print_lines

if TYPE_CHECKING:
    from exlchat.server.keys import Keys

PORT = 8765
_LONGEST_DRAIN = 86_400
_LONGEST_IDLE = 525_600
_ABOUT = """Answer other programs by OpenAI's API: chat completions at
http://127.0.0.1:8765/v1, for whatever speaks to OpenAI and can be told another
address. Nobody else reaches it unless --host says so, and then with a key."""
_EPILOG = """examples:
  exlchat serve guide
  exlchat serve ~/models/llama-3 --port 9000
  exlchat serve --add-key laptop
  exlchat serve MODEL --host 0.0.0.0
  curl http://127.0.0.1:8765/v1/chat/completions -H 'content-type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "Hello"}]}'

exit codes:
  0 ok   1 error   2 usage   130 stopped by ctrl+c   143 by SIGTERM"""


def build_parser() -> Parser:
    parser = Parser("exlchat serve", _ABOUT, _EPILOG, "exlchat serve [MODEL] [options]")
    # Of the chat's options, one that a server has no use for: what does not fit is refused.
    parser.set_defaults(context_policy=None)
    model = parser.add_argument_group("model")
    model.add_argument(
        "model", metavar="MODEL", nargs="?", help="model folder, a name of the library, or the word guide"
    )
    model_options(model)
    model.add_argument(
        "--any-model-name", action="store_true", help="answer as the loaded model whatever model a request names"
    )
    model.add_argument(
        "--load-on-request", action="store_true", help="load another model of the library when a request names it"
    )
    model.add_argument(
        "--unload-after",
        metavar="MINUTES",
        type=positive(_LONGEST_IDLE),
        help="give the model's memory back after so long without a request; the next one loads it again",
    )
    where = parser.add_argument_group("where")
    where.add_argument(
        "--host", metavar="NAME", type=some_text, default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"
    )
    where.add_argument("--port", metavar="N", type=whole(0, 65_535), default=PORT, help=f"default: {PORT}; 0: any")
    where.add_argument("--unix", metavar="PATH", type=Path, help="listen on a Unix socket instead, for this user alone")
    who = parser.add_argument_group("who may ask")
    texts: dict[str, Any] = {"metavar": "NAME", "type": some_text, "action": "append", "default": []}
    who.add_argument("--host-name", **texts, help="a name by which clients call this machine (may be repeated)")
    who.add_argument(
        "--cors-origin",
        **{**texts, "metavar": "URL"},
        help="pages that may ask from a browser, as https://chat.example (may be repeated)",
    )
    who.add_argument("--without-key", action="store_true", help="let everybody ask who reaches --host")
    keys = who.add_mutually_exclusive_group()
    keys.add_argument("--add-key", metavar="NAME", type=some_text, help="make a key, print it this once, and end")
    keys.add_argument("--remove-key", metavar="NAME", type=some_text, help="take a key away, and end")
    keys.add_argument("--list-keys", action="store_true", help="print the names of all keys, and end")
    who.add_argument("--key-rank", choices=RANKS, help="with --add-key: bulk and idle step back (default: api)")
    who.add_argument("--key-answers", metavar="N", type=whole(1), help="with --add-key: at most N answers at a time")
    running = parser.add_argument_group("running")
    running.add_argument(
        "--drain",
        metavar="SECONDS",
        type=not_negative(_LONGEST_DRAIN),
        default=30.0,
        help="when it is stopped, answers have so long to end (default: 30)",
    )
    running.add_argument(
        "--strict-fields",
        action="store_true",
        help="refuse a request with a field that means nothing here, instead of leaving that out",
    )
    running.add_argument("--quiet", action="store_true", help="print no line for each request")
    said = parser.add_argument_group("where requests do not say")
    voice_options(said)
    sampling_group(parser)
    about_group(parser)
    return parser


def run(arguments: Sequence[str]) -> ExitCode:
    """Serves until it is stopped; every failure is one line on stderr and an exit code."""
    parser = build_parser()
    typed = parser.parse_args(arguments)
    for package in ("starlette", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            raise StartRefusedError(f"exlchat serve needs {package}; install it with: pip install 'exlchat[serve]'")
    from exlchat import paths
    from exlchat.server.keys import Keys, KeysError

    keys = Keys(paths.folders().config / "serve-keys.json")
    try:
        done = _about_keys(typed, keys)
        return done if done is not None else _serve(parser, typed, keys)
    except KeysError as error:
        complain(str(error))
        return ExitCode.ERROR


def _about_keys(typed: argparse.Namespace, keys: Keys) -> ExitCode | None:
    """What was asked about keys alone; `None` where nothing was."""
    if typed.add_key is not None:
        rank = Rank[(typed.key_rank or RANKS[0]).upper()]
        return print_lines([keys.add(typed.add_key, rank=rank, answers=typed.key_answers)])
    if typed.key_rank is not None or typed.key_answers is not None:
        raise StartRefusedError("--key-rank and --key-answers are said of a new key; give --add-key NAME, too")
    if typed.remove_key is not None:
        keys.remove(typed.remove_key)
        return ExitCode.OK
    if typed.list_keys:
        return print_lines([str(one) for one in keys.all()])
    return None


def _serve(parser: argparse.ArgumentParser, typed: argparse.Namespace, keys: Keys) -> ExitCode:
    from exlchat.server.guard import Rules
    from exlchat.server.running import Address, BindError, listen

    address = Address(typed.host, typed.port, typed.unix)
    strangers = not address.local and not typed.without_key
    if strangers and not keys.all():
        raise StartRefusedError(
            f"others reach {typed.host}, so clients need a key, and there is none; make one with exlchat serve "
            "--add-key NAME, or let everybody ask with --without-key"
        )
    rules = Rules(
        hosts=tuple(name.lower() for name in (*typed.host_name, typed.host)),
        origins=tuple(typed.cors_origin),
        keys=None if typed.without_key else keys,
        always_keys=strangers,
    )
    options = app_options(parser, typed, typed.model)
    # Before the model is loaded, which takes its time: what cannot be is said at once.
    try:
        bound = listen(address)
    except BindError as error:
        raise StartRefusedError(str(error)) from None
    from exlchat.cli.serve.starting import Start, serve

    return serve(
        Start(
            options,
            address,
            bound,
            rules,
            typed.drain,
            quiet=typed.quiet,
            any_name=typed.any_model_name,
            strict_fields=typed.strict_fields,
            load_on_request=typed.load_on_request,
            unload_after=None if typed.unload_after is None else 60 * typed.unload_after,
        )
    )
