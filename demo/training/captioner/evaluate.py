"""Measures how many captions of the demo captioner are exact on scenes that training did not use.

    PYTHONPATH=handlers:demo .venv/bin/python -m training.captioner.evaluate

Each scene is drawn for several frames in which its objects drift. The frames of all scenes are encoded as one H.264
video of 640x360 and decoded again. The handler's own code captions the middle frame of each scene at full size. The
seed of the scenes differs from those of training.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import torch

from captions.captioner import Captioner, CaptionSettings
from make_media import DRIFT
from synthetic.scenes import Scene, draw, random_scene

WIDTH, HEIGHT = 640, 360
SEED = 20_261_121
FRAMES_PER_SCENE = 5
BATCH = 32


def encode(scenes: list[Scene], path: Path) -> None:
    """Write a video that shows the scenes one after the other, each for FRAMES_PER_SCENE frames."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=20)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for scene in scenes:
            for k in range(FRAMES_PER_SCENE):
                image = draw(scene, WIDTH, HEIGHT, offset=(DRIFT[0] * k, DRIFT[1] * k))
                container.mux(stream.encode(av.VideoFrame.from_image(image)))
        container.mux(stream.encode())


def decode(path: Path) -> Iterator[np.ndarray]:
    """Yield the middle frame of each scene, (HEIGHT, WIDTH, 3) uint8."""
    with av.open(str(path)) as container:
        for k, frame in enumerate(container.decode(video=0)):
            if k % FRAMES_PER_SCENE == FRAMES_PER_SCENE // 2:
                yield frame.to_ndarray(format="rgb24")


def evaluate(model: str, count: int) -> list[tuple[Scene, str]]:
    """Caption `count` scenes with the model in the folder `model`; returns each scene with its caption."""
    rng = random.Random(SEED)
    scenes = [random_scene(rng, WIDTH / HEIGHT) for _ in range(count)]
    captioner = Captioner(CaptionSettings(model), torch.device("cpu"))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "scenes.mp4"
        encode(scenes, path)
        frames = np.stack(list(decode(path)))
    batches = (frames[at : at + BATCH] for at in range(0, len(frames), BATCH))
    captions = [caption.text for batch in batches for caption in captioner.caption([batch])]
    return list(zip(scenes, captions, strict=True))


def main() -> None:
    """Print the fraction of exact captions for each number of objects, and the most frequent mistakes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(Path(__file__).parents[2] / "models" / "captioner"))
    parser.add_argument("--frames", type=int, default=1000)
    options = parser.parse_args()
    total, exact, mistakes = Counter[int](), Counter[int](), Counter[str]()
    for scene, text in evaluate(options.model, options.frames):
        total[len(scene.objects)] += 1
        exact[len(scene.objects)] += text == scene.caption
        pairs = zip(scene.caption.split(), text.split(), strict=False)
        mistakes.update(f"{expected} -> {actual}" for expected, actual in pairs if expected != actual)
    for count, name in enumerate(("no object", "one object", "two objects")):
        print(f"{name:12} {exact[count]:4} of {total[count]:4} exact, {exact[count] / max(1, total[count]):.1%}")
    print("most frequent mistakes:", ", ".join(f"{mistake} ({n})" for mistake, n in mistakes.most_common(6)) or "none")
    print(f"exact captions: {exact.total()} of {total.total()} held-out frames, {exact.total() / total.total():.1%}")


if __name__ == "__main__":
    main()
