"""The cues of subtitles: which text is shown when."""

import shutil

import pytest

from support.exporting import (
    audio,
    both,
    cues,
    evenly_spoken,
    exported,
    files,
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
    assert sorted(files(out)) == ["srt/a.mp4.srt", "vtt/a.mp4.vtt"]


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


def test_without_times_of_its_words_speech_stays_whole_in_time_and_its_lines_are_broken(tmp_path):
    for words in (None, [], evenly_spoken(["not", "there"]), evenly_spoken(["go", "left"])[::-1]):
        spoken = utterance(0, 30, "go left " * 20, words)
        out = exported(tmp_path, [transcript_record(segments=[spoken])], "srt")
        assert cues(out / "srt/clip.mp4.srt") == [(0, 30, ["go", "left"] * 20)]
        lines = (out / "srt/clip.mp4.srt").read_text().splitlines()[2:]
        assert [line for line in lines if line] == ["go left go left go left go left go left"] * 4
        shutil.rmtree(out)


def test_speech_has_the_times_of_its_words(tmp_path):
    spoken = utterance(0.5, 7.5, "go left", evenly_spoken(["go", "left"], seconds=1))
    out = exported(tmp_path, [transcript_record(segments=[spoken])], "srt")
    assert cues(out / "srt/clip.mp4.srt") == [(0, 2, ["go", "left"])]


def test_lines_of_captions_and_clips_are_broken_with_their_brackets(tmp_path):
    text = "a brown dog runs over the wet grass of a large garden"
    value = both(record("clip.mp4", text), transcript_record("clip.mp4", "hello"))
    out = exported(tmp_path, [value], "vtt", max_line_chars=30)
    lines = (out / "vtt/clip.mp4.vtt").read_text().splitlines()
    assert lines[4:6] == ["[a brown dog runs over the", "wet grass of a large garden]"]
