"""The engine's door: the kernels for one card, found, compiled if need be, and loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from exlchat.ext.build import ensure_library
from exlchat.ext.compiling import OnProgress
from exlchat.ext.driver import Driver, ask_driver
from exlchat.ext.errors import ExtensionError
from exlchat.ext.functions import FUNCTIONS
from exlchat.ext.library import Library, open_library
from exlchat.ext.ops import Kernels
from exlchat.ext.targets import dotted

# cudaError_t; NVIDIA, CUDA Runtime API, "Data types used by CUDA Runtime".
_INSUFFICIENT_DRIVER = 35
_NO_KERNEL_IMAGE = 209


def open_kernels(devices: Sequence[torch.device], cache: Path, *, on_progress: OnProgress | None = None) -> Kernels:
    """The kernels, ready to be launched on some cards.

    Args:
        devices: CUDA devices. Only they are built for: another card of the machine may be too old.
        cache: the folder under which builds are kept.
        on_progress: told how far a build is, at least twice a second. An exception it raises stops the build.

    Raises:
        ExtensionError: the card or the driver is too old, nothing is built and it cannot be, or what is there is not
            exlchat's; one line.
    """
    driver = Driver(ask_driver().cuda, tuple(torch.cuda.get_device_capability(device) for device in devices))
    library = open_library(ensure_library(cache, driver=driver, on_progress=on_progress), FUNCTIONS)
    for device in devices:
        with torch.cuda.device(device):
            check_card(library, driver)
    return Kernels(library)


def check_card(library: Library, driver: Driver) -> None:
    """Asks the library itself whether the current card can run it.

    Raises:
        ExtensionError: it cannot, and why.
    """
    code = library.card_status()
    if code == 0:
        return
    if code == _INSUFFICIENT_DRIVER:
        speaks = f"speaks CUDA {dotted(driver.cuda)}" if driver.cuda else "does not answer"
        raise ExtensionError(
            f"the CUDA kernels in {library.path} were made with CUDA {dotted(library.cuda)}, and the driver here "
            f"{speaks}: update the driver"
        )
    if code == _NO_KERNEL_IMAGE:
        cards = ", ".join(map(dotted, driver.cards))
        raise ExtensionError(
            f"{library.path} has no code for a card of compute capability {cards}; delete its folder, and it is built "
            "again"
        )
    raise ExtensionError(f"the card cannot run the CUDA kernels: {library.error_text(code)} (code {code})")
