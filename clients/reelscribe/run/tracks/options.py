"""The options of captions, clips and transcripts, and what follows from them for a given model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from reelscribe.contract.chunking import Cutting
from reelscribe.contract.clips import ClipBudget
from reelscribe.contract.fields import check_options
from reelscribe.contract.frames import Resize
from reelscribe.contract.model import CaptionerDescription, ClipModelDescription, SpeechDescription
from reelscribe.contract.source import Section
from reelscribe.contract.speech import TranscriptionOptions
from reelscribe.decode.clips import ClipCutting, ClipTask
from reelscribe.decode.reuse import REUSE_DRIFT_LEVELS, REUSE_LEVELS
from reelscribe.decode.sampling import Sampling
from reelscribe.decode.shots import ShotDetection
from reelscribe.decode.sound.audio import AudioTask
from reelscribe.decode.sound.silence import SILENCE_DB
from reelscribe.decode_pool.pool import STALL_SECONDS, DecodePool
from reelscribe.decode_pool.slots import MAX_FRAMES_PER_REQUEST, items_per_request, request_bytes
from reelscribe.errors import UsageError
from reelscribe.run.tracks.prompts import check_schema, has_field

HELD_BYTES = 2**30
"""Bytes of frames that are decoded before the first of them is sent, with `stream=False`."""

MAX_CLIPS_PER_REQUEST = 8
"""Default number of clips in one request, which is also the usual number in a device batch."""

MAX_CHUNKS_PER_REQUEST = 8
"""Default number of chunks of audio in one request: 8 MB for chunks of 30 s. The size of device batches is up to the
server.
"""


@dataclass(frozen=True)
class CaptionOptions:
    """Which frames to caption, and how to decode and send them."""

    sampling: Sampling = field(default_factory=Sampling)
    """Which frames; by default one frame a second."""
    detection: ShotDetection = field(default_factory=ShotDetection)
    """How the shots are found, if `sampling` chooses frames of each shot."""
    resize: Resize = "fast"
    """How frames are scaled to the model's input size: "fast" or "exact"."""
    deinterlace: bool = False
    """Whether frames that are marked as interlaced are deinterlaced before they are scaled."""
    reuse: bool = False
    """Whether a frame that is nearly equal to the last captioned one reuses its caption."""
    frames_per_request: int = MAX_FRAMES_PER_REQUEST
    """Largest number of frames in one request; fewer where they would exceed 8 MB."""
    stream: bool = True
    """Whether frames are sent while their source is still being decoded."""
    decode_workers: int = 2
    """Number of processes that decode video."""
    stall_seconds: float = STALL_SECONDS
    """Seconds without a heartbeat after which a decode process is killed."""
    retry_failed: bool = False
    """Whether sources that ended with an error in an earlier run are tried again."""

    def __post_init__(self) -> None:
        check_options(self)

    def settings(self, description: CaptionerDescription) -> dict[str, Any]:
        """Return everything except the weights that decides the captions, as JSON. It is part of the key of a job."""
        return {
            "sampling": self.sampling.to_json(),
            **({"detection": self.detection.to_json()} if self.sampling.per_shot else {}),
            "resize": self.resize,
            **({"deinterlace": True} if self.deinterlace else {}),
            "reuse_levels": REUSE_LEVELS if self.reuse else None,
            # A key of its own, and only with `reuse`, so that jobs of earlier versions keep their keys.
            **({"reuse_drift_levels": REUSE_DRIFT_LEVELS} if self.reuse else {}),
            "frame": asdict(description.input_size),
            **description.numerics(),
            "prompt": description.prompt,
            "generation": dict(description.generation),
        }

    def batch_size(self, description: CaptionerDescription) -> int:
        """Return the largest number of frames in one request, regardless of its size in bytes."""
        return min(self.frames_per_request, description.max_frames)

    def pool(self, description: CaptionerDescription, requests_in_flight: int) -> DecodePool:
        """Create the decode pool for a captioner.

        Args:
            description: The captioner. Its input size determines the size of a slot.
            requests_in_flight: Largest number of requests in flight. The pool has a slot for each, besides those that
                are being filled.
        """
        slot_bytes = request_bytes(description.input_size.nbytes, self.batch_size(description))
        held = 0 if self.stream else self.held_batches(description) * self.decode_workers
        return DecodePool(self.decode_workers, slot_bytes, requests_in_flight + held, stall_seconds=self.stall_seconds)

    def held_batches(self, description: CaptionerDescription) -> int:
        """Return how many batches of a source are decoded before the first of them is sent, with `stream=False`."""
        return max(1, HELD_BYTES // request_bytes(description.input_size.nbytes, self.batch_size(description)))


@dataclass(frozen=True)
class ClipOptions:
    """Where the clips of a video are, and how to describe, decode and send them."""

    cutting: ClipCutting = field(default_factory=ClipCutting)
    """Where a video is cut into clips; by default at its shots."""
    fps: float | None = None
    """Frames for each second of a clip; None for the model's own number."""
    prompt: str | None = None
    """What the model is asked, with fields that are filled in for each clip (prompts.py); None for its own prompt."""
    json_schema: Mapping[str, Any] | None = None
    """JSON schema that answers must fit; None if they are plain texts."""
    resize: Resize = "fast"
    """How frames are scaled to the size that the model takes: "fast" or "exact"."""
    deinterlace: bool = False
    """Whether frames that are marked as interlaced are deinterlaced before they are scaled."""
    clips_per_request: int = MAX_CLIPS_PER_REQUEST
    """Largest number of clips in one request; fewer where they would exceed 8 MB."""
    decode_workers: int = 2
    """Number of processes that decode video."""
    stall_seconds: float = STALL_SECONDS
    """Seconds without a heartbeat after which a decode process is killed."""
    retry_failed: bool = False
    """Whether sources that ended with an error in an earlier run are tried again."""

    def __post_init__(self) -> None:
        check_options(self)

    def check(self, description: ClipModelDescription) -> None:
        """Raise UsageError if an option is out of range, or the model does not support it."""
        if self.fps is not None and not 0 < self.fps < math.inf:
            raise UsageError(f"clip fps: expected more than 0 frames a second, got {self.fps}")
        if self.prompt is not None and not self.prompt.strip():
            raise UsageError("prompt: expected a text that is not empty; leave it out for the model's own prompt")
        if has_field(self.prompt, "schema") and self.json_schema is None:
            raise UsageError("prompt: {schema} needs a JSON schema; give one, or leave it out")
        if self.json_schema is not None:
            check_schema(self.json_schema)
        if (self.prompt is not None or self.json_schema is not None) and not description.allow_prompts:
            raise UsageError(
                f"prompt: {description.name} is served with a prompt of its own (allow_prompts: false in its YAML);"
                " leave it out"
            )

    def budget(self, description: ClipModelDescription) -> ClipBudget:
        """Return how many frames of a clip are sent, and at which size."""
        return description.budget if self.fps is None else replace(description.budget, fps=self.fps)

    def settings(self, description: ClipModelDescription) -> dict[str, Any]:
        """Return everything except the weights that decides the descriptions, as JSON. It is part of a job's key."""
        return {
            "clips": self.cutting.settings(),
            "budget": self.budget(description).to_json(),
            "resize": self.resize,
            **({"deinterlace": True} if self.deinterlace else {}),
            **description.numerics(),
            "system_prompt": description.system_prompt,
            "prompt": self.prompt or description.prompt,
            "still_prompt": description.still_prompt,
            **({} if self.json_schema is None else {"json_schema": self.json_schema}),
            "generation": dict(description.generation),
        }

    def task(self, path: str, description: ClipModelDescription, shots: Sequence[Section] | None) -> ClipTask:
        """Return how to read the clips of a file, whose shots may be known."""
        budget = self.budget(description)
        return ClipTask(path, budget, self.cutting, self.resize, deinterlace=self.deinterlace, known_shots=shots)

    def batch_size(self, description: ClipModelDescription) -> int:
        """Return the largest number of clips in one request, regardless of its size in bytes."""
        return min(self.clips_per_request, description.max_clips)

    def pool(self, description: ClipModelDescription, requests_in_flight: int) -> DecodePool:
        """Create the decode pool for a clip model.

        Args:
            description: The clip model. Its budget determines the size of a slot, which holds the largest clip.
            requests_in_flight: Largest number of requests in flight. The pool has a slot for each, besides those that
                are being filled.
        """
        largest = self.budget(description).most_bytes(self.cutting.longest_seconds)
        slot_bytes = request_bytes(largest, self.batch_size(description))
        return DecodePool(self.decode_workers, slot_bytes, requests_in_flight, stall_seconds=self.stall_seconds)


@dataclass(frozen=True)
class SpeechOptions:
    """How to transcribe audio, and how to cut, decode and send it."""

    transcription: TranscriptionOptions = field(default_factory=TranscriptionOptions)
    """Language, task, and whether to record the times of words."""
    cutting: Cutting = field(default_factory=Cutting)
    """Where to cut audio that is longer than the model's longest chunk."""
    silence_db: float | None = SILENCE_DB
    """Chunks that are nowhere louder than this are not sent, in dB of full scale (-200 to 0); None sends all chunks."""
    vad: bool = False
    """Whether chunks in which a voice activity detector finds no voice are not sent either."""
    chunks_per_request: int = MAX_CHUNKS_PER_REQUEST
    """Largest number of chunks in one request; fewer where they would exceed 8 MB."""
    audio_workers: int = 2
    """Number of processes that decode audio."""
    stall_seconds: float = STALL_SECONDS
    """Seconds without a heartbeat after which a decode process is killed."""
    retry_failed: bool = False
    """Whether sources that ended with an error in an earlier run are tried again."""

    def __post_init__(self) -> None:
        check_options(self)
        check_options(self.transcription)

    def check(self, description: SpeechDescription) -> None:
        """Raise UsageError if an option is out of range, or the model does not support it."""
        language, task = self.transcription.language, self.transcription.task
        if self.silence_db is not None and not -200 <= self.silence_db <= 0:  # NaN is refused, too
            raise UsageError(f"silence_db: expected -200 to 0 dB of full scale, got {self.silence_db}")
        if language is not None and language not in description.languages:
            known = ", ".join(description.languages) or "none, as it does not say which language it knows"
            raise UsageError(
                f"language: expected one that {description.name} knows, got {language!r}; it knows {known}"
            )
        if task not in description.tasks:
            raise UsageError(
                f"task: expected one that {description.name} can do, {', '.join(description.tasks)}; got {task!r}"
            )
        if self.transcription.word_times and not description.word_times:
            raise UsageError(
                f"word times: {description.name} cannot tell when a word was spoken; leave them out, or use another"
                " model"
            )

    def settings(self, description: SpeechDescription) -> dict[str, Any]:
        """Return everything except the weights that decides the transcript, as JSON. It is part of the key of a job."""
        return {
            **asdict(self.transcription),
            "language": self.transcription.language or description.language,
            "cutting": asdict(self.cutting),
            "silence_db": self.silence_db,
            "vad": self.vad,
            "sample_rate": description.sample_rate,
            "chunk_seconds": description.chunk_seconds,
            **description.numerics(),
            "generation": dict(description.generation),
        }

    def task(self, path: str, description: SpeechDescription) -> AudioTask:
        """Return how to read the audio of a file and cut it into chunks for a model."""
        samples = chunk_samples(description)
        return AudioTask(path, description.sample_rate, samples, self.cutting, self.silence_db, self.vad)

    def batch_size(self, description: SpeechDescription, sample_rate: int | None = None) -> int:
        """Return the largest number of chunks in one request.

        Args:
            description: The speech model.
            sample_rate: Sample rate of the chunks, in Hz; None for that of the model.
        """
        most = min(self.chunks_per_request, description.max_chunks)
        chunk_bytes = 2 * chunk_samples(description, sample_rate)
        return items_per_request(request_bytes(chunk_bytes, most), chunk_bytes, most)

    def pool(self, description: SpeechDescription, requests_in_flight: int) -> DecodePool:
        """Create the decode pool for a speech model.

        Args:
            description: The speech model. Its longest chunk determines the size of a slot.
            requests_in_flight: Largest number of requests in flight. The pool has a slot for each, besides those that
                are being filled.
        """
        slot_bytes = self.batch_size(description) * 2 * chunk_samples(description)
        return DecodePool(self.audio_workers, slot_bytes, requests_in_flight, stall_seconds=self.stall_seconds)


def chunk_samples(description: SpeechDescription, sample_rate: int | None = None) -> int:
    """Return the number of samples in the model's longest chunk, at a sample rate in Hz or at that of the model."""
    return int(description.chunk_seconds * (sample_rate or description.sample_rate))
