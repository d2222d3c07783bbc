"""`exlchat doctor`: what this machine has, what is missing, and how to mend it."""

from exlchat.cli.doctor.report import run_doctor

__all__ = ["run_doctor"]
