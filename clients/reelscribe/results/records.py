"""A record: everything that the ledger knows about one source. It is one line of `annotations.jsonl`.

docs/records.md describes every field. The results of a source may be too large for memory, so a record reads them from
the ledger whenever they are asked for, one after the other. Their texts get flags if they deserve a second look.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from reelscribe.contract.fields import known_fields, read_count
from reelscribe.contract.outcomes import (
    AudioResult,
    Caption,
    ClipFailure,
    ClipResult,
    DescribedClip,
    Failure,
    FrameResult,
    Segment,
    Shot,
    Silence,
    SourceError,
    SourceSummary,
    SpeechFailure,
    Translation,
    Turn,
    Utterance,
)
from reelscribe.contract.source import AudioInfo, Gap, Section, Source, Transition, VideoInfo
from reelscribe.contract.speech import BOTH, Word, transcribed_channels
from reelscribe.errors import OutputError
from reelscribe.results.flags import Described, chosen_to_differ, speech_flags, with_flags
from reelscribe.results.jobs import Job, SavedAudio, SavedVideo
from reelscribe.results.speakers import Spoken, with_speakers

Kind = Literal["captions", "transcript", "shots", "clips", "speakers", "summary"]
"""A kind of annotations."""

KINDS: tuple[Kind, ...] = get_args(Kind)
"""All kinds of annotations."""


@dataclass(frozen=True)
class Model:
    """The model that made the annotations of a record."""

    name: str
    """Name on the hub, or directory of the weights."""
    revision: str
    """Commit on the hub, or a digest of the weights' own bytes."""


@dataclass(frozen=True)
class ModelSettings:
    """A model with everything else that decides its results."""

    text: str
    """The JSON under which the ledger keeps them. Its keys are sorted, so equal settings have equal texts."""
    model: Model
    settings: Mapping[str, Any]
    """Everything except the model, as JSON."""

    @cached_property
    def id(self) -> str:
        """Return what records and `run.json` call them: 12 hexadecimal digits of the SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class CaptionResult:
    """The results of a captioner for one source. Each method calls `results` and so reads them again."""

    settings: ModelSettings
    video: VideoInfo | None = None
    """None if the source could not be opened as a video."""
    end_seconds: float = 0.0
    """Presentation time at which the part of the video ends from which frames are chosen, in seconds."""
    shots: Sequence[Section] = ()
    """The shots of the video, if frames of each shot were chosen."""
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

    def spans(self) -> Iterator[Segment]:
        """Yield equal captions in a row as one span; see `caption_spans`."""
        return caption_spans(self.results(), self.end_seconds, (self.video and self.video.gaps) or ())


@dataclass(frozen=True)
class TranscriptResult:
    """The results of a speech model for one source. Each method calls `results` and so reads them again."""

    settings: ModelSettings
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

    @property
    def is_translated(self) -> bool:
        """True if a translation was asked for beside what is said."""
        return self.settings.settings.get("task") == BOTH

    def translations(self) -> Iterator[Translation]:
        """Yield the segments of the English translation, in the order of time."""
        return (result for result in self.results() if isinstance(result, Translation))

    def silences(self) -> Iterator[Silence]:
        """Yield the stretches of audio that were silent, in the order of time."""
        return (result for result in self.results() if isinstance(result, Silence))

    def failures(self) -> Iterator[SpeechFailure]:
        """Yield the stretches of audio that have an error, in the order of time."""
        return (result for result in self.results() if isinstance(result, SpeechFailure))


@dataclass(frozen=True)
class SpeakerResult:
    """Who speaks when in one source."""

    settings: ModelSettings
    audio: AudioInfo | None = None
    """None if the source has no audio or could not be opened."""
    decoded_seconds: float = 0.0
    """As in TranscriptResult."""
    error: SourceError | None = None
    """The error that the search for voices ended with; None if it went well."""
    turns: Sequence[Turn] = ()
    """The turns in the order of time."""


@dataclass(frozen=True)
class ShotResult:
    """The shots of one source."""

    settings: ModelSettings
    """The detector, as the model, and its settings."""
    video: VideoInfo | None = None
    """None if the source could not be opened as a video."""
    shots: Sequence[Section] = ()
    """The shots in order."""
    transitions: Sequence[Transition | None] = ()
    """For each shot, how it follows the one before, None for the first one; empty if the detector does not tell."""
    error: SourceError | None = None
    """The error that the search for shots ended with; None if it went well."""


@dataclass(frozen=True)
class DescriptionResult:
    """The results of a clip model for one source. Each method calls `results` and so reads them again."""

    settings: ModelSettings
    video: VideoInfo | None = None
    """None if the source could not be opened as a video."""
    shots: Sequence[Section] = ()
    """The shots of the video, if clips are shots."""
    error: SourceError | None = None
    """The error that the description of this source ended with; None if it went well."""
    results: Callable[[], Iterable[ClipResult]] = field(default=tuple, repr=False)
    """Reads the result of each clip, in the order of the clips."""

    def described(self) -> Iterator[DescribedClip]:
        """Yield the clips that have a description, in order."""
        return (result for result in self.results() if isinstance(result, DescribedClip))

    def failures(self) -> Iterator[ClipFailure]:
        """Yield the failures, in the order of the clips."""
        return (result for result in self.results() if isinstance(result, ClipFailure))


@dataclass(frozen=True)
class SummaryResult:
    """The summary of one source."""

    settings: ModelSettings
    error: SourceError | None = None
    """The error that the request for the summary ended with; None if it went well."""
    results: Callable[[], Iterable[SourceSummary]] = field(default=tuple, repr=False)
    """Reads the summary; there is none if nothing was seen or said in the source, or if there is an error."""

    @property
    def summary(self) -> SourceSummary | None:
        """The summary; None if there is none."""
        return next(iter(self.results()), None)


@dataclass(frozen=True)
class Record:
    """Everything that the ledger knows about one source."""

    source: Source
    caption_result: CaptionResult | None = None
    """None if no captions were made."""
    transcript_result: TranscriptResult | None = None
    """None if no transcript was made."""
    shot_result: ShotResult | None = None
    """None if no shots were looked for by themselves."""
    description_result: DescriptionResult | None = None
    """None if no clips were described."""
    speaker_result: SpeakerResult | None = None
    """None if nobody asked who speaks."""
    summary_result: SummaryResult | None = None
    """None if no summary was asked for."""
    unreadable: SourceError | None = None
    """The reason why the source could not be read when a run last tried; None if it could. Older results are kept."""
    version: str | None = None
    """The version of its content that its store told when it was read, as an ETag; None for a file."""
    extra: Mapping[str, Any] | None = None
    """What a list of sources said of it besides its name; None if no list did."""
    missing: bool = False
    """True if the source was gone from the disk when the last run into the folder ended."""
    absolute_path: str = ""
    """Absolute path, which tells sources of several folders apart, or address."""
    folder: Path | None = field(default=None, compare=False, repr=False)
    """Output folder of the run, whose thumbnails a notebook shows; None if it is not known."""

    @property
    def status(self) -> Literal["ok", "error"]:
        """Return "ok" if the record has no error."""
        return "error" if self.error else "ok"

    @property
    def error(self) -> SourceError | None:
        """Return the error of the source, if it has one: why it could not be read, or that of its results."""
        errors = {_KINDS[type(result)]: result.error for result in self.results()}
        return self.unreadable or error_of(errors)

    @property
    def video(self) -> VideoInfo | None:
        """Return the description of the video stream, if the source could be opened as a video."""
        results = (self.caption_result, self.description_result, self.shot_result)
        return next((result.video for result in results if result and result.video), None)

    @property
    def shots(self) -> Sequence[Section]:
        """Return the shots, whether they were looked for by themselves, or for clips or captions."""
        results = (self.shot_result, self.description_result, self.caption_result)
        return next((result.shots for result in results if result and result.shots), ())

    @property
    def transitions(self) -> Sequence[Transition | None]:
        """Return for each shot how it follows the one before; None for the first one, and if that is not known."""
        known = self.shot_result.transitions if self.shot_result else ()
        return known or (None,) * len(self.shots)

    def utterances(self) -> Iterator[Utterance]:
        """Yield what is said in the source, in the order of time, with its speakers if they are known."""
        return self._with_speakers(self.transcript_result.utterances() if self.transcript_result else iter(()))

    def translations(self) -> Iterator[Translation]:
        """Yield the English translation of what is said, if there is one, with its speakers if they are known."""
        return self._with_speakers(self.transcript_result.translations() if self.transcript_result else iter(()))

    def _with_speakers(self, said: Iterator[Spoken]) -> Iterator[Spoken]:
        return with_speakers(said, self.speaker_result.turns) if self.speaker_result else said

    def results(
        self,
    ) -> Iterator[CaptionResult | DescriptionResult | ShotResult | TranscriptResult | SpeakerResult | SummaryResult]:
        """Yield the results of each kind that was made."""
        results = (
            self.caption_result,
            self.description_result,
            self.shot_result,
            self.transcript_result,
            self.speaker_result,
            self.summary_result,
        )
        return (result for result in results if result)

    def only(self, *kinds: Kind) -> Record:
        """Return the record without the results of other kinds."""
        return replace(
            self,
            caption_result=self.caption_result if "captions" in kinds else None,
            transcript_result=self.transcript_result if "transcript" in kinds else None,
            shot_result=self.shot_result if "shots" in kinds else None,
            description_result=self.description_result if "clips" in kinds else None,
            speaker_result=self.speaker_result if "speakers" in kinds else None,
            summary_result=self.summary_result if "summary" in kinds else None,
        )

    def fields(self) -> Iterator[tuple[str, Any]]:
        """Yield the name and the value of each field. Every record has every field but those of speakers,
        of several streams, and the translation.

        A value is JSON, or an iterator over objects of JSON that may be too many for memory.
        """
        captions = self.caption_result and _with_few_in_memory(self.caption_result)
        clips = self.description_result and _with_few_in_memory(self.description_result)
        transcript = self.transcript_result and _with_few_in_memory(self.transcript_result)
        video = self.video
        heard = next((each for each in (transcript, self.speaker_result) if each and each.audio), None)
        source = {"path": self.source.path, "bytes": self.source.bytes, "sha256": self.source.digest}
        place = {"version": self.version, "missing": self.missing, "absolute_path": self.absolute_path}
        yield "source", source | place
        yield "extra", self.extra
        yield "status", self.status
        yield "error", self.error and self.error._asdict()
        yield "media", video.to_json() if video else None
        yield "audio", {**known_fields(vars(heard.audio).items()), "seconds": heard.decoded_seconds} if heard else None
        summary = self.summary_result and self.summary_result.summary
        yield "summary", {**vars(summary), "keywords": [*summary.keywords]} if summary else None
        yield "summary_settings", self.summary_result.settings.id if self.summary_result else None
        yield "shots", map(_shot, self.shots, self.transitions)
        yield "shot_settings", self.shot_result.settings.id if self.shot_result else None
        yield "captions", _flagged(captions.captions(), captions.settings) if captions else ()
        yield "caption_spans", map(_object, captions.spans() if captions else ())
        yield "caption_failures", map(_object, captions.failures() if captions else ())
        yield "caption_settings", captions.settings.id if captions else None
        yield "clips", _flagged(clips.described(), clips.settings) if clips else ()
        yield "clip_failures", map(_object, clips.failures() if clips else ())
        yield "clip_settings", clips.settings.id if clips else None
        read = replace(self, transcript_result=transcript)
        yield "segments", map(_spoken, read.utterances())
        if transcript and transcript.is_translated:
            yield "translations", map(_spoken, read.translations())
        yield "silences", map(_of_audio, transcript.silences() if transcript else ())
        yield "speech_failures", map(_of_audio, transcript.failures() if transcript else ())
        yield "speech_settings", transcript.settings.id if transcript else None
        if self.speaker_result:
            yield "turns", map(_object, self.speaker_result.turns)
            yield "speaker_settings", self.speaker_result.settings.id

    def _repr_html_(self) -> str:
        """Return what a notebook shows: a strip of thumbnails with captions, descriptions or what is said."""
        # Imported here, because only notebooks show records, and few programs import Pillow and FFmpeg for them.
        from reelscribe.viewer.notebook import Moment, strip

        notes = [f"{self.error.type}: {self.error.message}"] if self.error else []
        path = self.absolute_path or self.source.path
        try:
            moments = (Moment(*moment) for moment in self._moments())
            return strip(self.source, path, moments, folder=self.folder, notes=notes)
        except OutputError as error:  # the run has ended, and its ledger is closed
            return strip(self.source, path, (), folder=self.folder, notes=[*notes, str(error)])

    def _moments(self) -> Iterator[tuple[float, str]]:
        """Yield the time and the text of each caption, or else of each clip, or else of each segment of speech."""
        if self.caption_result:
            yield from ((caption.pts_seconds, caption.text) for caption in self.caption_result.captions())
        elif self.description_result:
            yield from ((clip.start, clip.text) for clip in self.description_result.described())
        elif self.transcript_result:
            yield from (utterance.moment for utterance in self.utterances())


Result = TypeVar("Result", CaptionResult, DescriptionResult, TranscriptResult)

_FEW = 100
"""Number of results of a source that are kept in memory while its record is written."""


def error_of(errors: Mapping[Kind, SourceError | None]) -> SourceError | None:
    """Return the error of a source that could be read.

    Where there is a transcript and something made of the pictures, a source may lack one of the two streams; where
    there is a transcript alone, it may be a video without audio. Neither is an error. Different errors become one,
    with the type of the first.

    Args:
        errors: The error of each kind of results that was made; None for one that went well.
    """
    if "transcript" in errors and (error := errors.get("speakers")) and error.is_missing_stream:
        errors = {kind: each for kind, each in errors.items() if kind != "speakers"}  # the transcript lacks it, too
    failed = {_PARTS[kind]: error for kind in _PARTS if (error := errors.get(kind))}
    counted = {part: error for part, error in failed.items() if not error.is_missing_stream}
    read = errors.keys() - {"summary"}  # which is made of the others, and of no stream
    if not counted and (len(failed) == len(read) > 1 or "transcript" not in errors):
        counted = failed
    if len(set(counted.values())) < 2:
        return next(iter(counted.values()), None)
    message = "; ".join(f"{part}: {error.message}" for part, error in counted.items())
    return SourceError(next(iter(counted.values())).type, message)


def with_job(
    record: Record, kind: Kind, settings: ModelSettings, job: Job, results: Callable[[], Iterable[Any]]
) -> Record:
    """Return a record with the results of a job.

    Args:
        record: The record of the source.
        kind: The kind of the job's annotations, other than shots.
        settings: The model and the settings of the job.
        job: The job.
        results: Reads its results, in the order of time; it is called whenever they are asked for.
    """
    if kind == "captions":
        end = job.opened.end_seconds if isinstance(job.opened, SavedVideo) else 0.0
        captions = CaptionResult(settings, **video_fields(job), end_seconds=end, results=results)
        return replace(record, caption_result=captions)
    if kind == "clips":
        return replace(record, description_result=DescriptionResult(settings, **video_fields(job), results=results))
    if kind == "summary":
        return replace(record, summary_result=SummaryResult(settings, job.error, results))
    # If decoding failed before the end, the length is unknown, and the part before the first gap counts.
    samples = job.missing[0].first if job.total is None else job.total
    audio = job.opened.info if isinstance(job.opened, SavedAudio) else None
    channels = transcribed_channels(settings.settings.get("channels", "mix"), audio.channels if audio else 1)
    seconds = samples / channels / read_count("sample_rate", settings.settings["sample_rate"], least=1)
    if kind == "speakers":
        turns = (job.opened.turns if isinstance(job.opened, SavedAudio) else None) or ()
        return replace(record, speaker_result=SpeakerResult(settings, audio, seconds, job.error, turns))
    return replace(record, transcript_result=TranscriptResult(settings, audio, seconds, job.error, results))


def video_fields(job: Job) -> dict[str, Any]:
    """Return the fields that the results of all jobs on a video have: `video`, `shots` and `error`."""
    video = job.opened if isinstance(job.opened, SavedVideo) else None
    return {"video": video and video.info, "shots": (video and video.shots) or (), "error": job.error}


_KINDS: dict[type, Kind] = {
    CaptionResult: "captions",
    DescriptionResult: "clips",
    ShotResult: "shots",
    TranscriptResult: "transcript",
    SpeakerResult: "speakers",
    SummaryResult: "summary",
}

_PARTS: dict[Kind, str] = {
    "captions": "pictures",
    "clips": "clips",
    "shots": "shots",
    "transcript": "audio",
    "speakers": "speakers",
    "summary": "summary",
}
"""The name in errors of the part of a source that each kind of result is made of, in the order of the errors."""


class KnownSource(NamedTuple):
    """A source that a run has finished, without its results."""

    path: bytes
    """Absolute path, which identifies the source in the ledger."""
    name: str
    """Path as it was last given to a run."""
    sha256: str | None
    """Digest of its content; None if it could never be read."""
    missing: bool
    """True if it was gone from the disk when the last run into the folder ended."""


class FinishedSource(NamedTuple):
    """The record of a source without its results."""

    path: bytes
    """Absolute path, which identifies the source in the ledger."""
    name: str
    """Path as it was last given to a run."""
    bytes: int | None
    """Size; None if the source could not be read."""
    sha256: str | None
    """Digest of its content; None if it is not known."""
    missing: bool
    """True if it was gone from the disk when the last run ended."""
    error: SourceError | None
    """The error of its record."""
    settings: Mapping[Kind, str]
    """The id of the settings for each kind of results that was made."""


def caption_spans(results: Iterable[FrameResult], end_seconds: float, gaps: Iterable[Gap] = ()) -> Iterator[Segment]:
    """Yield equal captions in a row as one span, which lasts until the next different frame, a gap or the end.

    Frames with an empty caption, or with none, are in no span.

    Args:
        results: The result of each chosen frame, in order.
        end_seconds: Presentation time at which the part of the video ends from which frames are chosen.
        gaps: The gaps of the video, in the order of time.
    """
    start, text = 0.0, ""
    last = Failure(-1, end_seconds, "")  # ends the last span
    waiting = deque(gaps)
    for result in chain(results, [last]):
        next_text = result.text if isinstance(result, Caption) else ""
        while waiting and waiting[0].start <= start:
            waiting.popleft()
        is_behind_gap = bool(waiting) and waiting[0].start < result.pts_seconds
        if next_text != text or is_behind_gap:
            if text:
                yield Segment(start, max(start, waiting[0].start if is_behind_gap else result.pts_seconds), text)
            start, text = result.pts_seconds, next_text


def _with_few_in_memory(result: Result) -> Result:
    """Return results that are read only once where they are few, although several fields are made of them."""
    few = tuple(islice(result.results(), _FEW + 1))
    return replace(result, results=lambda: few) if len(few) <= _FEW else result


def _object(value: Any) -> dict[str, Any]:
    return dict(vars(value))


def _flagged(results: Iterable[Described], settings: ModelSettings) -> Iterator[dict[str, Any]]:
    for value, flags in with_flags(results, differ=chosen_to_differ(settings.settings)):
        yield {**vars(value), "flags": flags}


def _shot(shot: Section, transition: Transition | None) -> dict[str, Any]:
    return _object(Shot(shot.start_seconds, shot.end_seconds, shot.start_frame, shot.end_frame, transition))


def _of_audio(value: AudioResult | Word) -> dict[str, Any]:
    return known_fields(vars(value).items())


def _spoken(segment: Utterance | Translation) -> dict[str, Any]:
    words = segment.words
    return {
        **_of_audio(segment),
        "words": None if words is None else [*map(_of_audio, words)],
        "flags": speech_flags(segment),
    }
