"""Writes `constraints.txt`: the version, as installed now, of everything that `exlchat[dev]` needs.

Local version labels (torch's `+cpu`) are dropped, because the same pins serve the CUDA build; so are the packages
that only the CUDA build brings, which torch itself pins exactly.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
INSTALLERS = ("pip", "setuptools")
CUDA_ONLY = ("nvidia-", "cuda-", "triton")
HEADER = """\
# Versions that the set-up and CI install, for pip's --constraint. Written by `make pins`; not by hand.
"""


def closure(distribution: str, extras: frozenset[str]) -> dict[str, Version]:
    """Names and versions of `distribution[extras]`'s installed dependencies, without itself."""
    versions: dict[str, Version] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    queue = [(canonicalize_name(distribution), extras)]
    while queue:
        item = queue.pop()
        if item in seen:
            continue
        seen.add(item)
        name, wanted = item
        found = importlib.metadata.distribution(name)
        versions[name] = Version(found.version)
        for text in found.requires or ():
            requirement = Requirement(text)
            applies = requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra}) for extra in ("", *wanted)
            )
            if applies:
                queue.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    del versions[canonicalize_name(distribution)]
    return versions


def main() -> None:
    """Entry point."""
    versions = closure("exlchat", frozenset({"dev"}))
    versions |= {name: Version(importlib.metadata.version(name)) for name in INSTALLERS}
    lines = [
        f"{name}=={version.public}\n" for name, version in sorted(versions.items()) if not name.startswith(CUDA_ONLY)
    ]
    (ROOT / "constraints.txt").write_text(HEADER + "".join(lines))


if __name__ == "__main__":
    main()
