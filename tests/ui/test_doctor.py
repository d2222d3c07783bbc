"""The doctor's checks over given facts: every failure that a GPU user meets has its own line and its own remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from exlchat.cli.doctor import command as reporting
from exlchat.cli.doctor import facts as gathering
from exlchat.cli.doctor.checks import Finding
from exlchat.cli.doctor.command import examine, report_lines
from exlchat.cli.doctor.facts import DriverFacts, FolderFacts, MachineFacts, TerminalFacts, Tried, read_nvidia_smi
from exlchat.engine import diagnostics
from exlchat.engine.diagnostics import GpuFacts, KernelFacts, TorchFacts, ask_kernels, probe_torch
from exlchat.ext.build import build_library
from exlchat.ext.driver import Driver
from exlchat.ext.nvcc import ask_nvcc
from exlchat.ext.record import SOURCES
from exlchat.ext.targets import Targets
from tests.chat.unprivileged import assert_unprivileged, public_folder
from tests.ext.small_library import COMPILES, fake_nvcc

GIB = 1 << 30
CARD = GpuFacts("NVIDIA GeForce RTX 4090", (8, 9), 24 * GIB, 20 * GIB, 25.3e9)
CUDA_13 = TorchFacts("2.13.0", "13.0", (CARD,), ("sm_75", "sm_80", "sm_86", "sm_90", "sm_120"))
CPU_BUILD = TorchFacts("2.13.0+cpu")
NEW_DRIVER = DriverFacts("580.95.05", "13.0")

GPU_MACHINE = MachineFacts(
    python=(3, 12, 4),
    pip="python -m pip",
    torch=CUDA_13,
    driver=NEW_DRIVER,
    card_on_bus=True,
    visible_devices=None,
    kernels=KernelFacts("13.0.88 (nvcc)", cards=((8, 9),), ready=(((8, 9), Path("made.so")),)),
    folders=(FolderFacts("data", Path("data")),),
    settings=Tried("none yet"),
    database=Tried("none yet"),
    bundled=Tried("guide"),
    terminal=TerminalFacts(is_tty=False),
)
CPU_MACHINE = replace(
    GPU_MACHINE, torch=CPU_BUILD, driver=DriverFacts(), card_on_bus=False, kernels=KernelFacts(problem="no nvcc")
)


def wrong(facts: MachineFacts) -> list[Finding]:
    return [finding for finding in examine(facts) if finding.status != "ok"]


def only(facts: MachineFacts) -> Finding:
    findings = wrong(facts)
    assert len(findings) == 1, findings
    return findings[0]


@pytest.mark.parametrize("facts", [GPU_MACHINE, CPU_MACHINE], ids=["gpu", "cpu"])
def test_a_sound_machine_has_nothing_to_mend(facts: MachineFacts) -> None:
    assert wrong(facts) == []


def test_the_card_is_shown_with_capability_and_memory() -> None:
    line = next(finding for finding in examine(GPU_MACHINE) if finding.subject == "GPU")
    assert line.text == (
        "NVIDIA GeForce RTX 4090, compute capability 8.9, 20.0 of 24.0 GiB free; "
        "reads the machine's memory at 25.3 GB/s"
    )


def test_torch_without_cuda_on_a_machine_with_a_card() -> None:
    found = only(replace(GPU_MACHINE, torch=CPU_BUILD))
    assert found.subject == "torch with CUDA"
    assert found.mend == "python -m pip install --force-reinstall torch"
    assert not found.essential  # it still runs, on the CPU


def test_torch_without_cuda_and_an_older_driver_gets_a_build_that_the_driver_can_run() -> None:
    found = only(replace(GPU_MACHINE, torch=CPU_BUILD, driver=DriverFacts("550.54", "12.4")))
    assert found.mend is not None
    assert found.mend.endswith("--index-url https://download.pytorch.org/whl/cu126")


def test_driver_too_old() -> None:
    torch = replace(CUDA_13, gpus=(), problem="The NVIDIA driver on your system is too old")
    found = only(replace(GPU_MACHINE, torch=torch, driver=DriverFacts("535.104.05", "12.2")))
    assert found.subject == "NVIDIA driver"
    assert "535.104.05, CUDA up to 12.2: too old for this torch, which was built for CUDA 13.0" in found.text
    assert found.mend is not None
    assert "580 or newer" in found.mend
    assert "cu126" in found.mend


def test_within_one_cuda_major_version_an_older_driver_will_do() -> None:
    torch = replace(CUDA_13, cuda="13.2")
    assert wrong(replace(GPU_MACHINE, torch=torch)) == []


def test_card_without_a_driver() -> None:
    found = only(replace(GPU_MACHINE, driver=DriverFacts(), torch=replace(CUDA_13, gpus=())))
    assert found.subject == "NVIDIA driver"
    assert "nvidia-smi is not there" in found.text


def test_driver_that_does_not_answer_is_quoted() -> None:
    said = "Failed to initialize NVML: Driver/library version mismatch"
    driver = read_nvidia_smi(18, f"{said}\nNVML library version: 580.95\n")
    found = only(replace(GPU_MACHINE, driver=driver, torch=replace(CUDA_13, gpus=())))
    assert said in found.text
    assert "restart" in (found.mend or "")


NO_NVCC = "no CUDA compiler (nvcc) is here; pip install 'exlchat[build]', or install the CUDA toolkit"


def test_without_a_card_the_kernels_are_not_needed() -> None:
    lines = {finding.subject: finding.text for finding in examine(CPU_MACHINE)}
    assert lines["NVIDIA card"] == "none here; models run on the CPU"
    assert lines["CUDA kernels"] == "not needed without an NVIDIA card"
    assert "nvcc" not in lines


def test_kernels_that_are_not_compiled_yet_are_compiled_by_the_first_start() -> None:
    found = only(replace(GPU_MACHINE, kernels=replace(GPU_MACHINE.kernels, ready=())))
    assert (found.subject, found.status, found.essential) == ("CUDA kernels", "warn", False)
    assert "not compiled yet for compute capability 8.9; the first start does it" in found.text
    assert found.mend == "compile them now: exlchat build-ext"


def test_no_nvcc_and_no_kernels() -> None:
    compiler, kernels = wrong(replace(GPU_MACHINE, kernels=KernelFacts(problem=NO_NVCC, cards=((8, 9),))))
    assert (compiler.subject, compiler.status, compiler.text) == ("nvcc", "missing", NO_NVCC)
    assert (kernels.subject, kernels.status) == ("CUDA kernels", "missing")
    assert not compiler.essential
    assert not kernels.essential  # there is --no-ext
    assert "--no-ext" in (kernels.mend or "")


def test_no_nvcc_is_only_a_warning_once_the_kernels_are_there() -> None:
    found = only(replace(GPU_MACHINE, kernels=replace(GPU_MACHINE.kernels, problem=NO_NVCC)))
    assert (found.subject, found.status) == ("nvcc", "warn")


def test_of_two_cards_one_is_too_old_for_the_kernels() -> None:
    found = only(replace(GPU_MACHINE, kernels=replace(GPU_MACHINE.kernels, cards=((6, 1), (8, 9)))))
    assert found.text == "compute capability 6.1 is too old, they need 7.5"
    assert "--no-ext" in (found.mend or "")


def test_the_cache_of_kernels_is_shown_with_its_size() -> None:
    kernels = replace(GPU_MACHINE.kernels, builds=2, size=5_240_000, folder=Path("cache/ext"))
    line = next(f for f in examine(replace(GPU_MACHINE, kernels=kernels)) if f.subject == "kernel cache")
    assert (line.status, line.text) == ("ok", "2 builds, 5.2 MB in cache/ext")


def test_compilers_and_builds_are_found_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "ask_driver", lambda: Driver((13, 0), ((6, 1), (8, 9), (9, 0), (9, 0))))
    nvcc = fake_nvcc(tmp_path / "toolkit" / "bin" / "nvcc", "13.0", 89, 90, compiling=COMPILES)
    monkeypatch.setenv("CUDA_HOME", str(nvcc.parents[1]))
    monkeypatch.setenv("NVCC_CCBIN", sys.executable)
    made = build_library(tmp_path, Targets(((8, 9),)), ask_nvcc(nvcc), sources=SOURCES)
    facts = ask_kernels(tmp_path)
    assert facts.cards == ((6, 1), (8, 9), (9, 0))
    assert facts.ready == (((8, 9), made),)
    assert facts.compiler == f"13.0.61 ({nvcc}), with {sys.executable}"
    assert (facts.builds, facts.folder) == (1, tmp_path / "ext")
    assert facts.size == sum(file.stat().st_size for file in made.parent.iterdir())
    monkeypatch.setenv("NVCC_CCBIN", str(tmp_path / "none"))
    assert "which is not here" in (ask_kernels(tmp_path).problem or "")


def test_several_cards_are_tried_with_each_other() -> None:
    two = replace(CUDA_13, gpus=(CARD, CARD), together=True)
    (line,) = (f for f in examine(replace(GPU_MACHINE, torch=two)) if f.subject == "GPUs together")
    assert line.status == "ok"
    found = only(replace(GPU_MACHINE, torch=replace(two, together=False)))
    assert "garbled" in found.text
    assert "slower" in (found.mend or "")


def test_cards_hidden_by_the_environment() -> None:
    found = only(replace(GPU_MACHINE, torch=replace(CUDA_13, gpus=()), visible_devices=""))
    assert "CUDA_VISIBLE_DEVICES=''" in found.text


def test_cuda_that_does_not_start_is_quoted() -> None:
    found = only(replace(GPU_MACHINE, torch=replace(CUDA_13, gpus=(), problem="CUDA unknown error")))
    assert found.subject == "GPU"
    assert "CUDA unknown error" in found.text


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((6, 1), ("sm_75", "sm_90"), False),
        ((8, 9), ("sm_80",), True),
        ((8, 0), ("sm_86",), False),
        ((10, 0), ("sm_90", "compute_90"), True),
        ((9, 0), ("sm_90a",), True),
    ],
)
def test_a_card_that_this_torch_has_no_code_for(
    capability: tuple[int, int], architectures: tuple[str, ...], runs: bool
) -> None:
    torch = replace(CUDA_13, gpus=(replace(CARD, capability=capability),), architectures=architectures)
    findings = wrong(replace(GPU_MACHINE, torch=torch))
    assert (findings == []) is runs
    assert runs or "no code for it" in findings[0].text


def test_a_card_whose_memory_is_taken() -> None:
    found = only(replace(GPU_MACHINE, torch=replace(CUDA_13, gpus=(replace(CARD, free_bytes=GIB // 2),))))
    assert "0.5 of 24.0 GiB free" in found.text
    assert found.status == "warn"


@pytest.mark.parametrize(
    ("facts", "subject"),
    [
        (replace(CPU_MACHINE, python=(3, 10, 2)), "Python"),
        (replace(CPU_MACHINE, torch=TorchFacts(None, problem="No module named 'torch'")), "torch"),
        (replace(CPU_MACHINE, torch=TorchFacts("2.9.1+cpu")), "torch"),
        (replace(CPU_MACHINE, folders=(FolderFacts("data", Path("d"), "d cannot be written"),)), "data folder"),
        (replace(CPU_MACHINE, database=Tried(problem="db: file is not a database")), "conversations"),
        (replace(CPU_MACHINE, settings=Tried(problem="settings.toml: unknown key")), "settings"),
        (replace(CPU_MACHINE, bundled=Tried(problem="guide: config.json is missing")), "bundled model"),
    ],
)
def test_what_exlchat_cannot_do_without_is_essential_and_mendable(facts: MachineFacts, subject: str) -> None:
    found = only(facts)
    assert (found.subject, found.status, found.essential) == (subject, "missing", True)
    assert found.mend


@pytest.mark.parametrize(
    ("terminal", "said"),
    [
        (TerminalFacts(True, "dumb"), "cannot move the cursor"),
        (TerminalFacts(True, "xterm", encoding="ANSI_X3.4-1968"), "UTF-8"),
        (TerminalFacts(True, "xterm", columns=40), "small"),
        (TerminalFacts(True, "tmux-256color", tmux_extended_keys="off"), "shift+enter"),
    ],
)
def test_terminals_that_spoil_something(terminal: TerminalFacts, said: str) -> None:
    found = only(replace(CPU_MACHINE, terminal=terminal))
    assert said in found.text
    assert not found.essential


def test_a_remedy_stands_below_its_line() -> None:
    lines = report_lines([Finding("ok", "Python", "3.12"), Finding("missing", "torch", "gone", "install it")])
    assert lines[0].split() == ["ok", "Python", "3.12"]
    assert lines[1].split() == ["missing", "torch", "gone"]
    assert lines[2].strip() == "-> install it"


def test_nvidia_smi_is_read() -> None:
    table = "| NVIDIA-SMI 570.86.15     Driver Version: 570.86.15     CUDA Version: 12.8     |"
    assert read_nvidia_smi(0, table) == DriverFacts("570.86.15", "12.8")
    assert read_nvidia_smi(9, "").problem == "exit code 9"


def test_a_card_is_found_on_the_bus(tmp_path: Path) -> None:
    for name, vendor, kind in (("sound", "0x10de", "0x040300"), ("other", "0x8086", "0x030000")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    assert not gathering.card_on_bus(tmp_path)
    (tmp_path / "sound" / "class").write_text("0x030200\n")
    assert gathering.card_on_bus(tmp_path)


def test_folders_and_database_are_tried_without_changing_them(tmp_path: Path) -> None:
    assert gathering.try_folder("data", tmp_path / "new").problem is None
    (tmp_path / "file").write_text("")
    assert "is not a folder" in (gathering.try_folder("data", tmp_path / "file").problem or "")
    database = tmp_path / "conversations.db"
    assert gathering.try_database(database) == Tried("none yet")
    database.write_bytes(os.urandom(4096))
    before = database.read_bytes()
    assert "is not a conversation database" in (gathering.try_database(database).problem or "")
    assert database.read_bytes() == before


def test_what_another_program_said_cannot_steer_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = DriverFacts(problem="\x1b[2JNVIDIA-SMI has failed\u202e")
    monkeypatch.setattr(gathering, "gather", lambda: replace(GPU_MACHINE, driver=said))
    reporting.run([])
    shown = capsys.readouterr().out
    assert "NVIDIA-SMI has failed" in shown
    assert not set(shown) & {"\x1b", "\u202e"}


def test_torch_is_probed_for_real() -> None:
    torch = probe_torch()
    assert torch.version is not None
    assert torch.problem is None or torch.cuda is not None


def test_a_database_in_a_folder_that_may_not_be_entered_is_named() -> None:
    with public_folder() as folder:

        def check() -> None:
            (folder / "data").mkdir(mode=0o000)
            file = folder / "data" / "conversations.db"
            problem = gathering.try_database(file).problem
            assert problem == f"{file}: cannot be looked at (permission denied)"

        assert_unprivileged(check)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_report_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    environment = {**os.environ, "EXLCHAT_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "exlchat", "doctor"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == b"exlchat: standard output cannot be written (no space left on device)\n"
