"""Synthetic clips in which two things happen one after the other, with known captions.

In each clip, two objects on a plain background change in turn. The demo clip model is trained on the captions of such
clips, which can only be told by somebody who sees the frames in their order::

    a red circle moves from left to right, then a blue square appears
    a green star shrinks, then a white cross moves up

Lengths and positions are those of `scenes`: in frame heights, x to the right and y downwards.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, replace

from PIL import Image

from synthetic.scenes import BACKGROUNDS, COLOURS, SHAPES, Object, Scene, article, draw

CHANGES = (
    "moves from left to right",
    "moves from right to left",
    "moves up",
    "moves down",
    "grows",
    "shrinks",
    "appears",
    "disappears",
)
"""The changes that an object can go through."""

SPANS = ((0.1, 0.4), (0.6, 0.9))
"""When the first and the second object change: start and end as fractions (0 to 1) of the clip."""

_RADIUS = (0.15, 0.20)
_SMALLEST = 0.5  # size of an object before it grows or after it has shrunk, as a fraction
_REACH = 0.3  # how far from the centre of the frame a moving object begins and ends, as a fraction of width or height


@dataclass(frozen=True)
class Event:
    """One object, and what it does."""

    object: Object
    """The object at its full size; where it moves, its position is that in the middle of its way."""
    change: str
    """One of CHANGES."""

    @property
    def noun(self) -> str:
        """The object in words."""
        return f"{article(self.object.colour)} {self.object.colour} {self.object.shape}"

    @property
    def caption(self) -> str:
        """The event in words."""
        return f"{self.noun} {self.change}"

    def at(self, progress: float, aspect: float) -> Object | None:
        """Return the object when a part of its change has happened; None while it cannot be seen.

        Args:
            progress: The fraction of the change that has happened, 0 to 1.
            aspect: Width / height of the frame.
        """
        o, way = self.object, (2 * progress - 1) * _REACH
        match self.change:
            case "moves from left to right":
                return replace(o, x=aspect / 2 + way * aspect)
            case "moves from right to left":
                return replace(o, x=aspect / 2 - way * aspect)
            case "moves up":
                return replace(o, y=0.5 - way)
            case "moves down":
                return replace(o, y=0.5 + way)
            case "grows":
                return replace(o, radius=o.radius * (_SMALLEST + (1 - _SMALLEST) * progress))
            case "shrinks":
                return replace(o, radius=o.radius * (1 - (1 - _SMALLEST) * progress))
            case "appears":
                return o if progress >= 0.5 else None
            case _:
                return o if progress < 0.5 else None


@dataclass(frozen=True)
class EventClip:
    """A clip of two events."""

    background: str
    events: tuple[Event, Event]
    """The objects differ in their colour or shape, and never touch."""
    aspect: float
    """Width / height of the frames."""

    @property
    def caption(self) -> str:
        """The only correct caption."""
        first, second = self.events
        return f"{first.caption}, then {second.caption}"

    @property
    def json_caption(self) -> str:
        """The same as JSON."""
        first, second = self.events
        return json.dumps({"first": first.caption, "then": second.caption})

    def still_caption(self, at: float) -> str:
        """The correct caption of one frame: its objects from left to right."""
        seen = sorted((o.x, event.noun) for event, o in zip(self.events, self.states(at), strict=True) if o)
        return " and ".join(noun for _, noun in seen) or "nothing"

    def states(self, at: float) -> list[Object | None]:
        """Return both objects at a moment; None for one that cannot be seen.

        Args:
            at: The moment, as a fraction (0 to 1) of the clip.
        """
        progress = [min(1.0, max(0.0, (at - start) / (end - start))) for start, end in SPANS]
        return [event.at(done, self.aspect) for event, done in zip(self.events, progress, strict=True)]

    def draw(self, at: float, width: int, height: int, *, jitter: random.Random | None = None) -> Image.Image:
        """Return an RGB image of `width` x `height` pixels of the clip at a moment; see `states` and `scenes.draw`."""
        seen = tuple(o for o in self.states(at) if o)
        return draw(Scene(self.background, seen, self.aspect), width, height, jitter=jitter)


def random_event_clip(rng: random.Random, aspect: float = 16 / 9) -> EventClip:
    """Return a random clip.

    Args:
        rng: Source of all randomness.
        aspect: Width / height of the frames.
    """
    background = rng.choice(list(BACKGROUNDS))
    palette = [colour for colour in COLOURS if colour != background]
    while True:
        clip = EventClip(background, (_random_event(rng, palette, aspect), _random_event(rng, palette, aspect)), aspect)
        first, second = clip.events
        if first.noun != second.noun and not _touch(clip):
            return clip


def _random_event(rng: random.Random, palette: list[str], aspect: float) -> Event:
    radius = rng.uniform(*_RADIUS)
    margin = 1.2 * radius
    position = rng.uniform(margin, aspect - margin), rng.uniform(margin, 1 - margin)
    shape = Object("", rng.choice(palette), rng.choice(SHAPES), *position, radius, rng.uniform(-0.12, 0.12))
    return Event(shape, rng.choice(CHANGES))


def _touch(clip: EventClip) -> bool:
    """Return whether the objects come too close to each other at any moment, or would if both could always be seen."""
    for k in range(21):
        a, b = (o or event.object for event, o in zip(clip.events, clip.states(k / 20), strict=True))
        if math.hypot(a.x - b.x, a.y - b.y) < 1.2 * (a.radius + b.radius):
            return True
    return False
