"""What the Hugging Face hub has of a model, and what can go wrong with asking it, a line each."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import unquote

from exlchat.ui.library.pulled import MAIN, display_name

_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w.][\w./-]*))?", re.ASCII)
# Nothing that runs when it is read: no pickles, no code.
_KINDS = (".safetensors", ".json", ".txt", ".model", ".jinja")
_WEIGHTS = ".safetensors"
_CONFIG = "config.json"
_NOT_READ = {
    ".gguf": "GGUF, which exlchat does not read",
    ".bin": "pickles, which can run code when read, so exlchat refuses them",
    ".pth": "pickles, which can run code when read, so exlchat refuses them",
    ".onnx": "ONNX, which exlchat does not read",
}
_REVISIONS_SHOWN = 12
_LOG_IN = "then log in here: hf auth login (or set HF_TOKEN)"


class PullError(Exception):
    """A model that cannot be fetched: one line that names it, what is wrong and how to mend it."""


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository and a branch, tag or commit of it."""

    repository: str
    revision: str = MAIN

    def __str__(self) -> str:
        return display_name(self.repository, self.revision)


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file; `size` in bytes and `sha256` where the hub gives them."""

    name: str
    size: int | None
    sha256: str | None


@dataclass(frozen=True, slots=True)
class HubModel:
    """The files to be fetched, all of one commit."""

    name: HubName
    commit: str
    files: tuple[HubFile, ...]

    @property
    def bytes(self) -> int:
        """Of all files whose size is known."""
        return sum(file.size or 0 for file in self.files)


def parse_name(text: str) -> HubName:
    """`org/name` or `org/name@revision`. Raises `PullError` for anything else."""
    found = _NAME.fullmatch(text)
    if found is None or ".." in text or "--" in found[1]:
        raise PullError(f"{text[:200]}: no name on Hugging Face; it looks like org/name or org/name@branch")
    return HubName(found[1], found[2] or MAIN)


def look_up(name: HubName, include: Sequence[str] = ()) -> HubModel:
    """Asks the hub what a revision holds.

    Args:
        name: of the model.
        include: patterns, of which a file's name has to match one; no patterns match every name.

    Raises:
        PullError: it is not there, not for this user, not a model that exlchat reads, or the hub cannot be reached.
    """
    from huggingface_hub import HfApi

    with said_in_one_line(name):
        info = HfApi().model_info(name.repository, revision=name.revision, files_metadata=True)
    there = [sibling.rfilename for sibling in info.siblings or ()]
    files = []
    for sibling in info.siblings or ():
        if _wanted(sibling.rfilename, include):
            sha256 = sibling.lfs.sha256 if sibling.lfs is not None else None
            files.append(HubFile(sibling.rfilename, sibling.size, sha256))
    files = files if include else _once(files)
    if not any(file.name.endswith(_WEIGHTS) for file in files):
        raise PullError(_without_weights(name, include, there))
    if not include and _CONFIG not in there:
        raise PullError(f"{name}: {_without_config(there)}")
    return HubModel(name, str(info.sha), tuple(files))


@contextlib.contextmanager
def said_in_one_line(name: HubName) -> Iterator[None]:
    """Turns what huggingface_hub raises into `PullError`."""
    try:
        yield
    except Exception as error:
        line = _hub_line(name, error) or _network_line(error) or _disk_line(error)
        if line is None:
            raise
        raise PullError(f"{name}: {line}") from error


def _hub_line(name: HubName, error: Exception) -> str | None:
    """What the hub has answered. `GatedRepoError` is a kind of `RepositoryNotFoundError`, and all of `OSError`."""
    from huggingface_hub import errors

    line: str | None = None
    match error:
        case errors.GatedRepoError():
            page = f"https://huggingface.co/{name.repository}"
            line = f"only for those who accepted its terms: do that at {page}, {_LOG_IN}"
        case errors.RepositoryNotFoundError():
            line = f"there is no such model on the hub, or it is private; mend the name, or if it is yours, {_LOG_IN}"
        case errors.RevisionNotFoundError():
            line = f"has no revision {name.revision}{_others(name)}"
        case errors.HFValidationError():
            line = "no name on Hugging Face; it looks like org/name or org/name@branch"
        case errors.EntryNotFoundError():
            line = f"the hub names {_file_of(error)} but does not have it; try again later, or another revision"
        case errors.HfHubHTTPError():
            line = _status_line(error.response.status_code)
    return line


def _status_line(status: int) -> str:
    if status == HTTPStatus.UNAUTHORIZED:
        return "the hub does not take the token that is used here; log in anew: hf auth login (or mend HF_TOKEN)"
    if status == HTTPStatus.FORBIDDEN:
        return "the hub refuses it (403); see that the token used here may read it: hf auth login (or set HF_TOKEN)"
    return f"the hub answers {status}; try again later, the same command goes on"


def _file_of(error: Exception) -> str:
    """The last part of the address that was asked for."""
    response = getattr(error, "response", None)
    return unquote(str(response.url).partition("?")[0].rpartition("/")[2]) if response is not None else "a file"


def _network_line(error: Exception) -> str | None:
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set, so nothing is asked of the hub; unset it"
    # The HTTP client is httpx or httpx2, by the version of huggingface_hub.
    away = isinstance(error, ConnectionError | TimeoutError | LocalEntryNotFoundError)
    if not away and not type(error).__module__.startswith("httpx"):
        return None
    return "the hub cannot be reached; see to the network, then the same command goes on"


def _disk_line(error: Exception) -> str | None:
    if not isinstance(error, OSError):
        return None
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full; make room, then the same command goes on"
    reason = (error.strerror or str(error) or type(error).__name__).splitlines()[0].lower()
    return f"cannot be written ({reason}); mend that, then the same command goes on"


def _wanted(file: str, include: Sequence[str]) -> bool:
    """Files of the repository's own folder alone: what lies deeper are other models and copies."""
    if "/" in file or "\\" in file or file.startswith(".") or not file.endswith(_KINDS):
        return False
    return not include or any(fnmatch.fnmatchcase(file, pattern) for pattern in include)


def _once(files: Sequence[HubFile]) -> list[HubFile]:
    """Without Mistral's own copy of the weights beside the one that exlchat reads, which are as many bytes again."""
    rest = [file for file in files if not file.name.startswith("consolidated")]
    return rest if any(file.name.endswith(_WEIGHTS) for file in rest) else list(files)


def _without_config(there: Sequence[str]) -> str:
    if "adapter_config.json" in there:
        return "this is an adapter (LoRA), not a model; pull its base model, or one with the adapter merged into it"
    if "model_index.json" in there:
        return "this is a diffusion model, which makes pictures; exlchat runs language models"
    return (
        "no config.json is there, so it is no model that exlchat reads; look for it as EXL2, GPTQ, AWQ or safetensors"
    )


def _without_weights(name: HubName, include: Sequence[str], there: Sequence[str]) -> str:
    if include:
        return f"{name}: none of its *.safetensors matches {' or '.join(include)}; give another --include"
    others = _others(name)
    if others:
        return f"{name}: no *.safetensors file is there{others}"
    kinds = (kind for ending, kind in _NOT_READ.items() if any(file.endswith(ending) for file in there))
    only = f", only {kind}" if (kind := next(kinds, None)) else ""
    return f"{name}: no *.safetensors file is there{only}; look for the model as EXL2, GPTQ, AWQ or safetensors"


def _others(name: HubName) -> str:
    """The branches and tags, where sizes of EXL2 models often are; empty where there is only this one."""
    from huggingface_hub import HfApi

    try:
        refs = HfApi().list_repo_refs(name.repository)
    except Exception:
        # Said on the way to another error, which matters more.
        return ""
    names = [one.name for one in (*refs.branches, *refs.tags) if one.name != name.revision]
    if not names:
        return ""
    some = ", ".join(names[:_REVISIONS_SHOWN]) + (", ..." if len(names) > _REVISIONS_SHOWN else "")
    return f"; there are {some}: exlchat pull {name.repository}@{names[-1]}"
