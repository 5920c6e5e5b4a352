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


def scenes_with_captions(annotations: Path) -> list[tuple[dict[str, Any], Counter[str]]]:
    """Each scene of the truth, and how often each caption was given to one of its frames."""
    records = {Path(record["source"]["path"]).name: record for record in read_lines(annotations)}
    return [
        (
            scene,
            Counter(
                caption["text"]
                for caption in records[scene["source"]]["captions"]
                if scene["start"] <= caption["pts_seconds"] < scene["end"]
            ),
        )
        for scene in read_lines(TRUTH)
    ]


def main() -> None:
    """Command line: the first scene of each clip and every one that is not right, then the share of exact frames."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("annotations", type=Path)
    frames = exact = 0
    for scene, captions in scenes_with_captions(parser.parse_args().annotations):
        truth = scene["caption"]
        frames += captions.total()
        exact += captions[truth]
        if scene["start"] == 0 or captions[truth] < captions.total():
            text, _ = captions.most_common(1)[0]
            where = f"{scene['source']} {scene['start']:.1f} to {scene['end']:.1f} s"
            print(f"{where}: {captions[truth]} of {captions.total()} frames exactly right")
            print(f"    caption  {text}\n    truth    {truth}")
    print(f"exact captions: {exact} of {frames} frames, {exact / frames:.1%}")


if __name__ == "__main__":
    main()
