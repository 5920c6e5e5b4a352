"""Requests become chunks of sound; transcripts become responses.

A request's body is what `reelscribe.wire` reads, or a WAV, FLAC or Ogg file. What is read is an array of samples, int16
or float32 from -1 to 1, (N,), at the model's rate; or a dict:

    chunks        such an array, or a list of them
    sample_rate   of all of them; they are resampled where the model has another
    language, task, word_times   optional: as `reelscribe.speech.Asked` has them

A file may be longer than what the model hears as a whole, and is cut where it is quiet. With a file or a bare array,
headers say what is asked: X-Reelscribe-Language: en, X-Reelscribe-Task: translate, X-Reelscribe-Word-Times: true.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from reelscribe import wire
from reelscribe.chunking import Chunker, Cutting
from reelscribe.errors import CallFull, LimitExceeded, SpeechError
from reelscribe.pickled_arrays import brief
from reelscribe.speech import Asked, ChunkTranscript, SampleArray
from worker.request_batch import Headers, Row, body_of, not_understood
from transcripts.audio_file import check_length, check_levels, check_rate, is_sound_file, read_sound_file, resampled
from transcripts.chunks import Samples, SpeechChunk, joined, seconds

EXPECTED = "samples (pickle, .npy) or a WAV, FLAC or Ogg file"

FULL_SCALE = 32768

_OPTIONS = ("language", "task", "word_times")
_HEADERS = {name: f"x-reelscribe-{name.replace('_', '-')}" for name in _OPTIONS}


class Abilities(Protocol):
    """What a request may ask of a speech model."""

    @property
    def sample_rate(self) -> int:
        """Samples a second that it hears."""

    @property
    def languages(self) -> tuple[str, ...]:
        """Those that may be named; none if it knows but one."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """Of "transcribe" and "translate"."""

    @property
    def word_times(self) -> bool:
        """Whether it can tell when each word was spoken."""


@dataclass(frozen=True)
class SpeechLimits:
    """What one request may hold."""

    chunks: int
    chunk_seconds: float
    file_seconds: float


@dataclass(frozen=True)
class SpeechRequest:
    """The chunks of one request, and in what they were sent."""

    items: list[SpeechChunk]
    sent_as: Literal["array", "list", "file"]
    sample_rate: int

    def answer(self, results: list[ChunkTranscript]) -> dict[str, Any] | list[dict[str, Any]]:
        """A transcript for each chunk of a list, one for an array or a whole file."""
        if self.sent_as == "list":
            return [transcript.to_json() for transcript in results]
        ends = np.cumsum([len(chunk.samples) for chunk in self.items])
        starts = [0.0, *(seconds(end / self.sample_rate) for end in ends[:-1].tolist())]
        return joined(list(zip(starts, results, strict=True))).to_json()


class SpeechReader:
    """Reads the requests of one call, which may hold as much sound together as one of them may."""

    def __init__(self, limits: SpeechLimits, model: Abilities) -> None:
        self._limits, self._model = limits, model
        self._seconds_left = max(limits.chunks * limits.chunk_seconds, limits.file_seconds)

    def __call__(self, row: Row, headers: Headers) -> SpeechRequest:
        """The sound of one request. Raises the errors that `request_batch.STATUS` lists."""
        body = body_of(row)
        if is_sound_file(body):
            return self._file(body, self._asked(_of_headers(headers)))
        if not body.startswith(wire.STARTS):
            raise not_understood(body, EXPECTED)
        tree = wire.unpack(body)
        if isinstance(tree, np.ndarray):
            return self._arrays(tree, self._model.sample_rate, self._asked(_of_headers(headers)))
        if not isinstance(tree, dict) or "chunks" not in tree or not set(tree) <= {"chunks", "sample_rate", *_OPTIONS}:
            got = ", ".join(map(brief, list(tree)[:8])) if isinstance(tree, dict) else type(tree).__name__
            raise SpeechError(
                "body: expected an array, or a dict with chunks and optionally sample_rate,"
                f" {', '.join(_OPTIONS)}, got {got}"
            )
        rate = tree.get("sample_rate", self._model.sample_rate)
        if type(rate) is not int:
            raise SpeechError(f"sample_rate: expected how many samples a second the chunks have, got {brief(rate)}")
        check_rate(rate)
        return self._arrays(tree["chunks"], rate, self._asked({name: tree[name] for name in _OPTIONS if name in tree}))

    def _arrays(self, sent: Any, rate: int, asked: Asked) -> SpeechRequest:
        arrays = sent if isinstance(sent, list) else [sent]
        if not arrays:
            raise SpeechError("chunks: expected at least one, got none")
        if len(arrays) > self._limits.chunks:
            raise LimitExceeded(
                f"chunks: at most {self._limits.chunks} a request, got {len(arrays)}; send them in several requests"
            )
        for array in arrays:
            self._check(array, rate)
        self._take(sum(map(len, arrays)) / rate)
        model_rate = self._model.sample_rate
        chunks = [SpeechChunk(resampled(_floats(array), rate, model_rate), asked) for array in arrays]
        check_length(min(len(chunk.samples) for chunk in chunks))
        return SpeechRequest(chunks, "list" if isinstance(sent, list) else "array", model_rate)

    def _check(self, array: Any, rate: int) -> None:
        if not isinstance(array, np.ndarray):
            raise SpeechError(f"chunks: expected an array of samples or a list of them, got {brief(array)}")
        if (array.dtype.kind, array.dtype.itemsize) not in (("i", 2), ("f", 4)):
            raise SpeechError(f"chunks: expected int16, or float32 from -1 to 1, got {array.dtype}; convert it")
        if array.ndim != 1:
            raise SpeechError(f"chunks: expected mono, (N,), got {array.shape}; average the channels")
        limit = self._limits.chunk_seconds
        if len(array) > limit * rate:
            raise LimitExceeded(
                f"chunks: at most {limit:g} seconds each, which is what the model hears as a whole, got"
                f" {len(array) / rate:.2f}; cut them where it is quiet, or send a WAV file"
            )

    def _file(self, body: bytes | bytearray, asked: Asked) -> SpeechRequest:
        rate = self._model.sample_rate
        samples = read_sound_file(body, rate, self._limits.file_seconds)
        self._take(min(len(samples) / rate, self._limits.file_seconds))  # a sample may be too many, by rounding
        chunks = [SpeechChunk(_floats(piece), asked) for piece in self._cut(samples)]
        return SpeechRequest(chunks, "file", rate)

    def _cut(self, samples: SampleArray) -> list[SampleArray]:
        """As the client cuts long sound."""
        rate, limit = self._model.sample_rate, self._limits.chunk_seconds
        chunker = Chunker(int(limit * rate), rate, Cutting(min(Cutting().search_seconds, limit / 2)))
        return [*chunker.push(samples), *chunker.flush()]

    def _take(self, sound_seconds: float) -> None:
        if sound_seconds > self._seconds_left:
            raise CallFull("call: too much sound in the requests that were joined with this one; try again")
        self._seconds_left -= sound_seconds

    def _asked(self, options: dict[str, Any]) -> Asked:
        """Raises SpeechError for what this model cannot do."""
        asked = Asked(**{name: value for name, value in options.items() if value is not None})
        model = self._model
        for name, value, known in (("language", asked.language, model.languages), ("task", asked.task, model.tasks)):
            if value is not None and (type(value) is not str or value not in known):
                allowed = ", ".join(known) or "none, as this model knows but one"
                raise SpeechError(f"{name}: expected one of {allowed}; got {brief(value)}")
        if type(asked.word_times) is not bool:
            raise SpeechError(f"word_times: expected true or false, got {brief(asked.word_times)}")
        if asked.word_times and not model.word_times:
            raise SpeechError("word_times: expected false, as this model cannot tell when a word was spoken")
        return asked


def _of_headers(headers: Headers) -> dict[str, Any]:
    """What headers ask for."""
    options: dict[str, Any] = {name: headers[header] for name, header in _HEADERS.items() if header in headers}
    if "word_times" in options:
        options["word_times"] = {"true": True, "false": False}.get(options["word_times"], options["word_times"])
    return options


def _floats(samples: Any) -> Samples:
    """int16 or float32 in either byte order as float32 from -1 to 1."""
    if samples.dtype.kind == "i":
        integers: Samples = samples.astype(np.float32) / np.float32(FULL_SCALE)
        return integers
    floats: Samples = samples.astype(np.float32)
    check_levels(floats)
    return floats
