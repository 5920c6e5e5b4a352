import json
import os
import re
import resource
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from reelscribe.errors import UsageError
from reelscribe.export.formats import FORMATS, export
from support.exporting import annotations, cues, exported, record, rows, shown_by_ffmpeg, words
from support.memory import peak_memory

DOCUMENT = Path(__file__).parents[2] / "docs/exports.md"

MARKUP = ["-->", "<b>", "</i>", "<unk> x", "a < b > c", "<00:00:01.000>", "&", "&amp;", "&lt;b&gt;", "AT&T", "a\\Nb"]
MARKUP += ["{\\an8}x", "{\\p1}x", '{"label": 1}', "{y:i}x", "NOTE x", "STYLE", "WEBVTT", "7", "\\", "\ufeffx", "x\0y"]
MARKUP += [
    "00:00:09,000 --> 00:00:10,000",
    "a\n\n7\n00:00:09,000 --> 00:00:10,000\nb",
    "a\r\rb",
    "a\u2028b",
    "👩\u200d🚀",
]
texts = st.text() | st.lists(st.sampled_from([*MARKUP, "\n", "\r\n", "\n\n", " ", "a"]), max_size=6).map("".join)


def test_cues_are_the_segments_counted_from_the_first_frame(tmp_path):
    out = exported(tmp_path, [record("clip.mp4", "a star", "a dog", start=3601.4)], "vtt", "srt")
    assert cues(out / "vtt/clip.mp4.vtt") == [
        ("00:00:00.000", "00:00:01.000", ["a", "star"]),
        ("00:00:01.000", "00:00:02.000", ["a", "dog"]),
    ]
    assert cues(out / "srt/clip.mp4.srt") == [(0, 1, ["a", "star"]), (1, 2, ["a", "dog"])]
    assert (out / "vtt/clip.mp4.vtt").read_bytes().startswith(b"WEBVTT\n\n")


def test_every_cue_has_a_time_that_can_be_written(tmp_path):
    times = [(0, 1), (10, 10.0001), (360_009, 360_020), (360_010, 360_020)]
    segments = [{"start": start, "end": end, "text": str(start)} for start, end in times]
    out = exported(tmp_path, [record(start=10.0, segments=segments)], "vtt", "srt")
    expected = [(0, 0.001, ["0"]), (0, 0.001, ["10"]), (359_999, 359_999.999, ["360009"])]
    assert cues(out / "srt/clip.mp4.srt") == expected
    assert [found for _, _, found in cues(out / "vtt/clip.mp4.vtt")] == [found for _, _, found in expected]


def test_captions_of_nothing_make_no_cue_and_a_source_without_cues_no_file(tmp_path):
    records = [record("a.mp4", "", " \n\0", "x"), record("b.mp4", " "), record("c.mp4", media=None, status="error")]
    out = exported(tmp_path, records, "vtt", "srt")
    assert cues(out / "srt/a.mp4.srt") == [(2, 3, ["x"])]
    assert sorted(path.name for path in out.rglob("*.*")) == ["a.mp4.srt", "a.mp4.vtt"]


@given(st.lists(texts, min_size=1, max_size=4))
def test_any_text_is_one_cue_and_comes_back_word_for_word(captions):
    with TemporaryDirectory() as folder:
        out = exported(Path(folder), [record("x", "first", *captions, "last")], "vtt", "srt")
        expected = [found for text in ["first", *captions, "last"] if (found := words(text))]
        assert [found for _, _, found in cues(out / "vtt/x.vtt")] == expected
        braces = str.maketrans("\uff5b\uff5d", "{}")
        assert [found for _, _, found in cues(out / "srt/x.srt")] == [
            [word.translate(braces) for word in found] for found in expected
        ]


def test_what_other_players_read_in_subrip_is_not_there(tmp_path):
    content = (exported(tmp_path, [record("x", "&lt;b&gt; &#60; AT&T", "-->")], "srt") / "srt/x.srt").read_text()
    assert not re.search(r"&#?\w+;", content)
    assert content.count("-->") == 2


def test_a_text_that_cannot_be_written_is_spelled_out(tmp_path):
    out = exported(tmp_path, [record("x", "a \ud800 b")], "vtt", "srt")
    assert cues(out / "vtt/x.vtt")[0][2] == cues(out / "srt/x.srt")[0][2] == ["a", "\\ud800", "b"]


@pytest.mark.parametrize("kind", ["vtt", "srt"])
@pytest.mark.parametrize("text", MARKUP)
def test_players_show_a_text_that_looks_like_markup(tmp_path, text, kind):
    out = exported(tmp_path, [record("x", text, "next")], kind)
    shown = text.translate(str.maketrans("{}", "\uff5b\uff5d")) if kind == "srt" else text
    assert shown_by_ffmpeg(out / kind / f"x.{kind}") == [" ".join(words(shown)), "next"]


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        (["/v/a.mp4"], ["a.mp4"]),
        (["/v/a.mp4", "/v/deep/er/a.mp4", "/v/a.mkv"], ["a.mkv", "a.mp4", "deep/er/a.mp4"]),
        (["v/a.mp4", "v/../v/./b.mp4", "../w/c.mp4"], ["here/v/a.mp4", "here/v/b.mp4", "w/c.mp4"]),
        (["a.mp4", "./a.mp4", "a.mp4~2", "a.mp4"], ["a.mp4", "a.mp4~2", "a.mp4~2~2", "a.mp4~3"]),
        (["/v/a.mp4", "/v/a.mp4.vtt/b.mp4", "/v/b.vtt.partial/c"], ["a.mp4", "a.mp4.vtt_/b.mp4", "b.vtt.partial_/c"]),
        (["/v/a.vtt", "/v/b"], ["a.vtt", "b"]),
    ],
)
def test_names_are_those_of_the_sources_below_their_common_folder(tmp_path, monkeypatch, sources, names):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    out = exported(tmp_path, [record(path, path) for path in sources], "vtt")
    found = {
        str(path.relative_to(out / "vtt")): cues(path)[0][2] for path in (out / "vtt").rglob("*") if path.is_file()
    }
    assert sorted(found) == [f"{name}.vtt" for name in names]
    assert sorted(found.values()) == sorted([path] for path in sources)


HOSTILE = [
    "",
    "/",
    ".",
    "..",
    "../../../../x.mp4",
    "/etc/../../x.mp4",
    "a\0b.mp4",
    "a\0/../../../b",
    "~/x",
    "a\nb",
    "-rf",
]
HOSTILE += [
    "x" * 255,
    "é" * 127 + "y",
    "é" * 127 + "z",
    f"{'d' * 255}/x",
    "/".join(["d" * 200] * 30),
    "d/" * 3000 + "x",
]
HOSTILE += ["\ud800.mp4", "\ud801.mp4", "caf\udce9.mp4", "\udcc3\udca9.mp4", "é.mp4", "\udcff" * 255, "C:\\x", "a|b:*?"]


@pytest.mark.parametrize("others", [[], ["../out.mp4"], ["/"]])
def test_hostile_paths_stay_inside_and_apart(tmp_path, monkeypatch, others):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    sources = [*HOSTILE, *others]
    out = exported(tmp_path, [record(path, str(k)) for k, path in enumerate(sources)], "srt", "vtt")
    for kind in ("srt", "vtt"):
        files = [Path(folder, name) for folder, _, names in os.walk(out / kind) for name in names]
        assert sorted(int(cues(path)[0][2][0]) for path in files) == list(range(len(sources)))


def test_a_name_that_is_not_utf8_is_kept_byte_for_byte(tmp_path):
    out = exported(tmp_path, [record("caf\udce9.avi", "x"), record("vidéo.avi", "x")], "vtt")
    assert sorted(os.listdir(os.fsencode(out / "vtt"))) == [b"caf\xe9.avi.vtt", "vidéo.avi.vtt".encode()]


def reused(path):
    value = record(path, "a star", "a star", start=0.5)
    value["captions"][1]["reused_from"] = 0
    return value


def test_a_csv_has_a_row_for_each_caption(tmp_path):
    out = exported(tmp_path, [reused("v/caf\udce9.mp4"), record("b.mp4"), record("c.mp4", 'one, "two"\nthree')], "csv")
    assert rows(out / "captions.csv") == [
        ["source", "frame_index", "pts_seconds", "text", "reused_from"],
        ["v/caf\\udce9.mp4", "0", "0.5", "a star", ""],
        ["v/caf\\udce9.mp4", "1", "1.5", "a star", "0"],
        ["c.mp4", "0", "0.0", 'one, "two"\nthree', ""],
    ]
    table = arrow_csv.read_csv(out / "captions.csv", parse_options=arrow_csv.ParseOptions(newlines_in_values=True))
    assert table["reused_from"].to_pylist() == [None, 0, None]
    assert table["text"].to_pylist() == ["a star", "a star", 'one, "two"\nthree']


@given(st.lists(texts | st.text("'=+-@\t\r\nx", max_size=4), min_size=1))
def test_no_field_of_a_csv_is_a_formula_and_every_text_comes_back(captions):
    with TemporaryDirectory() as folder:
        found = [row[3] for row in rows(exported(Path(folder), [record("x", *captions)], "csv") / "captions.csv")[1:]]
    assert not any(text.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) for text in found)
    assert [re.sub(r"\A'('*[=+\-@\t\r\n])", r"\1", text) for text in found] == [
        text.replace("\0", "\ufffd") for text in captions
    ]


def test_a_source_called_like_a_formula_is_none(tmp_path):
    out = exported(tmp_path, [record("=1+1.mp4", "x")], "csv", "parquet")
    assert rows(out / "captions.csv")[1][0] == "'=1+1.mp4"
    assert parquet.read_table(out / "captions.parquet")["source"].to_pylist() == ["=1+1.mp4"]


def test_a_parquet_file_has_types_and_exact_values(tmp_path):
    unread = record("b.mp4", source={"path": "b.mp4", "bytes": None, "sha256": None}, media=None, status="error")
    out = exported(tmp_path, [reused("v/caf\udce9.mp4"), unread, record("c.mp4", "=1\n\0\ud800")], "parquet")
    table = parquet.read_table(out / "captions.parquet")
    types = [pa.string(), pa.int64(), pa.float64(), pa.string(), pa.int64(), pa.string(), pa.string(), pa.string()]
    assert table.schema.types == types
    assert [field.name for field in table.schema if field.nullable] == ["reused_from", "sha256"]
    assert [tuple(row.values()) for row in table.to_pylist()] == [
        ("v/caf\\udce9.mp4", 0, 0.5, "a star", None, "00ff", "some/model", "abc"),
        ("v/caf\\udce9.mp4", 1, 1.5, "a star", 0, "00ff", "some/model", "abc"),
        ("c.mp4", 0, 0.0, "=1\n\0\\ud800", None, "00ff", "some/model", "abc"),
    ]


def test_a_parquet_file_is_written_in_groups_that_hold_many_sources(tmp_path):
    records = [record(f"{k}.mp4", *["x"] * 1000) for k in range(70)]
    file = parquet.ParquetFile(exported(tmp_path, records, "parquet") / "captions.parquet")
    assert [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)] == [65536, 70_000 - 65536]
    assert file.read()["source"].to_pylist() == [f"{k}.mp4" for k in range(70) for _ in range(1000)]


def test_without_any_record_there_are_tables_without_rows(tmp_path):
    out = exported(tmp_path, [], *FORMATS)
    assert sorted(path.name for path in out.rglob("*")) == ["captions.csv", "captions.parquet"]
    assert parquet.read_table(out / "captions.parquet").num_rows == 0


def test_one_record_is_held_at_a_time(tmp_path):
    peaks = []
    for number in (1, 20):
        path = annotations(tmp_path, [record(f"{k}.mp4", *["a star"] * 5000) for k in range(number)])
        with peak_memory() as peak:
            export(path, tmp_path / "out", ["csv"])
        peaks.append(peak())
    assert peaks[1] < 1.2 * peaks[0]


def test_the_order_of_a_records_keys_and_formats_named_twice_change_nothing(tmp_path):
    line = json.dumps(dict(reversed(record("/v/a.mp4", "x").items())), separators=(",", ":"))
    (tmp_path / "a.jsonl").write_text(line)
    written = export(tmp_path / "a.jsonl", tmp_path / "out", ["csv", "vtt", "csv"])
    assert sorted(written) == [tmp_path / "out/captions.csv", tmp_path / "out/vtt/a.mp4.vtt"]


BAD_LINES = {
    "an older record": {"segments": None},
    "captions that are no list": {"captions": 7},
    "a text that is none": {"segments": [{"start": 0, "end": 1, "text": 7}]},
    "a time that is none": {"segments": [{"start": float("nan"), "end": 1, "text": "x"}]},
    "an index that is none": {"captions": [{"frame_index": 2**63, "pts_seconds": 0, "text": "x"}]},
}
BAD = {name: json.dumps(record(**changes)).encode() for name, changes in BAD_LINES.items()} | {
    "nothing": b"",
    "half a record": json.dumps(record())[:90].encode(),
    "no object": b"[1]",
    "bytes": b'{"source": "\xff',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("line", BAD.values(), ids=BAD)
def test_a_line_that_is_no_record_is_named_and_no_table_is_left(tmp_path, line, kind):
    (tmp_path / "a.jsonl").write_bytes(json.dumps(record("a.mp4", "x")).encode() + b"\n" + line + b"\n")
    with pytest.raises(UsageError, match="line 2: expected a record") as error:
        export(tmp_path / "a.jsonl", tmp_path / "out", [kind])
    assert len(str(error.value)) < 500
    left = {path.name for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert left <= {"a.mp4.vtt", "a.mp4.srt"}


def test_an_older_file_stays_until_the_new_one_is_whole(tmp_path):
    out = exported(tmp_path, [record("a.mp4", "old")], "csv", "parquet")
    older = {path: path.read_bytes() for path in out.iterdir()}
    path = annotations(tmp_path, [record("a.mp4", "new"), {}])
    with pytest.raises(UsageError, match="line 2"):
        export(path, out, ["csv", "parquet"])
    assert {path: path.read_bytes() for path in out.iterdir()} == older
    export(annotations(tmp_path, [record("a.mp4", "new")]), out, ["csv", "parquet"])
    assert rows(out / "captions.csv")[1][3] == parquet.read_table(out / "captions.parquet")["text"][0].as_py() == "new"


@pytest.mark.parametrize("kinds", [[kind] for kind in FORMATS] + [["csv", "parquet"], ["parquet", "csv"]])
def test_a_disk_that_takes_no_more_is_told_and_nothing_half_is_left(tmp_path, kinds):
    captions = [os.urandom(50).hex() for _ in range(3000)]
    (tmp_path / "a.jsonl").write_text(json.dumps(record("a.mp4", *captions)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(UsageError, match=r"out.* cannot be written to: File too large"):
            export(tmp_path / "a.jsonl", tmp_path / "out", kinds)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []


def test_what_cannot_be_done_says_why_and_what_to_do(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a.jsonl").write_text(json.dumps(record("a.mp4", "x")))
    (tmp_path / "out").touch()
    for name, kind, reason in [
        ("missing.jsonl", "csv", "missing.jsonl does not exist; expected"),
        ("pipe", "vtt", "no regular file"),
        ("a.jsonl", "xml", "expected formats out of vtt, srt, csv, parquet, got 'xml'"),
        ("a.jsonl", "csv", "out cannot be written to: File exists"),
        ("a.jsonl", "vtt", "cannot be written to: Not a directory"),
    ]:
        with pytest.raises(UsageError, match=reason):
            export(tmp_path / name, tmp_path / "out", [kind])
    for kind, library in {"vtt": "pysubs2", "srt": "pysubs2", "parquet": "pyarrow"}.items():
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(
            UsageError, match=rf"{kind} needs the package {library}; .*pip install '\.\[(client|parquet)\]'"
        ):
            export(tmp_path / "a.jsonl", tmp_path / "new", [kind])
    assert not (tmp_path / "new").exists()


def test_every_column_is_documented(tmp_path):
    out = exported(tmp_path, [record("a.mp4", "x")], "csv", "parquet")
    tables = [
        re.findall(r"^\| `(\w+)`", part, re.M) for part in re.split(r"^## ", DOCUMENT.read_text(), flags=re.M)[1:]
    ]
    assert parquet.read_schema(out / "captions.parquet").names in tables
    assert rows(out / "captions.csv")[0] in tables
