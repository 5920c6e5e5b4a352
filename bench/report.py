"""What benchmarks have in common: variants that take turns, medians with their spread, one table and one JSON file."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median

import psutil

PACKAGES = (
    *("av", "decord", "numpy", "torch", "torchserve", "transformers"),
    *("faster-whisper", "flask", "litserve"),
)


@dataclass(frozen=True)
class Spread:
    """What was measured, once a round."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return median(self.values)

    def over(self, other: Spread) -> Spread:
        """The ratios, round by round: what slows one round of a shared machine slows both."""
        return Spread(tuple(a / b for a, b in zip(self.values, other.values, strict=True)))

    def __str__(self) -> str:
        digits = 0 if self.median >= 100 else 1 if self.median >= 10 else 2
        low, high = min(self.values), max(self.values)
        return f"{self.median:.{digits}f} [{low:.{digits}f}-{high:.{digits}f}]"


@dataclass
class Report:
    """The table of one benchmark."""

    title: str
    columns: tuple[str, ...]
    """The first says what the rows are."""
    rows: list[tuple[str, ...] | tuple[str | Spread, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, *cells: str | float | Spread) -> None:
        """A row."""
        self.rows.append(tuple(cell if isinstance(cell, Spread) else _told(cell) for cell in cells))

    def __str__(self) -> str:
        cells = [self.columns, *([str(cell) for cell in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
        return "\n".join([self.title, "", *(line.rstrip() for line in lines), *self.notes])


def take_turns(rounds: int, variants: Mapping[str, Callable[[], float]]) -> dict[str, Spread]:
    """What each variant gives, A B A B: neighbours in time share whatever else the machine does."""
    values: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run in variants.items():
            values[name].append(run())
    return {name: Spread(tuple(given)) for name, given in values.items()}


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    cores = len(os.sched_getaffinity(0))
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": _processor(),
        "cores": str(cores),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """`--json FILE`, for `publish`."""
    parser.add_argument("--json", type=Path, help="write the tables to this file, too")


def publish(reports: Iterable[Report], json_file: Path | None) -> None:
    """Print the tables; write them with the machine and the command that made them."""
    told = list(reports)
    print("\n\n".join(map(str, told)))
    if json_file:
        words = [word for word in sys.argv[1:] if word not in ("--json", str(json_file), f"--json={json_file}")]
        value = {"command": " ".join(["bench/" + Path(sys.argv[0]).name, *words]), "machine": machine()}
        json_file.write_text(json.dumps({**value, "tables": [asdict(report) for report in told]}, indent=1) + "\n")


def _told(cell: str | float) -> str:
    return cell if isinstance(cell, str) else f"{cell:.3g}"


def _processor() -> str:
    """Linux tells its name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
