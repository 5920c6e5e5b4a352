"""Descriptions of models: a handler sends one in response to a request with the header `describe`.

Captioners, speech models, clip models, shot models, speaker models and chat models share the fields of
`ModelDescription`. The JSON of a description is part of the protocol between client and server. Two models with the
same `identity` give the same answers.
"""

from __future__ import annotations

import hashlib
import json
import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Self

from reelscribe.contract.clips import ClipBudget
from reelscribe.contract.fields import check_types, read_count, read_list, read_number
from reelscribe.contract.frames import InputSize, PixelBudget, input_size_from_json
from reelscribe.contract.shots import Windowing
from reelscribe.errors import MALFORMED, ServerError, printable

MAX_ITEM_BYTES = 64 * 2**20
"""Largest frame or chunk that a model may ask for, in bytes: TorchServe takes requests of 50 MiB by default."""

MAX_CLIP_BYTES = 2 * 2**30
"""Largest size that a model may ask for of the frames of the shortest clips, in bytes. Long ones may be larger, as
checkpoints allow clips that no server takes; whoever runs the client limits their length."""

FIRST_CONTINUOUS = 8
"""Number of requests in flight with which a run begins at a server that batches continuously. More are tried as long
as they raise throughput."""

MOST_CONTINUOUS = 256
"""Number of requests in flight above which no more are tried at such a server: vLLM computes no more at once."""

_LONGEST_NAME = 4096

_NOT_IN_IDENTITY = {
    "device_batch",
    "joined_requests",
    "continuous",
    "max_frames",
    "max_side",
    "max_chunks",
    "max_clips",
    "max_windows",
    "max_texts",
    "workers",
    "response_seconds",
    "stages",
    "devices",
    "machine",
    "cpu_threads",
}
"""Fields of a description that change the capacity and the speed of a model, but not its answers."""


def identity_of(description: Mapping[str, Any]) -> str:
    """Hash everything in a description that decides a model's answers.

    Args:
        description: The JSON of a description, as the handler sends it.

    Returns:
        16 hexadecimal digits, equal for models that give the same answers to the same requests.
    """
    hashed = {name: value for name, value in description.items() if name not in _NOT_IN_IDENTITY}
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """The fields that every kind of model has."""

    kind: ClassVar[str]
    """Name of this kind of model in error messages: "caption", "speech", "clip", "shot", "speaker" or "chat"."""
    marker: ClassVar[str]
    """Field of the JSON that no other kind of model has."""
    limits: ClassVar[tuple[str, ...]]
    """Fields that limit a request, the number of its items first. With several servers, the smallest limit applies."""
    tuple_fields: ClassVar[tuple[str, ...]]
    """Fields that are tuples here and lists in JSON."""

    name: str
    """Name on the Hugging Face hub, or directory of the weights."""
    revision: str
    """Commit on the Hugging Face hub, or a digest of the bytes of the weights."""
    generation: Mapping[str, Any]
    """Options of transformers' `generate` and, for speech, all other settings on which transcripts depend."""
    dtype: str
    """Name of the data type that the model computes in: one of torch's, such as "bfloat16", or one of the engine's."""
    device_batch: int
    """Number of frames, chunks, clips or windows that run through the model at once."""
    joined_requests: int = 1
    """Number of requests that TorchServe joins for a call, as the archive says."""
    continuous: bool = False
    """True if the server batches whatever requests have come, at each step of generation, as vLLM does."""
    workers: int = 1
    """Number of workers that serve the model, on all its servers together."""
    response_seconds: float = 120
    """Seconds that a worker may take for one request before TorchServe replaces the worker."""
    engine: str = "torch"
    """Name of the software that runs the model, such as "torch" or "ctranslate2"."""
    stages: int = 1
    """Number of processes that each worker is split over, 1 or 2."""
    devices: tuple[str, ...] = ()
    """Device of each stage of the worker that answered, such as "cpu" or "cuda:2"."""
    machine: str = ""
    """`contract.shared_memory.machine` of the worker that answered; empty if it reads no shared memory."""
    cpu_threads: int = 1
    """Number of threads with which each stage of a worker computes on the CPU."""

    @property
    def identity(self) -> str:
        """Hash that is equal for models that give the same answers to the same requests."""
        return identity_of(self.to_json())

    def requests_for_each_worker(self, items: int) -> int:
        """Return how many requests keep a worker busy: those of a call, and as many that wait for it.

        Args:
            items: Number of items of each request; at least 1.
        """
        if self.continuous:
            return FIRST_CONTINUOUS
        return 2 * min(self.joined_requests, math.ceil(self.most_items / items))

    def most_requests_for_each_worker(self, items: int) -> int:
        """Return the number of requests for each worker above which no more are tried; see `requests_for_each_worker`.

        Where the way to the server takes as long as a call, twice as many keep a worker busy. More only wait longer.
        """
        return MOST_CONTINUOUS if self.continuous else 2 * self.requests_for_each_worker(items)

    def items_of_call(self, items: int) -> int:
        """Return how many items a call has when all its requests have come; see `requests_for_each_worker`."""
        return min(self.most_items, self.joined_requests * items)

    @property
    def most_items(self) -> int:
        """Largest number of items in a request, and in a call."""
        return int(getattr(self, self.limits[0]))

    @property
    def cores(self) -> int:
        """Number of cores that all workers keep busy on their machine: one each, or more where they compute on them."""
        return self.workers * self.stages * (self.cpu_threads if "cpu" in self.devices else 1)

    def numerics(self) -> dict[str, str]:
        """Return the dtype and the engine that compute the answers, for the key of a job."""
        return {"dtype": self.dtype, "engine": self.engine}

    @classmethod
    def merge(cls, descriptions: Sequence[Self]) -> Self:
        """Merge the descriptions of the same model on several servers.

        Args:
            descriptions: The description of the model on each server; at least one.

        Returns:
            The first description, with the workers of all servers and the smallest of their limits.
        """
        names = (*cls.limits, "joined_requests")
        smallest: dict[str, Any] = {name: min(getattr(each, name) for each in descriptions) for name in names}
        return replace(descriptions[0], workers=sum(each.workers for each in descriptions), **smallest)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that a handler sends."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Make a description from the JSON that a handler sent.

        Args:
            value: The parsed JSON.

        Returns:
            The description.

        Raises:
            ServerError: The JSON does not describe a model of this kind.
        """
        for other in ModelDescription.__subclasses__():
            if other is not cls and isinstance(value, dict) and other.marker in value:
                raise ServerError(
                    f"describe: expected a {cls.kind} model, got the {other.kind} model"
                    f" {printable(str(value.get('name'))[:_LONGEST_NAME])}; give the name of another one"
                )
        try:
            description = cls(**cls._fields_from_json(value))
            description.check()
            _ = description.identity  # the hash of what is nested too deeply cannot be computed
        except MALFORMED as error:
            raise ServerError(
                f"describe: expected the description of a {cls.kind} handler, got {reprlib.repr(value)} ({error});"
                f" is the model a reelscribe archive of this version, and one for {cls.kind}?"
            ) from None
        return description

    def check(self) -> None:
        """Raise TypeError if a field has another type than is declared, or a number with which nothing can work.

        A request would otherwise have no room for a single item, or the client no memory for one.
        """
        check_types(self)
        for name in ("name", "revision"):
            if len(getattr(self, name)) > _LONGEST_NAME:
                raise TypeError(f"{name}: expected at most {_LONGEST_NAME} characters")
        for name in ("device_batch", "joined_requests", "workers", "stages", "cpu_threads", *self.limits):
            read_count(name, getattr(self, name), 1, 2**31 - 1)
        read_number("response_seconds", self.response_seconds, 0, 86_400)

    @classmethod
    def _fields_from_json(cls, value: Any) -> dict[str, Any]:
        given = [name for name in cls.tuple_fields if name in value and value[name] is not None]
        return {**value, **{name: tuple(read_list(name, value[name])) for name in given}}


@dataclass(frozen=True, kw_only=True)
class CaptionerDescription(ModelDescription):
    """Description of a captioner."""

    kind: ClassVar[str] = "caption"
    marker: ClassVar[str] = "max_frames"
    limits: ClassVar[tuple[str, ...]] = ("max_frames", "max_side")
    tuple_fields: ClassVar[tuple[str, ...]] = ("mean", "std", "devices")

    prompt: str
    """Prompt, which every caption continues or answers; may be empty."""
    input_size: InputSize | PixelBudget
    """Size to which the client scales frames. The JSON has it as "frame"."""
    mean: tuple[float, ...]
    """Mean of each colour channel, for values from 0 to 1; the server subtracts it."""
    std: tuple[float, ...]
    """Standard deviation of each colour channel, for values from 0 to 1; the server divides by it."""
    max_frames: int
    """Largest number of frames in one request."""
    max_side: int
    """Longest allowed side of a frame, in pixels."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that a handler sends."""
        value = asdict(self)
        value["frame"] = value.pop("input_size")
        return value

    def check(self) -> None:
        """Raise TypeError for a field that is wrong; see `ModelDescription.check`."""
        super().check()
        self.input_size.check()
        read_count("frame", self.input_size.nbytes, 1, MAX_ITEM_BYTES)

    @classmethod
    def _fields_from_json(cls, value: Any) -> dict[str, Any]:
        fields = super()._fields_from_json(value)
        fields["input_size"] = input_size_from_json(fields.pop("frame"))
        return fields


@dataclass(frozen=True, kw_only=True)
class SpeechDescription(ModelDescription):
    """Description of a speech model."""

    kind: ClassVar[str] = "speech"
    marker: ClassVar[str] = "tasks"
    limits: ClassVar[tuple[str, ...]] = ("max_chunks",)
    tuple_fields: ClassVar[tuple[str, ...]] = ("languages", "tasks", "devices")

    sample_rate: int
    """Sample rate of the model, in Hz."""
    chunk_seconds: float
    """Length of the longest chunk, in seconds."""
    languages: tuple[str, ...] | None
    """Codes, such as "en", of the languages that a request may name; empty if the model does not say which one
    it knows, and None if the server does not say which ones."""
    tasks: tuple[str, ...]
    """Tasks that a request may name, of "transcribe", "translate" and BOTH."""
    language: str | None
    """Language of requests that name none; None if it is detected."""
    word_times: bool
    """True if the model can tell when each word was spoken."""
    max_chunks: int
    """Largest number of chunks in one request."""
    prompt_tokens: int | None = 0
    """Largest number of tokens of an initial prompt and hot words together; 0 if the model takes none, and None if the
    server does not say how many."""
    beams: int = 1
    """Largest number of beams that a request may ask for."""
    aligns: bool = False
    """True if the model can tell when given words are spoken."""
    detects_among: bool = False
    """True if the model can detect which of several languages is spoken that a request names."""

    def check(self) -> None:
        """Raise TypeError for a field that is wrong; see `ModelDescription.check`."""
        super().check()
        read_count("beams", self.beams, 1, 2**31 - 1)
        _check_chunks(self.sample_rate, self.chunk_seconds)


@dataclass(frozen=True, kw_only=True)
class ClipModelDescription(ModelDescription):
    """Description of a clip model."""

    kind: ClassVar[str] = "clip"
    marker: ClassVar[str] = "max_clips"
    limits: ClassVar[tuple[str, ...]] = ("max_clips", "max_side")
    tuple_fields: ClassVar[tuple[str, ...]] = ("devices",)

    prompt: str
    """Question to the model about clips whose request has no prompt."""
    still_prompt: str
    """Question to the model about single pictures."""
    system_prompt: str
    """Text of the system message; empty for none, or for that of the chat template."""
    allow_prompts: bool
    """True if requests may have prompts of their own."""
    budget: ClipBudget
    """How many frames of a clip are sent, and at which size."""
    max_clips: int
    """Largest number of clips in one request."""
    max_side: int
    """Longest allowed side of a frame, in pixels."""

    def check(self) -> None:
        """Raise TypeError for a field that is wrong; see `ModelDescription.check`."""
        super().check()
        self.budget.check()
        read_count("budget", self.budget.most_bytes(0.0), 1, MAX_CLIP_BYTES)

    @classmethod
    def _fields_from_json(cls, value: Any) -> dict[str, Any]:
        fields = super()._fields_from_json(value)
        fields["budget"] = ClipBudget.from_json(fields["budget"])
        return fields


@dataclass(frozen=True, kw_only=True)
class ShotModelDescription(ModelDescription):
    """Description of a shot model."""

    kind: ClassVar[str] = "shot"
    marker: ClassVar[str] = "max_windows"
    limits: ClassVar[tuple[str, ...]] = ("max_windows",)
    tuple_fields: ClassVar[tuple[str, ...]] = ("devices",)

    windowing: Windowing
    """The windows of frames that it takes."""
    max_windows: int
    """Largest number of windows in one request."""

    def check(self) -> None:
        """Raise TypeError for a field that is wrong; see `ModelDescription.check`."""
        super().check()
        self.windowing.check()
        read_count("windowing", self.windowing.nbytes, 1, MAX_ITEM_BYTES)

    @classmethod
    def _fields_from_json(cls, value: Any) -> dict[str, Any]:
        fields = super()._fields_from_json(value)
        fields["windowing"] = Windowing.from_json(fields["windowing"])
        return fields


@dataclass(frozen=True, kw_only=True)
class SpeakerModelDescription(ModelDescription):
    """Description of a speaker model."""

    kind: ClassVar[str] = "speaker"
    marker: ClassVar[str] = "embedding_size"
    limits: ClassVar[tuple[str, ...]] = ("max_chunks",)
    tuple_fields: ClassVar[tuple[str, ...]] = ("devices",)

    embedding_size: int
    """Number of values of an embedding."""
    sample_rate: int
    """Sample rate of the model, in Hz."""
    chunk_seconds: float
    """Length of the longest chunk, in seconds."""
    max_chunks: int
    """Largest number of chunks in one request."""

    def check(self) -> None:
        """Raise TypeError for a field that is wrong; see `ModelDescription.check`."""
        super().check()
        read_count("embedding_size", self.embedding_size, 1, 2**16)
        _check_chunks(self.sample_rate, self.chunk_seconds)


@dataclass(frozen=True, kw_only=True)
class ChatModelDescription(ModelDescription):
    """Description of a chat model, which answers a text with a text. Servers with OpenAI's API have them."""

    kind: ClassVar[str] = "chat"
    marker: ClassVar[str] = "context_tokens"
    limits: ClassVar[tuple[str, ...]] = ("max_texts", "context_tokens")
    tuple_fields: ClassVar[tuple[str, ...]] = ("devices",)

    context_tokens: int
    """Largest number of tokens of a question and its answer together."""
    max_texts: int
    """Largest number of questions in one request."""


def _check_chunks(sample_rate: int, chunk_seconds: float) -> None:
    """Raise TypeError for a sample rate in Hz, or for chunks, with which nothing can work."""
    read_count("sample_rate", sample_rate, 1, 2**31 - 1)
    samples = int(read_number("chunk_seconds", chunk_seconds) * sample_rate)
    read_count("chunk_seconds times sample_rate", samples, 1, MAX_ITEM_BYTES // 2)
