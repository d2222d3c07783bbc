"""The doctor's checks: each a pure function from facts to a finding, so that tests can feed every failure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from exlchat.cli.doctor.facts import MachineFacts
from exlchat.engine.diagnostics import GpuFacts, KernelFacts
from exlchat.ext.targets import OLDEST, Capability, dotted

MINIMUM_PYTHON = (3, 11)
MINIMUM_TORCH = (2, 10)
# The oldest driver for each CUDA major version; NVIDIA, "CUDA Compatibility", table of minor version compatibility.
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
# PyTorch's wheels for drivers older than CUDA 13 and for cards older than Turing.
OLDER_CUDA_INDEX = "https://download.pytorch.org/whl/cu126"
LITTLE_MEMORY = 1 << 30
_WITHOUT = "run without them, slower: --no-ext"
Status = Literal["ok", "warn", "missing"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `mend` says what to do; `essential` marks a lack that exlchat cannot do without."""

    status: Status
    subject: str
    text: str
    mend: str | None = None
    essential: bool = False


Check = Callable[[MachineFacts], Iterator[Finding]]


def check_python(facts: MachineFacts) -> Iterator[Finding]:
    found = ".".join(map(str, facts.python))
    if facts.python >= MINIMUM_PYTHON:
        yield Finding("ok", "Python", found)
    else:
        yield Finding("missing", "Python", f"{found}; exlchat needs 3.11", "install Python 3.11 or newer", True)


def check_torch(facts: MachineFacts) -> Iterator[Finding]:
    version = facts.torch.version
    if version is None:
        mend = f"{facts.pip} install 'torch>=2.10'"
        yield Finding("missing", "torch", f"cannot be imported ({facts.torch.problem})", mend, True)
    elif _numbers(version) < MINIMUM_TORCH:
        mend = f"{facts.pip} install --upgrade torch"
        yield Finding("missing", "torch", f"{version}; exlchat needs 2.10 or newer", mend, True)
    else:
        build = f"built for CUDA {facts.torch.cuda}" if facts.torch.cuda else "CPU build"
        yield Finding("ok", "torch", f"{version}, {build}")


def check_torch_cuda(facts: MachineFacts) -> Iterator[Finding]:
    """A machine with a card but a torch without CUDA: the failure that GPU users meet most."""
    if facts.torch.version is None or facts.torch.cuda is not None or not facts.has_card:
        return
    yield Finding(
        "missing",
        "torch with CUDA",
        "an NVIDIA card is here, but this torch was built without CUDA: models run on the CPU, slowly",
        _reinstall_torch(facts),
    )


def check_driver(facts: MachineFacts) -> Iterator[Finding]:
    """NVIDIA's driver: there, answering, and new enough for torch's CUDA."""
    if not facts.has_card:
        yield Finding("ok", "NVIDIA card", "none here; models run on the CPU")
        return
    driver = facts.driver
    if driver.version is None:
        answer = f"nvidia-smi says: {driver.problem}" if driver.problem else "nvidia-smi is not there"
        mend = (
            "install the driver (Debian: apt install nvidia-driver; Ubuntu: ubuntu-drivers install), then restart the "
            "machine; after an update of the driver a restart alone is often enough"
        )
        yield Finding("missing", "NVIDIA driver", f"a card is here, but {answer}", mend)
        return
    speaks = f", CUDA up to {driver.cuda}" if driver.cuda else ""
    if not _driver_too_old(facts):
        yield Finding("ok", "NVIDIA driver", f"{driver.version}{speaks}")
        return
    major = _numbers(facts.torch.cuda or "")[0]
    newer = f"update the driver to {OLDEST_DRIVER[major]} or newer" if major in OLDEST_DRIVER else "update the driver"
    yield Finding(
        "missing",
        "NVIDIA driver",
        f"{driver.version}{speaks}: too old for this torch, which was built for CUDA {facts.torch.cuda}",
        f"{newer}; or take a torch for the older CUDA: {_reinstall_torch(facts)}",
    )


def check_gpus(facts: MachineFacts) -> Iterator[Finding]:
    for gpu in facts.torch.gpus:
        yield _gpu_finding(gpu, facts)
    if facts.torch.together is not None:
        ways = {True: "what one sends to another arrives", False: "what one sends to another is garbled on the way"}
        mend = None if facts.torch.together else "a model over several goes through the machine's memory, slower"
        yield Finding("ok" if mend is None else "warn", "GPUs together", ways[facts.torch.together], mend)
    if facts.torch.gpus or facts.torch.cuda is None or facts.driver.version is None or _driver_too_old(facts):
        return
    hidden = facts.visible_devices
    if hidden is not None:
        mend = "unset CUDA_VISIBLE_DEVICES, or name a card in it (0 is the first)"
        yield Finding("missing", "GPU", f"hidden from torch by CUDA_VISIBLE_DEVICES={hidden!r}", mend)
    else:
        said = facts.torch.problem or "torch.cuda.is_available() is False"
        yield Finding("missing", "GPU", f"torch finds no usable card ({said})", "restart the machine, then look again")


def check_kernels(facts: MachineFacts) -> Iterator[Finding]:
    if facts.has_card:
        yield from _kernel_findings(facts.kernels)
    else:
        yield Finding("ok", "CUDA kernels", "not needed without an NVIDIA card")


def check_folders(facts: MachineFacts) -> Iterator[Finding]:
    for folder in facts.folders:
        if folder.problem is None:
            yield Finding("ok", f"{folder.name} folder", str(folder.path))
        else:
            mend = "give yourself write permission there, or set EXLCHAT_HOME to a folder of your own"
            yield Finding("missing", f"{folder.name} folder", folder.problem, mend, True)


def check_database(facts: MachineFacts) -> Iterator[Finding]:
    if facts.database.problem is None:
        yield Finding("ok", "conversations", facts.database.text)
    else:
        mend = "until then answers are not kept"
        yield Finding("missing", "conversations", facts.database.problem, mend, True)


def check_settings(facts: MachineFacts) -> Iterator[Finding]:
    """settings.toml, read as the app reads it."""
    if facts.settings.problem is None:
        yield Finding("ok", "settings", facts.settings.text)
    else:
        yield Finding("missing", "settings", facts.settings.problem, "correct the file, or move it away", True)


def check_bundled_model(facts: MachineFacts) -> Iterator[Finding]:
    """The guide, which makes the first start work without a download."""
    if facts.bundled.problem is None:
        yield Finding("ok", "bundled model", facts.bundled.text)
    else:
        yield Finding("missing", "bundled model", facts.bundled.problem, "install exlchat again", True)


def check_terminal(facts: MachineFacts) -> Iterator[Finding]:
    """Colour, size, UTF-8, and the keys that tmux swallows."""
    terminal = facts.terminal
    if not terminal.is_tty:
        yield Finding("ok", "terminal", "none (output goes to a file or a pipe)")
        return
    seen = f"{terminal.name}, {terminal.columns}x{terminal.lines}, {terminal.colours}, {terminal.encoding}"
    troubles: list[tuple[str, str]] = []
    if terminal.name in ("dumb", "unknown"):
        troubles.append(("it cannot move the cursor", "use another terminal, or: exlchat ask"))
    if terminal.encoding.lower().replace("-", "") != "utf8":
        troubles.append(("it does not use UTF-8", "set a UTF-8 locale, for example LANG=C.UTF-8"))
    if terminal.columns < 60 or terminal.lines < 15:
        troubles.append(("it is small", "60x15 or more shows everything"))
    if terminal.tmux_extended_keys == "off":
        troubles.append(("tmux drops shift+enter", "tmux set -s extended-keys on (alt+enter and ctrl+j work anyway)"))
    if not troubles:
        yield Finding("ok", "terminal", seen)
    for trouble, mend in troubles:
        yield Finding("warn", "terminal", f"{seen}; {trouble}", mend)


CHECKS: tuple[Check, ...] = (
    check_python,
    check_torch,
    check_torch_cuda,
    check_driver,
    check_gpus,
    check_kernels,
    check_bundled_model,
    check_folders,
    check_settings,
    check_database,
    check_terminal,
)


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: "2.13.0+cpu" is (2, 13, 0)."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else (0,)


def _driver_too_old(facts: MachineFacts) -> bool:
    """CUDA needs a driver of its own major version or newer; within one, minor versions get along."""
    if facts.torch.cuda is None or facts.driver.cuda is None:
        return False
    return _numbers(facts.driver.cuda)[0] < _numbers(facts.torch.cuda)[0]


def _reinstall_torch(facts: MachineFacts) -> str:
    """The command that puts a CUDA build in place of the present torch, one that the driver can run."""
    command = f"{facts.pip} install --force-reinstall torch"
    driver_cuda = facts.driver.cuda
    if driver_cuda is not None and _numbers(driver_cuda)[0] < max(OLDEST_DRIVER):
        return f"{command} --index-url {OLDER_CUDA_INDEX}"
    return command


def _gpu_finding(gpu: GpuFacts, facts: MachineFacts) -> Finding:
    major, minor = gpu.capability
    gib = 1 << 30
    memory = f"{gpu.free_bytes / gib:.1f} of {gpu.total_bytes / gib:.1f} GiB free"
    rate = "" if gpu.host_rate is None else f"; reads the machine's memory at {gpu.host_rate / 1e9:.1f} GB/s"
    seen = f"{gpu.name}, compute capability {major}.{minor}, {memory}{rate}"
    if not _has_code_for(gpu.capability, facts.torch.architectures):
        older = f"{facts.pip} install --force-reinstall torch --index-url {OLDER_CUDA_INDEX}"
        mend = f"take the build for older cards: {older}"
        return Finding("missing", "GPU", f"{seen}; this torch has no code for it", mend)
    if gpu.free_bytes < LITTLE_MEMORY:
        return Finding("warn", "GPU", seen, "another program holds the memory; nvidia-smi shows which")
    return Finding("ok", "GPU", seen)


def _has_code_for(capability: tuple[int, int], architectures: tuple[str, ...]) -> bool:
    """Machine code (`sm_`) runs on its own major version from its minor on; PTX (`compute_`) on everything newer.

    Source: NVIDIA, CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility".
    """
    if not architectures:
        return True
    for architecture in architectures:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)[af]?", architecture)
        if found is None:
            continue
        built = (int(found[2]), int(found[3]))
        if built <= capability and (found[1] == "compute" or built[0] == capability[0]):
            return True
    return False


def _kernel_findings(kernels: KernelFacts) -> Iterator[Finding]:
    ready = dict(kernels.ready)
    wanted = [card for card in kernels.cards if card >= OLDEST]
    if kernels.problem is None:
        yield Finding("ok", "nvcc", kernels.compiler)
    else:
        spared = bool(wanted) and all(card in ready for card in wanted)
        yield Finding("warn" if spared else "missing", "nvcc", kernels.problem)
    for card in kernels.cards:
        yield _kernels_for(card, ready.get(card), can_build=kernels.problem is None)
    if kernels.builds:
        count = "1 build" if kernels.builds == 1 else f"{kernels.builds} builds"
        yield Finding("ok", "kernel cache", f"{count}, {kernels.size / 1e6:.1f} MB in {kernels.folder}")


def _kernels_for(card: Capability, library: Path | None, *, can_build: bool) -> Finding:
    name = f"compute capability {dotted(card)}"
    if card < OLDEST:
        return Finding("missing", "CUDA kernels", f"{name} is too old, they need {dotted(OLDEST)}", _WITHOUT)
    if library is not None:
        return Finding("ok", "CUDA kernels", f"ready for {name} ({library})")
    if can_build:
        text = f"not compiled yet for {name}; the first start does it and takes about a minute longer"
        return Finding("warn", "CUDA kernels", text, "compile them now: exlchat build-ext")
    return Finding("missing", "CUDA kernels", f"none for {name}, and nvcc is missing", f"see nvcc; or {_WITHOUT}")
