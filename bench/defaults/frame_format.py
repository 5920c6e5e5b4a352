"""How should frames be encoded for a server with OpenAI's API: what does each format cost, and what does it change?

    scripts/bench defaults/frame_format [--footage FOLDER] [--clips 500] [--rounds 3]

The first table is of frames of real films, those of the folder `footage` that scripts/real_data makes, at the sizes
that a Qwen3-VL takes: for each frame, the milliseconds of CPU time to encode it, those to decode it again, its size
before base64, and the mean difference of its pixel values (0 to 255). Every round encodes all frames in all formats.

The second table is of clips that the demo clip model was not trained with (those of training.clip_captioner.evaluate).
The handler's own code describes them after their frames were encoded and decoded: how many descriptions are exact, how
many are those of the frames as they were, and how much the average log-probability of a description differs.
"""

from __future__ import annotations

import io
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import torch
from PIL import Image

from clips.describer import ClipSettings, Describer
from lib.command import command_parser, run_command
from lib.report import Report, Spread, publish
from reelscribe.client.openai_forms import encode_frame
from reelscribe.contract.clips import Clip, ClipDescription
from reelscribe.contract.families import FAMILIES
from reelscribe.contract.frames import FrameArray
from servers.torchserve import CLIPS
from synthetic.event_clips import EventClip, random_event_clip
from training.clip_captioner.evaluate import BATCH, HEIGHT, SEED, WIDTH, encode, read

FORMATS = ("png", "jpeg:95", "jpeg:90", "jpeg:80")
FRAMES = 20
"""Number of frames of each film."""
FRAMES_PER_CLIP = 16
"""Number of frames of a clip by which a model decides how large they are."""


def film_frames(path: Path) -> list[FrameArray]:
    """Read frames of a film, spread evenly, at the size that a Qwen3-VL takes."""
    with av.open(str(path)) as container:
        frames = [frame.to_image() for frame in container.decode(video=0)]
    chosen = frames[:: max(1, len(frames) // FRAMES)][:FRAMES]
    size = FAMILIES["qwen3-vl"].clips.frame_size(FRAMES_PER_CLIP, *chosen[0].size)
    return [np.asarray(frame.resize((size.width, size.height), Image.Resampling.BICUBIC)) for frame in chosen]


def decode(data: bytes) -> FrameArray:
    """Decode a frame."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def measure_costs(table: Report, path: Path, rounds: int) -> None:
    """Add the rows of one film."""
    frames = film_frames(path)
    height, width, _ = frames[0].shape
    encoding, decoding = ({name: list[float]() for name in FORMATS} for _ in range(2))
    encoded = dict[str, list[bytes]]()
    for _ in range(rounds):
        for name in FORMATS:
            began = time.process_time()
            encoded[name] = [encode_frame(frame, name) for frame in frames]
            middle = time.process_time()
            decoded = [decode(data) for data in encoded[name]]
            encoding[name].append(1000 * (middle - began) / len(frames))
            decoding[name].append(1000 * (time.process_time() - middle) / len(frames))
            assert len(decoded) == len(frames)
    for name in FORMATS:
        differences = [
            np.abs(decode(data).astype(int) - frame) for data, frame in zip(encoded[name], frames, strict=True)
        ]
        size = sum(map(len, encoded[name])) / len(frames) / 1000
        row = Spread(tuple(encoding[name])), Spread(tuple(decoding[name]))
        table.add(f"{path.stem} {width}x{height}", name, *row, f"{size:.0f}", f"{np.mean(differences):.2f}")


def held_out(count: int, describer: Describer) -> tuple[list[EventClip], list[Clip]]:
    """Make clips that training has not used, and read them as a run does."""
    rng, clips = random.Random(SEED), list[Clip]()  # noqa: S311 - for drawing
    events = [random_event_clip(rng, WIDTH / HEIGHT) for _ in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        for at in range(0, count, BATCH):
            path = Path(folder) / f"{at}.mp4"
            encode(events[at : at + BATCH], path)
            clips += read(path, describer)
    return events, clips


def describe(clips: Sequence[Clip], describer: Describer) -> list[ClipDescription]:
    """Describe clips with the handler's code."""
    batches = (list(clips[at : at + BATCH]) for at in range(0, len(clips), BATCH))
    return [answer for batch in batches for answer in describer.describe([batch])]


def measure_answers(table: Report, count: int) -> None:
    """Add the rows of the second table."""
    describer = Describer(ClipSettings(str(CLIPS)), torch.device("cpu"))
    events, clips = held_out(count, describer)
    raw = describe(clips, describer)
    for name in FORMATS:
        changed = [
            replace(clip, frames=np.stack([decode(encode_frame(frame, name)) for frame in clip.frames]))
            for clip in clips
        ]
        answers = describe(changed, describer)
        exact = sum(event.caption == answer.text for event, answer in zip(events, answers, strict=True))
        same = sum(a.text == b.text for a, b in zip(raw, answers, strict=True))
        difference = np.mean(
            [abs((a.avg_logprob or 0) - (b.avg_logprob or 0)) for a, b in zip(raw, answers, strict=True)]
        )
        table.add(name, f"{100 * exact / count:.1f}", f"{100 * same / count:.1f}", f"{difference:.4f}")


def main() -> None:
    """Print the tables."""
    parser = command_parser(__doc__)
    parser.add_argument("--footage", type=Path, default=Path(".real-data") / "footage", metavar="FOLDER")
    parser.add_argument("--clips", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    costs = Report("A frame", ("film", "format", "encode, ms", "decode, ms", "kB", "difference"))
    for path in sorted(options.footage.glob("*.mp4")):
        measure_costs(costs, path, options.rounds)
    answers = Report(f"{options.clips} held-out clips", ("format", "exact, %", "same, %", "log-probability differs by"))
    measure_answers(answers, options.clips)
    publish([costs, answers], None)


if __name__ == "__main__":
    run_command(main)
