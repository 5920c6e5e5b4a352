"""Make demo/stills: single frames in the formats that the captioner takes beside its own."""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image

from scenes import Scene, draw, random_scene

TURNED_RIGHT = 6
"""EXIF's orientation of what a camera held upright stores: to be turned clockwise by a quarter."""


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "stills")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(3)
    scenes = [_two_objects(rng, 3 / 4), *(random_scene(rng, 4 / 3, 2) for _ in range(4))]
    photo, drawing, picture, *frames = (
        draw(scene, *((480, 640) if scene.aspect < 1 else (640, 480))) for scene in scenes
    )
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = TURNED_RIGHT
    photo.transpose(Image.Transpose.ROTATE_90).save(out / "photo.jpg", quality=90, exif=exif)
    drawing.save(out / "drawing.png", optimize=True)
    picture.save(out / "picture.webp", quality=90)
    np.save(out / "frames.npy", np.stack([np.asarray(frame.resize((160, 120))) for frame in frames]))
    for scene in scenes:
        print(scene.caption)


def _two_objects(rng: random.Random, aspect: float) -> Scene:
    """One above the other: lying on its side, it would have another caption."""
    while True:
        scene = random_scene(rng, aspect, 2)
        if scene.relation in ("above", "below"):
            return scene


if __name__ == "__main__":
    main()
