"""What NVIDIA's driver says of the cards, without torch: a build must not wait for its import.

Source of the names and numbers: NVIDIA, CUDA Driver API.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from exlchat.ext.targets import Capability

if TYPE_CHECKING:
    import ctypes

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
"""The variable with which a user chooses among the cards; empty, it hides them all."""

LIBRARY = "libcuda.so.1"
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76
_MEMORY_CLOCK = 36  # kHz
_MEMORY_WIDTH = 37  # bits


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver of this machine.

    Args:
        cuda: the newest CUDA it speaks, `(13, 0)`; `None` without a driver.
        cards: the compute capability of each card that this process may use, in the driver's order.
        speeds: bytes a second that the memory of each gives at best.
    """

    cuda: tuple[int, int] | None = None
    cards: tuple[Capability, ...] = ()
    speeds: tuple[int, ...] = ()


def ask_driver() -> Driver:
    """Asks the driver; without one, or without a card, the answer is empty. Takes a few milliseconds."""
    # Not every start asks.
    import ctypes

    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return Driver()
    number = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(number)) != 0:
        return Driver()
    cuda = (number.value // 1000, number.value % 1000 // 10)
    if library.cuInit(0) != 0 or library.cuDeviceGetCount(ctypes.byref(number)) != 0:
        return Driver(cuda)
    count = range(number.value)
    return Driver(
        cuda,
        tuple(_capability(library, index) for index in count),
        tuple(_speed(library, index) for index in count),
    )


def hidden_cards() -> str | None:
    """A line's beginning when a driver is here and `CUDA_VISIBLE_DEVICES` leaves it no card; else `None`.

    Costs nothing where the variable is not set, which is nearly everywhere.
    """
    value = os.environ.get(VISIBLE_DEVICES)
    if value is None:
        return None
    driver = ask_driver()
    if driver.cuda is None or driver.cards:
        return None
    return f"{VISIBLE_DEVICES}={value!r} hides every NVIDIA card; unset it, or name a card in it (0 is the first)"


def _capability(library: ctypes.CDLL, index: int) -> Capability:
    return _attribute(library, index, _CAPABILITY_MAJOR), _attribute(library, index, _CAPABILITY_MINOR)


def _speed(library: ctypes.CDLL, index: int) -> int:
    # Each line of it carries two bits a cycle.
    return 2 * 1000 * _attribute(library, index, _MEMORY_CLOCK) * _attribute(library, index, _MEMORY_WIDTH) // 8


def _attribute(library: ctypes.CDLL, index: int, number: int) -> int:
    import ctypes

    device, value = ctypes.c_int(), ctypes.c_int()
    library.cuDeviceGet(ctypes.byref(device), index)
    library.cuDeviceGetAttribute(ctypes.byref(value), number, device)
    return value.value
