"""The index follows annotations.jsonl and the ledger, whatever happens to them."""

import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from reelscribe.results.forget import forget
from reelscribe.viewer.index import databases, source_index
from reelscribe.viewer.index.building import build
from support.browsing import caption, count_hits, found, names, open_index, segments, write_annotations
from support.exporting import record
from support.videos import write

MANY = [record(f"{k:04}.mp4", f"caption {k}", segments=segments("common", f"word{k}")) for k in range(300)]


async def run(out: Path, *names: str, **options) -> None:
    """Caption a second of video of each name."""
    for name in names:
        write(out.parent / name, "libx264", [len(name) + 40 + 10 * k for k in range(5)])
    await caption(out, *(out.parent / name for name in names), **options)


def test_an_index_is_used_again_and_takes_only_what_is_new(tmp_path, monkeypatch):
    write_annotations(tmp_path, *MANY)
    with open_index(tmp_path) as index:
        assert count_hits(index, "common") == 300
    monkeypatch.setattr(source_index, "build", None)  # nothing is built again
    changed = record("0007.mp4", "a new text", segments=segments("common"))
    write_annotations(tmp_path, *MANY[:7], changed, *MANY[9:], record("new.mp4", "quite new"))
    with open_index(tmp_path) as index:
        assert count_hits(index, "common") == 299
        assert [count_hits(index, word) for word in ("word7", "word8", "word9", "new", "quite")] == [0, 0, 1, 2, 1]
        assert len(index.docs) == 300


def test_an_open_index_follows_the_file(tmp_path, thumbnails):
    write_annotations(tmp_path, *MANY[:2])
    with open_index(tmp_path) as index:
        assert not index.refresh()
        write_annotations(tmp_path, record("new.mp4", "first"), *MANY[1:2])
        assert index.refresh()
        assert names(index) == ["0001.mp4", "new.mp4"]
        assert found(index, "first", thumbnails) == ["[first]"]
        assert found(index, "word1", thumbnails) == ["[word1]"]  # at another place in the file
        (tmp_path / "annotations.jsonl").unlink()
        assert index.refresh()
        assert names(index) == []


def test_a_file_that_is_quite_different_is_indexed_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(source_index, "_FEW_LINES", 10)
    write_annotations(tmp_path, *MANY[:50])
    with open_index(tmp_path) as index:
        write_annotations(tmp_path, *MANY[100:])
        assert index.refresh()
        assert (len(index.docs), count_hits(index, "common"), count_hits(index, "word7")) == (200, 200, 0)


def test_several_processes_read_a_long_file(tmp_path, monkeypatch):
    monkeypatch.setattr("reelscribe.viewer.index.building._BYTES_OF_SHARD", 50_000)
    path = write_annotations(tmp_path, *MANY)
    (tmp_path / "index").mkdir()
    built = build(path, path.stat().st_size, tmp_path / "index")
    assert built.docs == 300
    assert built.shards == len(list((tmp_path / "index").glob("texts-*.sqlite")))
    assert built.shards > 1 or len(os.sched_getaffinity(0)) == 1
    with open_index(tmp_path) as index:
        assert [count_hits(index, f"word{k}") for k in range(300)] == [1] * 300


@pytest.mark.parametrize("damage", ["version", "truncated", "other file", "deleted"])
def test_an_index_of_another_version_or_a_damaged_one_is_built_anew(tmp_path, damage):
    write_annotations(tmp_path, *MANY[:5])
    with open_index(tmp_path):
        pass
    library = tmp_path / ".browse" / "index" / databases.LIBRARY_NAME
    if damage == "version":
        with sqlite3.connect(library) as database:
            database.execute("PRAGMA user_version = 0")
        database.close()
    elif damage == "truncated":
        os.truncate(library, 1000)
    elif damage == "other file":
        library.write_text("something else")
    else:
        shutil.rmtree(tmp_path / ".browse")
    with open_index(tmp_path) as index:
        assert count_hits(index, "common") == 5


def test_a_half_written_last_line_is_waited_for(tmp_path):
    path = write_annotations(tmp_path, *MANY[:3])
    text = path.read_bytes()
    path.write_bytes(text[:-200])
    with open_index(tmp_path) as index:
        assert (len(index.docs), index.notices) == (2, ())
        path.write_bytes(text)
        index.refresh()
        assert (len(index.docs), index.notices) == (3, ())


HOSTILE = {
    "no JSON": b"what?",
    "no record": b'{"a": 1}',
    "deep": b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "half a pair": json.dumps(record("\ud800.mp4")).encode(),
    "not UTF-8": b'{"source": {"path": "\xff", "absolute_path": "/\xff"}}',
    "wrong types": b'{"source": {"path": 1, "absolute_path": []}}',
    "empty": b"",
    "huge numbers": b'{"source": {"path": "a", "absolute_path": "/a", "bytes": 1e999}}',
}


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE)
def test_a_line_that_is_no_record_is_left_out_and_told(tmp_path, line):
    path = write_annotations(tmp_path, *MANY[:2])
    path.write_bytes(line + b"\n" + path.read_bytes())
    with open_index(tmp_path) as index:
        assert len(index.docs) == 2
        (notice,) = index.notices
        assert "1 line that cannot be read" in notice
        write_annotations(tmp_path, *MANY[:2])
        index.refresh()
        assert index.notices == ()


ODD_TEXTS = {
    "zero": "a\0zero",
    "needle": "needle " * 100_000,
    "script": "<script>alert(1)</script>",
    "31mred": "\x1b[31mred\x1b[0m",
    "evil": "\u202eevil",
    "xxxx*": "x" * 10_000_000,
}


def test_odd_texts_are_indexed_and_found(tmp_path, thumbnails):
    odd = record("ok.mp4", *ODD_TEXTS.values())
    odd["source"]["absolute_path"] = "/library/..\\udcff/../../etc/pass\twd"
    write_annotations(tmp_path, odd)
    with open_index(tmp_path) as index:
        for word in ODD_TEXTS:
            (text,) = found(index, word, thumbnails)
            assert len(text) < 2000


async def test_sources_that_a_run_has_finished_are_shown_while_it_lasts(tmp_path, thumbnails):
    out = tmp_path / "out"
    await run(out, "first.mp4")
    with open_index(out) as index:
        before = (out / "annotations.jsonl").read_bytes()
        await run(out, "second.mp4", "third.mp4")
        (out / "annotations.jsonl").write_bytes(before)  # as if the run had not ended yet
        index.refresh()
        assert names(index) == ["first.mp4", "second.mp4", "third.mp4"]
        hits = count_hits(index, "frame")
        await run(out, "third.mp4")
        index.refresh()
        assert len(index.docs) == 3
        assert count_hits(index, "frame") == hits


async def test_a_ledger_alone_is_enough_and_what_is_forgotten_vanishes(tmp_path):
    out = tmp_path / "out"
    await run(out, "first.mp4", "second.mp4")
    (out / "annotations.jsonl").unlink()
    with open_index(out) as index:
        assert names(index) == ["first.mp4", "second.mp4"]
        await forget(out, [str(tmp_path / "first.mp4")])
        index.refresh()
        assert names(index) == ["second.mp4"]
        assert (out / ".browse/index" / databases.JOURNAL_NAME).stat().st_size == 0  # annotations.jsonl has it now


async def test_an_edited_file_is_corrected_by_the_ledger(tmp_path):
    out = tmp_path / "out"
    await run(out, "first.mp4", "second.mp4")
    lines = (out / "annotations.jsonl").read_bytes().splitlines(keepends=True)
    (out / "annotations.jsonl").write_bytes(lines[0][:-30] + b"\n" + json.dumps(record("foreign.mp4")).encode() + b"\n")
    with open_index(out) as index:
        assert names(index) == ["first.mp4", "second.mp4"]


def test_a_folder_without_anything_is_an_empty_index(tmp_path):
    with open_index(tmp_path) as index:
        assert names(index) == []
