"""The two lines in a real pseudo-terminal, also while it is resized."""

import pytest

from support.terminal import Terminal

END_OF_STEP = "\x1b[?7l"
"""What the program writes when it has drawn; terminals show nothing for it."""

PROGRAM = f"""
END_OF_STEP = {END_OF_STEP!r}
import os, sys
from rich.console import Console
from reelscribe.reporting.progress import TerminalLines
from support.snapshots import BAD, PLAN, SNAPSHOT

with TerminalLines(Console(stderr=True)) as lines:
    lines.announce(PLAN)
    for step in range(3):
        lines.show(SNAPSHOT)
        lines.message("message " + str(step))
        os.write(2, END_OF_STEP.encode())
        sys.stdin.readline()
print("the end")
"""

FIRST, SECOND = "2/5 ", "decoding"


@pytest.mark.parametrize("widths", [(80, 40, 30), (40, 80, 120), (120, 40, 80)])
def test_nothing_is_left_of_them_when_the_terminal_is_resized(widths):
    with Terminal(PROGRAM, widths[0]) as terminal:
        for step, width in enumerate(widths):
            if step:
                terminal.resize(width)
                terminal.go_on()
            terminal.wait_for(END_OF_STEP)
            screen = "\n".join(terminal.screen)
            assert screen.count(FIRST) == screen.count(SECOND) == 1, screen
            assert all(f"message {number}" in screen for number in range(step + 1)), screen
            assert [row for row in terminal.screen if row][-1].startswith(SECOND), screen
        terminal.go_on()
        terminal.wait_for("the end\r\n")
    screen = "\n".join(terminal.screen)
    assert FIRST not in screen
    assert SECOND not in screen
    assert "5 sources, 2 h 30 min" in screen.replace("\n", " ")
