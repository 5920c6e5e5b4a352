"""Compares captions, transcripts and descriptions of clips of the demo media with the truth.

    .venv/bin/python demo/compare_with_truth.py out/quickstart/annotations.jsonl out/quickstart-clips/annotations.jsonl

The first records must be those of one run of `reelscribe annotate --all-frames` over all of demo/media, and the second
ones, which may be left out, those of `reelscribe caption --clips shots` over demo/clips.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import jiwer

TRUTH = Path(__file__).parent / "media" / "truth.jsonl"
CLIPS_TRUTH = Path(__file__).parent / "clips" / "truth.jsonl"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON Lines file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def scenes_with_captions(records: list[dict[str, Any]]) -> list[tuple[dict[str, Any], Counter[str]]]:
    """Return each scene of the truth, and how many of its frames got each caption.

    Args:
        records: Records of `annotations.jsonl`, one for each source of `demo/media`.
    """
    captions = {Path(record["source"]["path"]).name: record["captions"] for record in records}
    return [
        (
            scene,
            Counter(c["text"] for c in captions[scene["source"]] if scene["start"] <= c["pts_seconds"] < scene["end"]),
        )
        for scene in read_lines(TRUTH)
        if "caption" in scene
    ]


def sources_with_transcripts(records: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Return name, true words and transcript of each source that has true words or a transcript.

    Args:
        records: Records of `annotations.jsonl`, one for each source of `demo/media`.
    """
    truth: dict[str, list[str]] = {}
    for entry in read_lines(TRUTH):
        truth.setdefault(entry["source"], []).extend(entry["words"].split())
    names = [Path(record["source"]["path"]).name for record in records]
    transcripts = [" ".join(utterance["text"] for utterance in record["segments"]) for record in records]
    sources = [(name, " ".join(truth[name]), text) for name, text in zip(names, transcripts, strict=True)]
    return [source for source in sources if source[1] or source[2]]


def word_error_rate(sources: list[tuple[str, str, str]]) -> float:
    """Return the word error rate over all sources of `sources_with_transcripts` (0 means that every word is right)."""
    return float(jiwer.wer(" ".join(truth for _, truth, _ in sources), " ".join(text for *_, text in sources)))


def clips_with_descriptions(records: list[dict[str, Any]]) -> list[tuple[dict[str, Any], str | None]]:
    """Return each clip of the truth, and its description if there is one for that stretch.

    Args:
        records: Records of `annotations.jsonl`, one for each source of `demo/clips`.
    """
    described = {
        (Path(record["source"]["path"]).name, round(clip["start"], 1)): clip["text"]
        for record in records
        for clip in record["clips"]
    }
    return [(clip, described.get((clip["source"], round(clip["start"], 1)))) for clip in read_lines(CLIPS_TRUTH)]


def compare_clips(records: list[dict[str, Any]]) -> None:
    """Print all clips with their descriptions, and how many descriptions are exact."""
    pairs = clips_with_descriptions(records)
    for clip, text in pairs:
        print(f"{clip['source']} {clip['start']:.1f} to {clip['end']:.1f} s")
        print(f"    description {text or '(none)'}\n    truth       {clip['description']}")
    exact, shots = sum(clip["description"] == text for clip, text in pairs), sum(len(r["shots"]) for r in records)
    print(f"shots found: {shots} of {len(pairs)}")
    print(f"exact descriptions of clips: {exact} of {len(pairs)}")


def main() -> None:
    """Print scenes and transcripts with their truth, and clips if there are records of them, and how many are right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("annotations", type=Path)
    parser.add_argument("clips", type=Path, nargs="?")
    options = parser.parse_args()
    compare(read_lines(options.annotations))
    if options.clips:
        compare_clips(read_lines(options.clips))


def compare(records: list[dict[str, Any]]) -> None:
    """Print some scenes, all transcripts, and both error rates."""
    exact = 0
    for scene, captions in scenes_with_captions(records):
        truth, total = scene["caption"], captions.total()
        exact += captions[truth]
        if scene["start"] == 0 or captions[truth] < total or not total:
            text = captions.most_common(1)[0][0] if total else "(none)"
            times = f"{scene['start']:.1f} to {scene['end']:.1f} s"
            print(f"{scene['source']} {times}: {captions[truth]} of {total} frames are exact")
            print(f"    caption     {text}\n    truth       {truth}")
    sources = sources_with_transcripts(records)
    for name, truth, text in sources:
        print(f"{name}\n    transcript  {text or '(nothing)'}\n    truth       {truth or '(nothing)'}")
    frames = sum(record["media"]["frames"] for record in records if record["media"])
    words = sum(len(truth.split()) for _, truth, _ in sources)
    print(f"exact captions: {exact} of {frames} frames, {exact / frames:.1%}")
    print(f"word error rate: {word_error_rate(sources):.1%} of {words} words")


if __name__ == "__main__":
    main()
