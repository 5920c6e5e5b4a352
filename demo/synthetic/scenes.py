"""Synthetic scenes of coloured shapes with known captions.

A scene is a plain background with no, one or two objects. The demo captioner is trained on the captions of scenes, and
captions of the demo media are compared with them::

    a plain gray background
    a small red star on a blue background
    a large green circle to the left of a small black cross

Lengths and positions are in units of the frame's height: x goes to the right (0 to `aspect`), y downwards (0 to 1).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from PIL import Image, ImageDraw

RGB = tuple[int, int, int]

COLOURS: dict[str, RGB] = {
    "red": (220, 30, 30),
    "green": (30, 160, 50),
    "blue": (40, 70, 220),
    "yellow": (240, 220, 40),
    "orange": (245, 135, 20),
    "purple": (140, 50, 170),
    "white": (245, 245, 245),
    "black": (20, 20, 20),
}
BACKGROUNDS: dict[str, RGB] = {**COLOURS, "gray": (128, 128, 128)}
SHAPES = ("circle", "square", "triangle", "star", "cross")
RELATIONS = ("to the left of", "to the right of", "above", "below")
RADIUS = {"small": (0.10, 0.13), "large": (0.20, 0.27)}
OBJECT_COUNTS = {0: 0.04, 1: 0.48, 2: 0.48}
"""Fraction of scenes with each number of objects (0 to 1)."""

_MARGIN = 1.2  # in radii; a shape extends at most 1.15 radii from its centre


@dataclass(frozen=True)
class Object:
    """A coloured shape."""

    size: str
    colour: str
    shape: str
    x: float
    """Horizontal position of the centre, 0 to the scene's `aspect`."""
    y: float
    """Vertical position of the centre, 0 to 1 from top to bottom."""
    radius: float
    """Half of the height."""
    rotation: float
    """In radians."""


@dataclass(frozen=True)
class Scene:
    """A background with up to two objects."""

    background: str
    objects: tuple[Object, ...]
    """The first of two objects is large, and the second small."""
    aspect: float
    """Width / height of the frame."""
    relation: str = ""
    """Where the first of two objects is, relative to the second; one of RELATIONS."""

    @property
    def caption(self) -> str:
        """The only correct caption."""
        background = self.background
        if not self.objects:
            return f"a plain {background} background"
        first, *rest = (f"a {o.size} {o.colour} {o.shape}" for o in self.objects)
        if not rest:
            return f"{first} on {article(background)} {background} background"
        return f"{first} {self.relation} {rest[0]}"


def article(word: str) -> str:
    """Return "a", or "an" before a vowel."""
    return "an" if word[0] in "aeiou" else "a"


def all_captions() -> list[str]:
    """Return the captions of all possible scenes."""
    nouns = [f"{colour} {shape}" for colour in COLOURS for shape in SHAPES]
    plain = [f"a plain {background} background" for background in BACKGROUNDS]
    single = [
        f"a {size} {noun} on {article(background)} {background} background"
        for size in RADIUS
        for noun in nouns
        for background in BACKGROUNDS
        if not noun.startswith(background)
    ]
    double = [f"a large {a} {relation} a small {b}" for relation in RELATIONS for a in nouns for b in nouns]
    return plain + single + double


def random_scene(rng: random.Random, aspect: float = 16 / 9, count: int | None = None) -> Scene:
    """Return a random scene.

    Args:
        rng: Source of all randomness.
        aspect: Width / height of the frame.
        count: Number of objects, 0 to 2; None chooses it with the probabilities of OBJECT_COUNTS.
    """
    if count is None:
        count = rng.choices(list(OBJECT_COUNTS), list(OBJECT_COUNTS.values()))[0]
    background = rng.choice(list(BACKGROUNDS))
    palette = [colour for colour in COLOURS if colour != background]

    def random_object(size: str) -> Object:
        radius = rng.uniform(*RADIUS[size])
        margin = _MARGIN * radius
        return Object(
            size=size,
            colour=rng.choice(palette),
            shape=rng.choice(SHAPES),
            x=rng.uniform(margin, aspect - margin),
            y=rng.uniform(margin, 1 - margin),
            radius=radius,
            rotation=rng.uniform(-0.12, 0.12),
        )

    if count == 0:
        return Scene(background, (), aspect)
    if count == 1:
        return Scene(background, (random_object(rng.choice(list(RADIUS))),), aspect)
    while True:
        pair = (random_object("large"), random_object("small"))
        relation = _clear_relation(*pair, aspect)
        if relation:
            return Scene(background, pair, aspect, relation)


def _clear_relation(a: Object, b: Object, aspect: float) -> str | None:
    """The relation of `a` to `b`; None if they are too close or if two relations would be possible."""
    dx, dy = a.x - b.x, a.y - b.y
    if math.hypot(dx, dy) < 1.25 * (a.radius + b.radius):
        return None
    across, down = abs(dx) / aspect, abs(dy)
    if max(across, down) < 1.35 * min(across, down) + 0.05:
        return None
    if across > down:
        return "to the left of" if dx < 0 else "to the right of"
    return "above" if dy < 0 else "below"


def draw(
    scene: Scene,
    width: int,
    height: int,
    *,
    jitter: random.Random | None = None,
    offset: tuple[float, float] = (0.0, 0.0),
) -> Image.Image:
    """Return an RGB image of a scene.

    Args:
        scene: The scene.
        width: Width of the image, in pixels.
        height: Height of the image, in pixels.
        jitter: Changes each colour a little at random; None leaves the colours as they are.
        offset: Added to x and y of every object.
    """

    def shade(rgb: RGB) -> RGB:
        if jitter is None:
            return rgb
        r, g, b = (int(min(255, max(0, value + jitter.uniform(-12, 12)))) for value in rgb)
        return r, g, b

    image = Image.new("RGB", (width, height), shade(BACKGROUNDS[scene.background]))
    canvas = ImageDraw.Draw(image)
    for o in scene.objects:
        fill_object(canvas, o, (height, height), shade(COLOURS[o.colour]), offset)
    return image


def fill_object(
    canvas: ImageDraw.ImageDraw,
    o: Object,
    scale: tuple[float, float],
    fill: RGB | int,
    offset: tuple[float, float] = (0.0, 0.0),
) -> None:
    """Draw one object.

    Args:
        canvas: Where to draw.
        o: The object.
        scale: Pixels per unit of x and of y. They differ if the frame is resized without keeping its aspect.
        fill: Colour, or value in an image with one channel.
        offset: Added to x and y of the object.
    """
    (sx, sy), x, y, r = scale, o.x + offset[0], o.y + offset[1], o.radius
    if o.shape == "circle":
        canvas.ellipse([(x - r) * sx, (y - r) * sy, (x + r) * sx, (y + r) * sy], fill=fill)
        return
    cos, sin = math.cos(o.rotation), math.sin(o.rotation)
    corners = [(x + r * (u * cos - v * sin), y + r * (u * sin + v * cos)) for u, v in _OUTLINES[o.shape]]
    canvas.polygon([(u * sx, v * sy) for u, v in corners], fill=fill)


def _star() -> list[tuple[float, float]]:
    reach = [1.15 if k % 2 == 0 else 0.46 for k in range(10)]
    return [(q * math.sin(math.pi * k / 5), -q * math.cos(math.pi * k / 5)) for k, q in enumerate(reach)]


def _cross(arm: float = 0.33) -> list[tuple[float, float]]:
    quarter = [(-arm, -1.0), (arm, -1.0), (arm, -arm)]
    corners = []
    for _ in range(4):
        corners += quarter
        quarter = [(-v, u) for u, v in quarter]
    return corners


_OUTLINES: dict[str, list[tuple[float, float]]] = {
    "square": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
    "triangle": [(0, -1.05), (1.05, 0.85), (-1.05, 0.85)],
    "star": _star(),
    "cross": _cross(),
}
