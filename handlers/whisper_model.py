"""Whisper and models like it (WhisperForConditionalGeneration): chunks of sound in, transcripts out.

What counts as doubtful, as no speech, and as the times of segments and words is as in openai/whisper: see
whisper_decoding.py, whisper_thresholds.py, whisper_segments.py and word_alignment.py. A chunk's transcript depends on
nothing but the chunk: rounding aside, as a device may add up numbers in another order for another batch.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor

from reelscribe.errors import StartupError
from reelscribe.speech import Asked, ChunkTranscript, SpeechSegment, Word
from speech_chunks import Samples, SpeechChunk, joined, seconds
from speech_settings import SpeechSettings
from spoken_words import time_words
from tally import Tally
from whisper_decoding import WhisperDecoder
from whisper_segments import TokenSegment, split_segments
from whisper_thresholds import Thresholds
from word_alignment import token_times

TOKENS_ANYWAY = 10
"""That a window may have however short it is: a word or two and timestamps."""

LEAST_PROGRESS = 1.0
"""Seconds that a window is shortened by before it is heard again: a model that goes on in steps of 0.02 s would take
minutes for it.
"""

DECIDING = (
    *("timestamps", "temperatures", "compression_ratio_threshold", "logprob_threshold"),
    *("no_speech_threshold", "tokens_per_second"),
)
"""The settings that decide what is heard, beside the options of `generate`."""

SHORTEST_REST = 0.1
"""Seconds; less is not heard again."""


@dataclass(frozen=True)
class _Window:
    """Sound that is heard at once, and what is known of it before anything is written."""

    samples: Samples
    asked: Asked
    states: Tensor
    """The encoder's, (1, T, D)."""
    language: str | None
    no_speech_prob: float
    duration: float
    """Seconds."""


@dataclass(frozen=True)
class _Heard:
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


class WhisperModel:
    """A loaded Whisper with its processor, on one device."""

    def __init__(self, settings: SpeechSettings, device: torch.device, tally: Tally | None = None) -> None:
        """`tally` counts tokens."""
        self._settings = settings
        self._tally = tally or Tally()
        self._device = device
        processor: Any = AutoProcessor.from_pretrained(settings.pretrained, revision=settings.revision)
        self._tokenizer, self._extractor = processor.tokenizer, processor.feature_extractor
        # Any: what models have in common is not typed.
        family: Any = AutoModelForSpeechSeq2Seq
        self.model = family.from_pretrained(
            settings.pretrained, revision=settings.revision, dtype=settings.torch_dtype(device), use_safetensors=True
        )
        self.model.to(device).eval()
        self._thresholds = Thresholds(
            settings.compression_ratio_threshold, settings.logprob_threshold, settings.no_speech_threshold
        )
        self._decoder = WhisperDecoder(self.model, settings.generation, timestamps=settings.timestamps)
        self.sample_rate: int = self._extractor.sampling_rate
        window_seconds = self._extractor.n_samples / self.sample_rate
        self.chunk_seconds: float = settings.chunk_seconds or window_seconds
        if self.chunk_seconds > window_seconds:
            raise StartupError(
                f"YAML, handler, chunk_seconds: expected at most {window_seconds:g}, the model's window, got"
                f" {self.chunk_seconds}"
            )
        self.languages, self.tasks = self._decoder.languages, self._decoder.tasks
        if settings.language is not None and settings.language not in self.languages:
            raise StartupError(
                f"YAML, handler, language: expected one of {', '.join(self.languages)}, got {settings.language}"
            )
        self.word_times = bool(getattr(self.model.generation_config, "alignment_heads", None))
        self.generation = {**{name: getattr(settings, name) for name in DECIDING}, **settings.generation}

    def transcribe(self, chunks: list[SpeechChunk]) -> list[ChunkTranscript]:
        """What is heard in each chunk, whatever the others are."""
        parts: list[list[tuple[float, ChunkTranscript]]] = [[] for _ in chunks]
        waiting = [(i, 0, chunk) for i, chunk in enumerate(chunks)]
        while waiting:
            with torch.inference_mode():
                answers = self._hear([chunk for _, _, chunk in waiting])
            rests = []
            for (i, at, chunk), (transcript, stopped) in zip(waiting, answers, strict=True):
                parts[i].append((seconds(at / self.sample_rate), transcript))
                skipped = round(max(stopped, LEAST_PROGRESS) * self.sample_rate)
                if len(chunk.samples) - skipped > SHORTEST_REST * self.sample_rate:
                    asked = replace(chunk.asked, language=transcript.language)
                    rests.append((i, at + skipped, SpeechChunk(chunk.samples[skipped:], asked)))
            waiting = rests
        return [joined(part) for part in parts]

    def features(self, samples: list[Samples]) -> Tensor:
        """The log-mel spectrograms of whole windows, (B, mels, frames), on the model's device and in its dtype."""
        inputs = self._extractor(samples, sampling_rate=self.sample_rate, return_tensors="pt", device=str(self._device))
        features: Tensor = inputs["input_features"].to(self._device, self.model.dtype)
        return features

    def _hear(self, chunks: list[SpeechChunk]) -> list[tuple[ChunkTranscript, float]]:
        """The transcript of each window, and the second at which the model stopped, at most the window's last."""
        states = self._decoder.encode(self.features([chunk.samples for chunk in chunks]))
        windows = [
            _Window(
                chunk.samples,
                chunk.asked,
                states[i : i + 1],
                chunk.asked.language or self._settings.language or look.language,
                look.no_speech_prob,
                len(chunk.samples) / self.sample_rate,
            )
            for i, (chunk, look) in enumerate(zip(chunks, self._decoder.look(states), strict=True))
        ]
        written = self._write(windows, states)
        return [self._transcript(window, heard) for window, heard in zip(windows, written, strict=True)]

    def _write(self, windows: list[_Window], states: Tensor) -> list[_Heard]:
        """Those that are doubtful are written again at the next temperature, and only those."""
        heard: dict[int, _Heard] = {}
        doubtful = list(range(len(windows)))
        for temperature in self._settings.temperatures:
            again = [windows[i] for i in doubtful]
            written = self._decoder.write(
                states[doubtful],
                [self._decoder.prompt(window.language, window.asked.task) for window in again],
                [self._budget(window) for window in again],
                temperature,
                [_seed(window.samples, temperature) for window in again],
            )
            self._tally.add("tokens", sum(len(tokens) for tokens, _ in written))
            for i, (tokens, avg_logprob) in zip(doubtful, written, strict=True):
                heard[i] = _Heard(tokens, self._text(tokens), avg_logprob, temperature)
            doubtful = [i for i in doubtful if self._is_doubtful(heard[i], windows[i])]
            if not doubtful:
                break
        return [heard[i] for i in range(len(windows))]

    def _budget(self, window: _Window) -> int:
        """A model that repeats itself would go on until its last position."""
        return TOKENS_ANYWAY + math.ceil(window.duration * self._settings.tokens_per_second)

    def _is_doubtful(self, heard: _Heard, window: _Window) -> bool:
        return self._thresholds.is_doubtful(heard.avg_logprob, heard.compression_ratio, window.no_speech_prob)

    def _transcript(self, window: _Window, heard: _Heard) -> tuple[ChunkTranscript, float]:
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

    def _words(self, window: _Window, segments: list[TokenSegment]) -> Sequence[tuple[Word, ...] | None]:
        """Of each segment."""
        tokens = [token for segment in segments for token in segment.tokens]
        prompt = self._decoder.prompt(window.language, window.asked.task, timestamps=False)
        times = token_times(self.model, window.states, prompt, tokens, window.duration)
        return time_words(self._tokenizer, segments, times, window.language)

    def _text(self, tokens: list[int]) -> str:
        """What tokens spell, without timestamps and with the blank that a text begins with."""
        text: str = self._tokenizer.decode([token for token in tokens if token < self._decoder.first_timestamp])
        return text


def _seed(samples: Samples, temperature: float) -> int:
    """Equal sound is written alike at a temperature, in whatever batch and process."""
    digest = hashlib.sha256(samples.tobytes() + str(temperature).encode()).digest()
    return int.from_bytes(digest[:8], "little")
