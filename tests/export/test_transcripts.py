"""Transcripts as subtitles and tables, alone and together with captions."""

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from reelscribe.errors import UsageError
from reelscribe.export.formats import FORMATS, export
from support.exporting import annotations, cues, exported, record, rows, shown_by_ffmpeg, transcript_record

DOCUMENT = Path(__file__).parents[2] / "docs/exports.md"


def both(captions, spoken, **changes):
    """A record with (start, end, text) of each."""
    segments = [dict(zip(("start", "end", "text"), caption, strict=True)) for caption in captions]
    return record(segments=segments) | transcript_record(transcript=[utterance(*times) for times in spoken]) | changes


def utterance(start, end, text, words=None):
    value = {"start": start, "end": end, "text": text, "language": None, "no_speech_prob": None}
    return value if words is None else value | {"words": words}


def evenly_spoken(words, seconds=0.5):
    """Times for words that are spoken one after the other."""
    return [{"start": k * seconds, "end": (k + 1) * seconds, "text": word} for k, word in enumerate(words)]


def files(out):
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.mark.parametrize("wanted", ["transcript", "both"])
def test_a_transcript_alone_is_written_as_captions_alone_are(tmp_path, wanted):
    texts = ["three <red> circle", "{go} left -->"]
    (tmp_path / "captions").mkdir()
    (tmp_path / "transcript").mkdir()
    captions = exported(tmp_path / "captions", [record("a.mp4", *texts, start=3.5)], "vtt", "srt")
    spoken = [transcript_record("a.mp4", *texts, start=3.5)]
    assert files(exported(tmp_path / "transcript", spoken, "vtt", "srt", cues=wanted)) == files(captions)


def test_webvtt_shows_captions_in_brackets_at_the_top_while_somebody_speaks(tmp_path):
    value = both([(0, 4, "a <b>"), (4, 8, "7")], [(1, 2, "three"), (3.5, 5, "4"), (6, 7, "[x]")])
    content = (exported(tmp_path, [value], "vtt") / "vtt/clip.mp4.vtt").read_text()
    assert content.split("\n\n")[:-1] == [
        "WEBVTT",
        "1\n00:00:00.000 --> 00:00:04.000 line:0\n[a &lt;b&gt;]",
        "2\n00:00:01.000 --> 00:00:02.000\nthree",
        "3\n00:00:03.500 --> 00:00:05.000\n4",
        "4\n00:00:04.000 --> 00:00:08.000 line:0\n[7]",
        "5\n00:00:06.000 --> 00:00:07.000\n[x]",
    ]


def test_subrip_shows_captions_in_brackets_above_what_is_spoken_one_cue_at_a_time(tmp_path):
    value = both([(0, 4, "a <b>"), (4, 8, "7")], [(1, 2, "three"), (3.5, 5, "4"), (9, 10, "[x]")])
    content = (exported(tmp_path, [value], "srt") / "srt/clip.mp4.srt").read_text()
    assert content.split("\n\n")[:-1] == [
        "1\n00:00:00,000 --> 00:00:01,000\n[a <\u2060b>]",
        "2\n00:00:01,000 --> 00:00:02,000\n[a <\u2060b>]\nthree",
        "3\n00:00:02,000 --> 00:00:03,500\n[a <\u2060b>]",
        "4\n00:00:03,500 --> 00:00:04,000\n[a <\u2060b>]\n4",
        "5\n00:00:04,000 --> 00:00:05,000\n[7]\n4",
        "6\n00:00:05,000 --> 00:00:08,000\n[7]",
        "7\n00:00:09,000 --> 00:00:10,000\n[x]",
    ]


times = st.tuples(st.integers(0, 30), st.integers(1, 10)).map(lambda t: (t[0] / 10, (t[0] + t[1]) / 10))


@given(st.lists(times, min_size=1, max_size=5), st.lists(times, max_size=5))
def test_both_formats_show_the_same_at_any_time_and_subrip_one_cue(captioned, spoken):
    captions = [(*time, f"c{k}") for k, time in enumerate(captioned)]
    value = both(captions, [(*time, f"s{k}") for k, time in enumerate(spoken)])
    with TemporaryDirectory() as folder:
        out = exported(Path(folder), [value], "vtt", "srt")
        vtt, srt = cues(out / "vtt/clip.mp4.vtt"), cues(out / "srt/clip.mp4.srt")
    assert len(vtt) == len(captioned) + len(spoken)
    for time in [k / 10 + 0.05 for k in range(40)]:
        shown_by_vtt = [text for start, end, [text] in vtt if float(start[6:]) <= time < float(end[6:])]
        shown_by_srt = [texts for start, end, texts in srt if start <= time < end] or [[]]
        assert [sorted(texts) for texts in shown_by_srt] == [sorted(shown_by_vtt)]


def test_players_show_brackets_and_both_lines(tmp_path):
    out = exported(tmp_path, [both([(0, 2, "{\\an8}a"), (2, 3, "b")], [(0, 2, "three")])], "vtt")
    assert shown_by_ffmpeg(out / "vtt/clip.mp4.vtt") == ["[{\\an8}a]", "three", "[b]"]


def test_captions_are_marked_where_speech_was_looked_for_and_none_was_heard(tmp_path):
    out = exported(tmp_path, [both([(0, 1, "a")], []), record("silent.mp4", "a")], "srt")
    assert (out / "srt/clip.mp4.srt").read_text().splitlines()[2] == "[a]"
    assert (out / "srt/silent.mp4.srt").read_text().splitlines()[2] == "a"


@pytest.mark.parametrize("kind", ["vtt", "srt"])
def test_cues_of_one_kind_are_as_if_the_other_were_not_there(tmp_path, kind):
    value = both([(0, 2, "a dog")], [(1, 3, "three")])
    for wanted, start, text in (("captions", 0, "a dog"), ("transcript", 1, "three")):
        (tmp_path / wanted).mkdir()
        out = exported(tmp_path / wanted, [value], kind, cues=wanted)
        lines = (out / kind / f"clip.mp4.{kind}").read_text().removeprefix("WEBVTT\n\n").splitlines()
        times = [f"00:00:0{second}{'.' if kind == 'vtt' else ','}000" for second in (start, start + 2)]
        assert lines[:3] == ["1", " --> ".join(times), text]


@pytest.mark.parametrize(
    ("media", "audio", "expected"),
    [(9.5, 10, 0.5), (10, 9.5, 0.5), (None, 9.5, 0.5), (9.5, None, 0.5), (None, None, 10)],
)
def test_times_count_from_the_first_frame_or_sound(tmp_path, media, audio, expected):
    starts = {
        "media": None if media is None else {"start_seconds": media},
        "audio": None if audio is None else {"media_start_seconds": audio},
    }
    out = exported(tmp_path, [both([], [(10, 11, "three")], **starts)], "srt")
    assert cues(out / "srt/clip.mp4.srt") == [(expected, expected + 1, ["three"])]


def test_long_speech_is_cut_between_words_so_that_it_can_be_read(tmp_path):
    text = "Three red circles, go left. " + "Then a green star " * 6 + "stops, at the end."
    spoken = utterance(-1, 20, text, evenly_spoken(text.split()))
    found = cues(exported(tmp_path, [transcript_record(transcript=[spoken])], "srt") / "srt/clip.mp4.srt")
    assert [(start, end) for start, end, _ in found] == [(0, 7), (7, 14), (14, 16.5)]
    assert [" ".join(words) for _, _, words in found] == [
        "Three red circles, go left. Then a green star Then a green star Then",
        "a green star Then a green star Then a green star Then a green",
        "star stops, at the end.",
    ]


def test_fast_speech_is_cut_before_it_has_more_than_84_characters(tmp_path):
    fits, longer = [["a" * 41, "b" * last] for last in (42, 43)]
    both = [utterance(0, 1, " ".join(words), evenly_spoken(words)) for words in (fits, longer)]
    found = cues(exported(tmp_path, [transcript_record(transcript=both)], "srt") / "srt/clip.mp4.srt")
    assert sorted(words for _, _, words in found) == sorted([fits, longer[:1], longer[1:]])


@given(st.lists(st.text("ab,é鏡", min_size=1, max_size=30), min_size=1), st.sampled_from(["", " "]), st.floats(0.1, 9))
def test_no_part_is_too_long_to_be_read_and_none_is_lost(words, space, seconds):
    spoken = utterance(0, len(words) * seconds, space.join(words), evenly_spoken(words, seconds))
    with TemporaryDirectory() as folder:
        found = cues(exported(Path(folder), [transcript_record(transcript=[spoken])], "srt") / "srt/clip.mp4.srt")
    assert space.join(space.join(part) for _, _, part in found) == space.join(words)
    for start, end, part in found:
        assert (end - start <= 7.001 and len(" ".join(part)) <= 84) or seconds > 7


@pytest.mark.parametrize("words", [None, [], evenly_spoken(["not", "there"])])
def test_long_speech_without_times_of_its_words_stays_whole(tmp_path, words):
    spoken = utterance(0, 30, "go left " * 20, words)
    found = cues(exported(tmp_path, [transcript_record(transcript=[spoken])], "srt") / "srt/clip.mp4.srt")
    assert found == [(0, 30, ["go", "left"] * 20)]


def test_short_speech_stays_whole(tmp_path):
    spoken = utterance(0.5, 7.5, "go left", evenly_spoken(["go", "left"]))
    out = exported(tmp_path, [transcript_record(transcript=[spoken])], "srt")
    assert cues(out / "srt/clip.mp4.srt") == [(0.5, 7.5, ["go", "left"])]


def test_cues_of_what_no_record_has_are_refused_and_nothing_is_left(tmp_path):
    for value, wanted, command in (
        (record("a", "x"), "transcript", "transcribe"),
        (transcript_record("a", "x"), "captions", "caption"),
    ):
        path = annotations(tmp_path, [value])
        with pytest.raises(UsageError, match=rf"cues of {wanted} need.*or make {wanted} by `reelscribe {command}`"):
            export(path, tmp_path / "out", ["csv", "vtt"], wanted)
        assert files(tmp_path / "out") == {}
        assert export(path, tmp_path / "out", ["vtt"], "both") == [tmp_path / "out/vtt/a.vtt"]
        (tmp_path / "out/vtt/a.vtt").unlink()
    with pytest.raises(UsageError, match="expected cues out of captions, transcript, both, got 'all'"):
        export(path, tmp_path / "out", ["vtt"], "all")


def test_a_csv_has_a_row_for_each_segment_of_a_transcript(tmp_path):
    unsure = transcript_record("=b.mp4", transcript=[utterance(0.5, 1, "-1 \ud800", evenly_spoken(["-1"]))])
    out = exported(tmp_path, [transcript_record("v/caf\udce9.mp4", "three", 'a "b"\n', start=2), unsure], "csv")
    assert sorted(files(out)) == ["transcript.csv"]
    assert rows(out / "transcript.csv") == [
        ["source", "start", "end", "text", "language", "no_speech_prob"],
        ["v/caf\\udce9.mp4", "2.0", "3.0", "three", "en", "0.25"],
        ["v/caf\\udce9.mp4", "3.0", "4.0", 'a "b"\n', "en", "0.25"],
        ["'=b.mp4", "0.5", "1.0", "'-1 \\ud800", "", ""],
    ]


def test_a_parquet_file_of_transcripts_has_types_and_words(tmp_path):
    words = [*evenly_spoken(["=three", "\udce9"])]
    timed = transcript_record("b.mp4", transcript=[utterance(0, 1, "=three \udce9", words)])
    unread = transcript_record("c", source={"path": "c", "bytes": None, "sha256": None}, audio=None, status="error")
    table = parquet.read_table(
        exported(tmp_path, [transcript_record("a.mp4", "go"), timed, unread], "parquet") / "transcript.parquet"
    )
    text, seconds = pa.string(), pa.float64()
    word = pa.list_(pa.struct({"start": seconds, "end": seconds, "text": text}))
    assert table.schema.types == [text, seconds, seconds, text, text, seconds, word, text, text, text]
    assert {field.name for field in table.schema if field.nullable} == {"language", "no_speech_prob", "words", "sha256"}
    assert [tuple(row.values()) for row in table.to_pylist()] == [
        ("a.mp4", 0, 1, "go", "en", 0.25, None, "00ff", "some/whisper", "def"),
        (
            "b.mp4",
            0,
            1,
            "=three \\udce9",
            None,
            None,
            [words[0], words[1] | {"text": "\\udce9"}],
            "00ff",
            "some/whisper",
            "def",
        ),
    ]


def test_words_count_as_rows_do_for_how_much_is_held(tmp_path):
    spoken = utterance(0, 1, "a", evenly_spoken(["a"] * 15))
    out = exported(tmp_path, [transcript_record(f"{k}", transcript=[spoken] * 1000) for k in range(9)], "parquet")
    file = parquet.ParquetFile(out / "transcript.parquet")
    assert [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)] == [4096, 4096, 9000 - 2 * 4096]


def test_tables_are_those_that_records_have(tmp_path):
    for name, records, kinds in [
        ("captions", [record("a")], ["captions"]),
        ("transcript", [transcript_record("a")], ["transcript"]),
        ("both", [both([], [])], ["captions", "transcript"]),
        ("one after the other", [transcript_record("a"), record("b")], ["captions", "transcript"]),
    ]:
        (tmp_path / name).mkdir()
        out = exported(tmp_path / name, records, "csv", "parquet")
        assert sorted(files(out)) == [f"{kind}.{suffix}" for kind in kinds for suffix in ("csv", "parquet")]


def test_a_record_with_both_is_in_both_tables_whatever_cues_are_asked_for(tmp_path):
    value = record("a.mp4", "a dog") | transcript_record("a.mp4", "three")
    out = exported(tmp_path, [value], "csv", "srt", cues="transcript")
    assert rows(out / "captions.csv")[1] == ["a.mp4", "0", "0.0", "a dog", ""]
    assert rows(out / "transcript.csv")[1] == ["a.mp4", "0.0", "1.0", "three", "en", "0.25"]
    assert export(annotations(tmp_path, [record("a.mp4")]), out, ["csv"], "transcript") == [out / "captions.csv"]


def test_the_order_of_a_records_keys_changes_nothing(tmp_path):
    value = record("/v/a.mp4", "a dog") | transcript_record("/v/a.mp4", "three")
    expected = files(exported(tmp_path, [value], "csv", "vtt"))
    (tmp_path / "a.jsonl").write_text(json.dumps(dict(reversed(value.items())), separators=(",", ":")))
    export(tmp_path / "a.jsonl", tmp_path / "again", ["csv", "vtt"])
    assert files(tmp_path / "again") == expected


BAD = {
    "a transcript that is no list": {"transcript": 7},
    "a segment that is none": {"transcript": [7]},
    "a language that is none": {"transcript": [utterance(0, 1, "x") | {"language": 7}]},
    "a probability that is none": {"transcript": [utterance(0, 1, "x") | {"no_speech_prob": 1.5}]},
    "not a number": {"transcript": [utterance(0, 1, "x") | {"no_speech_prob": float("nan")}]},
    "words that are none": {"transcript": [utterance(0, 1, "x", ["x"])]},
    "no model": {"speech_model": None},
    "sound without a start": {"audio": {}},
}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("changes", BAD.values(), ids=BAD)
def test_a_line_that_is_no_record_is_named_and_no_table_is_left(tmp_path, changes, kind):
    path = annotations(tmp_path, [transcript_record("a.mp4", "x"), transcript_record("b.mp4", "x", **changes)])
    with pytest.raises(UsageError, match="line 2: expected a record"):
        export(path, tmp_path / "out", [kind])
    assert files(tmp_path / "out").keys() <= {"vtt/a.mp4.vtt", "srt/a.mp4.srt"}


def test_a_record_without_captions_and_transcript_is_none(tmp_path):
    value = record("a.mp4")
    del value["captions"]
    with pytest.raises(UsageError, match=r"line 1: expected a record .*neither captions nor a transcript"):
        export(annotations(tmp_path, [value]), tmp_path / "out", ["csv"])


def test_every_column_is_documented(tmp_path):
    out = exported(tmp_path, [transcript_record("a.mp4", "x")], "csv", "parquet")
    parts = re.split(r"^## ", DOCUMENT.read_text(), flags=re.M)[1:]
    tables = [re.findall(r"^\| `(\w+)`", part, re.M) for part in parts]
    assert parquet.read_schema(out / "transcript.parquet").names in tables
    assert rows(out / "transcript.csv")[0] in tables
