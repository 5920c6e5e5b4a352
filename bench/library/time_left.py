"""How right is the time left that a run tells?

    scripts/bench library/time_left --help

It makes a library of clips and long videos of three sizes, with and without sound, of recordings, and of damaged files,
in an order that chance decides; annotates it with the demo models; and compares the time left that --json-log told with
the time that was left. A second run is interrupted half way and continued. The table has, by how much of the time of
the run was over, the time that was left, what was told with its uncertainty, and the error.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from reelscribe.archive import build as archive
from servers.torchserve import CAPTIONER, CONFIG, HANDLERS, ROOT, SPEECH, Serving, serve

SIZES = ((320, 180), (480, 270), (960, 540))
FRAMES_PER_SECOND = 25
SAMPLE_RATE = 16_000
POINTS = (0.1, 0.25, 0.5, 0.75)
"""Fractions of the time of a run at which it is asked for the time left."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=int, default=60, help="number of sources; the default is 60")
    parser.add_argument("--seed", type=int, default=1, help="decides the library and its order; the default is 1")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="time-left-") as name:
        folder = Path(name)
        library, hours = make_library(folder / "library", options.sources, options.seed)
        print(f"{options.sources} sources, {60 * hours:.1f} minutes of media, seed {options.seed}", flush=True)
        for model, kind, weights in (("captioner", "caption", CAPTIONER), ("speech", "speech", SPEECH)):
            archive.build(model, kind, str(weights), folder / "store", handlers=HANDLERS)
        with serve(folder, "captioner", CONFIG) as serving:
            rows = [*measure("whole", annotate(serving, library, folder / "whole"))]
            annotate(serving, library, folder / "resumed", stop_at=0.5)
            rows += measure("resumed", annotate(serving, library, folder / "resumed"))
    for row in rows:
        print(
            f"{row['run']:8} {row['over']:>4.0%} over: {row['left']:6.1f} s were left, told"
            f" {row['told']:6.1f} +- {row['plus_minus']:5.1f} s, error {row['error']:+.0%}"
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def make_library(folder: Path, sources: int, seed: int) -> tuple[Path, float]:
    """Make the sources, and return their folder and their duration in hours."""
    folder.mkdir()
    chance, hours = random.Random(seed), 0.0  # noqa: S311 - nothing secret
    for number in range(sources):
        kind = chance.choice(("clip", "clip", "long", "long", "mute", "recording", "recording", "damaged"))
        seconds = chance.uniform(0.5, 3) if kind == "clip" else chance.uniform(5, 40)
        suffix = ".flac" if kind == "recording" else ".mp4"
        path = folder / f"{chance.randrange(10**6):06}-{kind}-{number}{suffix}"
        if kind == "damaged":
            path.write_bytes(chance.randbytes(100_000))
            continue
        write_media(path, seconds, chance, picture=kind != "recording", sound=kind != "mute")
        hours += seconds / 3600
    return folder, hours


def write_media(path: Path, seconds: float, chance: random.Random, *, picture: bool, sound: bool) -> None:
    """Write a video of moving noise, a recording of loud noise, or both in one file."""
    noise = np.random.default_rng(chance.randrange(2**32))
    with av.open(str(path), "w") as file:
        video = file.add_stream("libx264", rate=FRAMES_PER_SECOND, options={"preset": "ultrafast"}) if picture else None
        audio = file.add_stream("aac" if picture else "flac", rate=SAMPLE_RATE, layout="mono") if sound else None
        if video:
            width, height = chance.choice(SIZES)
            video.width, video.height, video.pix_fmt = width, height, "yuv420p"
            image = np.kron(
                noise.integers(0, 255, (18, 32, 3), np.uint8), np.ones((height // 18, width // 32, 1), np.uint8)
            )
            image = np.pad(image, ((0, height - image.shape[0]), (0, width - image.shape[1]), (0, 0)))
            for _ in range(max(1, round(seconds * FRAMES_PER_SECOND))):
                image = np.roll(image, 3, axis=1)
                file.mux(video.encode(av.VideoFrame.from_ndarray(image)))
            file.mux(video.encode())
        if audio:
            audio.codec_context.time_base = Fraction(1, SAMPLE_RATE)
            samples = (3000 * noise.standard_normal(round(seconds * SAMPLE_RATE))).astype(np.int16)
            for first in range(0, len(samples), SAMPLE_RATE):
                part = av.AudioFrame.from_ndarray(
                    samples[None, first : first + SAMPLE_RATE], format="s16", layout="mono"
                )
                part.sample_rate, part.time_base, part.pts = SAMPLE_RATE, Fraction(1, SAMPLE_RATE), first
                file.mux(audio.encode(part))
            file.mux(audio.encode())


def annotate(serving: Serving, library: Path, out: Path, *, stop_at: float | None = None) -> list[dict[str, Any]]:
    """Run `reelscribe annotate`, and return its events.

    Args:
        serving: The server.
        library: The sources.
        out: The folder of the run.
        stop_at: Fraction of the sources after which the run is interrupted; None to let it end.
    """
    access = ["--server", serving.url, "--key-file", str(serving.instance.key_file)]
    command = [sys.executable, "-m", "reelscribe.cli", "annotate", str(library), "--out", str(out), "--json-log"]
    with subprocess.Popen([*command, "--all-frames", *access], stderr=subprocess.PIPE, text=True, cwd=ROOT) as run:
        assert run.stderr
        events: list[dict[str, Any]] = []
        for line in run.stderr:
            events.append(json.loads(line))
            done, sources = events[-1].get("sources_done", 0), events[-1].get("sources", 1)
            if stop_at is not None and isinstance(sources, int) and done > stop_at * sources:
                run.send_signal(signal.SIGINT)
                stop_at = None
    return events


def measure(run: str, events: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Compare what a run told with what came."""
    progress = [event for event in events if event["event"] == "progress"]
    times = [datetime.fromisoformat(event["time"]).timestamp() for event in progress]
    for point in POINTS:
        moment = times[0] + point * (times[-1] - times[0])
        at = next(number for number, time in enumerate(times) if time >= moment)
        told, left = progress[at]["eta_seconds"], times[-1] - times[at]
        yield {
            "run": run,
            "over": point,
            "left": left,
            "told": told if told is not None else float("nan"),
            "plus_minus": progress[at]["eta_plus_minus"] or 0.0,
            "error": (told if told is not None else float("nan")) / left - 1,
        }


if __name__ == "__main__":
    main()
