"""Tables of captions and transcripts, as CSV and Parquet."""

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from reelscribe.export.cue_rules import CueRules
from reelscribe.export.formats import FORMATS, export
from reelscribe.results.records import KINDS
from support.clip_records import clip, clips_record, with_clips, with_shots
from support.exporting import (
    TEXTS,
    annotations,
    both,
    evenly_spoken,
    exported,
    files,
    record,
    record_of_both,
    rows,
    transcript_record,
    utterance,
    with_summary,
)

LOST = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\r\n"}
"""What CSV has in the place of control characters."""

DOCUMENT = Path(__file__).parents[2] / "docs/exports.md"


def reused(path):
    value = record(path, "a star", "a star", start=0.5)
    value["captions"][0]["flags"] = ["repetition", "near-duplicate"]
    value["captions"][1]["reused_from"] = 0
    return value


def unreadable(path):
    return {"path": path, "absolute_path": f"/v/{path}", "bytes": None, "sha256": None, "missing": False}


def test_a_csv_has_a_row_for_each_caption(tmp_path):
    out = exported(tmp_path, [reused("v/caf\udce9.mp4"), record("b.mp4"), record("c.mp4", 'one, "two"\nthree')], "csv")
    assert rows(out / "captions.csv") == [
        ["source", "frame_index", "pts_seconds", "text", "reused_from", "avg_logprob", "flags"],
        ["v/caf\\udce9.mp4", "0", "0.5", "a star", "", "-0.5", "repetition near-duplicate"],
        ["v/caf\\udce9.mp4", "1", "1.5", "a star", "0", "-0.5", ""],
        ["c.mp4", "0", "0.0", 'one, "two"\nthree', "", "-0.5", ""],
    ]
    table = arrow_csv.read_csv(out / "captions.csv", parse_options=arrow_csv.ParseOptions(newlines_in_values=True))
    assert table["reused_from"].to_pylist() == [None, 0, None]
    assert table["text"].to_pylist() == ["a star", "a star", 'one, "two"\nthree']


def test_a_csv_has_a_row_for_each_utterance(tmp_path):
    segment = utterance(0.5, 1, "-1 \ud800", evenly_spoken(["-1"])) | {"flags": ["no-speech"]}
    unsure = transcript_record("=b.mp4", segments=[segment])
    out = exported(tmp_path, [transcript_record("v/caf\udce9.mp4", "three", 'a "b"\n', start=2), unsure], "csv")
    assert sorted(files(out)) == ["sources.csv", "transcript.csv"]
    assert rows(out / "transcript.csv") == [
        [
            *("source", "start", "end", "text", "language", "language_probability"),
            *("avg_logprob", "no_speech_prob", "speaker", "flags"),
        ],
        ["v/caf\\udce9.mp4", "2.0", "3.0", "three", "en", "0.75", "-0.5", "0.25", "", ""],
        ["v/caf\\udce9.mp4", "3.0", "4.0", 'a "b"\n', "en", "0.75", "-0.5", "0.25", "", ""],
        ["'=b.mp4", "0.5", "1.0", "'-1 \\ud800", "", "", "", "", "", "no-speech"],
    ]


@given(st.lists(TEXTS | st.text("'=+-@\t\r\nx", max_size=4), min_size=1))
def test_no_field_of_a_csv_is_a_formula_and_every_text_can_be_restored(captions):
    with TemporaryDirectory() as folder:
        found = [row[3] for row in rows(exported(Path(folder), [record("x", *captions)], "csv") / "captions.csv")[1:]]
    assert not any(text.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) for text in found)
    assert [re.sub(r"\A'('*[=+\-@\t\r\n])", r"\1", text) for text in found] == [
        text.translate(LOST) for text in captions
    ]


def test_a_source_that_is_named_like_a_formula_gets_an_apostrophe_in_csv_alone(tmp_path):
    out = exported(tmp_path, [record("=1+1.mp4", "x")], "csv", "parquet")
    assert rows(out / "captions.csv")[1][0] == "'=1+1.mp4"
    assert parquet.read_table(out / "parquet/captions")["source"].to_pylist() == ["=1+1.mp4"]


def test_a_parquet_file_has_types_and_exact_values(tmp_path):
    unread = record("b.mp4", source=unreadable("b.mp4"), media=None, status="error")
    out = exported(tmp_path, [reused("v/caf\udce9.mp4"), unread, record("c.mp4", "=1\n\0\ud800")], "parquet")
    table = parquet.read_table(out / "parquet/captions")
    text, number, integer = pa.string(), pa.float64(), pa.int64()
    types = [text, integer, number, text, integer, number, pa.list_(text), text, text, text]
    assert table.schema.types == types
    assert [field.name for field in table.schema if field.nullable] == ["reused_from", "avg_logprob", "sha256"]
    model = ("00ff", "some/model", "abc")
    assert [tuple(row.values()) for row in table.to_pylist()] == [
        ("v/caf\\udce9.mp4", 0, 0.5, "a star", None, -0.5, ["repetition", "near-duplicate"], *model),
        ("v/caf\\udce9.mp4", 1, 1.5, "a star", 0, -0.5, [], *model),
        ("c.mp4", 0, 0.0, "=1\n\0\\ud800", None, -0.5, [], *model),
    ]


def test_a_parquet_file_of_transcripts_has_types_and_words(tmp_path):
    words = [*evenly_spoken(["=three", "\udce9"])]
    timed = transcript_record("b.mp4", segments=[utterance(0, 1, "=three \udce9", words)])
    unread = transcript_record("c", source=unreadable("c"), audio=None, status="error")
    table = parquet.read_table(
        exported(tmp_path, [transcript_record("a.mp4", "go"), timed, unread], "parquet") / "parquet/transcript"
    )
    text, seconds = pa.string(), pa.float64()
    word = pa.list_(pa.struct({"start": seconds, "end": seconds, "text": text, "probability": seconds}))
    flags = pa.list_(text)
    assert table.schema.types == [
        *(text, seconds, seconds, text, text, seconds, seconds, seconds, text, flags, word, text, text, text)
    ]
    assert {field.name for field in table.schema if field.nullable} == {
        *("language", "language_probability", "avg_logprob", "no_speech_prob", "speaker", "words", "sha256")
    }
    assert [tuple(row.values()) for row in table.to_pylist()] == [
        ("a.mp4", 0, 1, "go", "en", 0.75, -0.5, 0.25, None, [], None, "00ff", "some/whisper", "def"),
        (
            "b.mp4",
            0,
            1,
            "=three \\udce9",
            *[None] * 5,
            [],
            [words[0], words[1] | {"text": "\\udce9"}],
            "00ff",
            "some/whisper",
            "def",
        ),
    ]


def test_groups_of_a_parquet_file_hold_many_sources(tmp_path):
    records = [record(f"{k}.mp4", *["x"] * 1000) for k in range(70)]
    file = parquet.ParquetFile(exported(tmp_path, records, "parquet") / "parquet/captions/part-00000.parquet")
    assert [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)] == [65536, 70_000 - 65536]
    assert file.read()["source"].to_pylist() == [f"{k}.mp4" for k in range(70) for _ in range(1000)]


def test_words_count_as_rows_in_the_size_of_a_group(tmp_path):
    spoken = utterance(0, 1, "a", evenly_spoken(["a"] * 15))
    out = exported(tmp_path, [transcript_record(f"{k}", segments=[spoken] * 1000) for k in range(9)], "parquet")
    file = parquet.ParquetFile(out / "parquet/transcript/part-00000.parquet")
    assert [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)] == [4096, 4096, 9000 - 2 * 4096]


def test_without_any_record_there_are_tables_without_rows(tmp_path):
    out = exported(tmp_path, [], *(name for name in FORMATS if name not in ("html", "jsonl.zst", "txt", "rttm")))
    assert sorted(files(out)) == ["parquet/sources/part-00000.parquet", "sources.csv"]
    assert parquet.read_table(out / "parquet/sources").num_rows == 0


def test_a_table_of_sources_has_a_row_for_each_with_its_error(tmp_path):
    gone = unreadable("gone.mp4") | {"missing": True}
    error = {"type": "MediaError", "message": "it cannot be read"}
    failed = record("gone.mp4", source=gone, media=None, status="error", error=error, caption_settings=None)
    good = both(record("a.mp4", "x", "y"), transcript_record("a.mp4", "three"))
    table = parquet.read_table(exported(tmp_path, [good, failed], "parquet") / "parquet/sources").to_pylist()
    assert [(row["source"], row["status"], row["error_type"], row["error_message"]) for row in table] == [
        ("a.mp4", "ok", None, None),
        ("gone.mp4", "error", "MediaError", "it cannot be read"),
    ]
    assert [(row["missing"], row["bytes"], row["frames"], row["audio_seconds"]) for row in table] == [
        (False, 5, 40, 9.5),
        (True, None, None, None),
    ]
    assert [(row["captions"], row["segments"]) for row in table] == [(2, 1), (None, None)]


def test_there_is_a_table_for_each_kind_of_annotations_that_a_record_has(tmp_path):
    for name, records, kinds in [
        ("captions", [record("a")], ["captions"]),
        ("transcript", [transcript_record("a")], ["transcript"]),
        ("both", [record_of_both([], [])], ["captions", "transcript"]),
        ("one after the other", [transcript_record("a"), record("b")], ["captions", "transcript"]),
    ]:
        (tmp_path / name).mkdir()
        out = exported(tmp_path / name, records, "csv", "parquet")
        tables = sorted(["sources", *kinds])
        parts = [f"parquet/{table}/part-00000.parquet" for table in tables]
        assert sorted(files(out)) == sorted([f"{table}.csv" for table in tables] + parts)


def test_a_record_with_both_is_in_both_tables_whatever_cues_are_made(tmp_path):
    value = both(record("a.mp4", "a dog"), transcript_record("a.mp4", "three"))
    out = exported(tmp_path, [value], "csv", "srt", cues="transcript")
    assert rows(out / "captions.csv")[1] == ["a.mp4", "0", "0.0", "a dog", "", "-0.5", ""]
    assert rows(out / "transcript.csv")[1] == ["a.mp4", "0.0", "1.0", "three", "en", "0.75", "-0.5", "0.25", "", ""]
    assert export(annotations(tmp_path, [record("a.mp4")]), out, ["csv"], CueRules(made_from="transcript")).written == [
        out / "captions.csv",
        out / "sources.csv",
    ]


def test_a_summary_is_a_row_where_there_is_one(tmp_path):
    without = record("b.mp4") | {"summary_settings": "c0"}
    out = exported(tmp_path, [with_summary(record("a.mp4", "x"), title="=1"), without], "csv", "parquet")
    assert rows(out / "summary.csv")[1:] == [["a.mp4", "'=1", "One. Two. Three.", "big dog talk"]]
    (row,) = parquet.read_table(out / "parquet/summary").to_pylist()
    assert (row["title"], row["keywords"], row["model_name"]) == ("=1", ["big dog", "talk"], "some/model")


def test_each_turn_of_a_speaker_is_a_row_with_the_name_that_the_user_gave(tmp_path):
    turns = [{"start": 0.5, "end": 2.0, "speaker": "speaker 1"}, {"start": 1.5, "end": 3.0, "speaker": "speaker 2"}]
    value = transcript_record("a.mp4", "three") | {"speaker_settings": "c0", "turns": turns}
    (tmp_path / "speakers.toml").write_text('[speakers]\n"speaker 2" = "Ms Okafor"\n')
    out = exported(tmp_path, [value], "csv", "parquet")
    assert rows(out / "speakers.csv")[1:] == [
        ["a.mp4", "0.5", "2.0", "speaker 1"],
        ["a.mp4", "1.5", "3.0", "Ms Okafor"],
    ]
    assert parquet.read_table(out / "parquet/speakers")["model_name"].to_pylist() == ["some/model"] * 2


def test_tokens_that_a_server_does_not_tell_are_empty(tmp_path):
    out = exported(tmp_path, [clips_record("a.mp4", clip(0, 1, "x") | {"tokens": None})], "csv", "parquet")
    assert parquet.read_table(out / "parquet/clips")["tokens"].to_pylist() == [None]
    assert dict(zip(*rows(out / "clips.csv"), strict=True))["tokens"] == ""


@pytest.mark.parametrize("table", ["sources", "translations", *KINDS])
def test_every_column_is_documented(tmp_path, table):
    value = with_summary(with_shots(with_clips(both(record("a.mp4", "x"), transcript_record("a.mp4", "x")))))
    value |= {"translations": value["segments"], "speaker_settings": "c0", "turns": []}
    out = exported(tmp_path, [value], "csv", "parquet")
    documented = re.findall(r"^\| `?([\w ]+?)`? \| (`.+`) \|$", DOCUMENT.read_text(), re.M)
    columns = {name: re.findall(r"`(\w+)`", names) for name, names in documented}
    in_parquet = parquet.read_schema(out / f"parquet/{table}/part-00000.parquet").names
    columns["translations"] = columns["transcript"]
    assert rows(out / f"{table}.csv")[0] == columns[table]
    assert [name for name in in_parquet if name not in columns["Parquet alone"]] == columns[table]
