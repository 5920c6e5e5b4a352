"""`annotations.jsonl`: a record of everything that a run knows about a source is one line of it.

docs/records.md describes every field. The results of a source may be too large for memory, so a record reads them
from the ledger while it is written, and yields its line in pieces.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from reelscribe._files import atomic_file
from reelscribe.contract.outcomes import (
    AudioResult,
    Caption,
    Failure,
    FrameResult,
    Segment,
    Silence,
    SourceError,
    SpeechFailure,
    Utterance,
)
from reelscribe.contract.source import AudioInfo, Source, VideoInfo
from reelscribe.errors import OutputError

NAME = "annotations.jsonl"
"""Name of the file of records in the folder of a run."""


@dataclass(frozen=True)
class Model:
    """The model that made the annotations of a record."""

    name: str
    """Name on the hub, or directory of the weights."""
    revision: str
    """Commit on the hub, or a digest of the weights' own bytes."""


@dataclass(frozen=True)
class CaptionResult:
    """The results of a captioner for one source. Each method calls `results` and so reads them again."""

    model: Model
    settings: Mapping[str, Any]
    """Everything except the model that decides the captions, as JSON."""
    video: VideoInfo | None = None
    """None if the source could not be opened as a video."""
    end_seconds: float = 0.0
    """Presentation time at which the part of the video ends from which frames are chosen, in seconds."""
    error: SourceError | None = None
    """The error that the captioning of this source ended with; None if it went well."""
    results: Callable[[], Iterable[FrameResult]] = field(default=tuple, repr=False)
    """Reads the result of each chosen frame, in the order of the frames."""

    def captions(self) -> Iterator[Caption]:
        """Yield the captions, in the order of their frames."""
        return (result for result in self.results() if isinstance(result, Caption))

    def failures(self) -> Iterator[Failure]:
        """Yield the failures, in the order of their frames."""
        return (result for result in self.results() if isinstance(result, Failure))

    def segments(self) -> Iterator[Segment]:
        """Yield equal captions in a row as one segment, which lasts until the next different frame or the end.

        Frames with an empty caption, or with none, are in no segment.
        """
        start, text = 0.0, ""
        for result in self.results():
            next_text = result.text if isinstance(result, Caption) else ""
            if next_text != text:
                if text:
                    yield Segment(start, result.pts_seconds, text)
                start, text = result.pts_seconds, next_text
        if text:
            yield Segment(start, max(start, self.end_seconds), text)

    def iter_json_fields(self) -> Iterator[str]:
        """Yield pieces of JSON: the record's fields from the captioner, each with a comma before it."""
        yield f', "media": {_json(asdict(self.video) if self.video else None)}'
        yield from _iter_json_array("captions", map(_caption_to_json, self.captions()))
        yield from _iter_json_array("segments", map(vars, self.segments()))
        yield from _iter_json_array("failures", map(vars, self.failures()))
        yield f', "model": {_json(asdict(self.model))}'
        yield f', "settings": {_json(self.settings)}'


@dataclass(frozen=True)
class TranscriptResult:
    """The results of a speech model for one source. Each method calls `results` and so reads them again."""

    model: Model
    settings: Mapping[str, Any]
    """Everything except the model that decides the transcript, as JSON."""
    audio: AudioInfo | None = None
    """None if the source has no audio or could not be opened."""
    decoded_seconds: float = 0.0
    """Duration of the decoded audio, in seconds; if decoding failed, of the audio before the first gap."""
    error: SourceError | None = None
    """The error that the transcription of this source ended with; None if it went well."""
    results: Callable[[], Iterable[AudioResult]] = field(default=tuple, repr=False)
    """Reads the results of the audio, in the order of time."""

    def utterances(self) -> Iterator[Utterance]:
        """Yield the segments of speech, in the order of time."""
        return (result for result in self.results() if isinstance(result, Utterance))

    def silences(self) -> Iterator[Silence]:
        """Yield the stretches of audio that were silent, in the order of time."""
        return (result for result in self.results() if isinstance(result, Silence))

    def failures(self) -> Iterator[SpeechFailure]:
        """Yield the stretches of audio that have no transcript because of an error, in the order of time."""
        return (result for result in self.results() if isinstance(result, SpeechFailure))

    def iter_json_fields(self) -> Iterator[str]:
        """Yield pieces of JSON: the record's fields from the speech model, each with a comma before it."""
        audio = {**asdict(self.audio), "seconds": self.decoded_seconds} if self.audio else None
        yield f', "audio": {_json(audio)}'
        yield from _iter_json_array("transcript", map(_utterance_to_json, self.utterances()))
        yield from _iter_json_array("silences", map(vars, self.silences()))
        yield from _iter_json_array("transcript_failures", map(vars, self.failures()))
        yield f', "speech_model": {_json(asdict(self.model))}'
        yield f', "speech_settings": {_json(self.settings)}'


@dataclass(frozen=True)
class Record:
    """Everything that a run knows about one source."""

    source: Source
    caption_result: CaptionResult | None = None
    """None if the run makes no captions."""
    transcript_result: TranscriptResult | None = None
    """None if the run makes no transcripts."""

    @property
    def status(self) -> Literal["ok", "error"]:
        """Return "ok" if the record has no error."""
        return "error" if self.error else "ok"

    @property
    def error(self) -> SourceError | None:
        """Return the error of the source, if it has one.

        In a run with both models, a source may lack one of the two streams; in a run with a speech model alone, it may
        be a video without audio. Neither is an error. Two different errors become one, with the type of the first.
        """
        all_errors = [result.error for result in self._results() if result.error]
        errors = [error for error in all_errors if not error.is_missing_stream]
        if not errors and (len(all_errors) == 2 or not self.transcript_result):
            errors = all_errors
        if len(set(errors)) < 2:
            return errors[0] if errors else None
        video_error, audio_error = errors
        return SourceError(video_error.type, f"pictures: {video_error.message}; sound: {audio_error.message}")

    def iter_json(self) -> Iterator[str]:
        """Yield pieces of one line of JSON, without the line feed at its end. Equal records give equal lines."""
        source = {**asdict(self.source), "sha256": self.source.sha256 or None}
        yield f'{{"source": {_json(source)}'
        yield f', "status": {_json(self.status)}'
        for result in self._results():
            yield from result.iter_json_fields()
        if self.error:
            yield f', "error": {_json(self.error._asdict())}'
        yield "}"

    def _results(self) -> list[CaptionResult | TranscriptResult]:
        return [result for result in (self.caption_result, self.transcript_result) if result]


def _caption_to_json(caption: Caption) -> dict[str, Any]:
    value = dict(vars(caption))
    if caption.reused_from is None:
        del value["reused_from"]
    return value


def _utterance_to_json(utterance: Utterance) -> dict[str, Any]:
    value = dict(vars(utterance))
    words = value.pop("words")
    return value if words is None else {**value, "words": [*map(vars, words)]}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _iter_json_array(name: str, values: Iterable[Any]) -> Iterator[str]:
    separator = ""
    yield f', "{name}": ['
    for value in values:
        yield separator + _json(value)
        separator = ", "
    yield "]"


class AnnotationsWriter:
    """Writes records as they come. Use it as a context manager; every method raises OutputError.

    The lines are written to `annotations.jsonl.partial`, where they can be read meanwhile. When the block ends without
    an exception, this file becomes `annotations.jsonl` and replaces an older one; otherwise it stays as it is.
    """

    def __init__(self, out: Path) -> None:
        """Prepare to write into the folder `out`, which must exist when the block begins."""
        self._path = out / NAME

    def __enter__(self) -> Self:
        with _output_errors(self._path), ExitStack() as stack:
            if self._path.is_dir():
                raise OutputError(f"{self._path}: a folder; expected a file or nothing there")
            partial = stack.enter_context(atomic_file(self._path, durable=True))
            # The path of a source need not be UTF-8.
            self._file = stack.enter_context(partial.open("w", encoding="utf-8", errors="backslashreplace"))
            self._stack = stack.pop_all()
        return self

    def write(self, record: Record) -> None:
        """Write the line of a record. This reads all results of the source from the ledger."""
        with _output_errors(self._path):
            self._file.writelines(record.iter_json())
            self._file.write("\n")
            self._file.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _output_errors(self._path):
            self._stack.__exit__(kind, error, trace)


@contextmanager
def _output_errors(path: Path) -> Iterator[None]:
    """Turn an error of the disk into an OutputError that says what to do; every other error passes."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error}; run the same command again to continue") from None
