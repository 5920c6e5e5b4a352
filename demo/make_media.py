"""Makes the demo media and their truth.

    .venv/bin/python demo/make_media.py [--out demo/media]

Four clips show the same scenes at four resolutions. Each of the other clips has a property that real files have, such
as a variable frame rate. A recording without video has phrases in voices that training of the demo speech model did not
use.
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
import numpy as np

from synthetic.espeak import speak
from synthetic.phrases import SAMPLE_RATE, Recording, recording
from synthetic.scenes import Scene, draw, random_scene

DRIFT = (0.0006, 0.0004)
"""How far objects move from one frame to the next, in frame heights. It is too little to change a caption."""

TICKS = 1000
"""Units of presentation time per second, except in AVI."""


@dataclass(frozen=True)
class Clip:
    """A video file: how it is encoded, and for how many seconds it shows each scene."""

    name: str
    width: int
    height: int
    codec: str
    fps: int = 10
    scene_seconds: tuple[float, ...] = (2.0, 2.0, 2.0, 2.0)
    seed: int = 0
    pixel_format: str = "yuv420p"
    variable_rate: bool = False
    spoken: tuple[str, ...] = ()
    """The words spoken in each scene; without any, the file has no audio."""

    def scenes(self) -> list[tuple[float, float, Scene]]:
        """Return start, end and scene of each scene; times are in seconds."""
        rng = random.Random(self.seed)
        ends = np.cumsum(self.scene_seconds).round(3).tolist()
        return [
            (start, end, random_scene(rng, self.width / self.height))
            for start, end in zip([0.0, *ends[:-1]], ends, strict=True)
        ]

    def frames(self) -> Iterator[tuple[float, av.VideoFrame]]:
        """Yield presentation time, in seconds, and content of each frame, in order."""
        rng = random.Random(self.seed)
        at, k = 0.0, 0
        for _, end, scene in self.scenes():
            while at < end - 1e-6:
                image = draw(scene, self.width, self.height, offset=(DRIFT[0] * k, DRIFT[1] * k))
                yield round(at, 3), av.VideoFrame.from_image(image)
                k += 1
                at += rng.choice((0.5, 1, 1.5, 2.5)) / self.fps if self.variable_rate else 1 / self.fps
            # Variable frame durations may pass the end of the scene; the next scene begins on time all the same.
            at, k = end, 0


RESOLUTIONS = (
    (480, 270, "mp4", "libx264"),
    (640, 360, "webm", "libvpx-vp9"),
    (1280, 720, "mkv", "libx264"),
    (1920, 1080, "mp4", "libx264"),
)
CLIPS = [
    *(Clip(f"same-{w}x{h}.{suffix}", w, h, codec, seed=1) for w, h, suffix, codec in RESOLUTIONS),
    Clip("old.avi", 640, 360, "mpeg4", fps=12, scene_seconds=(1.5, 1.5, 1.5, 1.5, 1.5), seed=2),
    Clip(
        "variable-rate.mp4", 640, 360, "libx264", fps=12, scene_seconds=(3.0, 2.0, 4.0, 3.0), seed=3, variable_rate=True
    ),
    Clip("portrait-odd.webm", 361, 481, "libvpx-vp9", fps=12, scene_seconds=(1.5, 1.5, 1.5), seed=4),
    Clip(
        "spoken.mp4",
        640,
        360,
        "libx264",
        scene_seconds=(4.0, 4.0, 4.0),
        seed=5,
        spoken=("three red circle", "go left five stop", "yes open white star"),
    ),
    Clip(
        "full-chroma.mkv",
        480,
        270,
        "libx264",
        fps=6,
        scene_seconds=(4.0, 3.0, 5.0, 3.0, 4.0),
        seed=6,
        pixel_format="yuv444p",
    ),
]


RECORDING = "phrases.ogg"
RECORDING_SECONDS = 75
RECORDING_SEED = 7


def encode(clip: Clip, path: Path) -> None:
    """Write a clip as the file `path`."""
    with av.open(str(path), "w") as container:
        # AVI stores frame numbers only, so times are multiples of the frame duration.
        ticks = TICKS if clip.codec != "mpeg4" else clip.fps
        video = container.add_stream(clip.codec, rate=clip.fps)
        assert isinstance(video, av.VideoStream)
        video.width, video.height, video.pix_fmt = clip.width, clip.height, clip.pixel_format
        video.codec_context.time_base = Fraction(1, ticks)
        video.options = {"crf": "28"} if clip.codec != "mpeg4" else {"qscale": "5"}
        audio = container.add_stream("aac", rate=22_050, layout="mono") if clip.spoken else None
        for seconds, frame in clip.frames():
            frame.pts, frame.time_base = round(seconds * ticks), Fraction(1, ticks)
            container.mux(video.encode(frame))
        container.mux(video.encode())
        if isinstance(audio, av.AudioStream):
            for audio_frame in _audio_frames(*_speech(clip)):
                container.mux(audio.encode(audio_frame))
            container.mux(audio.encode())


def encode_recording(samples: np.ndarray, path: Path) -> None:
    """Write samples, (N,) int16 at SAMPLE_RATE, as an Ogg file without video."""
    with av.open(str(path), "w") as container:
        audio = container.add_stream("libopus", rate=SAMPLE_RATE, layout="mono")
        audio.bit_rate = 32_000
        for frame in _audio_frames(samples, SAMPLE_RATE):
            container.mux(audio.encode(frame))
        container.mux(audio.encode())


def _speech(clip: Clip) -> tuple[np.ndarray, int]:
    """The samples of a clip, (N,) int16, and their rate. The words of a scene begin half a second after its start."""
    scenes = clip.scenes()
    rate = speak(clip.spoken[0])[1]
    mixed = np.zeros(round(scenes[-1][1] * rate), np.int16)
    for (start, _, _), words in zip(scenes, clip.spoken, strict=True):
        samples, _ = speak(words)
        at = round((start + 0.5) * rate)
        mixed[at : at + len(samples)] = samples
    return mixed, rate


def _audio_frames(samples: np.ndarray, rate: int) -> Iterator[av.AudioFrame]:
    for at in range(0, len(samples), 1024):
        frame = av.AudioFrame.from_ndarray(samples[None, at : at + 1024], format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = rate, at, Fraction(1, rate)
        yield frame


def truth(clip: Clip) -> list[dict[str, object]]:
    """Return an entry for each scene of a clip: file, start and end in seconds, caption, and spoken words."""
    spoken = clip.spoken or ("",) * len(clip.scene_seconds)
    return [
        {"source": clip.name, "start": start, "end": end, "caption": scene.caption, "words": words}
        for (start, end, scene), words in zip(clip.scenes(), spoken, strict=True)
    ]


def truth_of_recording(spoken: Recording) -> list[dict[str, object]]:
    """Return an entry for each phrase of the recording, as `truth` does, but without captions."""
    return [
        {"source": RECORDING, "start": first / SAMPLE_RATE, "end": stop / SAMPLE_RATE, "words": " ".join(words)}
        for first, stop, words in spoken.phrases
    ]


def main() -> None:
    """Parse the command line and write all files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "media")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    lines = []
    for clip in CLIPS:
        encode(clip, out / clip.name)
        lines += [json.dumps(scene) for scene in truth(clip)]
    spoken = recording(random.Random(RECORDING_SEED), RECORDING_SECONDS, held_out=True)
    encode_recording(spoken.samples, out / RECORDING)
    lines += [json.dumps(phrase) for phrase in truth_of_recording(spoken)]
    for name in (*(clip.name for clip in CLIPS), RECORDING):
        print(f"{out / name}: {(out / name).stat().st_size} bytes")
    (out / "truth.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
