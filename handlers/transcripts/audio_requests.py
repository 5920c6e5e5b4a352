"""Reads audio from requests, and makes responses of its transcripts.

A body is in a format of `reelscribe.wire`, or a recording or a video (`worker.media_file`). In the first case it holds
an array of samples, (N,) int16, or float32 from -1 to 1, at the model's sample rate; or a dict:

    chunks        such an array, or a list of them
    sample_rate   of all chunks, in Hz; they are resampled if the model has another
    language, task, word_times, initial_prompt, hotwords, beams
                  optional, as in `reelscribe.contract.speech.TranscriptionOptions`
    words         optional, for a model that aligns: a list of the words that are spoken in the chunk, or such a list
                  for each chunk of a list. The transcript is one segment with the times of these words, or has no
                  segment if the chunk is too short for them.

With a file or a bare array, headers hold the options: X-Reelscribe-Language: en, X-Reelscribe-Task: translate,
X-Reelscribe-Word-Times: true, X-Reelscribe-Initial-Prompt, X-Reelscribe-Hotwords, X-Reelscribe-Beams: 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import soxr

from reelscribe import wire
from reelscribe.contract.speech import ChunkTranscript, TranscriptionOptions, has_words
from reelscribe.errors import CallFull, LimitExceeded, PromptError, SpeechError, brief, kind_of
from transcripts.speech_model import Chunk, Samples, join_texts
from worker.media_file import CallLimits, FileKind, MediaFiles, is_media_file
from worker.request_batch import Headers, Row, Unread, kind_without, request_body, wrong_format

ACCEPTED = "samples (pickle, .npy), or a recording or video"
"""The formats of a body, for error messages."""

FULL_SCALE = 32768
"""The int16 value that is 1.0 as a float."""

MIN_RATE, MAX_RATE = 4_000, 192_000
"""Accepted sample rates, in Hz."""

MAX_LEVEL = 2.0
"""Largest accepted absolute value of float samples, where full scale is 1.

Decoders of lossy formats overshoot full scale by less than this; 16-bit values that were only cast to float exceed it
by far.
"""

MAX_CHARACTERS = 10_000
"""The most characters of all words of a chunk, with one more for each word: several times what can be said in it."""

RESAMPLING_QUALITY = "HQ"
"""Quality setting of soxr, as in the client. Its errors are below the resolution of 16 bits."""

_OPTIONS = ("language", "task", "word_times", "initial_prompt", "hotwords", "beams")
_FIELDS = {"chunks", "sample_rate", "words", *_OPTIONS}
_HEADERS = {name: f"x-reelscribe-{name.replace('_', '-')}" for name in _OPTIONS}


class ModelCapabilities(Protocol):
    """The capabilities of a speech model, as requests may ask for them."""

    @property
    def sample_rate(self) -> int:
        """Sample rate of the model's input, in Hz."""

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages that requests may name; empty if the model does not say which one it knows."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The supported tasks, of "transcribe", "translate" and BOTH."""

    @property
    def word_times(self) -> bool:
        """True if the model can give the times of words."""

    @property
    def beams(self) -> int:
        """The most beams that a request may ask for."""

    @property
    def aligns(self) -> bool:
        """True if the model can tell when given words are spoken."""

    @property
    def detects_among(self) -> bool:
        """True if the model can detect which of several languages is spoken that a request names."""

    def check_previous_text(self, text: str) -> None:
        """Raise PromptError if the model cannot take a text for what was said before a chunk."""


@dataclass(frozen=True)
class AudioLimits:
    """The limits of one request."""

    chunks: int
    """The most chunks."""
    chunk_seconds: float
    """Longest chunk, in seconds."""


@dataclass(frozen=True)
class AudioRequest:
    """The chunks of one request."""

    items: list[Chunk]
    single: bool
    """Whether the client sent an array, rather than a list of them."""

    def response(self, results: list[ChunkTranscript]) -> dict[str, Any] | list[dict[str, Any]]:
        """One transcript for each chunk of a list, or the transcript of an array, as JSON."""
        return results[0].to_json() if self.single else [transcript.to_json() for transcript in results]


class AudioReader:
    """Reads the requests of one call. Together they may hold as much audio as a single request may."""

    def __init__(self, limits: AudioLimits, model: ModelCapabilities, files: MediaFiles | None = None) -> None:
        """Set the limits.

        Args:
            limits: The limits of one request.
            model: The model that the requests are for.
            files: Reads recordings and videos; None if they are refused.
        """
        self._limits, self._model, self._files = limits, model, files
        self._call = CallLimits()
        self._seconds_left = limits.chunks * limits.chunk_seconds

    def __call__(self, row: Row, headers: Headers) -> AudioRequest | Unread:
        """Read the audio of one request; a file is decoded later, and chunks of another rate are resampled later.

        Args:
            row: The request as TorchServe passes it.
            headers: Its headers, which hold the options of a file or a bare array.

        Raises:
            RequestError: The request cannot be answered.
        """
        body = request_body(row)
        if self._files and is_media_file(body):
            self._check_options(_options_in(headers))
            return self._files.request(body, headers, self._call)
        if not body.startswith(wire.STARTS):
            raise wrong_format(body, ACCEPTED)
        tree = wire.unpack(body)
        if isinstance(tree, np.ndarray):
            return self._read_arrays(tree, self._model.sample_rate, self._check_options(_options_in(headers)))
        if not isinstance(tree, dict) or "chunks" not in tree or not set(tree) <= _FIELDS:
            raise SpeechError(
                "body: expected an array, or a dict with chunks and optionally sample_rate, words,"
                f" {', '.join(_OPTIONS)}, got {kind_without(tree, 'chunks')}"
            )
        rate = tree.get("sample_rate", self._model.sample_rate)
        if type(rate) is not int:
            raise SpeechError(f"sample_rate: expected how many samples a second the chunks have, got {kind_of(rate)}")
        _check_rate(rate)
        options = self._check_options({name: tree[name] for name in _OPTIONS if name in tree})
        return self._read_arrays(tree["chunks"], rate, options, tree.get("words"))

    def _read_arrays(
        self, sent: Any, rate: int, options: TranscriptionOptions, words: Any = None
    ) -> AudioRequest | Unread:
        arrays = sent if isinstance(sent, list) else [sent]
        if not arrays:
            raise SpeechError("chunks: expected at least one, got none")
        if len(arrays) > self._limits.chunks:
            raise LimitExceeded(
                f"chunks: at most {self._limits.chunks} a request, got {len(arrays)}; send them in several requests"
            )
        for array in arrays:
            self._check_array(array, rate)
        of_chunks = self._read_words(words if isinstance(sent, list) or words is None else [words], len(arrays))
        self._reserve(sum(map(len, arrays)) / rate)
        model_rate = self._model.sample_rate

        def convert() -> AudioRequest:
            samples = [_resample(_to_float32(array), rate, model_rate) for array in arrays]
            _check_length(min(map(len, samples)))
            chunks = [Chunk(array, options, spoken) for array, spoken in zip(samples, of_chunks, strict=True)]
            return AudioRequest(chunks, single=not isinstance(sent, list))

        return convert() if rate == model_rate else Unread(convert, sum(map(len, arrays)))

    def _read_words(self, sent: Any, count: int) -> list[tuple[str, ...] | None]:
        """Return the words that a request has for each of `count` chunks; None for each if it has none."""
        if sent is None:
            return [None] * count
        if not self._model.aligns:
            raise SpeechError("words: expected none, as this model cannot align words; use one with a CTC head")
        if not isinstance(sent, list) or len(sent) != count:
            raise SpeechError(f"words: expected a list of words for each of {count} chunks, got {kind_of(sent)}")
        for words in sent:
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                raise SpeechError(f"words: expected a list of texts for each chunk, got {kind_of(words)}")
            if sum(map(len, words)) + len(words) > MAX_CHARACTERS:
                raise LimitExceeded(f"words: at most {MAX_CHARACTERS} characters a chunk, with those between the words")
        return [tuple(words) for words in sent]

    def _check_array(self, array: Any, rate: int) -> None:
        if not isinstance(array, np.ndarray):
            raise SpeechError(f"chunks: expected an array of samples or a list of them, got {kind_of(array)}")
        if (array.dtype.kind, array.dtype.itemsize) not in (("i", 2), ("f", 4)):
            raise SpeechError(f"chunks: expected int16, or float32 from -1 to 1, got {array.dtype}; convert it")
        if array.ndim != 1:
            raise SpeechError(f"chunks: expected mono, (N,), got {array.ndim} dimensions; average the channels")
        limit = self._limits.chunk_seconds
        if len(array) > limit * rate:
            raise LimitExceeded(
                f"chunks: at most {limit:g} seconds each, the longest that the model takes whole, got a"
                " longer one; cut them where it is quiet, or send the recording as a file"
            )

    def _reserve(self, seconds: float) -> None:
        """Reserve room in this call, before anything large is decoded."""
        if seconds > self._seconds_left:
            raise CallFull("call: too much audio in the requests that were joined with this one; try again")
        self._seconds_left -= seconds

    def _check_options(self, options: dict[str, Any]) -> TranscriptionOptions:
        """Return the options of a request.

        Raises:
            SpeechError: The model does not support one of them.
            PromptError: It cannot take the initial prompt and the hot words.
        """
        checked = TranscriptionOptions(**{name: value for name, value in options.items() if value is not None})
        model = self._model
        self._check_language(checked)
        if type(checked.task) is not str or checked.task not in model.tasks:
            raise SpeechError(f"task: expected one of {', '.join(model.tasks)}; got {kind_of(checked.task)}")
        if type(checked.word_times) is not bool:
            raise SpeechError(f"word_times: expected true or false, got {kind_of(checked.word_times)}")
        if checked.word_times and not model.word_times:
            raise SpeechError("word_times: expected false, as this model cannot give the times of words, got true")
        if type(checked.beams) is not int or not 1 <= checked.beams <= model.beams:
            raise SpeechError(f"beams: expected 1 to {model.beams}, the most of this model, got {brief(checked.beams)}")
        for name in ("initial_prompt", "hotwords"):
            text = getattr(checked, name)
            if text is not None and (not isinstance(text, str) or not has_words(text)):
                raise PromptError(f"{name}: expected a text that is not empty, got {kind_of(text)}")
        if checked.previous_text:
            model.check_previous_text(checked.previous_text)
        return checked

    def _check_language(self, options: TranscriptionOptions) -> None:
        """Raise SpeechError for a language that the model does not know, or for several if it cannot choose."""
        language, known = options.language, self._model.languages
        if language is not None and (type(language) is not str or not set(options.languages) <= set(known)):
            allowed = ", ".join(known) or "none, as this model does not say which language it knows"
            raise SpeechError(f"language: expected one of {allowed}; got {kind_of(language)}")
        if len(options.languages) > 1 and not self._model.detects_among:
            raise SpeechError("language: expected one code, as this model cannot detect which of several is spoken")


class SpeechOfFiles(FileKind):
    """Recordings and videos become transcripts; see `worker.media_file.FileKind`."""

    headers = frozenset(name.replace("_", "-") for name in _OPTIONS)
    fields = ("audio", "segments", "translations", "silences", "speech_failures")

    def options(self, values: Mapping[str, str]) -> Any:
        """Return the client's options of these values of headers."""
        from reelscribe.run.tracks.transcripts import SpeechOptions

        given: Any = _options_in({f"x-reelscribe-{name}": value for name, value in values.items()})
        return SpeechOptions(transcription=TranscriptionOptions(**given))

    def items(self, batches: Sequence[Any], options: Any) -> list[Chunk]:
        """Return the chunks of decoded batches, in order."""
        return [Chunk(_to_float32(samples), options.transcription) for batch in batches for samples in batch.items]

    def results(self, saved: Sequence[Any]) -> Iterator[Any]:
        """Yield the results in the order of time."""
        from reelscribe.results.batches import audio_results

        return audio_results(saved)

    def summary(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the whole text, and the language of its first segment."""
        segments = fields["segments"]
        language = segments[0]["language"] if segments else None
        return {"text": join_texts([segment["text"] for segment in segments], language), "language": language}


def _options_in(headers: Headers) -> dict[str, Any]:
    """The options that are given as headers."""
    options: dict[str, Any] = {name: headers[header] for name, header in _HEADERS.items() if header in headers}
    if "word_times" in options:
        options["word_times"] = {"true": True, "false": False}.get(options["word_times"], options["word_times"])
    if options.get("beams", "").isdecimal():
        options["beams"] = int(options["beams"].lstrip("0")[:9] or 0)
    return options


def _to_float32(samples: Any) -> Samples:
    """int16 or float32 in either byte order -> float32 from -1 to 1."""
    if samples.dtype.kind == "i":
        integers: Samples = samples.astype(np.float32) / np.float32(FULL_SCALE)
        return integers
    floats: Samples = samples.astype(np.float32)
    _check_levels(floats)
    return floats


def _resample(samples: Samples, from_rate: int, to_rate: int) -> Samples:
    """Resample audio between two rates in Hz; at equal rates it returns `samples` itself."""
    if from_rate == to_rate:
        return samples
    result: Samples = soxr.resample(samples, from_rate, to_rate, quality=RESAMPLING_QUALITY)
    return result


def _check_rate(rate: int) -> None:
    """Raise SpeechError for a sample rate, in Hz, outside of what recordings of speech have."""
    if not MIN_RATE <= rate <= MAX_RATE:
        raise SpeechError(
            f"sample_rate: expected {MIN_RATE} to {MAX_RATE} samples a second, got"
            f" {'fewer' if rate < MIN_RATE else 'more'}"
        )


def _check_length(samples: int) -> None:
    """Raise SpeechError for audio without a single sample at the model's rate."""
    if not samples:
        raise SpeechError("audio: expected at least one sample at the model's rate, got none")


def _check_levels(samples: Samples) -> None:
    """Raise SpeechError for NaN, for infinite values, and for values far beyond -1 to 1."""
    level = float(np.abs(samples).max(initial=0))  # NaN if any sample is
    if not np.isfinite(level):
        raise SpeechError("audio: expected finite numbers, got NaN or infinity; check the program that wrote it")
    if level > MAX_LEVEL:
        raise SpeechError(
            "audio: floats are from -1 to 1, got larger ones; divide by full scale, 32768 for 16 bits, or send int16"
        )
