"""What a person watches while a run goes on."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from reelscribe.records import Record


class RunProgress:
    """Sources and frames done, on standard error; nothing is drawn where that is no terminal, but failures are told."""

    def __init__(self, sources: int, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TaskProgressColumn(show_speed=True),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._sources = self._bars.add_task("sources", total=sources)
        self._frames = self._bars.add_task("frames", total=None)
        self._expected = 0

    def __enter__(self) -> RunProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def expect(self, frames: int) -> None:
        """So many frames more are to be captioned."""
        self._expected += frames
        self._bars.update(self._frames, total=self._expected)

    def captioned(self, frames: int) -> None:
        """So many frames more have a caption."""
        self._bars.advance(self._frames, frames)

    def finished(self, record: Record) -> None:
        """A source is done, for better or worse."""
        self._bars.advance(self._sources)
        if record.error:
            self._console.print(
                f"{type(record.error).__name__}: {record.error}",
                style="red",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
