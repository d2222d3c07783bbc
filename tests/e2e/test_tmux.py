"""The harness itself: if it cannot see a program's screen, keys and exit code, the journeys prove nothing."""

from __future__ import annotations

import pytest

from tests.e2e.tmux import Tmux, needs_tmux

pytestmark = [pytest.mark.e2e, needs_tmux]


def test_keys_screen_and_exit_code() -> None:
    script = 'printf "name? "; read name; echo "hello $name, $GREETING"; exit 7'
    with Tmux(["sh", "-c", script], environment={"GREETING": "well met"}) as terminal:
        terminal.wait_for(r"name\?")
        terminal.type("C-c $HOME")
        terminal.keys("Enter")
        terminal.wait_for(r"hello C-c \$HOME, well met")
        assert terminal.wait_for_end() == 7


def test_a_wait_in_vain_shows_the_screen() -> None:
    with Tmux(["echo", "something else"], environment={}) as terminal:
        terminal.wait_for_end()
        with pytest.raises(AssertionError, match="something else"):
            terminal.wait_for("never", timeout=0.1)
