"""Makes videos whose cuts are known, of the kinds that make cuts hard to find.

Each kind is one difficulty. The two sets share no seed, texture, size or frame rate, and draw the strength of each
difficulty from other ranges: thresholds are chosen with "tuning", and "held-out" says what they are worth.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Literal

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

SceneSet = Literal["tuning", "held-out"]

Frame = NDArray[np.float32]
"""(height, width, 3) RGB, 0 to 255."""

Range = tuple[float, float]
"""From and to, of a number that is drawn evenly."""


@dataclass(frozen=True)
class Strength:
    """From which ranges a set draws how hard its videos are."""

    seed: int
    sizes: Sequence[tuple[int, int]]
    """Widths and heights of the videos, in pixels."""
    rates: Sequence[Fraction]
    roughness: Range
    """How fine the detail of textures is: the exponent of the amplitude of a detail by its size; lower is finer."""
    frames: tuple[int, int] = (14, 40)
    """Number of frames of a shot."""
    drift: Range = (0.0, 0.006)
    """Movement of an ordinary shot, in widths a frame."""
    fast: Range = (0.04, 0.12)
    """Movement of fast things, in widths a frame."""
    pan: Range = (0.03, 0.08)
    """Movement of a fast pan, in widths a frame."""
    zoom: Range = (0.02, 0.05)
    """Growth a frame."""
    flash: Range = (0.6, 1.0)
    """How white a flash makes the picture."""
    hand: Range = (2.0, 6.0)
    """Hand shake, in pixels to either side."""
    shake: Range = (12.0, 30.0)
    """Heavy shake, in pixels to either side."""
    grain: Range = (8.0, 18.0)
    """Standard deviation of noise, in levels."""
    dark: Range = (14.0, 30.0)
    """Contrast of dark pictures: the levels that they have above black."""


STRENGTHS: dict[SceneSet, Strength] = {
    "tuning": Strength(
        seed=1000,
        sizes=((320, 180), (256, 192), (180, 320)),
        rates=(Fraction(25), Fraction(30), Fraction(60)),
        roughness=(0.5, 0.8),
    ),
    "held-out": Strength(
        seed=7_000_000,
        sizes=((384, 216), (288, 216), (216, 384), (352, 192)),
        rates=(Fraction(24000, 1001), Fraction(30000, 1001), Fraction(50)),
        roughness=(0.4, 0.9),
        frames=(12, 50),
        drift=(0.001, 0.01),
        fast=(0.03, 0.14),
        pan=(0.02, 0.1),
        zoom=(0.015, 0.06),
        flash=(0.5, 0.95),
        hand=(1.0, 8.0),
        shake=(12.0, 34.0),
        grain=(6.0, 20.0),
        dark=(12.0, 36.0),
    ),
}


@dataclass
class Scene:
    """Frames with known cuts."""

    frames: list[Frame]
    cuts: list[int]
    """Indices of the frames that begin a shot, but the first."""


class Maker:
    """Draws the shots of one video."""

    def __init__(self, strength: Strength, number: int, photos: Sequence[Image.Image] = ()) -> None:
        """Prepare the video of this number.

        Args:
            strength: From which ranges everything is drawn.
            number: Number of the video in its set.
            photos: What shots show instead of textures, if any.
        """
        self.strength = strength
        self.rng = random.Random(strength.seed + number)
        self.noise = np.random.default_rng(strength.seed + number)
        self.width, self.height = strength.sizes[number % len(strength.sizes)]
        self.rate = strength.rates[number % len(strength.rates)]
        self._photos = self.rng.sample(photos, len(photos))

    def draw(self, values: Range) -> float:
        """Draw a number of a range."""
        return self.rng.uniform(*values)

    def length(self) -> int:
        """Draw the number of frames of a shot."""
        return self.rng.randint(*self.strength.frames)

    def image(self) -> Image.Image:
        """Draw what a shot shows, larger than the video, in colours of its own."""
        if self._photos:
            return self._photos.pop()  # none comes twice
        tint = np.array([self.rng.uniform(-40, 40) for _ in range(3)], np.float32) + self.rng.uniform(-40, 40)
        pixels = texture(self.rng.randrange(2**31), self.draw(self.strength.roughness)) * self.draw((0.5, 1.2))
        return Image.fromarray(np.clip(128 + pixels + tint, 0, 255).astype(np.uint8))

    def shot(
        self,
        frames: int,
        *,
        speed: float | None = None,
        zoom: float = 0.0,
        shake: float = 0.0,
        things: int = 0,
        image: Image.Image | None = None,
    ) -> list[Frame]:
        """Draw the frames of a shot.

        Args:
            frames: Their number.
            speed: Movement of the camera, in widths a frame; None to draw that of an ordinary shot.
            zoom: Growth of the picture a frame; negative to shrink.
            shake: How far the camera jumps to either side from frame to frame, in pixels.
            things: Number of things that move fast before it.
            image: What it shows; None to draw that, too.
        """
        image = image or self.image()
        moving = [_Thing(self) for _ in range(things)]
        camera = _Camera(self, image, self.draw(self.strength.drift) if speed is None else speed, zoom, frames)
        shot = []
        for k in range(frames):
            jump = (self.rng.uniform(-shake, shake), self.rng.uniform(-shake, shake))
            picture = camera.picture(k, jump)
            for thing in moving:
                thing.paste(picture, k)
            shot.append(np.asarray(picture, np.float32))
        return shot


@cache
def texture(seed: int, roughness: float, side: int = 512) -> Frame:
    """Return a square texture with detail of all sizes, of mean 0 and a standard deviation of 50 levels."""
    rng, total = np.random.default_rng(seed), np.zeros((side, side, 3), np.float32)
    for step in (2, 4, 8, 16, 32, 64, 128):
        for channel in range(3):
            layer = Image.fromarray(rng.normal(0, step**roughness, (side // step + 3,) * 2).astype(np.float32))
            large = layer.resize((side, side), Image.Resampling.BICUBIC)
            total[..., channel] += np.asarray(large)
    grey = total.mean(2, keepdims=True)
    mixed = 1.5 * grey + 0.5 * total  # as in nature, colours differ less than brightness
    return np.asarray((mixed - mixed.mean()) / mixed.std() * 50, np.float32)


def _bounced(value: float, most: float) -> float:
    """Return where something is that moves on from 0 and turns round at 0 and at `most`."""
    return most - abs(value % (2 * most) - most) if most > 0 else 0.0


class _Camera:
    """Looks at a part of an image, which moves, grows and shakes."""

    def __init__(self, maker: Maker, image: Image.Image, speed: float, zoom: float, frames: int) -> None:
        self._image, self._size, self._zoom = image, (maker.width, maker.height), zoom
        # The part is as small as pixels allow, so that there is room to move; a zoom out begins small.
        room = maker.rng.uniform(1.5, 2.0)
        scale = min(image.width / maker.width, image.height / maker.height) / room
        self._part = (maker.width * scale, maker.height * scale)
        self._frames, self._scale = frames, scale
        angle = maker.rng.uniform(0, 6.283)
        self._start = (maker.rng.uniform(0, image.width), maker.rng.uniform(0, image.height))
        self._step = (float(np.cos(angle)) * speed * self._part[0], float(np.sin(angle)) * speed * self._part[0])

    def picture(self, k: int, jump: tuple[float, float]) -> Image.Image:
        """Return what it sees in frame k, with a jump in pixels of the frame."""
        grown = (1 + abs(self._zoom)) ** -float(k if self._zoom >= 0 else self._frames - 1 - k)
        box = list[float]()
        for axis, whole in enumerate(self._image.size):
            margin = abs(jump[axis]) * self._scale
            part = self._part[axis] * max(grown, 0.1)
            middle = _bounced(self._start[axis] + self._step[axis] * k, whole - self._part[axis] - 2 * margin)
            low = margin + middle + (self._part[axis] - part) / 2 + jump[axis] * self._scale
            box.append(min(max(low, 0.0), whole - part))
        ends = [
            min(low + part * max(grown, 0.1), whole)
            for low, part, whole in zip(box, self._part, self._image.size, strict=True)
        ]
        return self._image.resize(self._size, Image.Resampling.BILINEAR, box=(*box, *ends))


class _Thing:
    """Something that moves fast before a scene."""

    def __init__(self, maker: Maker) -> None:
        side = int(min(maker.width, maker.height) * maker.rng.uniform(0.25, 0.5))
        self._image = maker.image().resize((side, side))
        shape = Image.new("L", (side, side))
        circle = (np.hypot(*(np.mgrid[:side, :side] - side / 2)) < side / 2) * np.uint8(255)
        self._mask = Image.fromarray(circle) if maker.rng.random() < 0.5 else shape.point(lambda _: 255)
        self._most = (maker.width - side / 2, maker.height - side / 2)
        self._start = [maker.rng.uniform(0, most) for most in self._most]
        speed, angle = maker.draw(maker.strength.fast) * maker.width, maker.rng.uniform(0, 6.283)
        self._step = (speed * float(np.cos(angle)), speed * float(np.sin(angle)))

    def paste(self, picture: Image.Image, k: int) -> None:
        x, y = (
            _bounced(start + step * k, most)
            for start, step, most in zip(self._start, self._step, self._most, strict=True)
        )
        picture.paste(self._image, (round(x), round(y)), self._mask)


def joined(shots: Sequence[list[Frame]]) -> Scene:
    """Return shots one after the other."""
    starts = np.cumsum([len(shot) for shot in shots])[:-1]
    return Scene([frame for shot in shots for frame in shot], starts.tolist())


def several(maker: Maker, count: int = 4, **options: float) -> list[list[Frame]]:
    """Return shots that differ in nothing but what they show."""
    return [maker.shot(maker.length(), **options) for _ in range(count)]  # type: ignore[arg-type]


def plain(maker: Maker) -> Scene:
    """Ordinary shots."""
    return joined(several(maker))


def fast_things(maker: Maker) -> Scene:
    """Shots in which large things move fast."""
    return joined(several(maker, things=maker.rng.randint(1, 3)))


def pans(maker: Maker) -> Scene:
    """Fast pans."""
    return joined([maker.shot(maker.length(), speed=maker.draw(maker.strength.pan)) for _ in range(4)])


def zooms(maker: Maker) -> Scene:
    """Zooms in and out."""
    signs = (1, -1, 1, -1)
    return joined(
        [maker.shot(maker.rng.randint(12, 25), zoom=sign * maker.draw(maker.strength.zoom)) for sign in signs]
    )


def _lit(frame: Frame, white: float) -> Frame:
    return frame * (1 - white) + 255 * white


def _flashing(maker: Maker, fading: int) -> Scene:
    """Ordinary shots with flashes that have `fading` frames more than the first."""
    shots = several(maker)
    for shot in shots:
        first = maker.rng.randint(3, len(shot) - fading - 5)
        peak = maker.draw(maker.strength.flash)
        for k in range(1 + fading):
            shot[first + k] = _lit(shot[first + k], peak * (1 - k / (1 + fading)))
    return joined(shots)


def flashes(maker: Maker) -> Scene:
    """Flashes of one or two frames."""
    shots = several(maker)
    for shot in shots:
        first, peak = maker.rng.randint(3, len(shot) - 5), maker.draw(maker.strength.flash)
        for k in range(maker.rng.randint(1, 2)):
            shot[first + k] = _lit(shot[first + k], peak)
    return joined(shots)


def fading_flashes(maker: Maker) -> Scene:
    """Flashes that fade over two to four frames."""
    return _flashing(maker, maker.rng.randint(2, 4))


def strobes(maker: Maker) -> Scene:
    """Strobes to white or to black, also across cuts."""
    scene = joined(several(maker, shake=maker.draw(maker.strength.hand) / 2))
    on, off = maker.rng.randint(1, 3), maker.rng.randint(1, 3)
    level, strength = maker.rng.choice((0.0, 255.0)), maker.draw(maker.strength.flash)
    first = maker.rng.randint(3, 8)
    spared = {cut + k for cut in scene.cuts for k in (-2, -1, 0, 1)}  # what is lit tells nothing of a cut beside it
    for at in range(first, len(scene.frames) - 4):
        if (at - first) % (on + off) < on and at not in spared:
            scene.frames[at] = scene.frames[at] * (1 - strength) + level * strength
    return scene


def repeated(maker: Maker) -> Scene:
    """Shots by a hand that shakes, with frames shown twice, or twice and three times in turn."""
    hand = maker.draw(maker.strength.hand)
    counts = maker.rng.choice(((2,), (2, 3)))
    shots = several(maker, shake=hand, things=maker.rng.randint(0, 1))
    whole = joined(shots)
    scene = Scene([], [])
    for at, frame in enumerate(whole.frames):
        if at in whole.cuts:
            scene.cuts.append(len(scene.frames))
        scene.frames += [frame] * counts[at % len(counts)]
    return scene


def shaken(maker: Maker) -> Scene:
    """Heavy shake."""
    return joined([maker.shot(maker.length(), shake=maker.draw(maker.strength.shake)) for _ in range(4)])


def short(maker: Maker) -> Scene:
    """Several shots of two to four frames between ordinary ones."""
    lengths = [maker.length(), *(maker.rng.randint(2, 4) for _ in range(maker.rng.randint(3, 6))), maker.length()]
    return joined([maker.shot(length) for length in lengths])


def dark(maker: Maker) -> Scene:
    """Shots in the dark, with a little noise."""
    scene = joined(several(maker))
    edges = [0, *scene.cuts, len(scene.frames)]
    for first, stop in pairwise(edges):
        levels = maker.draw(maker.strength.dark)
        for at in range(first, stop):
            noise = maker.noise.normal(0, 1.5, scene.frames[at].shape)
            scene.frames[at] = (18 + scene.frames[at] / 255 * levels + noise).astype(np.float32)
    return scene


def similar(maker: Maker) -> Scene:
    """Cuts between parts of one image, at other places and in other sizes."""
    image = maker.image()
    shots = []
    for k in range(4):
        part = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if k % 2 else image
        shots.append(maker.shot(maker.length(), image=part))
    return joined(shots)


def grainy(maker: Maker) -> Scene:
    """Grain."""
    scene, grain = joined(several(maker)), maker.draw(maker.strength.grain)
    scene.frames = [(frame + maker.noise.normal(0, grain, frame.shape)).astype(np.float32) for frame in scene.frames]
    return scene


KINDS: dict[str, Callable[[Maker], Scene]] = {
    "plain": plain,
    "fast things": fast_things,
    "pans": pans,
    "zooms": zooms,
    "flashes": flashes,
    "fading flashes": fading_flashes,
    "strobes": strobes,
    "repeated frames": repeated,
    "heavy shake": shaken,
    "short shots": short,
    "dark": dark,
    "similar shots": similar,
    "grain": grainy,
}
"""The difficulties that make cuts hard to find, by name."""


def dissolve(maker: Maker, frames: int) -> Scene:
    """Two shots of which the first becomes the second over so many mixed frames; the cut is the first of these."""
    first, second = maker.shot(30 + frames), maker.shot(30 + frames)
    parts = np.arange(1, frames + 1) / (frames + 1)
    mixed = [a * (1 - part) + b * part for a, b, part in zip(first[30:], second, parts, strict=False)]
    return Scene([*first[:30], *mixed, *second[frames:]], [30])


def fade(maker: Maker, frames: int, black: int) -> Scene:
    """Two shots with a fade through black between them; the cut is the first frame that is no longer black.

    Args:
        maker: Draws the shots.
        frames: Number of darker frames before the black, and after it.
        black: Number of black frames.
    """
    first, second = maker.shot(30 + frames), maker.shot(30 + frames)
    for k in range(frames):
        first[-1 - k] = first[-1 - k] * ((k + 1) / (frames + 1))
        second[k] = second[k] * ((k + 1) / (frames + 1))
    return Scene([*first, *[np.zeros_like(first[0])] * black, *second], [30 + frames + black])


GRADUAL: dict[str, Callable[[Maker], Scene]] = {
    **{f"dissolve of {frames}": partial(dissolve, frames=frames) for frames in (2, 4, 8, 16)},
    **{
        f"fade {frames}, {black} black": partial(fade, frames=frames, black=black)
        for frames in (3, 6, 12, 25)
        for black in (0, 4, 10)
    },
}
"""Changes from one shot to another that are no cuts, by name, with their numbers of frames."""


def scene_of(kind: str, part: SceneSet, number: int, photos: Sequence[Image.Image] = ()) -> tuple[Scene, Fraction]:
    """Make a scene of a kind.

    Args:
        kind: One of KINDS or GRADUAL.
        part: The set.
        number: Number of the scene among those of its kind in the set, from 0.
        photos: What its shots show instead of textures, if any.

    Returns:
        The scene, and its frames per second.
    """
    kinds = KINDS | GRADUAL
    maker = Maker(STRENGTHS[part], [*kinds].index(kind) * 1000 + number, photos)
    return kinds[kind](maker), maker.rate


def write_scene(path: Path, scene: Scene, rate: Fraction) -> None:
    """Encode a scene as H.264."""
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=rate, options={"preset": "ultrafast", "crf": "24"})
        stream.height, stream.width = scene.frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        stream.thread_count = 1
        for frame in scene.frames:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(np.clip(frame, 0, 255).astype(np.uint8), format="rgb24")))
        file.mux(stream.encode())
