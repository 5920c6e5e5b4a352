"""The cues of subtitles: which text is shown when."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.exporting import (
    audio,
    cues,
    evenly_spoken,
    exported,
    record,
    record_of_both,
    transcript_record,
    utterance,
    video,
)


def test_cues_are_the_segments_with_times_from_the_first_frame(tmp_path):
    out = exported(tmp_path, [record("clip.mp4", "a star", "a dog", start=3601.4)], "vtt", "srt")
    assert cues(out / "vtt/clip.mp4.vtt") == [
        ("00:00:00.000", "00:00:01.000", ["a", "star"]),
        ("00:00:01.000", "00:00:02.000", ["a", "dog"]),
    ]
    assert cues(out / "srt/clip.mp4.srt") == [(0, 1, ["a", "star"]), (1, 2, ["a", "dog"])]
    assert (out / "vtt/clip.mp4.vtt").read_bytes().startswith(b"WEBVTT\n\n")


@pytest.mark.parametrize(
    ("media", "sound", "expected"),
    [(9.5, 10, 0.5), (10, 9.5, 0.5), (None, 9.5, 0.5), (9.5, None, 0.5), (None, None, 10)],
)
def test_times_count_from_the_first_frame_or_audio_whichever_comes_first(tmp_path, media, sound, expected):
    starts = {
        "media": None if media is None else video(media),
        "audio": None if sound is None else audio(sound),
    }
    out = exported(tmp_path, [record_of_both([], [(10, 11, "three")], **starts)], "srt")
    assert cues(out / "srt/clip.mp4.srt") == [(expected, expected + 1, ["three"])]


def test_every_cue_lasts_a_millisecond_at_least_and_ends_before_100_hours(tmp_path):
    times = [(0, 1), (10, 10.0001), (360_009, 360_020), (360_010, 360_020)]
    spans = [{"start": start, "end": end, "text": str(start)} for start, end in times]
    out = exported(tmp_path, [record(start=10.0, caption_spans=spans)], "vtt", "srt")
    expected = [(0, 0.001, ["0"]), (0, 0.001, ["10"]), (359_999, 359_999.999, ["360009"])]
    assert cues(out / "srt/clip.mp4.srt") == expected
    assert [found for _, _, found in cues(out / "vtt/clip.mp4.vtt")] == [found for _, _, found in expected]


def test_captions_without_visible_text_make_no_cue_and_a_source_without_cues_has_no_file(tmp_path):
    records = [record("a.mp4", "", " \n\0", "x"), record("b.mp4", " "), record("c.mp4", media=None, status="error")]
    out = exported(tmp_path, records, "vtt", "srt")
    assert cues(out / "srt/a.mp4.srt") == [(2, 3, ["x"])]
    assert sorted(path.name for path in out.rglob("*.*")) == ["a.mp4.srt", "a.mp4.vtt"]


@pytest.mark.parametrize("kind", ["vtt", "srt"])
def test_cues_of_captions_alone_or_speech_alone_are_not_marked(tmp_path, kind):
    value = record_of_both([(0, 2, "a dog")], [(1, 3, "three")])
    for wanted, start, text in (("captions", 0, "a dog"), ("transcript", 1, "three")):
        (tmp_path / wanted).mkdir()
        out = exported(tmp_path / wanted, [value], kind, cues=wanted)
        lines = (out / kind / f"clip.mp4.{kind}").read_text().removeprefix("WEBVTT\n\n").splitlines()
        times = [f"00:00:0{second}{'.' if kind == 'vtt' else ','}000" for second in (start, start + 2)]
        assert lines[:3] == ["1", " --> ".join(times), text]


def test_captions_of_a_record_with_a_transcript_are_in_brackets_also_where_nobody_speaks(tmp_path):
    out = exported(tmp_path, [record_of_both([(0, 1, "a")], []), record("silent.mp4", "a")], "srt")
    assert (out / "srt/clip.mp4.srt").read_text().splitlines()[2] == "[a]"
    assert (out / "srt/silent.mp4.srt").read_text().splitlines()[2] == "a"


def test_by_default_cues_are_what_is_said_or_the_captions_where_nobody_speaks(tmp_path):
    spoken = record_of_both([(0, 2, "a dog")], [(1, 3, "three")])
    silent = record_of_both([(0, 2, "a dog")], [], source=record("silent.mp4")["source"])
    out = exported(tmp_path, [spoken, silent], "srt", cues="auto")
    assert cues(out / "srt/clip.mp4.srt") == [(1, 3, ["three"])]
    assert cues(out / "srt/silent.mp4.srt") == [(0, 2, ["a", "dog"])]


def test_long_speech_is_cut_between_words_after_7_seconds_at_most(tmp_path):
    text = "Three red circles, go left. " + "Then a green star " * 6 + "stops, at the end."
    spoken = utterance(-1, 20, text, evenly_spoken(text.split()))
    found = cues(exported(tmp_path, [transcript_record(segments=[spoken])], "srt") / "srt/clip.mp4.srt")
    assert [(start, end) for start, end, _ in found] == [(0, 7), (7, 14), (14, 16.5)]
    assert [" ".join(words) for _, _, words in found] == [
        "Three red circles, go left. Then a green star Then a green star Then",
        "a green star Then a green star Then a green star Then a green",
        "star stops, at the end.",
    ]


def test_fast_speech_is_cut_after_84_characters_at_most(tmp_path):
    fits, longer = [["a" * 41, "b" * last] for last in (42, 43)]
    both = [utterance(0, 1, " ".join(words), evenly_spoken(words)) for words in (fits, longer)]
    found = cues(exported(tmp_path, [transcript_record(segments=both)], "srt") / "srt/clip.mp4.srt")
    assert sorted(words for _, _, words in found) == sorted([fits, longer[:1], longer[1:]])


@given(st.lists(st.text("ab,é鏡", min_size=1, max_size=30), min_size=1), st.sampled_from(["", " "]), st.floats(0.1, 9))
def test_no_cue_of_speech_is_too_long_and_no_word_is_lost(words, space, seconds):
    spoken = utterance(0, len(words) * seconds, space.join(words), evenly_spoken(words, seconds))
    with TemporaryDirectory() as folder:
        found = cues(exported(Path(folder), [transcript_record(segments=[spoken])], "srt") / "srt/clip.mp4.srt")
    assert space.join(space.join(part) for _, _, part in found) == space.join(words)
    for start, end, part in found:
        assert (end - start <= 7.001 and len(" ".join(part)) <= 84) or seconds > 7


@pytest.mark.parametrize("words", [None, [], evenly_spoken(["not", "there"])])
def test_long_speech_without_times_of_its_words_stays_whole(tmp_path, words):
    spoken = utterance(0, 30, "go left " * 20, words)
    found = cues(exported(tmp_path, [transcript_record(segments=[spoken])], "srt") / "srt/clip.mp4.srt")
    assert found == [(0, 30, ["go", "left"] * 20)]


def test_short_speech_stays_whole(tmp_path):
    spoken = utterance(0.5, 7.5, "go left", evenly_spoken(["go", "left"]))
    out = exported(tmp_path, [transcript_record(segments=[spoken])], "srt")
    assert cues(out / "srt/clip.mp4.srt") == [(0.5, 7.5, ["go", "left"])]
