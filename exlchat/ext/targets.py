"""Which cards a library is built for, and which cards a built one runs on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from exlchat.ext.errors import BuildError

Capability = tuple[int, int]

OLDEST: Capability = (7, 5)
"""Turing: the first cards with the 8-bit and 16-bit `mma` and `ldmatrix` instructions that the kernels use."""
HOPPER: Capability = (9, 0)
"""Has instructions that no other card has, and that code for "sm_90" alone may not use."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Machine code for each of `capabilities`; with `ptx`, the last one's PTX too, which newer cards can compile."""

    capabilities: tuple[Capability, ...]
    ptx: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """nvcc's names of what is produced, such as `sm_90a` and `compute_120`."""
        codes = [f"sm_{digits(one)}{'a' if one == HOPPER else ''}" for one in self.capabilities]
        return (*codes, f"compute_{digits(self.capabilities[-1])}") if self.ptx else tuple(codes)

    @property
    def flags(self) -> tuple[str, ...]:
        """nvcc's `-gencode` options."""
        return tuple(f"-gencode=arch=compute_{name.partition('_')[2]},code={name}" for name in self.names)


FAT = Targets(((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (12, 0)), ptx=True)
"""What a wheel holds."""


def targets_for(cards: Iterable[Capability]) -> Targets:
    """Machine code for just these cards.

    Raises:
        BuildError: there is no card, or one that is older than the kernels allow.
    """
    capabilities = tuple(sorted(set(cards)))
    if not capabilities:
        raise BuildError("no card to build for; name an architecture, for example 8.9 for a 40-series card")
    if capabilities[0] < OLDEST:
        raise BuildError(
            f"a card of compute capability {dotted(capabilities[0])} is too old: the CUDA extension needs "
            f"{dotted(OLDEST)} (Turing: GTX 16, RTX 20) or newer"
        )
    return Targets(capabilities)


def parse_capability(text: str) -> Capability:
    """A compute capability written as `8.9`, `89` or `sm_89`.

    Raises:
        ValueError: it is none of these.
    """
    found = re.fullmatch(r"(?:sm_)?(\d{1,2})\.?(\d)", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no compute capability; write it as 8.9, 89 or sm_89")
    return int(found[1]), int(found[2])


def covers(names: Iterable[str], card: Capability) -> bool:
    """Whether a library that holds `names` (see `Targets.names`) runs on `card`.

    Machine code (`sm_`) runs on its own major version from its minor on, with an "a" on its own card alone; PTX
    (`compute_`) on everything newer. Source: NVIDIA, CUDA C++ Programming Guide, "Binary Compatibility", "PTX
    Compatibility" and "Architecture-Specific Features".
    """
    for name in names:
        kind, _, number = name.partition("_")
        built = parse_capability(number.removesuffix("a"))
        alone = number.endswith("a")
        if built == card or (built < card and not alone and (kind == "compute" or built[0] == card[0])):
            return True
    return False


def digits(capability: Capability) -> str:
    """`(8, 9)` as `89`."""
    return f"{capability[0]}{capability[1]}"


def dotted(capability: Capability) -> str:
    """`(8, 9)` as `8.9`."""
    return f"{capability[0]}.{capability[1]}"
