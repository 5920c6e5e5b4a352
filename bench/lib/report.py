"""Runs variants in turn, and reports their figures as tables of medians with their spread, also to a JSON file.

As a program, it joins the JSON files of several commands into one file of bench/results/; scripts/bench runs it.

    python -m lib.report FOLDER bench/results/2026-11-21.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

import psutil

from lib.command import add_json_option, run_command

PACKAGES = (
    "av",
    "decord",
    "numpy",
    "torch",
    "torchserve",
    "transformers",
    "faster-whisper",
    "flask",
    "litserve",
)
"""Packages whose versions are reported, if they are installed; the handlers need few of them."""


@dataclass(frozen=True)
class Spread:
    """The values that were measured, one for each round."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of all rounds."""
        return median(self.values)

    def over(self, other: Spread) -> Spread:
        """The ratio of each round: whatever else a shared machine does in a round slows both values down.

        >>> Spread((2.0, 6.0)).over(Spread((1.0, 2.0))).values
        (2.0, 3.0)
        """
        return Spread(tuple(a / b for a, b in zip(self.values, other.values, strict=True)))

    def __str__(self) -> str:
        digits = 0 if self.median >= 100 else 1 if self.median >= 10 else 2
        low, high = min(self.values), max(self.values)
        return f"{self.median:.{digits}f} [{low:.{digits}f}-{high:.{digits}f}]"


@dataclass
class Report:
    """One table."""

    title: str
    columns: tuple[str, ...]
    """Headings; the first column names the rows."""
    rows: list[tuple[str | Spread, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Lines below the table."""

    def add(self, *cells: str | float | Spread) -> None:
        """Add a row; numbers get three significant digits."""
        self.rows.append(tuple(f"{cell:.3g}" if isinstance(cell, int | float) else cell for cell in cells))

    def __str__(self) -> str:
        cells = [self.columns, *([str(cell) for cell in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
        return "\n".join([self.title, "", *(line.rstrip() for line in lines), *self.notes])


def take_turns(rounds: int, variants: Mapping[str, Callable[[], float]]) -> dict[str, Spread]:
    """Run every variant once in each round, in the order A B A B.

    So whatever else the machine does in a round slows all variants down, not only one.

    Args:
        rounds: How often each variant runs.
        variants: Functions that run a variant and return its figure, by name.

    Returns:
        The figures of each variant, one for each round.
    """
    values: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run in variants.items():
            values[name].append(run())
    return {name: Spread(tuple(measured)) for name, measured in values.items()}


def machine() -> dict[str, str]:
    """The machine and the versions of the packages with which the figures were measured."""
    cores = len(os.sched_getaffinity(0))
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": _processor(),
        "cores": str(cores),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "python": platform.python_version(),
        **{name: installed for name in PACKAGES if (installed := _version(name))},
    }


def publish(reports: Iterable[Report], json_file: Path | None) -> None:
    """Print the tables. With `json_file`, write them there with the machine and the command line."""
    tables = list(reports)
    print("\n\n".join(map(str, tables)))
    save(tables, json_file)


def save(tables: Sequence[Report], json_file: Path | None) -> None:
    """Write the tables to `json_file`, if there is one, with the machine and the command line."""
    if json_file:
        words = [word for word in sys.argv[1:] if word not in ("--json", str(json_file), f"--json={json_file}")]
        value = {"command": " ".join(["scripts/bench", Path(sys.argv[0]).stem, *words]), "machine": machine()}
        json_file.write_text(json.dumps({**value, "tables": [asdict(table) for table in tables]}, indent=1) + "\n")


def publish_measured(
    parser: argparse.ArgumentParser, measure: Callable[[argparse.Namespace, Path], list[Report]]
) -> None:
    """Parse the command line, call `measure` with its options and an empty folder, and publish the tables.

    Args:
        parser: Has the options of the command; `--json` is added.
        measure: Makes the tables. The folder is deleted afterwards.
    """
    add_json_option(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        publish(measure(arguments, Path(folder)), arguments.json)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    """The processor's name as Linux has it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def collect(folder: Path) -> dict[str, object]:
    """The machine, and the command and tables of each JSON file of a folder, in the order of their names."""
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    machines = [result.pop("machine") for result in results]
    for machine in machines:
        if {**machine, "date": ""} != {**machines[0], "date": ""}:  # a run may go on after midnight
            raise SystemExit(
                f"expected results of one machine, got {machines[0]} and {machine}; run all of them on one"
            )
    return {"machine": machines[0], "results": results}


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="holds the JSON files")
    parser.add_argument("file", type=Path, help="the file to write")
    arguments = parser.parse_args()
    arguments.file.parent.mkdir(parents=True, exist_ok=True)
    partial = arguments.file.with_suffix(".partial")
    partial.write_text(json.dumps(collect(arguments.folder), indent=1) + "\n")
    print(f"wrote {partial.replace(arguments.file)}")


if __name__ == "__main__":
    run_command(main)
