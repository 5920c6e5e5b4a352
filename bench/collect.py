"""One file of what several benchmarks wrote: ``python bench/collect.py DIRECTORY bench/results/2026-11-21.json``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def collect(directory: Path) -> dict[str, object]:
    """The machine, and the command and tables of each `--json` file of a directory, in the order of their names."""
    results = [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))]
    machines = [result.pop("machine") for result in results]
    for machine in machines:
        if {**machine, "date": ""} != {**machines[0], "date": ""}:  # a run may go on after midnight
            raise SystemExit(
                f"expected results of one machine, got {machines[0]} and {machine}; run all of them on one"
            )
    return {"machine": machines[0], "results": results}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    options.file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = options.file.with_suffix(".partial")
    unfinished.write_text(json.dumps(collect(options.directory), indent=1) + "\n")
    print(f"wrote {unfinished.replace(options.file)}")


if __name__ == "__main__":
    main()
