"""How many captions does `--reuse` save, and how many does it change, by threshold?

    scripts/bench defaults/reuse

Every frame of the videos of demo/media is captioned with the demo model. Then, for each threshold, frames take over the
caption of the last captioned frame as in a run. `moving` are the same clips at 8 times their speed (every eighth
frame). `grain` adds the noise of a camera in the dark to them (standard deviation of 6 of 255 in each pixel).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from captions.captioner import Captioner, CaptionSettings
from demo_server import CAPTIONER, ROOT
from lib.command import command_parser, run_command
from reelscribe.contract.frames import FrameArray
from reelscribe.decode import reuse
from reelscribe.decode.sampling import Sampling
from reelscribe.decode.video import Video, VideoTask

LEVELS = (2, 4, 6, 8, 12, 16, 24)
BATCH = 32
VIDEOS = (".avi", ".mkv", ".mp4", ".webm")


def read(path: Path, captioner: Captioner, every: int, grain: float) -> FrameArray:
    """Every `every`-th frame of a clip, with noise of that standard deviation, (N, H, W, 3)."""
    frame = captioner.transform.input_size
    rng = np.random.default_rng(0)

    def images() -> Iterator[FrameArray]:
        with Video(VideoTask(str(path), frame, Sampling(every=every))) as video:
            for chosen in video.frames(range(len(video.chosen))):
                assert chosen.image is not None
                noise = rng.normal(0, grain, chosen.image.shape) if grain else 0
                yield np.clip(chosen.image + noise, 0, 255).round().astype(np.uint8)

    return np.stack(list(images()))


def taken_over(frames: FrameArray) -> list[int]:
    """For each frame, the index of the frame whose caption it gets: its own, or an earlier one."""
    last, origin, origins = reuse.ReuseDetector(), 0, []
    for k, frame in enumerate(frames):
        if not last.nearly_equal(frame):
            last.remember(frame)
            origin = k
        origins.append(origin)
    return origins


def main() -> None:
    """Print the table."""
    command_parser(__doc__).parse_args()
    captioner = Captioner(CaptionSettings(str(CAPTIONER)), torch.device("cpu"))
    clips = sorted(path for path in (ROOT / "demo" / "media").iterdir() if path.suffix in VIDEOS)
    sets = {"demo": (1, 0.0), "moving": (8, 0.0), "grain": (1, 6.0)}
    print(f"{'':8} {'levels':>7} {'frames':>7} {'saved':>7} {'changed captions':>17}")
    for name, (every, grain) in sets.items():
        media = [read(path, captioner, every, grain) for path in clips]
        captions = [
            [
                caption.text
                for at in range(0, len(frames), BATCH)
                for caption in captioner.caption([frames[at : at + BATCH]])
            ]
            for frames in media
        ]
        for levels in LEVELS:
            reuse.REUSE_LEVELS = levels
            total = saved = changed = 0
            for frames, texts in zip(media, captions, strict=True):
                origins = taken_over(frames)
                total += len(frames)
                saved += len(frames) - len(set(origins))
                changed += sum(texts[k] != texts[origin] for k, origin in enumerate(origins))
            print(f"{name:8} {levels:7} {total:7} {saved / total:7.1%} {changed:17}")


if __name__ == "__main__":
    run_command(main)
