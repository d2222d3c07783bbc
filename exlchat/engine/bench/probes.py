"""What the machine is, how fast its memory copies, and how much memory this process takes."""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from pathlib import Path

import torch

from exlchat import __version__
from exlchat.engine.bench.figures import Setting
from exlchat.engine.placement import free_memory

_COPY_BYTES = {"cuda": 2**31, "cpu": 2**29}
# On a GPU the wait at the end takes some 20 us, and one such copy a millisecond.
_COPIES_A_RUN = {"cuda": 8, "cpu": 1}
_COPY_RUNS = 10


def describe_setting(device: torch.device) -> Setting:
    """Names and versions, and the copy bandwidth measured now with the threads that torch has now."""
    cuda = device.type == "cuda"
    return Setting(
        device=str(device),
        device_name=torch.cuda.get_device_name(device) if cuda else _processor(),
        threads=torch.get_num_threads(),
        exlchat=__version__,
        torch=torch.__version__,
        cuda=torch.version.cuda if cuda else None,
        python=sys.version.split()[0],
        system=f"{platform.system()} {platform.release()}",
        copy_rates=copy_rates(device),
    )


def copy_rates(device: torch.device) -> tuple[float, ...]:
    """Bytes a second of copies far larger than any cache, read and written bytes counted; the first run is dropped."""
    size = min(_COPY_BYTES[device.type], free_memory(device) // 8)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    copies = _COPIES_A_RUN[device.type]
    seconds = []
    for _ in range(_COPY_RUNS + 1):
        start = time.perf_counter()
        for _ in range(copies):
            target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    del source, target
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return tuple(2 * size * copies / run for run in seconds[1:])


class MemoryProbe:
    """The most memory taken since `restart`: allocated by torch on a GPU, resident in the process on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def restart(self) -> None:
        """The peak begins anew at what is taken now."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            # 5 resets the peak resident size of this process (Linux, Documentation/filesystems/proc.rst).
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    @property
    def peak(self) -> int:
        """Bytes."""
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
        return int(found[1]) * 1024 if found else 0

    @property
    def device_used(self) -> int | None:
        """Bytes of a GPU that are taken in all, whoever took them."""
        if self._device.type != "cuda":
            return None
        free, total = torch.cuda.mem_get_info(self._device)
        return int(total - free)


def _processor() -> str:
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return f"{found[1] if found else platform.machine()}, {os.cpu_count()} cores"
