"""What stands in a speech model's YAML, and what every speech model can say and do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from runtime.settings import ModelSettings
from reelscribe.errors import StartupError
from reelscribe.speech import ChunkTranscript
from transcripts.chunks import SpeechChunk

SHORTEST_CHUNK_SECONDS = 2.0
"""A sound file could not be cut where it is quiet into shorter ones."""


@dataclass(frozen=True)
class SpeechSettings(ModelSettings):
    """What stands under `handler:` in the YAML."""

    device_batch: int = 16
    """Chunks that run through the model at once."""
    max_chunks: int = 64
    """Of one request."""
    max_file_seconds: float = 600
    """Of one request that is a sound file."""
    chunk_seconds: float | None = None
    """The longest chunk; None: the model's own window, or 30 where a model has none."""
    language: str | None = None
    """Taken where a request names none; None: it is detected."""
    timestamps: bool = True
    """Whether a Whisper tells when each segment was spoken; otherwise a chunk is one segment."""
    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    """Whisper: tried one after the other, while what is heard is doubtful by the next two."""
    compression_ratio_threshold: float | None = 2.4
    logprob_threshold: float | None = -1.0
    no_speech_threshold: float | None = 0.6
    """Whisper: more, and less than `logprob_threshold`, is no speech."""
    tokens_per_second: float = 14.0
    """Whisper: as many can be said in a second of sound."""
    generation: dict[str, Any] = field(default_factory=dict)
    """Whisper: any further option of transformers' `generate`."""
    pause_seconds: float = 0.5
    """CTC models: a longer pause between words begins a segment."""

    def __post_init__(self) -> None:
        """Raises StartupError for values that mean nothing."""
        super().__post_init__()
        object.__setattr__(self, "temperatures", tuple(self.temperatures))  # YAML has lists
        if self.chunk_seconds is not None and not self.chunk_seconds >= SHORTEST_CHUNK_SECONDS:
            raise StartupError(
                f"YAML, handler, chunk_seconds: expected {SHORTEST_CHUNK_SECONDS:g} or more, got {self.chunk_seconds}"
            )
        if not self.temperatures or any(not 0 <= t <= 2 for t in self.temperatures):
            raise StartupError(f"YAML, handler, temperatures: expected numbers from 0 to 2, got {self.temperatures}")


class SpeechModel(Protocol):
    """A loaded speech model with its processor, on one device."""

    sample_rate: int
    chunk_seconds: float
    languages: tuple[str, ...]
    tasks: tuple[str, ...]
    word_times: bool
    generation: dict[str, Any]
    """All that decides what is heard."""
    model: Any
    """Of transformers."""

    def transcribe(self, chunks: list[SpeechChunk]) -> list[ChunkTranscript]:
        """What is heard in each chunk, whatever the others are."""

    def begin(self, chunks: list[SpeechChunk]) -> Any:
        """What can be done of that ahead; returns what `finish` goes on with."""

    def finish(self, begun: Any) -> list[ChunkTranscript]:
        """What is heard in the chunks that were begun."""
