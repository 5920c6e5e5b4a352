"""Measures how many descriptions of the demo clip model are exact on clips that training did not use.

    PYTHONPATH=handlers:demo .venv/bin/python -m training.clip_captioner.evaluate

Each clip is drawn, encoded as an H.264 file of 640x360 and cut and read as a run does it. The handler's own code then
describes it. All clips are described a second time with their frames in reverse order: a model that does not use time
would do as well as before. The seed of the clips differs from those of training.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import torch

from clips.describer import ClipSettings, Describer
from reelscribe.contract.clips import Clip
from reelscribe.contract.source import Span
from reelscribe.decode.clips import ClipCutting, ClipTask, ClipVideo
from synthetic.event_clips import CHANGES, EventClip, random_event_clip

WIDTH, HEIGHT = 640, 360
FRAMES_PER_SECOND = 25
CLIP_SECONDS = 4
SEED = 20_261_122
BATCH = 16


def encode(clips: list[EventClip], path: Path) -> None:
    """Write a video that shows the clips one after the other, each for CLIP_SECONDS."""
    frames = CLIP_SECONDS * FRAMES_PER_SECOND
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FRAMES_PER_SECOND)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number, clip in enumerate(clips):
            for k in range(frames):
                frame = av.VideoFrame.from_image(clip.draw(k / frames, WIDTH, HEIGHT))
                frame.pts, frame.time_base = number * frames + k, Fraction(1, FRAMES_PER_SECOND)
                container.mux(stream.encode(frame))
        container.mux(stream.encode())


def read(path: Path, describer: Describer) -> list[Clip]:
    """Read the clips of a video as a run does it, as windows of CLIP_SECONDS."""
    task = ClipTask(str(path), describer.budget, ClipCutting("windows", window_seconds=CLIP_SECONDS))
    with ClipVideo(task) as video:
        return [
            Clip(np.stack(clip.images), clip.pts_seconds, describer.settings.prompt) for clip in video.read([Span()])
        ]


def describe(clips: list[Clip], describer: Describer) -> list[str]:
    """Return the descriptions of clips."""
    batches = (clips[at : at + BATCH] for at in range(0, len(clips), BATCH))
    return [answer.text for batch in batches for answer in describer.describe([batch])]


def evaluate(model: str, count: int) -> tuple[list[EventClip], list[str], list[str]]:
    """Describe `count` clips with the model in the folder `model`; returns them with both descriptions of each."""
    rng = random.Random(SEED)
    events = [random_event_clip(rng, WIDTH / HEIGHT) for _ in range(count)]
    describer = Describer(ClipSettings(model), torch.device("cpu"))
    texts, backwards = list[str](), list[str]()
    with tempfile.TemporaryDirectory() as directory:
        for at in range(0, count, BATCH):
            path = Path(directory) / f"{at}.mp4"
            encode(events[at : at + BATCH], path)
            clips = read(path, describer)
            texts += describe(clips, describer)
            reverse = [replace(clip, frames=np.ascontiguousarray(clip.frames[::-1])) for clip in clips]
            backwards += describe(reverse, describer)
    return events, texts, backwards


def main() -> None:
    """Print the fraction of exact descriptions, for each kind of change too, and that of reversed frames."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(Path(__file__).parents[2] / "models" / "clips"))
    parser.add_argument("--clips", type=int, default=500)
    options = parser.parse_args()
    events, texts, backwards = evaluate(options.model, options.clips)
    total, exact, mistakes = Counter[str](), Counter[str](), Counter[str]()
    for clip, text in zip(events, texts, strict=True):
        for event, said in zip(clip.events, text.split(", then "), strict=False):
            total[event.change] += 1
            exact[event.change] += said == event.caption
        pairs = zip(clip.caption.split(), text.split(), strict=False)
        mistakes.update(f"{expected} -> {actual}" for expected, actual in pairs if expected != actual)
    for change in CHANGES:
        share = exact[change] / max(1, total[change])
        print(f"{change:26} {exact[change]:4} of {total[change]:4} events exact, {share:.1%}")
    print("most frequent mistakes:", ", ".join(f"{mistake} ({n})" for mistake, n in mistakes.most_common(6)) or "none")
    right = sum(clip.caption == text for clip, text in zip(events, texts, strict=True))
    reverse = sum(clip.caption == text for clip, text in zip(events, backwards, strict=True))
    print(f"exact descriptions: {right} of {len(events)} held-out clips, {right / len(events):.1%}")
    print(f"with the frames reversed: {reverse} of {len(events)}, {reverse / len(events):.1%}")


if __name__ == "__main__":
    main()
