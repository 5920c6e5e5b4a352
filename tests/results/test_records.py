"""A record: one line of annotations.jsonl."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reelscribe.contract.outcomes import (
    Caption,
    ClipFailure,
    DescribedClip,
    Failure,
    Segment,
    Silence,
    SourceError,
    SourceSummary,
    SpeechFailure,
    Translation,
    Turn,
    Utterance,
)
from reelscribe.contract.source import AudioInfo, Gap, Section, Source, VideoInfo
from reelscribe.contract.speech import Word
from reelscribe.results.annotations import write_results
from reelscribe.results.records import (
    CaptionResult,
    DescriptionResult,
    Model,
    ModelSettings,
    Record,
    ShotResult,
    SpeakerResult,
    SummaryResult,
    TranscriptResult,
)
from support.memory import peak_memory

FRAMES = [
    Caption(0, 0.0, "a star"),
    Caption(1, 0.1, "a star", reused_from=0),
    Caption(2, 0.2, "a moon"),
    Failure(3, 0.3, "it cannot be decoded"),
    Caption(4, 0.4, "a moon"),
]

CAPTIONER = ModelSettings('{"a": 1}', Model("some/model", "abc"), {"sampling": {"every": 2}})
WHISPER = ModelSettings('{"b": 2}', Model("some/whisper", "def"), {"task": "transcribe"})
TRANSLATED = ModelSettings('{"e": 5}', WHISPER.model, {"task": "both"})

CAPTIONED = CaptionResult(
    CAPTIONER,
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
    WHISPER,
    audio=AudioInfo("aac", 44100, 2, 0.5, 0.25, 43.0),
    decoded_seconds=42.5,
    results=lambda: AUDIO,
)

ADAPTIVE = ModelSettings('{"c": 3}', Model("reelscribe shots", "1"), {"detection": {"threshold": 0.75}})
SEARCHED = ShotResult(ADAPTIVE, video=CAPTIONED.video, shots=[Section(0, 3, 0.0, 0.3), Section(3, 5, 0.3, 0.5)])

SOURCE = Source("vidéo.mp4", 10, "00ff")
RECORD = Record(SOURCE, CAPTIONED, absolute_path="/v/vidéo.mp4")
TRANSCRIPT = Record(SOURCE, transcript_result=TRANSCRIBED, absolute_path="/v/vidéo.mp4")
BOTH = Record(SOURCE, CAPTIONED, TRANSCRIBED, absolute_path="/v/vidéo.mp4")
SHOTS = Record(SOURCE, shot_result=SEARCHED, absolute_path="/v/vidéo.mp4")
CLIPS = [
    DescribedClip(0.0, 4.0, 8, '{"what": "a star"}', "complete", 9, -0.25, {"what": "a star"}),
    DescribedClip(4.0, 8.0, 8, '{"what": "a star"}', "truncated", 9),
    ClipFailure(8.0, 9.0, "the answer cannot be used", "a star"),
]
QWEN = ModelSettings('{"d": 4}', Model("Qwen/Qwen3-VL-2B-Instruct", "0123"), {"prompt": "What?"})
DESCRIBED = DescriptionResult(QWEN, video=CAPTIONED.video, shots=SEARCHED.shots, results=lambda: CLIPS)
SUMMED_UP = SummaryResult(QWEN, results=lambda: [SourceSummary("A star", "It shines.", ("star", "sky"))])
ALL = replace(BOTH, shot_result=SEARCHED, description_result=DESCRIBED, summary_result=SUMMED_UP)

EMPTY = SourceError("MediaError", "the file is empty")
UNREADABLE = Record(Source("x.mp4"), unreadable=EMPTY)

FIELDS = [
    *("source", "extra", "status", "error", "media", "audio", "summary", "summary_settings"),
    *("shots", "shot_settings"),
    *("captions", "caption_spans", "caption_failures", "caption_settings"),
    *("clips", "clip_failures", "clip_settings"),
    *("segments", "silences", "speech_failures", "speech_settings"),
]


@pytest.fixture
def line(tmp_path: Path) -> Callable[[Record], str]:
    """Return the line of a record in annotations.jsonl."""

    def line(record: Record) -> str:
        write_results(tmp_path, [record])
        return (tmp_path / "annotations.jsonl").read_text()

    return line


def with_frames(*frames: Caption | Failure, end_seconds: float = 9.0) -> CaptionResult:
    return replace(CAPTIONED, results=lambda: frames, end_seconds=end_seconds)


@pytest.mark.parametrize("record", [RECORD, TRANSCRIPT, SHOTS, ALL, UNREADABLE, Record(SOURCE, with_frames())])
def test_every_record_is_one_line_with_every_field(line, record):
    text = line(record)
    assert text.endswith("\n")
    assert text.count("\n") == 1
    assert list(json.loads(text)) == FIELDS


def test_a_record_of_captions_has_the_fields_of_the_source_its_video_and_its_frames(line):
    value = json.loads(line(RECORD))
    assert value["source"] == {
        "path": "vidéo.mp4",
        "bytes": 10,
        "sha256": "00ff",
        "version": None,
        "missing": False,
        "absolute_path": "/v/vidéo.mp4",
    }
    assert (value["status"], value["error"]) == ("ok", None)
    assert (value["media"]["frames"], value["media"]["video_codec"]) == (5, "h264")
    assert "mirrored" not in value["media"]
    assert [(c["frame_index"], c["pts_seconds"], c["text"], c["reused_from"]) for c in value["captions"][:2]] == [
        (0, 0.0, "a star", None),
        (1, 0.1, "a star", 0),
    ]
    assert value["caption_spans"][0] == {"start": 0.0, "end": 0.2, "text": "a star"}
    assert value["caption_failures"] == [{"frame_index": 3, "pts_seconds": 0.3, "error": "it cannot be decoded"}]
    assert (value["caption_settings"], value["speech_settings"]) == (CAPTIONER.id, None)
    assert (value["audio"], value["segments"], value["silences"], value["speech_failures"]) == (None, [], [], [])


def test_a_record_of_a_transcript_has_the_fields_of_its_audio(line):
    value = json.loads(line(TRANSCRIPT))
    times = {"start_seconds": 0.5, "media_start_seconds": 0.25, "duration_seconds": 43.0, "seconds": 42.5}
    assert value["audio"] == {"codec": "aac", "sample_rate": 44100, "channels": 2, **times}
    first, second = value["segments"]
    assert (first["start"], first["end"], first["text"], first["language"]) == (0.5, 2.0, "go left", "en")
    assert [(word["start"], word["end"], word["text"]) for word in first["words"]] == [
        (0.5, 0.75, "go"),
        (1.0, 2.0, "left"),
    ]
    assert (second["language"], second["no_speech_prob"], second["words"]) == (None, None, None)
    assert value["silences"] == [{"start": 2.0, "end": 30.0}]
    assert value["speech_failures"] == [{"start": 30.0, "end": 40.0, "error": "status 500: no luck"}]
    assert (value["caption_settings"], value["speech_settings"]) == (None, WHISPER.id)
    assert (value["media"], value["captions"], value["caption_spans"]) == (None, [], [])


def test_a_record_of_shots_has_their_times_and_frames(line):
    value = json.loads(line(SHOTS))
    assert value["shots"] == [
        {"start": 0.0, "end": 0.3, "start_frame": 0, "end_frame": 3, "transition": None},
        {"start": 0.3, "end": 0.5, "start_frame": 3, "end_frame": 5, "transition": None},
    ]
    assert (value["shot_settings"], value["media"]["frames"]) == (ADAPTIVE.id, 5)
    assert (value["captions"], value["caption_settings"], value["audio"]) == ([], None, None)


def test_shots_that_were_found_for_captions_are_in_the_record_without_settings_of_their_own(line):
    captions = replace(CAPTIONED, shots=[Section(0, 5, 0.0, 0.5)])
    value = json.loads(line(Record(SOURCE, captions)))
    assert ([shot["end_frame"] for shot in value["shots"]], value["shot_settings"]) == ([5], None)
    value = json.loads(line(Record(SOURCE, captions, shot_result=SEARCHED)))
    assert ([shot["end_frame"] for shot in value["shots"]], value["shot_settings"]) == ([3, 5], ADAPTIVE.id)


def test_the_record_of_a_source_that_cannot_be_read_says_why(line):
    value = json.loads(line(UNREADABLE))
    assert value["status"] == "error"
    assert value["error"] == {"type": "MediaError", "message": "the file is empty"}
    place = {"version": None, "missing": False, "absolute_path": ""}
    assert value["source"] == {"path": "x.mp4", "bytes": None, "sha256": None, **place}


def test_a_source_that_cannot_be_read_any_more_keeps_its_results(line):
    value = json.loads(line(replace(BOTH, unreadable=EMPTY, missing=True)))
    assert value["error"] == {"type": "MediaError", "message": "the file is empty"}
    assert value["source"]["missing"] is True
    assert (len(value["captions"]), len(value["segments"])) == (4, 2)


def test_a_record_can_be_cut_down_to_one_kind(line):
    assert line(ALL.only("captions")) == line(RECORD)
    assert line(ALL.only("transcript")) == line(TRANSCRIPT)
    assert line(ALL.only("shots")) == line(SHOTS)
    assert line(ALL.only("captions", "transcript")) == line(BOTH)


def test_a_summary_is_an_object_and_where_there_is_none_it_is_null(line):
    fields = [json.loads(line(record)) for record in (ALL, replace(ALL, summary_result=SummaryResult(QWEN)), BOTH)]
    assert [each["summary"] for each in fields] == [
        {"title": "A star", "text": "It shines.", "keywords": ["star", "sky"]},
        None,
        None,
    ]
    assert [each["summary_settings"] for each in fields] == [QWEN.id, QWEN.id, None]


NO_PICTURES = SourceError("NoPictures", "expected a video stream")
NO_SOUND = SourceError("NoAudio", "it has no audio")
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
            ("NoPictures", "pictures: expected a video stream; audio: it has no audio"),
        ),
        ({"captions": CUT, "transcript": NO_SOUND}, CUT),
        ({"captions": NO_PICTURES, "transcript": CUT}, CUT),
        ({"captions": None, "transcript": CUT}, CUT),
        ({"captions": REFUSED, "transcript": None}, REFUSED),
        ({"captions": CUT, "transcript": CUT}, CUT),
        (
            {"captions": REFUSED, "transcript": CUT},
            ("RequestRefused", "pictures: 3 frames have no caption; audio: cut short"),
        ),
        ({"captions": None, "summary": REFUSED}, REFUSED),
        ({"captions": NO_PICTURES, "summary": None}, NO_PICTURES),
        ({"transcript": NO_SOUND, "summary": None}, None),
        (
            {"captions": NO_PICTURES, "transcript": NO_SOUND, "summary": None},
            ("NoPictures", "pictures: expected a video stream; audio: it has no audio"),
        ),
        ({"speakers": NO_SOUND}, NO_SOUND),
        ({"transcript": NO_SOUND, "speakers": NO_SOUND}, None),
        ({"captions": NO_PICTURES, "transcript": None, "speakers": None}, None),
        ({"captions": None, "transcript": None, "speakers": CUT}, CUT),
        ({"shots": None}, None),
        ({"shots": NO_PICTURES}, NO_PICTURES),
        ({"shots": CUT}, CUT),
        ({"shots": NO_PICTURES, "captions": NO_PICTURES}, NO_PICTURES),
        ({"shots": NO_PICTURES, "transcript": None}, None),
        ({"shots": None, "transcript": NO_SOUND}, None),
        (
            {"shots": CUT, "captions": REFUSED, "transcript": NO_SOUND},
            ("RequestRefused", "pictures: 3 frames have no caption; shots: cut short"),
        ),
    ],
    ids=str,
)
def test_the_error_of_a_record_is_that_of_the_models_that_failed(line, errors, expected):
    record = Record(SOURCE)
    if "captions" in errors:
        record = replace(record, caption_result=replace(CAPTIONED, error=errors["captions"]))
    if "transcript" in errors:
        record = replace(record, transcript_result=replace(TRANSCRIBED, error=errors["transcript"]))
    if "shots" in errors:
        record = replace(record, shot_result=replace(SEARCHED, error=errors["shots"]))
    if "speakers" in errors:
        record = replace(record, speaker_result=SpeakerResult(TRANSCRIBED.settings, error=errors["speakers"]))
    if "summary" in errors:
        record = replace(record, summary_result=replace(SUMMED_UP, error=errors["summary"]))
    assert (record.error, record.status) == (expected, "error" if expected else "ok")
    assert json.loads(line(record))["error"] == (expected and {"type": expected[0], "message": expected[1]})


def test_equal_captions_in_a_row_are_one_span_until_the_next_different_frame():
    assert list(CAPTIONED.spans()) == [
        Segment(0.0, 0.2, "a star"),
        Segment(0.2, 0.3, "a moon"),
        Segment(0.4, 0.5, "a moon"),
    ]


def test_the_last_span_lasts_until_the_end_of_the_video():
    assert list(with_frames(Caption(0, 2.0, "a star"), end_seconds=7.5).spans()) == [Segment(2.0, 7.5, "a star")]
    # Also if the header says that the video ended before this frame.
    assert list(with_frames(Caption(0, 2.0, "a star"), end_seconds=0.0).spans()) == [Segment(2.0, 2.0, "a star")]


def test_no_span_goes_over_a_gap_of_the_video(line):
    gaps = (Gap(0.05, 0.08), Gap(0.3, 0.35), Gap(0.42, 0.5))
    captioned = replace(CAPTIONED, video=replace(CAPTIONED.video, gaps=gaps))
    assert list(captioned.spans()) == [
        Segment(0.0, 0.05, "a star"),
        Segment(0.1, 0.2, "a star"),
        Segment(0.2, 0.3, "a moon"),
        Segment(0.4, 0.42, "a moon"),
    ]
    media = json.loads(line(replace(RECORD, caption_result=captioned)))["media"]
    assert media["gaps"][0] == {"start": 0.05, "end": 0.08}
    assert VideoInfo.from_json(media) == captioned.video
    assert "gaps" not in json.loads(line(RECORD))["media"]


def test_frames_without_a_caption_or_with_an_empty_one_are_in_no_span():
    frames = [Failure(0, 0.0, "x"), Caption(1, 1.0, ""), Caption(2, 2.0, "a star"), Caption(3, 3.0, "")]
    assert list(with_frames(*frames).spans()) == [Segment(2.0, 3.0, "a star")]
    assert list(with_frames(*frames[:2]).spans()) == []


def test_a_record_of_very_many_captions_is_never_whole_in_memory(tmp_path):
    result = replace(CAPTIONED, results=lambda: (Caption(k, k / 10, f"caption {k}") for k in range(20_000)))
    with peak_memory() as peak:
        write_results(tmp_path, [Record(SOURCE, result)])
    assert (tmp_path / "annotations.jsonl").stat().st_size > 1_000_000
    assert peak() < 250_000  # rapidfuzz keeps about 125 kB from its first calls on


def test_a_record_of_very_many_utterances_is_never_whole_in_memory(tmp_path):
    result = replace(TRANSCRIBED, results=lambda: (Utterance(k, k + 1, f"word {k}", "en", 0.25) for k in range(10_000)))
    with peak_memory() as peak:
        write_results(tmp_path, [Record(SOURCE, transcript_result=result)])
    assert (tmp_path / "annotations.jsonl").stat().st_size > 800_000
    assert peak() < 100_000


def test_few_results_are_read_once_although_several_fields_are_made_of_them(tmp_path):
    readings: list[int] = []

    def results():
        readings.append(1)
        return [Utterance(0.0, 1.0, "word", "en", 0.25), Silence(1.0, 2.0)]

    write_results(tmp_path, [Record(SOURCE, transcript_result=replace(TRANSCRIBED, results=results))])
    record = json.loads((tmp_path / "annotations.jsonl").read_text())
    assert (len(record["segments"]), len(record["silences"]), len(readings)) == (1, 1, 1)


def field_names(value: object, prefix: str = "") -> set[str]:
    if isinstance(value, list):
        return set().union(*(field_names(item, prefix + "[].") for item in value))
    if not isinstance(value, dict):
        return set()
    return {prefix + key for key in value}.union(*(field_names(v, f"{prefix}{k}.") for k, v in value.items()))


CALL = [
    Utterance(0.5, 2.0, "go", "en", 0.25, (Word(0.5, 0.75, "go", speaker="channel 1"),), speaker="channel 1"),
    Silence(0.0, 30.0, "channel 2"),
    SpeechFailure(30.0, 40.0, "status 500: no luck", "channel 2"),
]


def test_what_has_a_speaker_says_so(line):
    record = json.loads(line(replace(TRANSCRIPT, transcript_result=replace(TRANSCRIBED, results=lambda: CALL))))
    assert (record["segments"][0]["speaker"], record["segments"][0]["words"][0]["speaker"]) == ("channel 1",) * 2
    assert record["silences"] == [{"start": 0.0, "end": 30.0, "speaker": "channel 2"}]
    assert record["speech_failures"][0]["speaker"] == "channel 2"


def test_a_translation_has_the_speakers_of_turns_and_is_there_if_it_was_asked_for_even_if_empty(line):
    turns = SpeakerResult(TRANSCRIBED.settings, turns=[Turn(0.0, 50.0, "speaker 1")])
    english = Translation(1.0, 2.0, "go", "de", 0.25)
    said = replace(TRANSCRIBED, settings=TRANSLATED, results=lambda: [*AUDIO, english])
    record = json.loads(line(Record(SOURCE, transcript_result=said, speaker_result=turns)))
    (translated,) = record["translations"]
    assert (translated["text"], translated["speaker"], translated["flags"]) == ("go", "speaker 1", [])
    assert len(record["segments"]) == 2
    silent = Record(SOURCE, transcript_result=replace(TRANSCRIBED, settings=TRANSLATED))
    assert json.loads(line(silent))["translations"] == []


def test_every_field_is_documented(line):
    turns = SpeakerResult(TRANSCRIBED.settings, turns=[Turn(0.0, 50.0, "speaker 1")])
    english = Translation(**vars(CALL[0]))
    said = replace(TRANSCRIBED, settings=TRANSLATED, results=lambda: [*CALL, english])
    video = replace(CAPTIONED.video, mirrored=True, stream_index=1, other_streams=1, gaps=(Gap(1.0, 2.0),))
    seen = [replace(each, video=video) for each in (CAPTIONED, DESCRIBED)]
    said = replace(said, audio=replace(said.audio, stream_index=2, other_streams=1))
    spoken = replace(ALL, caption_result=seen[0], description_result=seen[1], transcript_result=said)
    spoken = replace(spoken, speaker_result=turns)
    names = field_names(json.loads(line(replace(spoken, unreadable=EMPTY))))
    written = {name.replace(".[]", "[]") for name in names}
    of_translations = {name for name in written if name.startswith("translations[]")}
    assert {name.replace("translations", "segments") for name in of_translations} <= written
    written -= of_translations  # which the document describes as those of segments
    text = (Path(__file__).parents[2] / "docs/records.md").read_text()
    text = text.partition("Every record has every field")[2].partition("## run.json")[0]
    rows = re.findall(r"^\| (`[^|]+`) \|", text, re.M)
    written -= {"clips[].json.what"}  # whatever the schema asks for
    assert written == {name for row in rows for name in re.findall(r"`([\w.\[\]]+)`", row)}


def test_of_several_streams_a_record_says_which_was_read_and_how_many_were_not(line):
    several = {"stream_index": 2, "other_streams": 1}
    read = replace(TRANSCRIBED, audio=replace(TRANSCRIBED.audio, **several))
    audio = json.loads(line(Record(SOURCE, transcript_result=read)))["audio"]
    assert several.items() <= audio.items()
    assert several.keys().isdisjoint(json.loads(line(TRANSCRIPT))["audio"])
    assert several.keys().isdisjoint(json.loads(line(RECORD))["media"])


def test_segments_have_the_speakers_of_turns_and_a_record_without_turns_has_no_such_fields(line):
    turns = [Turn(0.0, 1e6, "speaker 1")]
    record = Record(SOURCE, transcript_result=TRANSCRIBED)
    named = replace(record, speaker_result=SpeakerResult(TRANSCRIBED.settings, turns=turns))
    value, plain = json.loads(line(named)), json.loads(line(record))
    assert value["turns"] == [{"start": 0.0, "end": 1e6, "speaker": "speaker 1"}]
    assert value["speaker_settings"] == TRANSCRIBED.settings.id
    assert {segment["speaker"] for segment in value["segments"]} == {"speaker 1"}
    assert set(value) - set(plain) == {"turns", "speaker_settings"}
    assert not any("speaker" in segment for segment in plain["segments"])
