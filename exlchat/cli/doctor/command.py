"""`exlchat doctor`: what this machine has, what is missing, and how to mend it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from exlchat.cli.parser import Parser, about_group
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.interrupts import ctrl_c_ends_at_once
from exlchat.ui.terminal.standard_streams import print_lines

if TYPE_CHECKING:
    from exlchat.cli.doctor.checks import Finding
    from exlchat.cli.doctor.facts import MachineFacts

_ABOUT = """Check this machine: a line for each thing, ok, warn or missing, and how to
mend it. The exit code is 1 if something is missing that exlchat cannot do
without."""
_STATUS_WIDTH = 9
_SUBJECT_WIDTH = 18


def build_parser() -> argparse.ArgumentParser:
    """`exlchat doctor` has no options of its own."""
    parser = Parser("exlchat doctor", _ABOUT, usage="exlchat doctor")
    about_group(parser)
    return parser


def run(arguments: Sequence[str]) -> ExitCode:
    build_parser().parse_args(arguments)
    from exlchat.cli.doctor.facts import gather

    with ctrl_c_ends_at_once():
        findings = examine(gather())
    code = print_lines(report_lines(findings))
    if code == ExitCode.OK and any(finding.essential for finding in findings):
        return ExitCode.ERROR
    return code


def examine(facts: MachineFacts) -> list[Finding]:
    from exlchat.cli.doctor.checks import CHECKS

    return [finding for check in CHECKS for finding in check(facts)]


def report_lines(findings: Iterable[Finding]) -> list[str]:
    """A line for each finding, and below it how to mend what is not right."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.status:<{_STATUS_WIDTH}}{finding.subject:<{_SUBJECT_WIDTH}}{finding.text}")
        if finding.mend:
            lines.append(f"{'':<{_STATUS_WIDTH}}{'':<{_SUBJECT_WIDTH}}-> {finding.mend}")
    return lines
