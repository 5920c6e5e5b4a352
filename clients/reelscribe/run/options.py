"""What is captioned and transcribed of each source, and how: the options of a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from reelscribe.contract.chunking import SILENCE_DB, Cutting
from reelscribe.contract.frames import Resize
from reelscribe.contract.model import CaptionerDescription, SpeechDescription
from reelscribe.contract.speech import TranscriptionOptions
from reelscribe.decode.audio import AudioTask
from reelscribe.decode.reuse import REUSE_LEVELS
from reelscribe.decode.sampling import Sampling
from reelscribe.decode_pool.pool import STALL_SECONDS, DecodePool
from reelscribe.decode_pool.slots import MAX_FRAMES_PER_REQUEST, items_per_request, request_bytes
from reelscribe.errors import UsageError

HELD_BYTES = 2**30
"""Of frames that are read before the first of them is sent, where whole sources are; beyond it they are sent."""

MAX_CHUNKS_PER_REQUEST = 8
"""Of 30 s, that is 8 MB; what a GPU is given at once is the server's affair."""


@dataclass(frozen=True)
class CaptionOptions:
    """What is captioned, and how it is done."""

    sampling: Sampling = field(default_factory=Sampling)
    resize: Resize = "fast"
    reuse: bool = False
    """Whether frames that are nearly equal to the last captioned one take over its caption."""
    frames_per_request: int = MAX_FRAMES_PER_REQUEST
    """At most; fewer if they would exceed 8 MB."""
    stream: bool = True
    """Whether frames are sent while their source is still being read."""
    decode_workers: int = 2
    stall_seconds: float = STALL_SECONDS
    """A decode process that does not get on for so long is ended."""
    retry_failed: bool = False
    """Whether sources that ended with an error in an earlier run are tried again."""

    def settings(self, description: CaptionerDescription) -> dict[str, Any]:
        """Everything but the weights that decides what the captions say."""
        return {
            "sampling": self.sampling.to_json(),
            "resize": self.resize,
            "reuse_levels": REUSE_LEVELS if self.reuse else None,
            "frame": asdict(description.input_size),
            "dtype": description.dtype,
            "prompt": description.prompt,
            "generation": dict(description.generation),
        }

    def batch_size(self, description: CaptionerDescription) -> int:
        """Frames of one request at most."""
        return min(self.frames_per_request, description.max_frames)

    def pool(self, description: CaptionerDescription, requests_in_flight: int) -> DecodePool:
        """The processes that decode for these options."""
        slot_bytes = request_bytes(description.input_size.nbytes, self.batch_size(description))
        held = 0 if self.stream else self.held_batches(description) * self.decode_workers
        return DecodePool(self.decode_workers, slot_bytes, requests_in_flight + held, stall_seconds=self.stall_seconds)

    def held_batches(self, description: CaptionerDescription) -> int:
        """Of a source that is read before it is sent."""
        return max(1, HELD_BYTES // request_bytes(description.input_size.nbytes, self.batch_size(description)))


@dataclass(frozen=True)
class SpeechOptions:
    """What is transcribed, and how it is done."""

    transcription: TranscriptionOptions = field(default_factory=TranscriptionOptions)
    """Language, task, and whether the times of words are wanted."""
    cutting: Cutting = field(default_factory=Cutting)
    """Where sound is cut that is longer than the model can hear at once."""
    silence_db: float | None = SILENCE_DB
    """Chunks that are nowhere louder are not sent; None sends all."""
    vad: bool = False
    """Whether chunks in which a detector hears no voice are not sent either."""
    chunks_per_request: int = MAX_CHUNKS_PER_REQUEST
    """At most; fewer if they would exceed 8 MB."""
    audio_workers: int = 2
    stall_seconds: float = STALL_SECONDS
    """A decode process that does not get on for so long is ended."""
    retry_failed: bool = False
    """Whether sources that ended with an error in an earlier run are tried again."""

    def check(self, description: SpeechDescription) -> None:
        """Raises UsageError for what the model cannot do."""
        language, task = self.transcription.language, self.transcription.task
        if self.silence_db is not None and not -200 <= self.silence_db <= 0:  # nor may it be NaN
            raise UsageError(f"silence_db: expected -200 to 0 dB of full scale, got {self.silence_db}")
        if language is not None and language not in description.languages:
            known = ", ".join(description.languages) or "none, as it knows but one"
            raise UsageError(f"language: got {language!r}, expected one that {description.name} knows: {known}")
        if task not in description.tasks:
            raise UsageError(
                f"task: expected one that {description.name} can do, {', '.join(description.tasks)}; got {task!r}"
            )
        if self.transcription.word_times and not description.word_times:
            raise UsageError(f"word times: {description.name} cannot tell them; ask for none, or use another model")

    def settings(self, description: SpeechDescription) -> dict[str, Any]:
        """Everything but the weights that decides what is heard."""
        return {
            **asdict(self.transcription),
            "language": self.transcription.language or description.language,
            "cutting": asdict(self.cutting),
            "silence_db": self.silence_db,
            "vad": self.vad,
            "sample_rate": description.sample_rate,
            "chunk_seconds": description.chunk_seconds,
            "dtype": description.dtype,
            "generation": dict(description.generation),
        }

    def task(self, description: SpeechDescription) -> AudioTask:
        """What is read of a file; its path is to be filled in."""
        samples = chunk_samples(description)
        return AudioTask("", description.sample_rate, samples, self.cutting, self.silence_db, self.vad)

    def batch_size(self, description: SpeechDescription) -> int:
        """Chunks of one request at most."""
        most = min(self.chunks_per_request, description.max_chunks)
        chunk_bytes = 2 * chunk_samples(description)
        return items_per_request(request_bytes(chunk_bytes, most), chunk_bytes, most)

    def pool(self, description: SpeechDescription, requests_in_flight: int) -> DecodePool:
        """The processes that decode for these options."""
        slot_bytes = self.batch_size(description) * 2 * chunk_samples(description)
        return DecodePool(self.audio_workers, slot_bytes, requests_in_flight, stall_seconds=self.stall_seconds)


def chunk_samples(description: SpeechDescription) -> int:
    """Of the longest chunk, which is int16."""
    return int(description.chunk_seconds * description.sample_rate)
