"""Makes the demo clips and their truth.

    .venv/bin/python demo/make_clips.py [--out demo/clips]

Each video shows several clips of `events`, with a cut between them: their backgrounds differ. The frame rates and the
first presentation times are as odd as those of real files.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av

from synthetic.event_clips import EventClip, random_event_clip


@dataclass(frozen=True)
class ClipVideo:
    """A video file of several clips."""

    name: str
    width: int
    height: int
    codec: str
    seed: int
    fps: Fraction = Fraction(25)
    clip_seconds: tuple[float, ...] = (4.0, 4.0, 4.0, 4.0)
    start_seconds: float = 0.0
    """Presentation time of the first frame."""
    variable_rate: bool = False

    def clips(self) -> list[tuple[float, float, EventClip]]:
        """Return start, end and content of each clip; times are in seconds of presentation time."""
        rng, start, clips = random.Random(self.seed), self.start_seconds, list[tuple[float, float, EventClip]]()
        for seconds in self.clip_seconds:
            clip = random_event_clip(rng, self.width / self.height)
            while clips and clip.background == clips[-1][2].background:
                clip = random_event_clip(rng, self.width / self.height)
            clips.append((start, start + seconds, clip))
            start += seconds
        return clips

    def frames(self) -> Iterator[tuple[float, av.VideoFrame]]:
        """Yield presentation time, in seconds, and content of each frame, in order."""
        rng = random.Random(self.seed)
        for start, end, clip in self.clips():
            at = start
            while at < end - 1e-6:
                moment = (at - start) / (end - start)
                yield at, av.VideoFrame.from_image(clip.draw(moment, self.width, self.height))
                at += float((rng.choice((0.5, 1, 1.5, 3)) if self.variable_rate else 1) / self.fps)


VIDEOS = [
    ClipVideo("events.mp4", 640, 360, "libx264", seed=1),
    ClipVideo("late-start.mkv", 480, 270, "libx264", seed=2, fps=Fraction(30_000, 1001), start_seconds=7.5),
    ClipVideo("variable-rate.mp4", 640, 480, "libx264", seed=3, clip_seconds=(3.0, 5.0, 4.0, 3.5), variable_rate=True),
]


def encode(video: ClipVideo, path: Path) -> None:
    """Write a video as the file `path`."""
    with av.open(str(path), "w", options={"avoid_negative_ts": "disabled"}) as container:
        stream = container.add_stream(video.codec, rate=video.fps)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = video.width, video.height, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 90_000)
        stream.options = {"crf": "28"}
        for seconds, frame in video.frames():
            frame.pts, frame.time_base = round(seconds * 90_000), Fraction(1, 90_000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def truth(video: ClipVideo) -> list[dict[str, object]]:
    """Return an entry for each clip of a video: file, start and end in seconds, and description."""
    return [
        {"source": video.name, "start": start, "end": end, "description": clip.caption}
        for start, end, clip in video.clips()
    ]


def main() -> None:
    """Parse the command line and write all files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "clips")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for video in VIDEOS:
        encode(video, out / video.name)
        print(f"{out / video.name}: {(out / video.name).stat().st_size} bytes")
    lines = [json.dumps(clip) for video in VIDEOS for clip in truth(video)]
    (out / "truth.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
