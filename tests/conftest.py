"""Options of the test run."""

from __future__ import annotations

import gc
import math
import os
import shutil
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tools.bootstrap import has_nvidia_card

MEMORY_DISK = Path("/dev/shm")
ROOM = 4 * 2**30
"""Bytes; a run uses a tenth. Containers often have no more than 64 MB there."""

# How fast examples come says something of the machine, which may have much else to do. A run that is to say whether a
# change holds tries the same examples each time; `make test ARGS=--hypothesis-profile=thorough` looks for others.
settings.register_profile(
    "exlchat", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=25, derandomize=True
)
settings.register_profile("thorough", settings.get_profile("exlchat"), max_examples=400, derandomize=False)
settings.load_profile("exlchat")

if "PYTEST_XDIST_WORKER" in os.environ:
    # Two workers with two threads each, on two cores, mostly wait for each other. Before torch is imported.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Two targets of make write tables into the docs; kills take longer than a run that is to be fast."""
    parser.addoption("--kills", type=int, default=12, help="how often writers are killed (tests/chat/test_kills.py)")
    parser.addoption("--long", action="store_true", help="also what is marked long, and sweeps whole: `make test-long`")
    parser.addoption("--error-table", help="page that gets the errors of all architectures")
    parser.addoption("--client-table", help="page that gets what each client of the server was seen to do")


def pytest_configure(config: pytest.Config) -> None:
    """What tests write lies in memory where there is room: databases wait for their disk at every message."""
    roomy = MEMORY_DISK.is_dir() and os.access(MEMORY_DISK, os.W_OK) and shutil.disk_usage(MEMORY_DISK).free > ROOM
    if roomy and config.option.basetemp is None and not hasattr(config, "workerinput"):
        config.option.basetemp = MEMORY_DISK / f"exlchat-tests-{os.getpid()}"
        config.add_cleanup(lambda: shutil.rmtree(config.option.basetemp, ignore_errors=True))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long tests and most of each sweep wait for `--long`; what a module makes once is made in one worker."""
    functions = [item for item in items if isinstance(item, pytest.Function)]
    if not config.option.long:
        left_out = {item for item in functions if item.get_closest_marker("long")} | _left_out_of_sweeps(functions)
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
    for item in functions:
        if _shares(item) and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.module.__name__))


def _left_out_of_sweeps(functions: list[pytest.Function]) -> set[pytest.Item]:
    """All but so many of each sweep. No row or column of a table of cases is left out as a whole where that can be."""
    sweeps = defaultdict(list)
    for item in functions:
        if sweep := item.get_closest_marker("sweep"):
            sweeps[item.module.__name__, item.originalname, sweep.args[0]].append(item)
    left_out: set[pytest.Item] = set()
    for (_, _, many), cases in sweeps.items():
        step = max(1, round(len(cases) / many))
        while math.gcd(step, len(cases)) > 1:
            step += 1
        left_out |= {*cases} - {cases[number * step % len(cases)] for number in range(many)}
    return left_out


def _shares(item: pytest.Function) -> bool:
    """Whether it has something that is made once a module."""
    known = item._fixtureinfo.name2fixturedefs
    return any(made.scope == "module" for name in item.fixturenames for made in known.get(name, ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Four thousand tests that each say "skipped" took a tenth of a run."""
    if not has_nvidia_card():
        terminalreporter.write_line("tests/gpu is left out: this machine has no NVIDIA card")


def pytest_collection_finish(session: pytest.Session) -> None:
    """What all test modules hold stays: looking through it again and again took a tenth of a run."""
    del session
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Nor is there anything to find behind the last test, where pytest collects five times.

    Within 5 s of a worker's last report xdist's execnet takes it to hang and interrupts it, wherever it is then.
    """
    del session
    gc.collect()
    gc.freeze()
