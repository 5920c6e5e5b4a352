"""The progress of a run in a notebook: the two lines of a terminal, which stay in one place of the cell's output."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from reelscribe.reporting.meter import Snapshot
from reelscribe.reporting.outlook import Outlook
from reelscribe.reporting.progress import ErrorLines, Progress, Silent, describe


class NotebookLines(ErrorLines):
    """Shows what is going on in a cell's output, as rich shows tables there."""

    def __init__(self) -> None:
        super().__init__(Console(force_jupyter=True))
        self._handle: Any = None

    def announce(self, outlook: Outlook) -> None:
        """Show what the run has before it."""
        self._console.print(str(outlook), markup=False, highlight=False)

    def show(self, snapshot: Snapshot) -> None:
        """Show the figures in place of earlier ones."""
        from IPython.display import display

        # A table of rich knows how to show itself in a notebook.
        figures = Table.grid()
        figures.add_row(Text(describe(snapshot)))
        if self._handle is None:
            self._handle = display(figures, display_id=True)
        else:
            self._handle.update(figures)


def usual_progress() -> Progress:
    """Return how a run that a program starts shows its progress: as a notebook does in its kernel, else not at all."""
    ipython = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return NotebookLines() if hasattr(ipython, "kernel") else Silent()
