"""What a model says of itself: the answer of a handler to a request with the header `describe`.

A captioner and a speech model share the fields of `ModelDescription`. The JSON of a description is part of the protocol
between client and server, and its `identity` tells whether two models would give the same answers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Self

from reelscribe.contract.frames import InputSize, PixelBudget, input_size_from_json
from reelscribe.errors import ServerError

_NOT_PART_OF_THE_IDENTITY = {
    *("device_batch", "max_frames", "max_side", "max_chunks", "workers", "response_seconds"),
    *("stages", "devices"),
}
"""Fields of a description that say how many requests are answered at once, how fast and where, but not with what."""


def identity_of(description: Mapping[str, Any]) -> str:
    """Hash everything in a description that decides a model's answers.

    Args:
        description: The JSON of a description, as the handler sends it.

    Returns:
        16 hexadecimal digits, equal for models that give the same answers to the same requests.
    """
    decides = {name: value for name, value in description.items() if name not in _NOT_PART_OF_THE_IDENTITY}
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """The fields that every kind of model has."""

    kind: ClassVar[str]
    """What error messages call this kind of handler."""
    smallest_of_all: ClassVar[tuple[str, ...]]
    """Limits of which the smallest counts when several servers share the load."""
    tuples: ClassVar[tuple[str, ...]]
    """Fields that are tuples here and lists in JSON."""

    name: str
    """Name on the hub, or directory of the weights."""
    revision: str
    """Commit on the hub, or a digest of the weights' own bytes."""
    generation: Mapping[str, Any]
    """Options of transformers' `generate` and, for speech, everything else that decides what is transcribed."""
    dtype: str
    """Name of the torch dtype that the model computes in, such as "bfloat16"."""
    device_batch: int
    """Frames or chunks that run through the model at once."""
    workers: int = 1
    """Number of workers that serve the model; on several servers, their sum."""
    response_seconds: float = 120
    """Seconds that one request may compute before TorchServe replaces its worker."""
    stages: int = 1
    """Number of processes that each worker is split over, 1 or 2."""
    devices: tuple[str, ...] = ()
    """Device of each stage of the worker that answered, such as "cpu" or "cuda:2"."""

    @property
    def identity(self) -> str:
        """Hash that is equal for models that give the same answers to the same requests."""
        return identity_of(self.to_json())

    @classmethod
    def of_all(cls, servers: Sequence[Self]) -> Self:
        """Describe the same model on several servers as one.

        Args:
            servers: The description of the model on each server; at least one.

        Returns:
            The first description, with the workers of all servers and the smallest of their limits.
        """
        limits: dict[str, Any] = {name: min(getattr(each, name) for each in servers) for name in cls.smallest_of_all}
        return replace(servers[0], workers=sum(server.workers for server in servers), **limits)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that a handler sends."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read the JSON that a handler sent.

        Args:
            value: The parsed JSON.

        Raises:
            ServerError: It is not the description of this kind of model.
        """
        try:
            return cls(**cls._fields_from_json(value))
        except (TypeError, KeyError, ValueError) as error:
            raise ServerError(
                f"describe: expected the description of a {cls.kind} handler, got {str(value)[:200]} ({error});"
                f" is the model a reelscribe archive of this version, and one for {cls.kind}?"
            ) from None

    @classmethod
    def _fields_from_json(cls, value: Any) -> dict[str, Any]:
        return {**value, **{name: tuple(value[name]) for name in cls.tuples if name in value}}


@dataclass(frozen=True, kw_only=True)
class CaptionerDescription(ModelDescription):
    """What a captioner says of itself."""

    kind: ClassVar[str] = "caption"
    smallest_of_all: ClassVar[tuple[str, ...]] = ("max_frames", "max_side")
    tuples: ClassVar[tuple[str, ...]] = ("mean", "std", "devices")

    prompt: str
    """Text that every caption continues or answers; may be empty."""
    input_size: InputSize | PixelBudget
    """Size that frames are scaled to before they are sent. JSON calls it "frame"."""
    mean: tuple[float, ...]
    """Mean of each channel, for values from 0 to 1, which the server subtracts."""
    std: tuple[float, ...]
    """Standard deviation of each channel, by which the server divides."""
    max_frames: int
    """Largest number of frames in one request."""
    max_side: int
    """Longest side of a frame, in pixels."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that a handler sends."""
        value = asdict(self)
        value["frame"] = value.pop("input_size")
        return value

    @classmethod
    def _fields_from_json(cls, value: Any) -> dict[str, Any]:
        fields = super()._fields_from_json(value)
        fields["input_size"] = input_size_from_json(fields.pop("frame"))
        return fields


@dataclass(frozen=True, kw_only=True)
class SpeechDescription(ModelDescription):
    """What a speech model says of itself."""

    kind: ClassVar[str] = "speech"
    smallest_of_all: ClassVar[tuple[str, ...]] = ("max_chunks",)
    tuples: ClassVar[tuple[str, ...]] = ("languages", "tasks", "devices")

    sample_rate: int
    """Samples per second that the model works with, in Hz."""
    chunk_seconds: float
    """Length of the longest chunk that the model transcribes as a whole, in seconds."""
    languages: tuple[str, ...]
    """Codes, such as "en", of the languages that a request may name; empty for a model of a single language."""
    tasks: tuple[str, ...]
    """What a request may ask for: "transcribe", "translate" or both."""
    language: str | None
    """Language of requests that name none; None if it is detected."""
    word_times: bool
    """Whether the model can tell when each word was spoken."""
    max_chunks: int
    """Largest number of chunks in one request."""
