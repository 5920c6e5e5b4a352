"""Joins the `--json` files of several commands into one file of bench/results/; scripts/bench runs it.

python -m lib.collect FOLDER bench/results/2026-11-21.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from lib.command import run_command


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
