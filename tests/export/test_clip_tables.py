"""Tables of clips and shots, as CSV and Parquet, and their numbers in the table of sources."""

import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from support.clip_records import clip, clips_record, with_clips, with_shots
from support.exporting import exported, files, record, rows, transcript_record

FAILURE = {"start": 4, "end": 5, "error": "the model refused it", "text": "no JSON"}


def test_a_csv_has_a_row_for_each_described_clip(tmp_path):
    flagged = clip(2, 4.5, "=1 \ud800", status="truncated", tokens=64, flags=["repetition", "near-duplicate"])
    value = clips_record("v/caf\udce9.mp4", clip(0, 2, "a dog", avg_logprob=None), flagged, clip_failures=[FAILURE])
    out = exported(tmp_path, [value], "csv")
    row = ["v/caf\\udce9.mp4", "2.0", "4.5", "8"]
    assert sorted(files(out)) == ["clips.csv", "sources.csv"]
    assert rows(out / "clips.csv") == [
        ["source", "start", "end", "frames", "text", "json", "status", "tokens", "avg_logprob", "flags"],
        ["v/caf\\udce9.mp4", "0.0", "2.0", "8", "a dog", "", "complete", "5", "", ""],
        [*row, "'=1 \\ud800", "", "truncated", "64", "-0.5", "repetition near-duplicate"],
    ]


def test_a_parquet_file_of_clips_has_types_and_exact_values(tmp_path):
    flagged = clip(0, 2, "=a\0\ud800", json={"who": ["é", -1.5, None]}, flags=["repetition"])
    out = exported(tmp_path, [clips_record("a.mp4", flagged, clip(2, 4, "x", avg_logprob=None))], "parquet")
    table = parquet.read_table(out / "parquet/clips")
    text, number, integer = pa.string(), pa.float64(), pa.int64()
    flags = pa.list_(text)
    assert table.schema.types == [
        *(text, number, number, integer, text, text, text, integer, number, flags, text, text, text)
    ]
    assert [field.name for field in table.schema if field.nullable] == ["json", "tokens", "avg_logprob", "sha256"]
    model = ("00ff", "some/model", "abc")
    assert [tuple(row.values()) for row in table.to_pylist()] == [
        ("a.mp4", 0, 2, 8, "=a\0\\ud800", '{"who": ["é", -1.5, null]}', "complete", 5, -0.5, ["repetition"], *model),
        ("a.mp4", 2, 4, 8, "x", None, "complete", 5, None, [], *model),
    ]


@pytest.mark.parametrize("answer", [{"é": 'b "\\ \n\0'}, [1, 2.5, True], "=1+1", -1, 0, False, "", {}])
def test_json_can_be_parsed_from_any_table(tmp_path, answer):
    out = exported(tmp_path, [clips_record("a.mp4", clip(0, 2, "x", json=answer))], "csv", "parquet")
    assert json.loads(rows(out / "clips.csv")[1][5].removeprefix("'")) == answer
    assert json.loads(parquet.read_table(out / "parquet/clips")["json"][0].as_py()) == answer


def test_tables_of_shots_have_a_row_for_each_shot_and_what_found_it(tmp_path):
    found = with_shots(record("a.mp4", caption_settings=None), (0.5, 2), (2, 7200.5))
    for_captions = with_shots(record("b.mp4", "x"), (0, 1), settings=None)
    out = exported(tmp_path, [found, for_captions], "csv", "parquet")
    assert rows(out / "shots.csv") == [
        ["source", "start", "end", "start_frame", "end_frame", "transition"],
        ["a.mp4", "0.5", "2.0", "5", "20", ""],
        ["a.mp4", "2.0", "7200.5", "20", "72005", "cut"],
        ["b.mp4", "0.0", "1.0", "0", "10", ""],
    ]
    table = parquet.read_table(out / "parquet/shots")
    assert table.schema.types == [pa.string(), *[pa.float64()] * 2, *[pa.int64()] * 2, *[pa.string()] * 4]
    assert table["model_name"].to_pylist() == ["some/model", "some/model", None]
    assert table["model_revision"].to_pylist() == ["abc", "abc", None]


def test_the_table_of_sources_counts_clips_and_shots(tmp_path):
    values = [
        with_shots(clips_record("all.mp4", (0, 2, "x"), (2, 4, "y"), clip_failures=[FAILURE]), (0, 4)),
        with_shots(clips_record("none.mp4")),
        clips_record("clips.mp4"),
        record("old.mp4"),
    ]
    table = parquet.read_table(exported(tmp_path, values, "parquet") / "parquet/sources")
    assert table.select(["clips", "clip_failures", "shots"]).to_pylist() == [
        {"clips": 2, "clip_failures": 1, "shots": 1},
        {"clips": 0, "clip_failures": 0, "shots": 0},
        {"clips": 0, "clip_failures": 0, "shots": None},
        {"clips": None, "clip_failures": None, "shots": None},
    ]


def test_there_is_a_table_of_clips_and_of_shots_if_they_were_looked_for(tmp_path):
    for name, value, tables in [
        ("old", record("a"), ["captions"]),
        ("clips", clips_record("a"), ["clips"]),
        ("shots", with_shots(record("a", caption_settings=None)), ["shots"]),
        ("shots of clips", with_shots(clips_record("a"), (0, 1), settings=None), ["clips", "shots"]),
        ("clips and speech", with_clips(transcript_record("a")), ["clips", "transcript"]),
    ]:
        (tmp_path / name).mkdir()
        out = exported(tmp_path / name, [value], "csv")
        assert sorted(files(out)) == sorted([*(f"{table}.csv" for table in tables), "sources.csv"])
