"""What the doctor looks at, gathered in one place; the checks themselves ask the machine nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from exlchat import paths
from exlchat.chat.store.conversations import ConversationStore, StoreError
from exlchat.config.files import SettingsError, load_settings
from exlchat.engine.diagnostics import KernelFacts, TorchFacts, ask_kernels, probe_torch
from exlchat.llm.info import ModelError

PCI_DEVICES = Path("/sys/bus/pci/devices")
NVIDIA = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")  # VGA and 3D controllers; the vendor's sound and USB functions do not count


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """What nvidia-smi says. `version` is `None` when it cannot be asked; `problem` is then its own line, if any."""

    version: str | None = None
    cuda: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """One of the user's folders; `problem` says why it cannot be written."""

    name: str
    path: Path
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Tried:
    """Something that was opened as the app opens it: `text` says what was found, `problem` what went wrong."""

    text: str = ""
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class TerminalFacts:
    """The terminal on stdout. `tmux_extended_keys` is tmux's own setting, `None` outside tmux."""

    is_tty: bool
    name: str = "unknown"
    columns: int = 80
    lines: int = 24
    colours: str = "256 colours"
    encoding: str = "utf-8"
    tmux_extended_keys: str | None = None


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Everything the checks need. `pip` is the command that installs into this very Python."""

    python: tuple[int, int, int]
    pip: str
    torch: TorchFacts
    driver: DriverFacts
    card_on_bus: bool
    visible_devices: str | None
    kernels: KernelFacts
    folders: tuple[FolderFacts, ...]
    settings: Tried
    database: Tried
    bundled: Tried
    terminal: TerminalFacts

    @property
    def has_card(self) -> bool:
        """An NVIDIA card is on the bus, or a driver answers for one (on WSL only the driver shows)."""
        return self.card_on_bus or self.driver.version is not None or bool(self.torch.gpus)


def gather() -> MachineFacts:
    """Asks the machine; takes a second or two, because torch is imported."""
    where = paths.folders()
    torch = probe_torch()
    return MachineFacts(
        python=sys.version_info[:3],
        pip=f"{sys.executable} -m pip",
        torch=torch,
        driver=ask_driver(),
        card_on_bus=card_on_bus(PCI_DEVICES),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        kernels=ask_kernels(where.cache),
        folders=(
            try_folder("config", where.config),
            try_folder("data", where.data),
            try_folder("state", where.state),
            try_folder("cache", where.cache),
        ),
        settings=try_settings(where.settings_file),
        database=try_database(where.conversations),
        bundled=try_model(paths.bundled_model()) if torch.version else Tried("not looked at, for want of torch"),
        terminal=ask_terminal(),
    )


def ask_driver() -> DriverFacts:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return DriverFacts()
    try:
        asked = subprocess.run([tool], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return DriverFacts(problem=f"{type(error).__name__}")
    return read_nvidia_smi(asked.returncode, asked.stdout + asked.stderr)


def read_nvidia_smi(code: int, output: str) -> DriverFacts:
    version = re.search(r"Driver Version:\s*([\d.]+)", output)
    cuda = re.search(r"CUDA(?: UMD)? Version:\s*([\d.]+)", output)
    if code != 0 or version is None:
        lines = output.strip().splitlines()
        return DriverFacts(problem=lines[0] if lines else f"exit code {code}")
    return DriverFacts(version=version[1], cuda=cuda[1] if cuda else None)


def card_on_bus(devices: Path) -> bool:
    """Whether sysfs lists an NVIDIA display device, driver or no driver."""
    for device in devices.glob("*"):
        try:
            vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
        except OSError:
            continue
        if vendor.strip() == NVIDIA and kind.startswith(DISPLAY_CLASSES):
            return True
    return False


def try_folder(name: str, folder: Path) -> FolderFacts:
    """Whether a file can be made in `folder`, which is made as the app would make it."""
    try:
        paths.ensure_folder(folder)
    except paths.FolderError as error:
        return FolderFacts(name, folder, str(error))
    if not os.access(folder, os.W_OK | os.X_OK):
        return FolderFacts(name, folder, f"{folder} cannot be written")
    return FolderFacts(name, folder)


def try_settings(file: Path) -> Tried:
    try:
        load_settings(file)
    except SettingsError as error:
        return Tried(problem=str(error))
    return Tried(str(file) if file.exists() else "none yet; the defaults apply")


def try_database(file: Path) -> Tried:
    """Opens the conversations as the app does, if there are any yet."""
    try:
        if not file.exists():
            return Tried("none yet")
    except OSError as error:
        return Tried(problem=f"{file}: cannot be looked at ({(error.strerror or '').lower()})")
    try:
        store = ConversationStore(file)
        count = len(store.list_conversations())
        store.close()
    except StoreError as error:
        return Tried(problem=str(error))
    return Tried(f"{count} in {file}")


def try_model(folder: Path) -> Tried:
    """Opens the model's files and their headers, without reading the weights."""
    from exlchat.engine.weights.checkpoint import Checkpoint

    try:
        tensors = len(Checkpoint(folder).names)
    except ModelError as error:
        return Tried(problem=str(error))
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    return Tried(f"guide, {tensors} tensors, {size / 1e6:.1f} MB")


def ask_terminal() -> TerminalFacts:
    if not sys.stdout.isatty():
        return TerminalFacts(is_tty=False)
    size = shutil.get_terminal_size()
    name = os.environ.get("TERM", "unknown")
    true_colour = os.environ.get("COLORTERM") in ("truecolor", "24bit")
    few = "256 colours" if "256" in name else "few colours"
    return TerminalFacts(
        is_tty=True,
        name=name,
        columns=size.columns,
        lines=size.lines,
        colours="true colour" if true_colour else few,
        encoding=sys.stdout.encoding,
        tmux_extended_keys=_tmux_extended_keys(),
    )


def _tmux_extended_keys() -> str | None:
    if "TMUX" not in os.environ or shutil.which("tmux") is None:
        return None
    asked = subprocess.run(["tmux", "show", "-sgv", "extended-keys"], capture_output=True, text=True, check=False)
    return asked.stdout.strip() or None
