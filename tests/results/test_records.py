"""A record: one line of annotations.jsonl."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from reelscribe.contract.outcomes import Caption, Failure, Segment, Silence, SourceError, SpeechFailure, Utterance
from reelscribe.contract.source import AudioInfo, Source, VideoInfo
from reelscribe.contract.speech import Word
from reelscribe.results.annotations import CaptionResult, Model, Record, TranscriptResult
from support.memory import peak_memory

FRAMES = [
    Caption(0, 0.0, "a star"),
    Caption(1, 0.1, "a star", reused_from=0),
    Caption(2, 0.2, "a moon"),
    Failure(3, 0.3, "it cannot be decoded"),
    Caption(4, 0.4, "a moon"),
]

CAPTIONED = CaptionResult(
    Model("some/model", "abc"),
    {"sampling": {"every": 2}},
    video=VideoInfo(
        duration_seconds=2.0,
        width=640,
        height=360,
        rotation=0,
        pixel_aspect=1.0,
        frames=5,
        average_fps=10.0,
        start_seconds=0.0,
        end_seconds=0.5,
        video_codec="h264",
        audio_codec=None,
    ),
    end_seconds=0.5,
    results=lambda: FRAMES,
)

AUDIO = [
    Utterance(0.5, 2.0, "go left", "en", 0.25, (Word(0.5, 0.75, "go"), Word(1.0, 2.0, "left"))),
    Silence(2.0, 30.0),
    SpeechFailure(30.0, 40.0, "status 500: no luck"),
    Utterance(41.0, 42.0, "stop", None, None),
]

TRANSCRIBED = TranscriptResult(
    Model("some/whisper", "def"),
    {"task": "transcribe"},
    audio=AudioInfo("aac", 44100, 2, 0.5, 0.25, 43.0),
    decoded_seconds=42.5,
    results=lambda: AUDIO,
)

SOURCE = Source("vidéo.mp4", 10, "00ff")
RECORD = Record(SOURCE, CAPTIONED)
TRANSCRIPT = Record(SOURCE, transcript_result=TRANSCRIBED)
BOTH = Record(SOURCE, CAPTIONED, TRANSCRIBED)

EMPTY = SourceError("MediaError", "the file is empty")
FAILED = Record(Source("x.mp4"), CaptionResult(Model("m", "r"), {}, error=EMPTY))
FAILED_TRANSCRIPT = Record(Source("x.mp4"), transcript_result=TranscriptResult(Model("m", "r"), {}, error=EMPTY))


def line(record: Record) -> str:
    return "".join(record.iter_json())


def with_frames(*frames: Caption | Failure, end_seconds: float = 9.0) -> CaptionResult:
    return replace(CAPTIONED, results=lambda: frames, end_seconds=end_seconds)


@pytest.mark.parametrize(
    "record",
    [
        *(RECORD, TRANSCRIPT, BOTH, FAILED, FAILED_TRANSCRIPT),
        Record(SOURCE, with_frames()),
        Record(SOURCE, with_frames(Caption(0, 0.0, 'a "quote"\n'))),
        Record(
            SOURCE,
            transcript_result=replace(TRANSCRIBED, results=lambda: [Utterance(0.0, 1.0, 'a "quote"\n', None, None)]),
        ),
    ],
)
def test_a_record_is_one_line_of_json_as_json_dumps_would_write_it(record):
    text = line(record)
    assert "\n" not in text
    assert text == json.dumps(json.loads(text), ensure_ascii=False)


def test_a_record_of_captions_has_the_fields_of_the_source_its_video_and_its_frames():
    value = json.loads(line(RECORD))
    assert value["source"] == {"path": "vidéo.mp4", "bytes": 10, "sha256": "00ff"}
    assert value["status"] == "ok"
    assert (value["media"]["frames"], value["media"]["video_codec"]) == (5, "h264")
    assert value["captions"][:2] == [
        {"frame_index": 0, "pts_seconds": 0.0, "text": "a star"},
        {"frame_index": 1, "pts_seconds": 0.1, "text": "a star", "reused_from": 0},
    ]
    assert value["segments"][0] == {"start": 0.0, "end": 0.2, "text": "a star"}
    assert value["failures"] == [{"frame_index": 3, "pts_seconds": 0.3, "error": "it cannot be decoded"}]
    assert value["settings"] == {"sampling": {"every": 2}}
    assert "error" not in value


def test_a_record_of_a_transcript_has_the_fields_of_its_audio():
    value = json.loads(line(TRANSCRIPT))
    times = {"start_seconds": 0.5, "media_start_seconds": 0.25, "duration_seconds": 43.0, "seconds": 42.5}
    assert value["audio"] == {"codec": "aac", "sample_rate": 44100, "channels": 2, **times}
    words = [{"start": 0.5, "end": 0.75, "text": "go"}, {"start": 1.0, "end": 2.0, "text": "left"}]
    assert value["transcript"] == [
        {"start": 0.5, "end": 2.0, "text": "go left", "language": "en", "no_speech_prob": 0.25, "words": words},
        {"start": 41.0, "end": 42.0, "text": "stop", "language": None, "no_speech_prob": None},
    ]
    assert value["silences"] == [{"start": 2.0, "end": 30.0}]
    assert value["transcript_failures"] == [{"start": 30.0, "end": 40.0, "error": "status 500: no luck"}]
    assert value["speech_model"] == {"name": "some/whisper", "revision": "def"}
    assert value["speech_settings"] == {"task": "transcribe"}


def test_a_record_has_the_fields_of_the_models_that_ran():
    common = {"source", "status"}
    captions, transcript, both = (set(json.loads(line(record))) - common for record in (RECORD, TRANSCRIPT, BOTH))
    assert captions == {"media", "captions", "segments", "failures", "model", "settings"}
    assert transcript == {
        *("audio", "transcript", "silences", "transcript_failures"),
        *("speech_model", "speech_settings"),
    }
    assert both == captions | transcript


def test_a_failed_record_says_why():
    value = json.loads(line(FAILED))
    assert value["status"] == "error"
    assert value["error"] == {"type": "MediaError", "message": "the file is empty"}
    assert value["source"] == {"path": "x.mp4", "bytes": None, "sha256": None}
    assert (value["media"], value["captions"], value["segments"], value["failures"]) == (None, [], [], [])
    value = json.loads(line(FAILED_TRANSCRIPT))
    assert value["error"] == {"type": "MediaError", "message": "the file is empty"}
    assert (value["audio"], value["transcript"], value["silences"]) == (None, [], [])


NO_PICTURES = SourceError("NoPictures", "expected a video stream")
NO_SOUND = SourceError("NoSound", "it has no sound")
REFUSED = SourceError("RequestRefused", "3 frames have no caption")
CUT = SourceError("MediaError", "cut short")


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ({"captions": None}, None),
        ({"captions": NO_PICTURES}, NO_PICTURES),
        ({"captions": CUT}, CUT),
        ({"transcript": None}, None),
        ({"transcript": NO_SOUND}, None),
        ({"transcript": CUT}, CUT),
        ({"captions": None, "transcript": None}, None),
        ({"captions": None, "transcript": NO_SOUND}, None),
        ({"captions": NO_PICTURES, "transcript": None}, None),
        (
            {"captions": NO_PICTURES, "transcript": NO_SOUND},
            ("NoPictures", "pictures: expected a video stream; sound: it has no sound"),
        ),
        ({"captions": CUT, "transcript": NO_SOUND}, CUT),
        ({"captions": NO_PICTURES, "transcript": CUT}, CUT),
        ({"captions": None, "transcript": CUT}, CUT),
        ({"captions": REFUSED, "transcript": None}, REFUSED),
        ({"captions": CUT, "transcript": CUT}, CUT),
        (
            {"captions": REFUSED, "transcript": CUT},
            ("RequestRefused", "pictures: 3 frames have no caption; sound: cut short"),
        ),
    ],
    ids=str,
)
def test_the_error_of_a_record_is_that_of_the_models_that_failed(errors, expected):
    record = Record(SOURCE)
    if "captions" in errors:
        record = replace(record, caption_result=replace(CAPTIONED, error=errors["captions"]))
    if "transcript" in errors:
        record = replace(record, transcript_result=replace(TRANSCRIBED, error=errors["transcript"]))
    assert (record.error, record.status) == (expected, "error" if expected else "ok")
    assert json.loads(line(record)).get("error") == (expected and {"type": expected[0], "message": expected[1]})


def test_equal_captions_in_a_row_are_one_segment_until_the_next_different_frame():
    assert list(CAPTIONED.segments()) == [
        Segment(0.0, 0.2, "a star"),
        Segment(0.2, 0.3, "a moon"),
        Segment(0.4, 0.5, "a moon"),
    ]


def test_the_last_segment_lasts_until_the_end_of_the_video():
    assert list(with_frames(Caption(0, 2.0, "a star"), end_seconds=7.5).segments()) == [Segment(2.0, 7.5, "a star")]
    # Also if the header says that the video ended before this frame.
    assert list(with_frames(Caption(0, 2.0, "a star"), end_seconds=0.0).segments()) == [Segment(2.0, 2.0, "a star")]


def test_frames_without_a_caption_or_with_an_empty_one_are_in_no_segment():
    frames = [Failure(0, 0.0, "x"), Caption(1, 1.0, ""), Caption(2, 2.0, "a star"), Caption(3, 3.0, "")]
    assert list(with_frames(*frames).segments()) == [Segment(2.0, 3.0, "a star")]
    assert list(with_frames(*frames[:2]).segments()) == []


def test_a_record_of_very_many_captions_is_never_whole_in_memory():
    result = replace(CAPTIONED, results=lambda: (Caption(k, k / 10, f"caption {k}") for k in range(20_000)))
    record = Record(SOURCE, result)
    with peak_memory() as peak:
        written = sum(map(len, record.iter_json()))
    assert written > 1_000_000
    assert peak() < 100_000


def test_a_record_of_very_many_utterances_is_never_whole_in_memory():
    result = replace(TRANSCRIBED, results=lambda: (Utterance(k, k + 1, f"word {k}", "en", 0.25) for k in range(10_000)))
    record = Record(SOURCE, transcript_result=result)
    with peak_memory() as peak:
        written = sum(map(len, record.iter_json()))
    assert written > 800_000
    assert peak() < 100_000


def field_names(value: object, prefix: str = "") -> set[str]:
    if isinstance(value, list):
        return set().union(*(field_names(item, prefix + "[].") for item in value))
    if not isinstance(value, dict) or prefix in ("settings.", "speech_settings."):
        return set()
    return {prefix + key for key in value}.union(*(field_names(v, f"{prefix}{k}.") for k, v in value.items()))


def test_every_field_is_documented():
    names = field_names(json.loads(line(replace(BOTH, caption_result=replace(CAPTIONED, error=EMPTY)))))
    written = {name.replace(".[]", "[]") for name in names}
    text = (Path(__file__).parents[2] / "docs/records.md").read_text()
    rows = re.findall(r"^\| (`[^|]+`) \|", text, re.M)
    documented = {name for row in rows for name in re.findall(r"`([\w.\[\]]+)`", row)}
    assert written == {name for name in documented if not name.startswith(("settings.", "speech_settings."))}
