"""Where files live: the user's folders, the data shipped in the package, and the one way to replace a file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import platformdirs

HOME_VARIABLE = "EXLCHAT_HOME"
_APP = "exlchat"
_PACKAGE = Path(__file__).resolve().parent


class FolderError(Exception):
    """A folder or file that cannot be made or written: one line that names it, the reason and how to mend it."""


@dataclass(frozen=True, slots=True)
class Folders:
    """The user's four folders and the files in them. Naming a path makes nothing on disk."""

    config: Path
    data: Path
    state: Path
    cache: Path

    @property
    def settings_file(self) -> Path:
        """What the user set, as TOML."""
        return self.config / "settings.toml"

    @property
    def themes(self) -> Path:
        """The user's own themes, `*.toml`."""
        return self.config / "themes"

    @property
    def templates(self) -> Path:
        """The user's own prompt formats, `*.jinja`."""
        return self.config / "templates"

    @property
    def personas(self) -> Path:
        """The user's own personas, `*.toml`."""
        return self.config / "personas"

    @property
    def presets(self) -> Path:
        """The user's own sampling presets, `*.toml`."""
        return self.config / "presets"

    @property
    def conversations(self) -> Path:
        """The conversation database."""
        return self.data / "conversations.db"

    @property
    def models(self) -> Path:
        """Models that were downloaded, a folder each."""
        return self.data / "models"

    @property
    def model_memory(self) -> Path:
        """What is remembered of each model, as JSON."""
        return self.state / "models.json"

    @property
    def state_file(self) -> Path:
        """What the program remembers by itself, as JSON."""
        return self.state / "state.json"


def folders() -> Folders:
    """The folders in force now: all under `EXLCHAT_HOME` when it is set, else where the platform puts them.

    Raises:
        FolderError: there is no home folder to put them in.
    """
    home = os.environ.get(HOME_VARIABLE)
    if home:
        root = expanded(home)
        if root.parts[0].startswith("~"):
            raise FolderError(f"{HOME_VARIABLE} is {home}, and there is no such home folder; write the whole path")
        root = root.absolute()
        return Folders(config=root / "config", data=root / "data", state=root / "state", cache=root / "cache")
    where = platformdirs.PlatformDirs(_APP, appauthor=False)
    try:
        found = Folders(where.user_config_path, where.user_data_path, where.user_state_path, where.user_cache_path)
    except RuntimeError:
        found = None
    # In a container that runs under a number there is none; an older platformdirs leaves a ~ that stands for nothing.
    if found is None or not all(one.is_absolute() for one in (found.config, found.data, found.state, found.cache)):
        raise FolderError(f"there is no home folder to keep anything in; set {HOME_VARIABLE} to a folder")
    return found


def expanded(path: str | Path) -> Path:
    """A path as it was typed, with the home folder in the place of a ~. One that there is not stays, to be named."""
    return Path(os.path.expanduser(path))


def ensure_folder(folder: Path) -> Path:
    """Make `folder` (and its parents) readable by its owner only; an existing one is left as it is.

    Raises:
        FolderError: it cannot be made, or something else has its name.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except FileExistsError:
        raise FolderError(f"{folder} is not a folder; move that file away, or set {HOME_VARIABLE}") from None
    except OSError as error:
        raise FolderError(
            f"{folder} cannot be made ({_reason(error)}); mend its permissions, or set {HOME_VARIABLE} elsewhere"
        ) from None
    return folder


def atomic_write(path: Path, text: str) -> None:
    """Replace `path` by `text` in UTF-8 at once: a reader or a crash sees the old file or the new one, never half.

    A symbolic link stays one and its target is replaced. A new file is readable by its owner only.

    Raises:
        FolderError: the folder or the file cannot be written; the old file is then untouched.
    """
    atomic_write_bytes(path, text.encode("utf-8"))


def atomic_write_bytes(path: Path, data: bytes) -> None:
    """As `atomic_write`, for bytes."""
    atomic_write_pieces(path, (data,))


def atomic_write_pieces(path: Path, pieces: Iterable[bytes]) -> None:
    """As `atomic_write`, for bytes that come piece by piece, and may be of the old file."""
    try:
        target = Path(os.path.realpath(path))
    except UnicodeEncodeError:
        # A name made of a text, where the locale has files named in ASCII.
        raise FolderError(f"{path} cannot be named in this locale; choose another name, or LC_ALL=C.UTF-8") from None
    ensure_folder(target.parent)
    temporary: str | None = None
    try:
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise FolderError(f"{path} cannot be written ({_reason(error)}); mend its permissions or free space") from None


def bundled_model() -> Path:
    """The model directory shipped inside the package."""
    return _PACKAGE / "models" / "guide"


def is_bundled(model: Path) -> bool:
    """Whether this model directory is the one of the package."""
    return model.absolute() == bundled_model()


def shipped_themes() -> Path:
    """The folder of the themes shipped inside the package."""
    return _PACKAGE / "themes"


def shipped_personas() -> Path:
    """The folder of the personas shipped inside the package."""
    return _PACKAGE / "personas"


def shipped_presets() -> Path:
    """The folder of the sampling presets shipped inside the package."""
    return _PACKAGE / "presets"


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
