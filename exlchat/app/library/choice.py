"""Which model directory a start of the program means: the one named, the one used last, or the bundled guide.

Only what can be seen without reading weights is checked here, so that a slip of the pen is answered at once;
the engine checks the rest when it loads the model.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from exlchat import paths
from exlchat.app.library.listing import by_name
from exlchat.app.library.places import FoundFolder
from exlchat.engine.weights.folder import check_folder, snapshot_of
from exlchat.llm.info import ModelError
from exlchat.untrusted.text import one_line

GUIDE = "guide"

_WORDS = (
    *("ask", "bench", "build-ext", "config", "convert", "doctor", "evaluate", "list", "models", "personas", "presets"),
    *("pull", "remotes", "run", "serve", "sessions", "template", "themes", GUIDE),
)
_HERE = {
    "cp": "copy its folder",
    "create": "/system, /set and exlchat personas new make a character of any model",
    "delete": "remove its folder; exlchat models says where it lies",
    "export": "exlchat sessions export writes conversations",
    "history": "exlchat sessions list has all conversations",
    "import": "exlchat sessions import reads conversations, exlchat personas import characters",
    "install": "exlchat pull fetches a model",
    "keys": "none are needed: models run on this machine",
    "logs": "exlchat sessions list has all conversations",
    "ls": "exlchat models lists the models",
    "ps": "exlchat doctor shows the card and its memory; a model is loaded while a chat is open",
    "push": "exlchat uploads nothing",
    "rm": "remove its folder; exlchat models says where it lies",
    "roles": "exlchat personas list has the characters",
    "show": "exlchat models says what each model is",
    "start": "exlchat alone opens the chat",
    "stop": "ctrl+q quits the chat, and with it the model",
    "templates": "exlchat template list has the prompt formats, exlchat personas list the characters",
    "update": "exlchat pull fetches what is new of a model",
}
"""Commands of other programs, and what does it here."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
_PATHS = ("/", ".", "~")


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The directory to load, and a line to show when it is not the one the user would expect."""

    path: Path
    notice: str | None = None


def choose_model(
    argument: str | None, *, last_used: Path | None, bundled: Path, library: Callable[[], Sequence[FoundFolder]] = list
) -> ModelChoice:
    """The model that `argument` names; without it the one used last, else the bundled one.

    The word `guide` is the bundled model unless the current folder holds a model of that name. What is no path is
    looked for in the library.

    Raises:
        ModelError: the argument is no model, or several, or the bundled model is not installed.
    """
    if argument is None:
        return _without_argument(last_used, bundled)
    if not argument.strip():
        raise ModelError("the name of the model is empty; give a model folder, or leave it out")
    if argument == GUIDE and not is_model_folder(Path(GUIDE)):
        return ModelChoice(_installed(bundled))
    try:
        path = paths.expanded(argument)
        if not path.exists() and not argument.startswith(_PATHS) and (meant := by_name(argument, library())):
            if meant.problem is not None:
                raise ModelError(meant.problem)
            path = meant.path
        path = path if is_model_folder(path) else snapshot_of(path) or path
        _check(argument, path)
    except (OSError, ValueError) as error:
        # In this order: the file system refuses; a NUL character.
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelError(f"{argument[:200]}: cannot be read as a folder ({reason}); give a model folder") from error
    return ModelChoice(path.resolve())


def model_called(
    name: str, *, last_used: Path | None, bundled: Path, library: Callable[[], Sequence[FoundFolder]] = list
) -> ModelChoice:
    """The model that an answer's record names: a folder of that name, the one used last before all others.

    Raises:
        ModelError: there is none here, or there are several.
    """
    for path in (last_used, bundled):
        if path is not None and path.resolve().name == name and is_model_folder(path):
            return ModelChoice(path)
    shown = one_line(name, 80)
    found = [one.path for one in library() if one.problem is None and one.path.resolve().name == name]
    if not found:
        raise ModelError(f"the model {shown} of this answer is not in the library; give its folder: -m FOLDER")
    if len(found) > 1:
        some = ", ".join(str(path) for path in found[:4])
        raise ModelError(f"several models are called {shown}: {some}; name the one that answered: -m FOLDER")
    return ModelChoice(found[0])


def is_model_folder(path: Path) -> bool:
    return (path / "config.json").is_file()


def _without_argument(last_used: Path | None, bundled: Path) -> ModelChoice:
    if last_used is None:
        return ModelChoice(_installed(bundled))
    if is_model_folder(last_used):
        return ModelChoice(last_used)
    notice = f"the model used last is no longer at {last_used}; this is the bundled guide instead"
    return ModelChoice(_installed(bundled), notice)


def _installed(bundled: Path) -> Path:
    if not is_model_folder(bundled):
        raise ModelError(f"{bundled}: the bundled model is not there; install exlchat again, or give a model folder")
    return bundled


def _check(argument: str, path: Path) -> None:
    if not path.exists() and not path.is_symlink():
        raise ModelError(_missing(argument, path))
    if not is_model_folder(path):
        check_folder(path)


def _missing(argument: str, path: Path) -> str:
    if _HUB_NAME.fullmatch(argument) and not path.parent.exists():
        return (
            f"{argument}: no such folder, and no such model in the library. If it is a name on Hugging Face, download "
            f"it first: exlchat pull {argument}"
        )
    if argument in _HERE:
        return f"{argument}: no such folder, and no such command: {_HERE[argument]}"
    meant = difflib.get_close_matches(argument, _WORDS, n=1)
    if meant:
        return f"{argument}: no such folder; did you mean: exlchat {meant[0]}"
    if any(mark.isspace() for mark in argument.strip()) and "/" not in argument:
        return f'{" ".join(argument.split())[:60]}: no such folder; if it is a question: exlchat ask "QUESTION"'
    near = f" (there is no {path.parent} either)" if not path.parent.exists() else ""
    return f"{path}: no such folder{near}; give the folder that holds config.json and *.safetensors, or: exlchat guide"
