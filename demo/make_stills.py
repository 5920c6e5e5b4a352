"""Makes demo/stills: images in the formats that the captioner accepts besides its own body format.

    .venv/bin/python demo/make_stills.py [--out demo/stills]

The captions of the images are printed.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image

from synthetic.scenes import Scene, draw, random_scene

ROTATE_RIGHT = 6
"""EXIF orientation of an image that is to be shown rotated clockwise by 90 degrees, as cameras store portraits."""


def main() -> None:
    """Parse the command line, write all images and print their captions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "stills")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(3)
    scenes = [_two_objects(rng, 3 / 4), *(random_scene(rng, 4 / 3, 2) for _ in range(4))]
    photo, drawing, picture, *frames = (
        draw(scene, *((480, 640) if scene.aspect < 1 else (640, 480))) for scene in scenes
    )
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = ROTATE_RIGHT
    photo.transpose(Image.Transpose.ROTATE_90).save(out / "photo.jpg", quality=90, exif=exif)
    drawing.save(out / "drawing.png", optimize=True)
    picture.save(out / "picture.webp", quality=90)
    np.save(out / "frames.npy", np.stack([np.asarray(frame.resize((160, 120))) for frame in frames]))
    for scene in scenes:
        print(scene.caption)


def _two_objects(rng: random.Random, aspect: float) -> Scene:
    """A random scene with one object above the other; rotated by 90 degrees, it would have another caption."""
    while True:
        scene = random_scene(rng, aspect, 2)
        if scene.relation in ("above", "below"):
            return scene


if __name__ == "__main__":
    main()
