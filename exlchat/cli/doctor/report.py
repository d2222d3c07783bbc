"""Prints the doctor's findings."""

from __future__ import annotations

from collections.abc import Iterable

from exlchat.cli.doctor.checks import CHECKS
from exlchat.cli.doctor.facts import MachineFacts, gather
from exlchat.cli.doctor.finding import Finding
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.interrupts import ctrl_c_ends_at_once
from exlchat.ui.terminal.standard_streams import print_lines

_STATUS_WIDTH = 9
_SUBJECT_WIDTH = 18


def run_doctor() -> ExitCode:
    """Looks at this machine and prints a line for each finding; `ERROR` if exlchat cannot run here."""
    with ctrl_c_ends_at_once():
        findings = examine(gather())
    code = print_lines(report_lines(findings))
    if code == ExitCode.OK and any(finding.essential for finding in findings):
        return ExitCode.ERROR
    return code


def examine(facts: MachineFacts) -> list[Finding]:
    """Every check's findings, in the order of the report."""
    return [finding for check in CHECKS for finding in check(facts)]


def report_lines(findings: Iterable[Finding]) -> list[str]:
    """A line for each finding, and below it how to mend what is not right."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.status:<{_STATUS_WIDTH}}{finding.subject:<{_SUBJECT_WIDTH}}{finding.text}")
        if finding.mend:
            lines.append(f"{'':<{_STATUS_WIDTH}}{'':<{_SUBJECT_WIDTH}}-> {finding.mend}")
    return lines
