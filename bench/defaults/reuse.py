"""How many captions does `--reuse` save, and how many does it change, by threshold?

    scripts/bench defaults/reuse

Every frame of the videos of demo/media is captioned with the demo model. Then, for each threshold, frames take over the
caption of the last captioned frame as in a run. `moving` are the same clips at 8 times their speed (every eighth
frame). `grain` adds the noise of a camera in the dark to them (standard deviation of 6 of 255 in each pixel).

Three more sets are made of scenes: `fades` are 12 cross-fades of 120 frames each from one scene to another, `pans` move
two objects by 0.18 pixels a frame with a little noise, and `still` are four scenes with the grain of the dark camera.

"drift" is the limit on the average difference of all areas; inf is the rule of versions without it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice, product, repeat
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from captions.captioner import Captioner, CaptionSettings
from lib.command import command_parser, run_command
from reelscribe.contract.frames import FrameArray
from reelscribe.decode.sampling import Sampling
from reelscribe.decode.video import Video, VideoTask
from reelscribe.decode_pool import reuse
from servers.torchserve import CAPTIONER, ROOT
from synthetic.scenes import draw, random_scene

LEVELS = (2, 4, 6, 8, 12, 24)
DRIFTS = (0.2, 0.3, 0.5, float("inf"))
SIDE = 224
"""Width and height of the scenes, in pixels."""
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


def scene(rng: random.Random, count: int | None = None) -> Iterator[NDArray[np.float32]]:
    """Yield the same random scene again and again, its objects moved by 0.18 pixels each time, (SIDE, SIDE, 3)."""
    chosen = random_scene(rng, 1.0, count)
    for step in range(1_000):
        yield np.asarray(draw(chosen, SIDE, SIDE, offset=(0.0008 * step, 0.0)), np.float32)


def synthetic() -> dict[str, Sequence[FrameArray]]:
    """Return the sets that are made of scenes, (N, SIDE, SIDE, 3) for each clip."""
    rng, noise = random.Random(5), np.random.default_rng(5)  # noqa: S311 - a seed is needed, not secrecy

    def clip(images: Iterator[NDArray[np.float32]], grain: float = 0.0) -> FrameArray:
        noisy = (image + (noise.normal(0, grain, image.shape) if grain else 0) for image in images)
        return np.stack([np.clip(image, 0, 255).round().astype(np.uint8) for image in noisy])

    def fade() -> Iterator[NDArray[np.float32]]:
        first, second = next(scene(rng)), next(scene(rng))
        return (first + (second - first) * (k / 119) for k in range(120))

    return {
        "fades": [clip(fade()) for _ in range(12)],
        "pans": [clip(islice(scene(rng, 2), 90), grain=2.0) for _ in range(4)],
        "still": [clip(repeat(next(scene(rng)), 60), grain=6.0) for _ in range(4)],
    }


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
    media = {name: [read(path, captioner, *how) for path in clips] for name, how in sets.items()}
    print(f"{'':8} {'levels':>7} {'drift':>6} {'frames':>7} {'saved':>7} {'changed captions':>17}")
    for name, videos in {**media, **synthetic()}.items():
        captions = [
            [
                caption.text
                for at in range(0, len(frames), BATCH)
                for caption in captioner.caption([frames[at : at + BATCH]])
            ]
            for frames in videos
        ]
        for reuse.REUSE_LEVELS, reuse.REUSE_DRIFT_LEVELS in product(LEVELS, DRIFTS):
            total = saved = changed = 0
            for frames, texts in zip(videos, captions, strict=True):
                origins = taken_over(frames)
                total += len(frames)
                saved += len(frames) - len(set(origins))
                changed += sum(texts[k] != texts[origin] for k, origin in enumerate(origins))
            limits = f"{reuse.REUSE_LEVELS:7} {reuse.REUSE_DRIFT_LEVELS:6.1f}"
            print(f"{name:8} {limits} {total:7} {saved / total:7.1%} {changed:17}")


if __name__ == "__main__":
    run_command(main)
