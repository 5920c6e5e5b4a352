"""An export as a whole: what it reads, what it refuses, and what it leaves behind."""

import hashlib
import json
import os
import resource
import sqlite3
import sys
from contextlib import closing

import pytest
from pyarrow import CompressedInputStream, parquet

from reelscribe.errors import OutputError, UsageError
from reelscribe.export.cue_rules import CueRules
from reelscribe.export.formats import FORMATS, export
from support.clip_records import clip, clips_record, with_shots
from support.exported_pages import page_id
from support.exporting import (
    annotations,
    both,
    exported,
    files,
    record,
    rows,
    spoken_by,
    transcript_record,
    utterance,
    video,
)
from support.memory import peak_memory


@pytest.fixture(autouse=True)
def settings(tmp_path):
    """The models of the records, beside the files that a test writes."""
    annotations(tmp_path, []).unlink()


def test_one_record_is_in_memory_at_a_time(tmp_path):
    peaks = []
    for number in (1, 10):
        path = annotations(tmp_path, [record(f"{k}.mp4", *["a star"] * 2000) for k in range(number)])
        with peak_memory() as peak:
            export(path, tmp_path / "out", ["csv"])
        peaks.append(peak())
    assert peaks[1] < 1.2 * peaks[0]


def test_formats_that_are_named_twice_are_written_once(tmp_path):
    line = json.dumps(dict(reversed(record("/v/a.mp4", "x").items())), separators=(",", ":"))
    (tmp_path / "a.jsonl").write_text(line)
    written = export(tmp_path / "a.jsonl", tmp_path / "out", ["csv", "vtt", "csv"]).written
    assert sorted(written) == [
        tmp_path / "out/captions.csv",
        tmp_path / "out/sources.csv",
        tmp_path / "out/vtt/a.mp4.vtt",
    ]


def test_the_order_of_a_records_keys_changes_nothing(tmp_path):
    value = both(record("/v/a.mp4", "a dog"), transcript_record("/v/a.mp4", "three"))
    expected = files(exported(tmp_path, [value], "csv", "vtt"))
    (tmp_path / "a.jsonl").write_text(json.dumps(dict(reversed(value.items())), separators=(",", ":")))
    export(tmp_path / "a.jsonl", tmp_path / "again", ["csv", "vtt"], CueRules(made_from="both"))
    assert files(tmp_path / "again") == expected


BAD_LINES = {
    "nothing": b"",
    "half a record": json.dumps(record()).encode()[:90],
    "no object": b"[1]",
    "bytes that are not UTF-8": b'{"source": "\xff',
    "deeply nested JSON": b"[" * 100_000,
} | {
    name: json.dumps(value).encode()
    for name, value in {
        "no segments": record(caption_spans=None),
        "captions that are no list": record(captions=7),
        "a text that is a number": record(caption_spans=[{"start": 0, "end": 1, "text": 7}]),
        "a time that is NaN": record(caption_spans=[{"start": float("nan"), "end": 1, "text": "x"}]),
        "an index that is too large": record(captions=[{"frame_index": 2**63, "pts_seconds": 0, "text": "x"}]),
        "a transcript that is no list": transcript_record(segments=7),
        "an utterance that is a number": transcript_record(segments=[7]),
        "a language that is a number": transcript_record(segments=[utterance(0, 1, "x") | {"language": 7}]),
        "a probability above 1": transcript_record(segments=[utterance(0, 1, "x") | {"no_speech_prob": 1.5}]),
        "a probability that is NaN": transcript_record(
            segments=[utterance(0, 1, "x") | {"no_speech_prob": float("nan")}]
        ),
        "words that are strings": transcript_record(segments=[utterance(0, 1, "x", ["x"])]),
        "no model": transcript_record(speech_settings="0123"),
        "audio without a start": transcript_record(audio={"codec": "aac"}),
        "a number of frames that is a text": record(media=video() | {"frames": "many"}),
        "flags that are no list": record(captions=[record("a", "x")["captions"][0] | {"flags": "repetition"}]),
        "clips that are no list": clips_record("a", clips=None),
        "a clip that is a number": clips_record("a", clips=[7]),
        "a description that is a number": clips_record("a", (0, 1, 7)),
        "a number of tokens below 0": clips_record("a", clip(0, 1, "x", tokens=-1)),
        "a flag that is a number": clips_record("a", clip(0, 1, "x", flags=[7])),
        "a failure of a clip without a time": clips_record("a", clip_failures=[{"error": "x"}]),
        "no model of clips": clips_record("a", clip_settings="0123"),
        "shots that are no list": record(shots=7),
        "a shot that ends at NaN": with_shots(record(), (0, 1)) | {"shots": [{"end": float("nan")}]},
        "no detector of shots": with_shots(record(), settings="0123"),
    }.items()
}


@pytest.mark.parametrize("segments", [[[]], [7], ["x"], [None], {"a": 1}, "x"])
def test_a_segment_that_is_none_is_named_where_doubtful_ones_are_left_out(tmp_path, segments):
    path = annotations(tmp_path, [transcript_record("a.mp4", segments=segments)])
    with pytest.raises(UsageError, match="line 1: expected a record"):
        export(path, tmp_path / "out", ["csv"], drop_doubtful=True)


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "jsonl.zst"])  # it has any lines
@pytest.mark.parametrize("line", BAD_LINES.values(), ids=BAD_LINES)
def test_a_line_that_is_no_record_is_named_and_no_table_is_left(tmp_path, line, kind):
    good = json.dumps(both(record("a.mp4", "x"), transcript_record("a.mp4", "x"))).encode()
    (tmp_path / "a.jsonl").write_bytes(good + b"\n" + line + b"\n")
    with pytest.raises(UsageError, match="line 2: expected a record") as error:
        export(tmp_path / "a.jsonl", tmp_path / "out", [kind])
    assert len(str(error.value)) < 500
    assert files(tmp_path / "out").keys() <= {
        *(
            "vtt/a.mp4.vtt",
            "srt/a.mp4.srt",
            "ass/a.mp4.ass",
            "txt/a.mp4.txt",
            "chapters/a.mp4.ffmetadata",
            "chapters/a.mp4.chapters.txt",
        ),
        f"html/source/{page_id(os.path.abspath('a.mp4'))}.html",
    }


def test_a_model_that_run_json_does_not_name_is_refused(tmp_path):
    path = annotations(tmp_path, [record("a.mp4", caption_settings="0123")])
    with pytest.raises(UsageError, match="line 1: expected a record"):
        export(path, tmp_path / "out", ["csv"])


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "cannot be read: No such file .*keep both in one folder"), ("[]", "expected models")]
)
def test_records_without_their_settings_are_refused(tmp_path, content, reason):
    path = annotations(tmp_path, [record("a.mp4", "x")])
    (tmp_path / "run.json").unlink()
    if content:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(UsageError, match=rf"run.json.* {reason}"):
        export(path, tmp_path / "out", ["csv"])


@pytest.mark.parametrize(("kind", "wanted"), [("rttm", "speakers"), ("txt", "transcripts")])
def test_nothing_is_written_if_no_record_has_what_one_of_the_formats_needs(tmp_path, kind, wanted):
    path = annotations(tmp_path, [record("a.mp4", "x")])
    with pytest.raises(UsageError, match=f"expected records with {wanted}, .* first, or choose another format$"):
        export(path, tmp_path / "out", ["csv", "srt", kind])
    assert not (tmp_path / "out").exists()


def test_cues_of_what_no_record_has_are_refused_and_nothing_is_left(tmp_path):
    for value, wanted, command in (
        (record("a", "x"), "transcript", "transcribe"),
        (transcript_record("a", "x"), "captions", "caption"),
        (record("a", "x"), "clips", "caption --clips shots` or `reelscribe annotate --clips shots"),
    ):
        path = annotations(tmp_path, [value])
        with pytest.raises(UsageError, match=rf"records with {wanted}s?, .*; make them with `reelscribe {command}`"):
            export(path, tmp_path / "out", ["csv", "vtt"], CueRules(made_from=wanted))
        assert files(tmp_path / "out") == {}
        assert export(path, tmp_path / "out", ["vtt"], CueRules(made_from="both")).written == [
            tmp_path / "out/vtt/a.vtt"
        ]
        (tmp_path / "out/vtt/a.vtt").unlink()
    with pytest.raises(UsageError, match="expected cues out of auto, captions, clips, transcript, both, got 'all'"):
        export(path, tmp_path / "out", ["vtt"], CueRules(made_from="all"))


def test_an_older_file_stays_until_the_new_one_is_whole(tmp_path):
    out = exported(tmp_path, [record("a.mp4", "old")], "csv", "parquet")
    older = files(out)
    path = annotations(tmp_path, [record("a.mp4", "new"), {}])
    with pytest.raises(UsageError, match="line 2"):
        export(path, out, ["csv", "parquet"])
    assert files(out) == older
    export(annotations(tmp_path, [record("a.mp4", "new")]), out, ["csv", "parquet"])
    assert rows(out / "captions.csv")[1][3] == parquet.read_table(out / "parquet/captions")["text"][0].as_py() == "new"


@pytest.mark.parametrize("number", [0, 1, 5000])
def test_compressed_records_are_the_same_bytes_in_one_frame(tmp_path, number):
    path = annotations(tmp_path, [record(f"{k}.mp4", "a \ud800 star") for k in range(number)])
    written = export(path, tmp_path / "out", ["jsonl.zst"]).written
    assert written == [tmp_path / "out/annotations.jsonl.zst"]
    with CompressedInputStream(written[0], "zstd") as file:
        assert file.read() == path.read_bytes()
    assert written[0].read_bytes().count(b"\x28\xb5\x2f\xfd") == 1  # with which each frame begins


@pytest.mark.parametrize("kinds", [[kind] for kind in FORMATS] + [["csv", "parquet"], ["parquet", "csv"]])
def test_a_full_disk_is_an_error_and_no_partial_file_is_left(tmp_path, kinds):
    captions = [os.urandom(50).hex() for _ in range(4000)]
    value = both(record("a.mp4", *captions), transcript_record("a.mp4", *captions))
    (tmp_path / "a.jsonl").write_text(json.dumps(spoken_by(value, "channel 1")))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(UsageError, match=r"out.* cannot be written to: File too large"):
            export(tmp_path / "a.jsonl", tmp_path / "out", kinds)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files(tmp_path / "out") == {}


def test_what_an_export_has_written_before_an_error_is_told(tmp_path, monkeypatch):
    path = annotations(tmp_path, [record("a.mp4", "x")])
    (tmp_path / "out").mkdir()
    (tmp_path / "out/html").touch()
    with pytest.raises(
        UsageError, match=r"html.* cannot be written .*; the export has written 2 files before, such as"
    ):
        export(path, tmp_path / "out", ["csv", "html"])


@pytest.mark.parametrize("name", ["captions.csv", "srt/a.mp4.srt", "chapters/a.mp4.chapters.txt"])
def test_what_a_user_has_made_or_changed_stays_until_overwrite_replaces_it(tmp_path, name):
    formats, told = ["csv", "srt", "chapters"], list[str]()
    path, out = annotations(tmp_path, [record("a.mp4", "old")]), tmp_path / "out"
    (out / name).parent.mkdir(parents=True)
    for content in ("made before", "changed since"):
        (out / name).write_text(content)
        assert export(path, out, formats, tell=told.append).kept == [out / name]
        assert (
            told.pop()
            == f"kept 1 file that others have made or changed, such as {out / name}; --overwrite replaces them"
        )
        assert (out / name).read_text() == content
        assert export(path, out, formats, overwrite=True).kept == export(path, out, formats).kept == []
        assert "old" in (out / name).read_text()
    assert export(annotations(tmp_path, [record("a.mp4", "new")]), out, formats).kept == []
    assert "new" in (out / name).read_text()


def test_what_an_earlier_version_has_left_in_the_folder_of_the_run_is_replaced(tmp_path):
    formats, old = ["csv", "srt"], [tmp_path / "captions.csv", tmp_path / "srt/a.mp4.srt"]
    (tmp_path / "srt").mkdir()
    for path in old:
        path.write_text("of an earlier version")
    export(annotations(tmp_path, [record("a.mp4", "x")]), tmp_path, ["vtt"])
    assert export(tmp_path / "annotations.jsonl", tmp_path, formats).kept == []
    for path in old:
        path.write_text("changed since")
    assert export(tmp_path / "annotations.jsonl", tmp_path, formats).kept == [*reversed(old)]


@pytest.mark.parametrize("name", ["../../notes", "/notes", "x/../../../notes", "..", "", "a\0b", b"\xff"])
def test_a_name_in_the_memory_leads_nowhere_else(tmp_path, name):
    out = tmp_path / "out" / "deep"
    path = annotations(tmp_path, [record("a.mp4", "x")])
    export(path, out, ["srt"])
    (tmp_path / "notes.srt").write_text("mine")
    (tmp_path / "out/notes.srt").write_text("mine")
    with closing(sqlite3.connect(out / "exports.sqlite")) as database, database:
        known = name if isinstance(name, bytes) else name.encode()
        assert database.execute("UPDATE names SET name = ?", (known,)).rowcount == 1
        digest = hashlib.sha256(b"mine").hexdigest()
        database.execute("INSERT INTO written VALUES (?, ?)", (b"srt/" + known + b".srt", digest))
    if name == b"\xff":
        with pytest.raises(OutputError, match=r"exports.sqlite: cannot be read"):
            export(path, out, ["srt"])
    else:
        assert export(path, out, ["srt"]).written == [out / "srt/a.mp4.srt"]
    assert {file.read_text() for file in tmp_path.rglob("notes.srt")} == {"mine"}


def test_a_usage_error_says_why_and_what_to_do(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a.jsonl").write_text(json.dumps(record("a.mp4", "x")))
    (tmp_path / "out").touch()
    for name, kind, reason in [
        ("missing.jsonl", "csv", "missing.jsonl does not exist; expected"),
        ("pipe", "vtt", "no regular file"),
        (
            "a.jsonl",
            "xml",
            "expected formats out of vtt, srt, ass, txt, rttm, csv, parquet, jsonl.zst, chapters, html, got 'xml'",
        ),
        ("a.jsonl", "csv", "out cannot be written to: File exists"),
        ("a.jsonl", "vtt", "cannot be written to: Not a directory"),
    ]:
        with pytest.raises(UsageError, match=reason):
            export(tmp_path / name, tmp_path / "out", [kind])
    for kind, library in {"vtt": "pysubs2", "srt": "pysubs2", "parquet": "pyarrow", "jsonl.zst": "pyarrow"}.items():
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(
            UsageError,
            match=rf"{kind}: expected the package {library}, got none; .*pip install .*\[(client|parquet)\]'",
        ):
            export(tmp_path / "a.jsonl", tmp_path / "new", [kind])
    assert not (tmp_path / "new").exists()
