"""Captions and transcripts beside the truth: ``python demo/compare_with_truth.py out/quickstart/annotations.jsonl``."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import jiwer

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
        if "caption" in scene
    ]


def said_and_heard(records: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Name, the words of the truth and those of the transcript, of each source with any of either."""
    said: dict[str, list[str]] = {}
    for entry in read_lines(TRUTH):
        said.setdefault(entry["source"], []).extend(entry["words"].split())
    names = [Path(record["source"]["path"]).name for record in records]
    heard = [" ".join(utterance["text"] for utterance in record["transcript"]) for record in records]
    pairs = [(name, " ".join(said[name]), text) for name, text in zip(names, heard, strict=True)]
    return [pair for pair in pairs if pair[1] or pair[2]]


def word_error_rate(texts: list[tuple[str, str, str]]) -> float:
    """Of `said_and_heard`, all sources together."""
    return float(jiwer.wer(" ".join(said for _, said, _ in texts), " ".join(heard for *_, heard in texts)))


def main() -> None:
    """Command line: the first scene of each clip, every one that is not right, all that was said; then the shares."""
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
    texts = said_and_heard(records)
    for name, said, heard in texts:
        print(f"{name}\n    heard    {heard or '(nothing)'}\n    truth    {said or '(nothing)'}")
    frames = sum(record["media"]["frames"] for record in records if record["media"])
    words = sum(len(said.split()) for _, said, _ in texts)
    print(f"exact captions: {exact} of {frames} frames, {exact / frames:.1%}")
    print(f"word error rate: {word_error_rate(texts):.1%} of {words} words")


if __name__ == "__main__":
    main()
