"""Compares answers of models as far as they are promised to be the same in other batches and on other processors.

Texts, times and all else that is no confidence are equal. Confidences may differ, because each kernel adds up products
in an order of its own, and which kernel a processor takes depends on the size of the batch, too.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from reelscribe.contract.voices import ChunkVoices

ROUNDING = 5e-4
"""Largest difference of numbers that count as equal. Times have steps of twice as much, which no rounding makes."""


def assert_alike(got: Any, expected: Any) -> None:
    """Fail unless both hold the same in the same order, with numbers that differ by no more than ROUNDING."""
    ours, theirs = dict(_leaves(got)), dict(_leaves(expected))
    assert [*ours] == [*theirs]
    assert {place: (ours[place], theirs[place]) for place in ours if not _alike(ours[place], theirs[place])} == {}


def _alike(got: Any, expected: Any) -> bool:
    numbers = isinstance(got, float) and isinstance(expected, float)
    return got == expected or (numbers and abs(got - expected) <= ROUNDING)


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what is no list, dict or dataclass in `value`, or is empty, each with its place."""
    if isinstance(value, ChunkVoices):
        value = {"times": value.times, "speakers": value.speakers, "vectors": value.vectors().tolist()}
    elif is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, (list, tuple)):
        value = dict(enumerate(value)) or []
    if value and isinstance(value, dict):
        for name, each in value.items():
            yield from _leaves(each, f"{path}.{name}")
    else:
        yield path, value
