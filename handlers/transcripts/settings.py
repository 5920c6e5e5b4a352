"""The settings of speech models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from reelscribe.errors import StartupError
from runtime.settings import ModelSettings

MIN_CHUNK_SECONDS = 2.0
"""The lowest `chunk_seconds`: cutting an audio file into shorter chunks leaves no room to search for silence."""


@dataclass(frozen=True)
class SpeechSettings(ModelSettings):
    """Settings under `handler:` in the YAML of a speech model.

    Raises:
        StartupError: A value is out of range.
    """

    engines: ClassVar[tuple[str, ...]] = ("torch", "ctranslate2")
    """Of CTC models, only torch."""

    device_batch: int = 16
    """Chunks that run through the model at once."""
    max_chunks: int = 64
    """The most chunks of one request."""
    max_file_seconds: float = 600
    """Limit for the duration of an audio file in one request, in seconds."""
    chunk_seconds: float | None = None
    """Longest chunk in seconds, at least 2. None is the model's own window, or 30 for models without a window."""
    language: str | None = None
    """Language code for requests that name none. None detects the language."""
    timestamps: bool = True
    """Whisper: whether the model generates the times of segments. Otherwise each chunk is one segment."""
    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    """Whisper: temperatures from 0 to 2 that are tried in order, until a result passes the next two thresholds."""
    compression_ratio_threshold: float | None = 2.4
    """Whisper: text with a higher compression ratio repeats itself, and is decoded again. None disables this."""
    logprob_threshold: float | None = -1.0
    """Whisper: text with a lower average log-probability is decoded again. CTC models: segments with a lower one are
    dropped. None disables this."""
    no_speech_threshold: float | None = 0.6
    """Whisper: with a higher probability of no speech, text below `logprob_threshold` is dropped. None disables it."""
    text_probability_threshold: float | None = 0.4
    """Whisper: text whose tokens have a lower mean probability (0 to 1), where repetitions count half, is guessed, and
    is dropped. None disables this."""
    tokens_per_second: float = 14.0
    """Whisper: limit for the tokens of a window, in tokens for each second of audio."""
    generation: dict[str, Any] = field(default_factory=dict)
    """Whisper: further options of transformers' `generate`."""
    pause_seconds: float = 0.5
    """CTC models: a longer pause between two words, in seconds, starts a new segment."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "temperatures", tuple(self.temperatures))  # YAML has lists
        if self.chunk_seconds is not None and not self.chunk_seconds >= MIN_CHUNK_SECONDS:
            raise StartupError(
                f"YAML, handler, chunk_seconds: expected {MIN_CHUNK_SECONDS:g} or more, got {self.chunk_seconds}"
            )
        if not self.temperatures or any(not 0 <= t <= 2 for t in self.temperatures):
            raise StartupError(f"YAML, handler, temperatures: expected numbers from 0 to 2, got {self.temperatures}")
