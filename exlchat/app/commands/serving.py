"""What /serve does: let other programs ask the model of this chat, show what they ask, and end that."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from exlchat.app.chat.session import NotPossibleError
from exlchat.app.commands import action

if TYPE_CHECKING:
    from exlchat.app.view import View

command = partial(action.command, topic="Models")

_LAST_PORT = 65_535
_USAGE = "/serve takes a PORT such as 8765, HOST:PORT, or off"


@command(
    "serve",
    "Serve other programs",
    "Let other programs ask this model by OpenAI's API, at a PORT or HOST:PORT, and show what they ask; your own "
    "answers go first. /serve off ends it.",
    "/serve",
    "[PORT|off]",
    after="model",
    needs="serving",
    lets_go=("off",),
)
def serve(view: View, argument: str) -> None:
    server = view.serving
    if argument == "off":
        if not server.place:
            raise NotPossibleError("no other program can ask this model; /serve lets them")
        server.stop()
        view.tell("Other programs cannot ask this model any more")
        view.serving_changed()
        return
    if argument or not server.place:
        _start(view, argument)
    view.show_serving()


def _start(view: View, argument: str) -> None:
    server = view.serving
    host, _, port = argument.rpartition(":")
    if not argument:
        server.start()
    elif port.isascii() and port.isdecimal() and int(port) <= _LAST_PORT:
        if host:
            server.start(host.strip("[]"), int(port))
        else:
            server.start(port=int(port))
    else:
        raise NotPossibleError(_USAGE)
    view.tell(f"Other programs reach this model at {server.place}")
    view.serving_changed()
