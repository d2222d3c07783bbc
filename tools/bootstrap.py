"""Makes `.venv` ready to run exlchat, or does nothing when it already is.

Only the standard library, and only syntax that older Pythons can parse, so that they get a clear line
instead of a traceback. Every version comes from `constraints.txt`; nothing is built in isolation, so pip
never resolves a second, unpinned torch. The folder carries a stamp: an unfinished set-up is begun afresh,
a finished one is recognised by the hash of the files that define it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "exlchat-setup.json"
LOG = VENV / "setup.log"
INPUTS = (ROOT / "pyproject.toml", ROOT / "constraints.txt")
MINIMUM = (3, 11)
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
DRIVER_FILE = Path("/proc/driver/nvidia/version")


class SetupError(Exception):
    """The set-up cannot go on: one line, or a few, saying what is wrong and how to mend it."""


def say(text: str) -> None:
    """A line of progress, on stderr so that stdout stays free for what is run next."""
    sys.stderr.write(f"exlchat setup: {text}\n")
    sys.stderr.flush()


def fingerprint() -> str:
    """Hash of everything that decides what is installed."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {ROOT}".encode())
    for path in INPUTS:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def read_stamp() -> dict[str, object]:
    """What an earlier run noted in `.venv`; empty when there is none or it cannot be read."""
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(**facts: object) -> None:
    """Replaces the stamp in one step."""
    part = STAMP.with_suffix(".part")
    part.write_text(json.dumps(facts))
    part.replace(STAMP)


def is_ready(stamp: dict[str, object], dev: bool) -> bool:
    """Whether the finished set-up in `.venv` is the one wanted now."""
    card_is_new = stamp.get("torch") == "cpu" and DRIVER_FILE.exists()
    return (
        stamp.get("finished") == fingerprint()
        and (not dev or bool(stamp.get("dev")))
        and not card_is_new
        and (VENV / "bin" / "python").exists()
    )


def has_nvidia_card() -> bool:
    """The driver is loaded; on WSL only nvidia-smi knows."""
    if DRIVER_FILE.exists():
        return True
    tool = shutil.which("nvidia-smi")
    return tool is not None and subprocess.run([tool, "-L"], capture_output=True, check=False).returncode == 0


def require_venv_module() -> None:
    """Debian and Ubuntu ship Python without venv; installs the package where that needs no password typed blindly.

    Raises:
        SetupError: the package is missing and must be installed by hand.
    """
    if importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip"):
        return
    package = f"python3.{sys.version_info[1]}-venv"
    by_hand = f"this Python cannot make virtual environments. Mend it with: sudo apt-get install -y {package}"
    if not shutil.which("apt-get"):
        raise SetupError(f"this Python ({sys.executable}) lacks the modules venv and ensurepip; install them first.")
    if os.geteuid() == 0:
        prefix = []
    elif shutil.which("sudo") and sys.stdin.isatty():
        prefix = ["sudo"]
    else:
        raise SetupError(by_hand)
    say(f"installing {package} with {' '.join([*prefix, 'apt-get'])}")
    environment = ["env", "DEBIAN_FRONTEND=noninteractive"]
    subprocess.run([*prefix, *environment, "apt-get", "update", "-qq"], check=False, stdout=subprocess.DEVNULL)
    install = [*prefix, *environment, "apt-get", "install", "-qq", "-y", "--no-install-recommends", package]
    if subprocess.run(install, check=False, stdout=subprocess.DEVNULL).returncode:
        raise SetupError(by_hand)


class PipProgress:
    """Turns pip's output into one moving line on a terminal, and into a few plain lines elsewhere."""

    BIG = 20_000_000  # bytes; smaller downloads are over before anybody wonders

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()
        self.what = ""
        self.announced = ""

    def feed(self, line: str) -> None:
        """One line of `pip install --progress-bar raw`."""
        words = line.split()
        if not words:
            return
        if words[0] in ("Collecting", "Downloading", "Processing", "Building") and len(words) > 1:
            name = words[1].rsplit("/", 1)[-1]
            self.what = f"{words[0].lower()} {name}"
            self.show(self.what)
        elif words[0] == "Progress" and len(words) == 4 and int(words[3]) > 0:
            done, total = int(words[1]), int(words[3])
            if total >= self.BIG and not self.live and self.announced != self.what:
                self.announced = self.what
                say(f"{self.what} ({total // 1_000_000} MB)")
            self.show(f"{self.what}: {done / 1e6:.0f} of {total / 1e6:.0f} MB")
        elif line.startswith("Installing collected packages"):
            self.what = f"unpacking {line.count(',') + 1} packages"
            self.show(self.what)
            if not self.live:
                say(self.what)

    def show(self, text: str) -> None:
        """Repaints the moving line."""
        if self.live:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write("\r\x1b[2K" + f"  {text}"[:width])
            sys.stderr.flush()

    def close(self) -> None:
        """Clears the moving line."""
        if self.live:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


def pip_install(*arguments: str, raw_progress: bool = True) -> bool:
    """`pip install` in `.venv` under the pinned versions; whether it worked. All output goes to the log."""
    command = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    command += ["--constraint", str(ROOT / "constraints.txt"), *arguments]
    if raw_progress:
        command += ["--progress-bar", "raw"]
    progress = PipProgress()
    log = LOG.open("a")
    pip = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    with log, pip:
        log.write(f"\n$ {' '.join(command)}\n")
        try:
            for line in pip.stdout or ():
                if not line.startswith("Progress "):
                    log.write(line)
                progress.feed(line)
        finally:
            progress.close()
    return pip.returncode == 0


def pinned_torch() -> str:
    """The torch version that `constraints.txt` names."""
    for line in INPUTS[1].read_text().splitlines():
        if line.startswith("torch=="):
            return line.partition("==")[2].strip()
    raise SetupError("constraints.txt pins no torch; it needs a line torch==VERSION.")


def install_torch(flavour: str) -> None:
    """The CUDA build on a machine with a card, else the small CPU build from wherever it can be had.

    Raises:
        SetupError: no build could be installed.
    """
    version = pinned_torch()
    if flavour == "cuda":
        say(f"an NVIDIA card is here: torch {version} with CUDA (about 3 GB to download)")
    else:
        say(f"no NVIDIA card: torch {version} for the CPU (about 200 MB to download)")
        cpu_build = f"torch=={version}+cpu"
        if pip_install(cpu_build) or pip_install(
            cpu_build, "--no-deps", "--index-url", TORCH_CPU_INDEX, "--retries", "1", "--timeout", "15"
        ):
            return
        if platform.machine() in ("x86_64", "AMD64"):
            say(f"{TORCH_CPU_INDEX} gave no CPU build; taking the default one (about 3 GB)")
    if not pip_install(f"torch=={version}"):
        raise SetupError(failed_line("torch"))


def has_nvcc() -> bool:
    """A CUDA toolkit is where exlchat will look for one."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return bool(shutil.which("nvcc") or shutil.which("nvcc", path=os.path.join(home, "bin")))


def install_compiler() -> None:
    """nvcc, with which the CUDA kernels are compiled at the first start. To lack it is no reason to stop here."""
    say("nvcc for the CUDA kernels (about 100 MB to download)")
    if not pip_install("--no-build-isolation", "--editable", ".[build]"):
        say(f"nvcc could not be installed ({LOG.relative_to(ROOT)} says why); exlchat doctor tells what is missing")
    if not shutil.which("g++"):
        say("nvcc needs g++, which is not here. Mend it with: sudo apt-get install -y g++")


def failed_line(what: str) -> str:
    """The error for a pip run that failed, with pip's own words."""
    errors = [line.strip() for line in LOG.read_text(errors="replace").splitlines() if line.startswith("ERROR")]
    reason = f"\n  pip said: {errors[-1][:300]}" if errors else ""
    return (
        f"{what} could not be installed.{reason}\n"
        f"  The whole log is in {LOG.relative_to(ROOT)}. Check the network and the free space, then run the same again."
    )


def make_venv() -> None:
    """A new, empty `.venv`, marked as unfinished before anything else, so that no interruption goes unnoticed.

    Raises:
        SetupError: Python's own venv failed.
    """
    shutil.rmtree(VENV, ignore_errors=True)
    VENV.mkdir()
    write_stamp(finished=None)
    # The real interpreter, not the one of a virtual environment that may just have been removed.
    made = subprocess.run([os.path.realpath(sys.executable), "-m", "venv", str(VENV)], check=False)
    if made.returncode:
        raise SetupError("python -m venv failed; its own message is above.")


def set_up(stamp: dict[str, object], dev: bool) -> None:
    """Makes or completes `.venv`."""
    started = time.monotonic()
    require_venv_module()
    flavour = "cuda" if has_nvidia_card() else "cpu"
    dev = dev or bool(stamp.get("dev"))
    same_base = stamp.get("python") == list(sys.version_info[:2]) and stamp.get("torch") == flavour
    reusable = stamp.get("finished") and same_base
    if not stamp and (VENV / "bin" / "python").exists():
        say("using the .venv that is already here")
    elif not (reusable and (VENV / "bin" / "python").exists()):
        if stamp and not stamp.get("finished"):
            say("the last set-up was not finished; starting it afresh")
        say(f"making .venv with Python {platform.python_version()} (once, a few minutes)")
        make_venv()
    write_stamp(python=list(sys.version_info[:2]), torch=flavour, dev=dev)
    LOG.write_text("")
    if not pip_install("pip", "setuptools", "--upgrade", raw_progress=False):
        raise SetupError(failed_line("pip"))
    install_torch(flavour)
    say("the other libraries and exlchat itself")
    if not pip_install("--no-build-isolation", "--editable", ".[dev]" if dev else "."):
        raise SetupError(failed_line("exlchat"))
    if flavour == "cuda" and not has_nvcc():
        install_compiler()
    write_stamp(python=list(sys.version_info[:2]), torch=flavour, dev=dev, finished=fingerprint())
    say(f"ready after {time.monotonic() - started:.0f} s")


def main() -> int:
    """Entry point; 0 when `.venv` is ready."""
    parser = argparse.ArgumentParser(description="Make .venv ready to run exlchat.")
    parser.add_argument("--dev", action="store_true", help="with the tools for tests and checks")
    dev = parser.parse_args().dev
    if sys.version_info < MINIMUM:
        say(
            f"Python {platform.python_version()} is too old: exlchat needs {MINIMUM[0]}.{MINIMUM[1]} or newer. "
            "With one installed beside it, run for example: make chat PYTHON=python3.12"
        )
        return 1
    stamp = read_stamp()
    if is_ready(stamp, dev):
        return 0
    try:
        set_up(stamp, dev)
    except SetupError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("stopped; run the same again to go on")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
