"""Captions beside what is really shown: ``python demo/compare_with_truth.py out/quickstart/annotations.jsonl``."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

TRUTH = Path(__file__).parent / "media" / "truth.jsonl"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def scenes_with_captions(records: list[dict[str, Any]]) -> list[tuple[dict[str, Any], Counter[str]]]:
    """Each scene of the truth, and how often each caption was given to one of its frames."""
    captions = {Path(record["source"]["path"]).name: record["captions"] for record in records}
    return [
        (
            scene,
            Counter(c["text"] for c in captions[scene["source"]] if scene["start"] <= c["pts_seconds"] < scene["end"]),
        )
        for scene in read_lines(TRUTH)
    ]


def main() -> None:
    """Command line: the first scene of each clip and every one that is not right, then the share of exact frames."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("annotations", type=Path)
    records = read_lines(parser.parse_args().annotations)
    exact = 0
    for scene, captions in scenes_with_captions(records):
        truth, seen = scene["caption"], captions.total()
        exact += captions[truth]
        if scene["start"] == 0 or captions[truth] < seen or not seen:
            text = captions.most_common(1)[0][0] if seen else "(none)"
            print(f"{scene['source']} {scene['start']:.1f} to {scene['end']:.1f} s: {captions[truth]} of {seen} frames")
            print(f"    caption  {text}\n    truth    {truth}")
    frames = sum(record["media"]["frames"] for record in records if record["media"])
    print(f"exact captions: {exact} of {frames} frames, {exact / frames:.1%}")


if __name__ == "__main__":
    main()
