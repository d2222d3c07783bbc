"""What making a prompt raises."""

from __future__ import annotations


class PromptError(Exception):
    """A prompt that cannot be made: one line that names the format, what is wrong and how to mend it."""
