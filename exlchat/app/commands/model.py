"""What /model does: show, choose and change the model, and remember how it is wanted."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from exlchat.app.chat.session import NotPossibleError
from exlchat.app.commands import action
from exlchat.app.library.memory import NAMES
from exlchat.config.layers import STARTED
from exlchat.config.schema import SETTINGS
from exlchat.llm.info import ModelError
from exlchat.untrusted.sanitize import printable
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.app.view import View

command = partial(action.command, topic="Models")

_SET = "set"
_ABOUT = ("info", "license", "modelfile", "parameters")
"""What ollama's /show takes."""


@command(
    "model",
    "About the model",
    "Show what model is loaded and how; with the NAME or folder of another, load that. /model set NAME VALUE "
    "remembers context, kv_cache, template or system for this model.",
    "/model",
    "[NAME]",
    after="sampling",
    aliases=("/load", "/show", "/info"),
)
def model(view: View, argument: str) -> None:
    """Without an argument show the model; `set NAME VALUE` remembers; anything else is a model to be loaded."""
    words = argument.replace("=", " ", 1).split(None, 2)
    if not words or (argument in _ABOUT and not Path(argument).exists()):
        view.note(_describe(view))
    elif words[0] == _SET and not Path(argument).exists():
        if len(words) < 3:
            raise NotPossibleError(f"/model set needs a name ({', '.join(NAMES)}) and a value, such as context 8192")
        _remember(view, words[1], words[2])
    else:
        try:
            path = view.shelf.choose(argument)
        except ModelError as error:
            raise NotPossibleError(str(error)) from error
        view.models.change_to(path)


command(
    "models",
    "Models",
    "Show the models there are, whether they fit, and load one.",
    "/models",
    keys=("f5",),
    in_lines="List the models there are, and whether they fit; /model NAME loads one.",
    aliases=("/list", "/ls"),
)


def _describe(view: View) -> str:
    info = view.model.info
    remembered = view.shelf.memory.settings_of(Path(info.path)).describe() if info else ""
    kept = f"\nRemembered for this model: {printable(one_line(remembered))}" if remembered else ""
    return f"{printable(view.model.describe())}{kept}"


def _remember(view: View, name: str, value: str) -> None:
    info, session, shelf = view.model.info, view.session, view.shelf
    if info is None:
        raise NotPossibleError("no model is loaded now; set this when one is")
    path = Path(info.path)
    settings = shelf.memory.settings_of(path).with_value(name, value)
    if name == "template" and settings.template is not None:
        view.model.check_template(settings.template)
    shelf.memory.keep(path, settings)
    held = shelf.held(path)
    if name == "template":
        session.use(replace(session.defaults, held=held))
        when = "from the next message on"
    elif name == "system":
        session.use(replace(session.defaults, held=held, system=held.value("system")))
        when = "for new conversations"
    else:
        when = "when it is loaded next; /model and its name loads it again"
    over = held.source(name)
    if over in STARTED:
        when = "at other starts; what was typed on the command line wins in this one"
    elif over == "environment":
        when = f"at other starts; the environment variable {SETTINGS[name].variable} wins in this one"
    view.tell(f"Remembered for {view.model.name}: {name}, {when}")
