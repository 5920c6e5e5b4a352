"""Reads what exports take from `annotations.jsonl`, line by line, and checks the type of every value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from reelscribe._files import read_small_file, regular_file
from reelscribe.contract.outcomes import Caption, ClipFailure, Segment, Shot, SourceSummary, Turn, Utterance
from reelscribe.contract.source import Transition
from reelscribe.contract.speech import Word
from reelscribe.errors import MALFORMED, UsageError, brief
from reelscribe.results.annotations import SETTINGS_NAME
from reelscribe.results.escaping import restore_path, to_json
from reelscribe.results.records import Kind, Model

T = TypeVar("T")

MOST_LINE_BYTES = 2**30
"""Largest line, or run.json, that is read as one. A video of a day with a caption for each frame has a third of it."""

_HEAD = re.compile(r'\{"source": *')


@dataclass(frozen=True)
class SavedModel(Model):
    """A model of run.json."""

    task: str | None = None
    """What a speech model was asked for; None for other models."""


@dataclass(frozen=True)
class FlaggedCaption(Caption):
    """The caption of one frame, and why it deserves a second look."""

    flags: tuple[str, ...] = ()
    """Reasons such as "repetition"."""


@dataclass(frozen=True)
class Captions:
    """The captions of a source."""

    model: Model
    frames: list[FlaggedCaption]
    """The caption of each frame that has one, in the order of the frames."""
    spans: list[Segment]
    """Equal captions in a row as one span, in the order of time."""


@dataclass(frozen=True)
class FlaggedUtterance(Utterance):
    """A segment of speech, and why it deserves a second look."""

    flags: tuple[str, ...] = ()
    """Reasons such as "repetition"."""


@dataclass(frozen=True)
class Transcript:
    """The transcript of a source."""

    model: Model
    utterances: list[FlaggedUtterance]
    """In the order of time."""
    translations: list[FlaggedUtterance] | None = None
    """What is said in English, in the order of time; None if it was not asked for."""
    in_english: bool = False
    """True if the utterances are in English, whatever is spoken."""


@dataclass(frozen=True)
class Speakers:
    """Who speaks when in a source, told apart by their voices."""

    model: Model
    turns: list[Turn]
    """In the order of time."""


@dataclass(frozen=True)
class ClipText:
    """The description of one clip."""

    start: float
    """Presentation time at which the clip starts, in seconds."""
    end: float
    """Presentation time at which it ends, in seconds."""
    frames: int
    """Number of frames that the model was shown."""
    text: str
    """The description."""
    json: str | None
    """The answer as the text of JSON; None if no JSON schema was given."""
    status: str
    """Either "complete", if the model ended the text by itself, or "truncated"."""
    tokens: int | None
    """Number of tokens of the text; None if the server did not say."""
    avg_logprob: float | None
    """Average natural-log probability of its tokens, at most 0; None if it is not known."""
    flags: tuple[str, ...]
    """Reasons why it deserves a second look, such as "repetition"."""


@dataclass(frozen=True)
class Clips:
    """The descriptions of the clips of a source."""

    model: Model
    described: list[ClipText]
    """The clips that have a description, in the order of time; they may overlap."""
    failures: list[ClipFailure]
    """The clips that have none, in the order of time."""


@dataclass(frozen=True)
class Shots:
    """The shots of a source."""

    detector: Model | None
    """The detector that found them; None if they were only looked for to choose clips or frames."""
    shots: list[Shot]
    """In the order of time."""


@dataclass(frozen=True)
class Summary:
    """The summary of a source, if one was asked for."""

    model: Model
    summary: SourceSummary | None
    """None if there is none, because nothing was seen or said, or because of an error."""


@dataclass(frozen=True)
class VideoStream:
    """The part of `media` that is exported."""

    duration_seconds: float
    width: int
    height: int
    frames: int
    codec: str


@dataclass(frozen=True)
class AudioStream:
    """The part of `audio` that is exported."""

    seconds: float
    codec: str


@dataclass(frozen=True)
class AnnotatedSource:
    """The part of a record that is exported."""

    path: str
    """Path of the source as it was given to the run."""
    absolute_path: str
    """Absolute path of the source."""
    bytes: int | None
    """Size in bytes; None if it could not be read."""
    sha256: str | None
    """Digest of the source in hexadecimal digits; None if it could not be read."""
    missing: bool
    """True if the source was gone from the disk when the last run into the folder ended."""
    error: tuple[str, str] | None
    """Type and message of the error; None if the source has none."""
    extra: str | None
    """What a list or an archive said of the source besides its name, as a JSON object; None for nothing."""
    start_seconds: float
    """Presentation time at which players start the file, in seconds: that of its first frame or audio."""
    video: VideoStream | None
    """None if the record has none."""
    audio: AudioStream | None
    """None if the record has none."""
    captions: Captions | None
    """None if no captions were made."""
    transcript: Transcript | None
    """None if no transcript was made."""
    clips: Clips | None
    """None if no clips were described."""
    speakers: Speakers | None
    """None if speakers were not told apart by their voices."""
    shots: Shots | None
    """None if no shots were looked for, or some were looked for to choose clips or frames, and there are none."""
    summary: Summary | None
    """None if no summary was asked for."""

    @property
    def translated(self) -> AnnotatedSource | None:
        """Return the source with the translation in the place of what is said; None if it has none."""
        if not self.transcript or not self.transcript.translations:
            return None
        return replace(self, transcript=replace(self.transcript, utterances=self.transcript.translations))

    @property
    def has_results(self) -> bool:
        """Return `True` if anything was found in the source that was looked for."""
        return any(
            (
                self.captions and self.captions.frames,
                self.transcript and self.transcript.utterances,
                self.clips and self.clips.described,
                self.speakers and self.speakers.turns,
                self.shots and self.shots.shots,
                self.summary and self.summary.summary,
            )
        )

    @property
    def kinds(self) -> tuple[Kind | Literal["translations"], ...]:
        """Return the kinds of annotations that the record has, even if they are empty."""
        kinds: dict[Kind | Literal["translations"], Any] = {
            "captions": self.captions,
            "transcript": self.transcript,
            "translations": self.transcript and self.transcript.translations,
            "clips": self.clips,
            "shots": self.shots,
            "speakers": self.speakers,
            "summary": self.summary,
        }
        return tuple(kind for kind, value in kinds.items() if value is not None)


def check_annotations(annotations: Path) -> None:
    """Raise UsageError if there is no regular file of annotations; a pipe would not do, as it is read twice."""
    if not annotations.is_file():
        reason = "is no regular file" if annotations.exists() else "does not exist"
        raise UsageError(f"export: {annotations} {reason}; expected the annotations.jsonl of a run that is done")


def read_settings(annotations: Path) -> Any:
    """Return what run.json has under `settings`; of a large library it may be as large as a record.

    Args:
        annotations: Path of annotations.jsonl, beside it.

    Raises:
        OSError: It cannot be read.
        MALFORMED: It is not as docs/records.md describes it.
    """
    return json.loads(read_small_file(annotations.with_name(SETTINGS_NAME), MOST_LINE_BYTES))["settings"]


def read_models(annotations: Path) -> dict[str, SavedModel]:
    """Read the models that made the annotations, by the ids that records have for them.

    Args:
        annotations: Path of annotations.jsonl. The models are in run.json beside it.

    Raises:
        UsageError: The file is missing or is not as docs/records.md describes it.
    """
    path = annotations.with_name(SETTINGS_NAME)
    try:
        settings = read_settings(annotations)
        return {key: _model(value["model"], value["settings"]) for key, value in settings.items()}
    except OSError as error:
        raise UsageError(
            f"export: {path} cannot be read: {error.strerror or error}; it belongs to {annotations.name}, so keep both"
            " in one folder"
        ) from None
    except MALFORMED as error:
        raise UsageError(
            f"export: {path}: expected models and settings as docs/records.md describes them"
            f" ({type(error).__name__}: {error}); was it written by this version?"
        ) from None


def read_lines(annotations: Path, parse: Callable[[bytes], T]) -> Iterator[T]:
    """Parse a file of records line by line, so that only one record is in memory at a time.

    Args:
        annotations: Path of annotations.jsonl.
        parse: Parses a line; raises one of MALFORMED if it is not a record.

    Yields:
        What `parse` returns for each line.

    Raises:
        UsageError: The file cannot be read, or a line is not a record.
    """
    try:
        with open(annotations, "rb", opener=regular_file) as file:
            for number, line in enumerate(iter(lambda: file.readline(MOST_LINE_BYTES), b""), 1):
                try:
                    parsed = parse(line)
                except MALFORMED as error:
                    raise UsageError(
                        f"export: {annotations}, line {number}: expected a record as docs/records.md describes it, got"
                        f" {brief(line)} ({type(error).__name__}: {error}); was it written by this version, to its end?"
                    ) from None
                yield parsed
                del parsed
    except OSError as error:
        raise UsageError(f"export: {annotations} cannot be read: {error.strerror or error}") from None


def source_path(line: bytes) -> str:
    """Parse only the absolute path of the source, which is much faster than parsing a line of many megabytes.

    Args:
        line: A line of annotations.jsonl.

    Raises:
        MALFORMED: The line is not a record.
    """
    return _path(_source(line)["absolute_path"])


def present_path(line: bytes) -> str | None:
    """Parse only the absolute path of the source; None if it was gone from the disk. See `source_path`."""
    source = _source(line)
    return None if source["missing"] else _path(source["absolute_path"])


def annotated_source(line: bytes, models: Mapping[str, SavedModel], *, drop_doubtful: bool = False) -> AnnotatedSource:
    """Parse the part of a record that is exported.

    Args:
        line: A line of annotations.jsonl.
        models: The models, from `read_models`.
        drop_doubtful: Whether segments of speech that have flags are left out.

    Raises:
        MALFORMED: The line is not a record.
    """
    value = json.loads(line.decode())
    source, media, audio, error = value["source"], value["media"], value["audio"], value["error"]
    starts = [_seconds(media["start_seconds"])] if media else []
    starts += [_seconds(audio["media_start_seconds"])] if audio else []
    return AnnotatedSource(
        path=_path(source["path"]),
        absolute_path=_path(source["absolute_path"]),
        bytes=None if source["bytes"] is None else _index(source["bytes"]),
        sha256=None if source["sha256"] is None else _text(source["sha256"]),
        missing=bool(source["missing"]),
        error=None if error is None else (_text(error["type"]), _text(error["message"])),
        extra=None if value.get("extra") is None else to_json(value["extra"]),
        start_seconds=min(starts, default=0.0),
        video=_video(media) if media else None,
        audio=AudioStream(_seconds(audio["seconds"]), _text(audio["codec"])) if audio else None,
        captions=None if value["caption_settings"] is None else _captions(value, models),
        transcript=None if value["speech_settings"] is None else _transcript(value, models, drop_doubtful),
        clips=None if value["clip_settings"] is None else _clips(value, models),
        speakers=None if value.get("speaker_settings") is None else _speakers(value, models),
        shots=_shots(value["shots"], value["shot_settings"], models),
        summary=None if value["summary_settings"] is None else _summary(value, models),
    )


def _source(line: bytes) -> Any:
    text = line.decode()
    head = _HEAD.match(text)
    return json.JSONDecoder().raw_decode(text, head.end())[0] if head else json.loads(text)["source"]


def _video(media: Any) -> VideoStream:
    return VideoStream(
        _seconds(media["duration_seconds"]),
        _index(media["width"]),
        _index(media["height"]),
        _index(media["frames"]),
        _text(media["video_codec"]),
    )


def _captions(value: Any, models: Mapping[str, SavedModel]) -> Captions:
    return Captions(
        model=models[value["caption_settings"]],
        frames=[
            FlaggedCaption(
                _index(item["frame_index"]),
                _seconds(item["pts_seconds"]),
                _text(item["text"]),
                None if item["reused_from"] is None else _index(item["reused_from"]),
                _logprob(item["avg_logprob"]),
                _flags(item),
            )
            for item in value["captions"]
        ],
        spans=[
            Segment(_seconds(item["start"]), _seconds(item["end"]), _text(item["text"]))
            for item in value["caption_spans"]
        ],
    )


def _transcript(value: Any, models: Mapping[str, SavedModel], drop_doubtful: bool) -> Transcript:
    return Transcript(
        model=models[value["speech_settings"]],
        in_english=models[value["speech_settings"]].task == "translate",
        utterances=_utterances(value["segments"], drop_doubtful),
        translations=_utterances(value["translations"], drop_doubtful) if "translations" in value else None,
    )


def _utterances(items: Any, drop_doubtful: bool) -> list[FlaggedUtterance]:
    return [
        FlaggedUtterance(
            _seconds(item["start"]),
            _seconds(item["end"]),
            _text(item["text"]),
            language=None if item["language"] is None else _text(item["language"]),
            no_speech_prob=_probability(item["no_speech_prob"]),
            words=None if item["words"] is None else tuple(map(_word, item["words"])),
            avg_logprob=_logprob(item["avg_logprob"]),
            language_probability=_probability(item.get("language_probability")),
            speaker=None if item.get("speaker") is None else _text(item["speaker"]),
            flags=_flags(item),
        )
        for item in items
        if not (drop_doubtful and _flags(item))
    ]


def _clips(value: Any, models: Mapping[str, SavedModel]) -> Clips:
    return Clips(
        model=models[value["clip_settings"]],
        described=[
            ClipText(
                start=_seconds(item["start"]),
                end=_seconds(item["end"]),
                frames=_index(item["frames"]),
                text=_text(item["text"]),
                json=None if item["json"] is None else json.dumps(item["json"], ensure_ascii=False),
                status=_text(item["status"]),
                tokens=None if item["tokens"] is None else _index(item["tokens"]),
                avg_logprob=_logprob(item["avg_logprob"]),
                flags=_flags(item),
            )
            for item in value["clips"]
        ],
        failures=[
            ClipFailure(_seconds(item["start"]), _seconds(item["end"]), _text(item["error"]))
            for item in value["clip_failures"]
        ],
    )


_TRANSITIONS: dict[str | None, Transition | None] = {"cut": "cut", "gradual": "gradual", None: None}


def _shots(items: Any, settings: Any, models: Mapping[str, SavedModel]) -> Shots | None:
    shots = [
        Shot(
            _seconds(item["start"]),
            _seconds(item["end"]),
            _index(item["start_frame"]),
            _index(item["end_frame"]),
            _TRANSITIONS[item["transition"]],
        )
        for item in items
    ]
    if settings is None:
        return Shots(None, shots) if shots else None
    return Shots(models[settings], shots)


def _summary(value: Any, models: Mapping[str, SavedModel]) -> Summary:
    made = value["summary"]
    summary = made and SourceSummary(_text(made["title"]), _text(made["text"]), _texts(made["keywords"]))
    return Summary(models[value["summary_settings"]], summary or None)


def _model(value: Any, settings: Any) -> SavedModel:
    return SavedModel(_text(value["name"]), _text(value["revision"]), settings.get("task"))


def _path(value: Any) -> str:
    return restore_path(_text(value))


def _speakers(value: Any, models: Mapping[str, SavedModel]) -> Speakers:
    turns = [Turn(_seconds(each["start"]), _seconds(each["end"]), _text(each["speaker"])) for each in value["turns"]]
    return Speakers(models[value["speaker_settings"]], turns)


def _word(value: Any) -> Word:
    return Word(
        _seconds(value["start"]), _seconds(value["end"]), _text(value["text"]), _probability(value["probability"])
    )


def _flags(value: Any) -> tuple[str, ...]:
    return _texts(value.get("flags", []))  # segments of earlier versions have none


def _texts(value: Any) -> tuple[str, ...]:
    if type(value) is not list:
        raise TypeError(f"expected a list of strings, got {brief(value)}")
    return tuple(map(_text, value))


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"expected a string, got {brief(value)}")
    return value


def _index(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise TypeError(f"expected a whole number from 0, got {brief(value)}")
    return value


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not -1e12 < value < 1e12:  # NaN fails every comparison
        raise TypeError(f"expected seconds, got {brief(value)}")
    return float(value)


def _probability(value: Any) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise TypeError(f"expected a probability or null, got {brief(value)}")
    return float(value)


def _logprob(value: Any) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not -1e12 < value <= 0:
        raise TypeError(f"expected the logarithm of a probability or null, got {brief(value)}")
    return float(value)
