"""What do the figures of `scripts/bench` look like as plots?

    scripts/bench plots bench/results/2026-11-21.json [newer results ...] docs/plots

- captioning.png: frames/s by resolution, ours and the others.
- scaling.png: frames/s by the number of emulated devices.
- memory.png: memory of sender and receiver of the same images, by the number of bodies that they are sent in.

Of tables that several files have, those of the last file are drawn. Points are medians; vertical lines go from the
smallest to the largest value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # draws files, without a screen

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from lib.command import command_parser, run_command

Row = list[Any]
"""Cells of a row: text, or an object with the values of a spread."""

OURS = "#c2410c"
OTHERS = ("#1d4ed8", "#0f766e", "#7e22ce", "#64748b", "#a16207", "#0369a1", "#be185d", "#4d7c0f", "#374151")
INCHES, DOTS = (7.2, 4.0), 110

Line = dict[str, list[float]]
"""The values of each point, by its place on the x axis; points are drawn in this order."""


def tables(file: Path) -> dict[str, list[Row]]:
    """The rows of each table of a file of `scripts/bench`, by the title of the table."""
    results = json.loads(file.read_text())["results"]
    return {table["title"]: table["rows"] for result in results for table in result["tables"]}


def titled(found: Mapping[str, list[Row]], beginning: str) -> list[Row]:
    """The rows of the table whose title begins so. Raises SystemExit if there is none."""
    for title, rows in found.items():
        if title.startswith(beginning):
            return rows
    raise SystemExit(f"expected a table {beginning!r}, found {', '.join(found)}; run scripts/bench without arguments")


def captioning(rows: list[Row], axes: Axes) -> None:
    """Plot frames/s by resolution."""
    _lines(axes, {way: {row[0]: row[2]["values"] for row in rows if row[1] == way} for way in _column(rows, 1)})
    axes.set_ylabel("frames/s")
    axes.set_title("The same model, thread and clips", loc="left")


def scaling(rows: list[Row], axes: Axes) -> None:
    """Plot frames/s by the number of devices of one server."""
    counts = {"1 server, 1 device": "1", "1 server, 2": "2", "1 server, 4": "4"}
    ours = {counts[row[0]]: row[1]["values"] for row in rows if row[0] in counts}
    _lines(axes, {"ours": ours, "without any loss": {count: [100.0 * int(count)] for count in ours}})
    axes.set_xlabel("emulated devices of 100 frames/s")
    axes.set_ylabel("frames/s")
    axes.set_title("More devices on one server", loc="left")


def memory(rows: list[Row], axes: Axes) -> None:
    """Plot megabytes of sender and receiver together, by layout."""
    lines: dict[str, Line] = {name: {} for name in _column(rows, 1)}
    for layout, name, _, sender, receiver, _ in rows:
        lines[name][layout] = list(map(sum, zip(sender["values"], receiver["values"], strict=True)))
    _lines(axes, {name.replace("reelscribe.wire", "ours"): line for name, line in lines.items()})
    axes.set_xlabel("bodies x images in each")
    axes.set_ylabel("MB of sender and receiver")
    axes.set_title("Memory for the same 32 images", loc="left")


def _column(rows: list[Row], index: int) -> list[str]:
    return list(dict.fromkeys(row[index] for row in rows))


def _lines(axes: Axes, lines: Mapping[str, Line]) -> None:
    others = iter(OTHERS)
    for name, line in lines.items():
        ours = "ours" in name
        middles = list(map(median, line.values()))
        below = [middle - min(values) for middle, values in zip(middles, line.values(), strict=True)]
        above = [max(values) - middle for middle, values in zip(middles, line.values(), strict=True)]
        color, width = (OURS, 2.5) if ours else (next(others), 1.2)
        axes.errorbar(list(line), middles, [below, above], marker="o", color=color, linewidth=width, label=name)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)


PLOTS: dict[str, tuple[str, Callable[[list[Row], Axes], None]]] = {
    "captioning": ("Captioning;", captioning),
    "scaling": ("Devices of", scaling),
    "memory": ("32 images", memory),
}
"""For each file name, the beginning of the title of its table, and the function that draws it."""


def draw(found: Mapping[str, list[Row]], folder: Path) -> Iterator[Path]:
    """Draw all plots as PNG files in `folder`, and yield their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (beginning, plot) in PLOTS.items():
        figure, axes = plt.subplots(figsize=INCHES, dpi=DOTS, layout="constrained")
        plot(titled(found, beginning), axes)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e2e8f0")
        axes.set_axisbelow(True)
        file = folder / f"{name}.png"
        figure.savefig(file)
        plt.close(figure)
        yield file


def main() -> None:
    """Draw the plots."""
    parser = command_parser(__doc__)
    parser.add_argument("results", type=Path, nargs="+", help="files that scripts/bench wrote")
    parser.add_argument("folder", type=Path, help="folder of the PNG files")
    options = parser.parse_args()
    found = {title: rows for file in options.results for title, rows in tables(file).items()}
    for file in draw(found, options.folder):
        print(f"wrote {file}")


if __name__ == "__main__":
    run_command(main)
