"""Tables of Parquet as folders of files, which are replaced as a whole."""

import os
import signal
import sys

import pytest
from pyarrow import dataset, parquet

from reelscribe.errors import UsageError
from reelscribe.export import tables
from reelscribe.export.formats import export
from support.exporting import annotations, exported, files, record


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """A file for each 10 rows."""
    monkeypatch.setattr(tables, "_MAX_GROUP_VALUES", 10)
    monkeypatch.setattr(tables, "_PART_BYTES", 100)


def captions(number, text="x"):
    """Two sources, the first without probabilities, with so many captions each."""
    first, second = (record(f"{name}.mp4", *[f"{text} {k}" for k in range(number)]) for name in "ba")
    for caption in first["captions"]:
        caption["avg_logprob"] = None
    return [first, second]


def parts(out):
    return sorted(path.name for path in (out / "parquet/captions").iterdir())


def test_files_of_a_table_have_its_rows_in_order_and_one_schema(tmp_path, monkeypatch):
    out = exported(tmp_path, captions(45), "parquet")
    assert parts(out) == [f"part-{k:05}.parquet" for k in range(9)]
    schemas = [parquet.read_schema(out / "parquet/captions" / name) for name in parts(out)]
    found = dataset.dataset(out / "parquet/captions").to_table()
    monkeypatch.undo()
    export(tmp_path / "annotations.jsonl", out, ["parquet"])
    assert parts(out) == ["part-00000.parquet"]
    expected = parquet.read_table(out / "parquet/captions/part-00000.parquet")
    assert found == expected
    assert all(schema == expected.schema for schema in schemas)
    assert expected["source"].to_pylist() == ["b.mp4"] * 45 + ["a.mp4"] * 45


def test_a_file_ends_with_the_row_group_that_makes_it_large_enough(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_PART_BYTES", 10_000)
    folder = exported(tmp_path, captions(200), "parquet") / "parquet/captions"
    metadata = [parquet.read_metadata(folder / name) for name in parts(tmp_path / "out")]
    groups = [[each.row_group(k).column(9) for k in range(each.num_row_groups)] for each in metadata]
    ends = [[last.data_page_offset + last.total_compressed_size for last in group] for group in groups]
    assert len(ends) > 2
    assert all(before < 10_000 <= last for *_, before, last in ends[:-1])


def export_until(moment, path, out):
    """Export in a process that is killed before its call with this number that reads or changes the folder.

    Returns whether it was killed.
    """
    if process := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
    moments = iter(range(moment))

    def hook(event, arguments):
        is_call = event == "ctypes.dlsym" or any(str(out) in str(each) for each in arguments)
        if is_call and next(moments, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        sys.addaudithook(hook)
        export(path, out, ["parquet"])
    finally:
        os._exit(0)


def test_an_export_that_is_killed_leaves_the_old_files_or_the_new_ones(tmp_path):
    out = exported(tmp_path, captions(35, "before"), "parquet")
    seen, killed, moment = {"before": 35}, True, 0
    while killed:
        seen[f"{moment}"] = number = 10 + moment % 7
        path = annotations(tmp_path, captions(number, moment))
        killed = export_until(moment, path, out)
        texts = parquet.read_table(out / "parquet/captions")["text"].to_pylist()
        text = texts[0].split()[0]
        assert texts == [f"{text} {k}" for k in range(seen[text])] * 2
        moment += 1
    assert (text, moment > 20) == (str(moment - 1), True)
    assert sorted(path.name for path in (out / "parquet").iterdir()) == ["captions", "sources"]


def test_where_folders_cannot_be_exchanged_an_export_finds_the_older_one_and_replaces_it(tmp_path, monkeypatch):
    out = exported(tmp_path, captions(35), "parquet")
    monkeypatch.setattr("ctypes.CDLL", lambda name: None)
    before = files(out)
    (out / "parquet/captions").rename(out / "parquet/captions.old")
    with pytest.raises(UsageError, match="line 11: expected a record"):
        export(annotations(tmp_path, [*captions(5) * 5, {}]), out, ["parquet"])
    assert files(out) == before
    export(annotations(tmp_path, captions(5)), out, ["parquet"])
    assert sorted(files(out)) == ["parquet/captions/part-00000.parquet", "parquet/sources/part-00000.parquet"]
    assert parquet.read_table(out / "parquet/captions").num_rows == 10


@pytest.mark.parametrize("name", ["captions/mine.parquet", "captions.partial/mine.txt", "captions.old"])
def test_what_no_export_has_made_stays_and_is_named(tmp_path, name):
    out = exported(tmp_path, captions(35), "parquet")
    (out / "parquet" / name).parent.mkdir(exist_ok=True)
    (out / "parquet" / name).write_text("mine")
    before = files(out)
    with pytest.raises(UsageError, match=rf"export: .*{name} was put there by no export; .* move it"):
        export(annotations(tmp_path, captions(5)), out, ["parquet"])
    assert files(out) == before


def test_a_link_in_the_place_of_a_table_is_not_written_through(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/part-00000.parquet").touch()
    (tmp_path / "out/parquet").mkdir(parents=True)
    (tmp_path / "out/parquet/captions").symlink_to(tmp_path / "mine")
    with pytest.raises(UsageError, match=r"captions was put there by no export"):
        export(annotations(tmp_path, captions(5)), tmp_path / "out", ["parquet"])
    assert [path.stat().st_size for path in (tmp_path / "mine").iterdir()] == [0]


def test_single_files_of_an_earlier_version_stay_and_are_told(tmp_path):
    (tmp_path / "out").mkdir()
    old, lines = tmp_path / "out/captions.parquet", []
    old.write_text("old")
    export(annotations(tmp_path, captions(5)), tmp_path / "out", ["csv"], tell=lines.append)
    assert lines == []
    export(tmp_path / "annotations.jsonl", tmp_path / "out", ["parquet"], tell=lines.append)
    assert lines == [
        f"{old}: of an earlier version, and not updated; the tables are now in {tmp_path / 'out/parquet'}, so delete"
        " what you do not need"
    ]
    assert old.read_text() == "old"
