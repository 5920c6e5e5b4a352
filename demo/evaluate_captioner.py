"""How often is the demo captioner exactly right on scenes that training did not use?

    PYTHONPATH=handlers .venv/bin/python demo/evaluate_captioner.py

Every scene is drawn, encoded as H.264 at 640x360 among drifting neighbours, decoded again, and captioned by the
handler's own code at full size. The scenes' seed is not one that training uses.
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
from scenes import Scene, draw, random_scene

WIDTH, HEIGHT = 640, 360
SEED = 20_261_121
FRAMES_PER_SCENE = 5
BATCH = 32


def encode(scenes: list[Scene], path: Path) -> None:
    """Every scene for FRAMES_PER_SCENE frames, one after the other."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=20)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for scene in scenes:
            for k in range(FRAMES_PER_SCENE):
                image = draw(scene, WIDTH, HEIGHT, offset=(DRIFT[0] * k, DRIFT[1] * k))
                container.mux(stream.encode(av.VideoFrame.from_image(image)))
        container.mux(stream.encode())


def decode(path: Path) -> Iterator[np.ndarray]:
    """The middle frame of every scene, (H, W, 3) uint8."""
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
    captions = [text for at in range(0, len(frames), BATCH) for text in captioner.caption([frames[at : at + BATCH]])]
    return list(zip(scenes, captions, strict=True))


def main() -> None:
    """Command line: the share that is exact, by number of objects, and the mistakes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(Path(__file__).parent / "models" / "captioner"))
    parser.add_argument("--frames", type=int, default=1000)
    options = parser.parse_args()
    total, exact, words = Counter[int](), Counter[int](), Counter[str]()
    for scene, text in evaluate(options.model, options.frames):
        total[len(scene.objects)] += 1
        exact[len(scene.objects)] += text == scene.caption
        words.update(f"{w} -> {got}" for w, got in zip(scene.caption.split(), text.split(), strict=False) if w != got)
    for count, name in enumerate(("no object", "one object", "two objects")):
        print(f"{name:12} {exact[count]:4} of {total[count]:4} exact, {exact[count] / max(1, total[count]):.1%}")
    print("most frequent mistakes:", ", ".join(f"{mistake} ({n})" for mistake, n in words.most_common(6)) or "none")
    print(f"exact captions: {exact.total()} of {total.total()} held-out frames, {exact.total() / total.total():.1%}")


if __name__ == "__main__":
    main()
