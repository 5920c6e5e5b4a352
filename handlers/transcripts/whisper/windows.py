"""What the decoder of a Whisper makes of windows of sound that its encoder has heard: transcripts.

Doubtful windows are written again at the next temperature, and only those. Windows and transcripts travel as plain
values, as the decoder may be in another process than the encoder.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reelscribe.speech import Asked, ChunkTranscript, SpeechSegment, Word
from transcripts.chunks import Samples, seconds
from transcripts.settings import SpeechSettings
from transcripts.whisper.words import time_words
from pipeline.remote import Tree
from transcripts.whisper.decoder import WhisperDecoder
from transcripts.whisper.segments import TokenSegment, split_segments
from transcripts.whisper.thresholds import Thresholds
from transcripts.whisper.word_alignment import token_times

TOKENS_ANYWAY = 10
"""That a window may have however short it is: a word or two and timestamps."""


@dataclass(frozen=True)
class Window:
    """Sound that is heard at once, as its decoder needs to know it."""

    asked: Asked
    duration: float
    """Seconds."""
    seeds: tuple[int, ...]
    """One for each temperature."""

    @classmethod
    def of(cls, samples: Samples, asked: Asked, sample_rate: int, temperatures: Sequence[float]) -> Window:
        """Equal sound has equal seeds: it is written alike at a temperature, in whatever batch and process."""
        heard = hashlib.sha256(samples.tobytes())
        return cls(asked, len(samples) / sample_rate, tuple(_seed(heard, t) for t in temperatures))

    @classmethod
    def from_tree(cls, tree: Tree) -> Window:
        """What `to_tree` made."""
        return cls(Asked(**tree["asked"]), tree["duration"], tuple(tree["seeds"]))

    def to_tree(self) -> Tree:
        """As it travels."""
        tree: Tree = _plain(asdict(self))
        return tree


class HeardWindow(NamedTuple):
    """What was heard in a window."""

    transcript: ChunkTranscript
    stopped: float
    """The second at which the model stopped, at most the window's last."""
    tokens: int
    """How many were written, those that were doubtful too."""

    @classmethod
    def from_tree(cls, tree: Tree) -> HeardWindow:
        """What `to_tree` made."""
        return cls(ChunkTranscript.from_json(tree["transcript"]), tree["stopped"], tree["tokens"])

    def to_tree(self) -> Tree:
        """As it travels."""
        return {"transcript": _plain(self.transcript.to_json()), "stopped": self.stopped, "tokens": self.tokens}


class _EncodedWindow(NamedTuple):
    """A window, and what is known of it before anything is written."""

    asked: Asked
    duration: float
    seeds: tuple[int, ...]
    states: Tensor
    """(1, T, D)"""
    language: str | None
    no_speech_prob: float


class _Heard(NamedTuple):
    """What was made of one window at one temperature."""

    tokens: list[int]
    text: str
    avg_logprob: float
    temperature: float

    @property
    def compression_ratio(self) -> float:
        """Text that repeats itself is compressed well."""
        data = self.text.encode()
        return len(data) / len(zlib.compress(data))


class WindowWriter:
    """Writes about windows with a decoder."""

    def __init__(self, model: Any, decoder: WhisperDecoder, tokenizer: Any, settings: SpeechSettings) -> None:
        """`decoder` is that of `model`."""
        self._model, self._decoder, self._tokenizer, self._settings = model, decoder, tokenizer, settings
        self._thresholds = Thresholds(
            settings.compression_ratio_threshold, settings.logprob_threshold, settings.no_speech_threshold
        )

    def answer(self, tree: Tree) -> Tree:
        """{"states": the encoder's, (B, T, D), "windows": B of them} -> {"heard": a HeardWindow of each}, as trees."""
        heard = self._heard([Window.from_tree(window) for window in tree["windows"]], tree["states"])
        return {"heard": [window.to_tree() for window in heard]}

    def _heard(self, given: list[Window], states: Tensor) -> list[HeardWindow]:
        with torch.inference_mode():
            windows = [
                _EncodedWindow(
                    *(window.asked, window.duration, window.seeds),
                    states[i : i + 1],
                    window.asked.language or self._settings.language or look.language,
                    look.no_speech_prob,
                )
                for i, (window, look) in enumerate(zip(given, self._decoder.look(states), strict=True))
            ]
            written, counts = self._write(windows, states)
            return [
                HeardWindow(*self._transcript(window, heard), count)
                for window, heard, count in zip(windows, written, counts, strict=True)
            ]

    def _write(self, windows: list[_EncodedWindow], states: Tensor) -> tuple[list[_Heard], list[int]]:
        """What is written about each window in the end, and how many tokens were."""
        heard: dict[int, _Heard] = {}
        counts = [0] * len(windows)
        doubtful = list(range(len(windows)))
        for attempt, temperature in enumerate(self._settings.temperatures):
            again = [windows[i] for i in doubtful]
            written = self._decoder.write(
                states[doubtful],
                [self._decoder.prompt(window.language, window.asked.task) for window in again],
                [self._budget(window) for window in again],
                temperature,
                [window.seeds[attempt] for window in again],
            )
            for i, (tokens, avg_logprob) in zip(doubtful, written, strict=True):
                heard[i] = _Heard(tokens, self._text(tokens), avg_logprob, temperature)
                counts[i] += len(tokens)
            doubtful = [i for i in doubtful if self._is_doubtful(heard[i], windows[i])]
            if not doubtful:
                break
        return [heard[i] for i in range(len(windows))], counts

    def _budget(self, window: _EncodedWindow) -> int:
        """A model that repeats itself would go on until its last position."""
        return TOKENS_ANYWAY + math.ceil(window.duration * self._settings.tokens_per_second)

    def _is_doubtful(self, heard: _Heard, window: _EncodedWindow) -> bool:
        return self._thresholds.is_doubtful(heard.avg_logprob, heard.compression_ratio, window.no_speech_prob)

    def _transcript(self, window: _EncodedWindow, heard: _Heard) -> tuple[ChunkTranscript, float]:
        nothing = ChunkTranscript(
            text="",
            language=window.language,
            segments=(),
            # Fewer digits than devices agree on.
            no_speech_prob=round(window.no_speech_prob, 3),
            avg_logprob=round(heard.avg_logprob, 3),
            compression_ratio=round(heard.compression_ratio, 3),
            temperature=heard.temperature,
        )
        if self._thresholds.is_no_speech(heard.avg_logprob, window.no_speech_prob):
            return nothing, window.duration
        segments, stopped = split_segments(heard.tokens, self._decoder.first_timestamp, window.duration)
        texts = [self._text(segment.tokens) for segment in segments]
        words = self._words(window, segments) if window.asked.word_times else [None] * len(segments)
        spoken = tuple(
            SpeechSegment(seconds(segment.start), seconds(segment.end), text.strip(), timed)
            for segment, text, timed in zip(segments, texts, words, strict=True)
            if text.strip()
        )
        transcript = replace(nothing, text="".join(texts).strip(), segments=spoken)
        return transcript, window.duration if stopped is None else stopped

    def _words(self, window: _EncodedWindow, segments: list[TokenSegment]) -> Sequence[tuple[Word, ...] | None]:
        """Of each segment."""
        tokens = [token for segment in segments for token in segment.tokens]
        prompt = self._decoder.prompt(window.language, window.asked.task, timestamps=False)
        times = token_times(self._model, window.states, prompt, tokens, window.duration)
        return time_words(self._tokenizer, segments, times, window.language)

    def _text(self, tokens: list[int]) -> str:
        """What tokens spell, without timestamps and with the blank that a text begins with."""
        text: str = self._tokenizer.decode([token for token in tokens if token < self._decoder.first_timestamp])
        return text


def _plain(value: Any) -> Any:
    """With lists for tuples, which do not travel."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _seed(heard: hashlib._Hash, temperature: float) -> int:
    digest = heard.copy()
    digest.update(str(temperature).encode())
    return int.from_bytes(digest.digest()[:8], "little", signed=True)
