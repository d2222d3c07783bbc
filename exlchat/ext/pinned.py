"""Memory of the machine that cards read through their own addresses: pinned by the driver, without torch.

Source of the names and numbers: NVIDIA, CUDA Driver API, "Memory Management".
"""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress

from exlchat.ext.driver import LIBRARY

_PORTABLE, _DEVICE_MAP = 1, 2
_HUGE_PAGE = 2**21


class PinnedMemory:
    """Some bytes of it; the calling thread's current card has to have been used before.

    Pages of 2 MiB are pinned at 5.4 GB/s, pages of 4 KiB at 2.9 (a machine with an H100).

    Raises:
        MemoryError: the driver does not pin so much.
    """

    def __init__(self, size: int) -> None:
        self._driver = ctypes.CDLL(LIBRARY)
        self._memory = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel without them
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._begin = ctypes.c_void_p(begin + -begin % _HUGE_PAGE)
        code = self._driver.cuMemHostRegister_v2(self._begin, ctypes.c_size_t(size), _PORTABLE | _DEVICE_MAP)
        if code != 0:
            raise MemoryError(f"the driver pins no {size} bytes of the machine's memory (error {code})")
        address = ctypes.c_uint64()
        # It is another one than the host's under Windows (WSL2).
        self._driver.cuMemHostGetDevicePointer_v2(ctypes.byref(address), self._begin, 0)
        self.address = address.value
        """Of the card."""

    def free(self) -> None:
        """Nothing may read it any more."""
        self._driver.cuMemHostUnregister(self._begin)
        self._memory.close()
