"""The voices in audio: a speaker model's answer for one chunk, and the number of speakers that is expected.

An embedding is a vector that is alike, in direction, for the same speaker. A chunk has one for each part of what is
spoken in it. A model that tells speakers apart by itself numbers those of each chunk anew; only embeddings tell which
speakers of two chunks are the same.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from reelscribe.contract.fields import read_list, read_number, read_text
from reelscribe.errors import UsageError, brief

_BOUNDS = re.compile(r"(\d{1,3})(?:\.\.(\d{1,3}))?")

MOST_SPEAKERS = 100
"""The largest number of speakers that can be asked for."""


@dataclass(frozen=True)
class ChunkVoices:
    """The voices in one chunk."""

    times: tuple[tuple[float, float], ...]
    """Start and end of each part, in seconds from the start of the chunk, in the order of their starts."""
    embeddings: bytes
    """The embedding of each part, one after the other: (N, D) float16, little-endian."""
    speakers: tuple[int, ...] | None = None
    """Number of the speaker of each part, from 0, in this chunk alone; None if the model does not tell them apart."""

    @property
    def end(self) -> float:
        """End of what is spoken, in seconds from the start of the chunk; 0 if nothing is."""
        return max((end for _, end in self.times), default=0.0)

    def vectors(self) -> NDArray[np.float32]:
        """Return the embeddings, (N, D)."""
        values = np.frombuffer(self.embeddings, "<f2").astype(np.float32)
        return values.reshape(len(self.times), -1) if self.times else values.reshape(0, 0)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that a handler sends, and that the ledger keeps."""
        times = [time for each in self.times for time in each]
        speakers = {} if self.speakers is None else {"speakers": list(self.speakers)}
        return {"times": times, "embeddings": base64.b64encode(self.embeddings).decode(), **speakers}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Make it from the JSON that a handler sent.

        Args:
            value: The parsed JSON.

        Returns:
            The voices.

        Raises:
            TypeError: The JSON is not the answer for a chunk. KeyError and ValueError say the same.
        """
        if not isinstance(value, dict):
            raise TypeError(f"voices: expected an object, got {brief(value)}")
        seconds = [read_number("times", each, lowest=0) for each in read_list("times", value["times"])]
        starts, ends = seconds[::2], seconds[1::2]
        if (
            len(seconds) % 2
            or starts != sorted(starts)
            or any(end < start for start, end in zip(starts, ends, strict=True))
        ):
            raise ValueError("times: expected a start and an end of each part, in order")
        speakers = None
        if "speakers" in value:
            speakers = tuple(read_list("speakers", value["speakers"]))
            if len(speakers) != len(starts) or any(
                type(each) is not int or not 0 <= each < MOST_SPEAKERS for each in speakers
            ):
                raise ValueError(f"speakers: expected a number from 0 to {MOST_SPEAKERS - 1} for each part")
        try:
            embeddings = base64.b64decode(read_text("embeddings", value["embeddings"]), validate=True)
        except binascii.Error as error:
            raise ValueError(f"embeddings: expected base64 ({error})") from None
        voices = cls(tuple(zip(starts, ends, strict=True)), embeddings, speakers)
        if (
            len(embeddings) % 2
            or (len(embeddings) // 2) % max(1, len(voices.times))
            or bool(embeddings) != bool(seconds)
        ):
            raise ValueError("embeddings: expected float16, of the same number for each part")
        vectors = voices.vectors()
        if not np.isfinite(vectors).all() or not vectors.any(axis=1).all():
            raise ValueError("embeddings: expected finite numbers that are not all 0")
        return voices

    def check_size(self, size: int) -> None:
        """Raise ValueError unless embeddings have this number of values."""
        if self.times and self.vectors().shape[1] != size:
            raise ValueError(f"embeddings: expected {size} numbers for each part, got {self.vectors().shape[1]}")


@dataclass(frozen=True)
class SpeakerBounds:
    """How many speakers a recording has.

    Raises:
        UsageError: They are not in order, or out of range.
    """

    least: int = 1
    """The fewest."""
    most: int | None = None
    """The most; None for any number."""

    def __post_init__(self) -> None:
        if not 1 <= self.least <= (self.most or MOST_SPEAKERS) <= MOST_SPEAKERS:
            raise UsageError(f"speakers: expected 1 to {MOST_SPEAKERS} of them, the fewest first, got {self}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what a user has written: "auto", a number such as "2", or a range such as "2..4".

        Raises:
            UsageError: It is none of them.
        """
        if text == "auto":
            return cls()
        match = _BOUNDS.fullmatch(text)
        if match is None:
            raise UsageError(f"speakers: expected auto, a number such as 2, or a range such as 2..4, got {brief(text)}")
        return cls(int(match[1]), int(match[2] or match[1]))

    def __str__(self) -> str:
        """As a user writes it."""
        if self.most is None:
            return "auto" if self.least == 1 else f"{self.least}.."
        return str(self.least) if self.least == self.most else f"{self.least}..{self.most}"
