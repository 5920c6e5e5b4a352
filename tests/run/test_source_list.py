"""Lists of sources: lines and tables, their other columns in records, and rows that cannot be used."""

import csv
import io
import json
import os
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from reelscribe.errors import UsageError
from reelscribe.run import source_list
from reelscribe.run.source_list import Row, SourceList
from support.commands import reelscribe
from support.patience import PATIENCE


def rows(path, content: bytes | str, **options) -> list[Row]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(SourceList(str(path), **options).rows())


def names(path, content, **options) -> list[str]:
    return [row.name for row in rows(path, content, **options)]


def test_each_line_is_a_name_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("caf\udce9.mp4").touch()
    lines = b"a.mp4\nb *[x]?.mp4\r\n\n  spaces .mp4\ns3://b/c//d.mp4\ncaf\xe9.mp4"
    expected = ["a.mp4", "b *[x]?.mp4", "  spaces .mp4", "s3://b/c//d.mp4", "caf\udce9.mp4"]
    assert names(tmp_path / "list", lines) == expected
    assert names(tmp_path / "list", b"a\nb.mp4\0c\r.mp4\0", null=True) == ["a\nb.mp4", "c\r.mp4"]


TABLES = {
    "x.txt": "größe.mp4\r\nb.mp4\r\n",
    "x.jsonl": '{"path": "größe.mp4", "title": "ü"}\r\n{"path": "b.mp4"}\r\n',
    "x.csv": "path,title\r\ngröße.mp4,ü\r\nb.mp4,\r\n",
}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32", "utf-32-be"])
@pytest.mark.parametrize("name", TABLES)
def test_a_byte_order_mark_says_how_a_list_is_encoded(tmp_path, name, encoding):
    mark = "\ufeff" if encoding.endswith("be") else ""  # Python writes the others itself
    check_table(name, rows(tmp_path / name, (mark + TABLES[name]).encode(encoding)))


@pytest.mark.parametrize(
    "content", [b"a\0b.mp4\0", "größe.mp4\nb.mp4".encode("utf-16-le"), "ж.mp4".encode("utf-16-be")]
)
def test_nul_characters_are_no_names_without_the_option_or_a_mark(tmp_path, content):
    for row in rows(tmp_path / "list", content):
        assert "; if NUL characters end the names of the list, use -0, else save it as UTF-8" in row.problem
    assert names(tmp_path / "list", b"a\0b.mp4\0", null=True) == ["a", "b.mp4"]


def check_table(name: str, found: list[Row]) -> None:
    first, second = found
    assert (first.name, second.name, first.problem) == ("größe.mp4", "b.mp4", "")
    assert name == "x.txt" or json.loads(first.extra or "") == {"title": "ü"}


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("x.txt", "größe.mp4\nb.mp4", "expected a name in UTF-8, got 'gr\\udcf6\\udcdfe.mp4'; save the list as UTF-8"),
        ("x.csv", "path,title\ngröße.mp4,\nb.mp4,\n", "expected a name in UTF-8"),
        ("x.csv", "path,title\na.mp4,ü\nb.mp4,\n", "the column 'title': expected text in UTF-8, got '\\udcfc'; save"),
        ("x.jsonl", '{"path": "größe.mp4"}\n{"path": "b.mp4"}', "expected an object in JSON, in UTF-8: "),
        ("x.jsonl", '{"path": "s3://b/\\udcf6.mp4"}\n{"path": "b.mp4"}', "expected a name in UTF-8"),
        (
            "x.txt",
            "a.mp4\0c.mp4\nb.mp4",
            "; if NUL characters end the names of the list, use -0, else save it as UTF-8",
        ),
    ],
)
def test_a_row_in_another_encoding_says_so_and_others_are_used(tmp_path, name, content, reason):
    bad, last = rows(tmp_path / name, content.encode("latin-1"))
    assert bad.name == f"{tmp_path / name}:{2 if name == 'x.csv' else 1}"
    assert reason in bad.problem
    assert (last.name, last.problem) == ("b.mp4", "")


def test_standard_input_is_a_list_that_can_be_read_again(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a.mp4\nb.mp4\n")))
    listed = SourceList("-")
    for _ in range(2):
        assert [row.name for row in listed.rows()] == ["a.mp4", "b.mp4"]


@pytest.mark.parametrize("name", ["pipe", "pipe.csv"])
def test_a_pipe_is_a_list_that_can_be_read_again_and_loses_no_name(tmp_path, name):
    os.mkfifo(pipe := tmp_path / name)
    expected = [f"{number:06}.mp4" for number in range(200_000)]
    content = "\n".join(["path", *expected] if name == "pipe.csv" else expected)
    writer = threading.Thread(target=pipe.write_text, args=[content])
    writer.start()
    listed = SourceList(str(pipe))
    writer.join()
    assert [[row.name for row in listed.rows()] for _ in range(2)] == [expected] * 2


def test_a_pipe_is_no_table_in_parquet(tmp_path):
    os.mkfifo(tmp_path / "pipe.parquet")
    with pytest.raises(UsageError, match="expected a file, as a table in Parquet cannot be read from a pipe"):
        SourceList(str(tmp_path / "pipe.parquet"))


def test_a_table_in_csv_has_a_column_of_names_and_others(tmp_path):
    text = '\ufeffid,path,"ti,tle"\n1,a.mp4,"one ""x""\nand more"\n2,"b,c.mp4",\n'
    first, second = rows(tmp_path / "films.csv", text)
    assert (first.name, json.loads(first.extra)) == ("a.mp4", {"id": "1", "ti,tle": 'one "x"\nand more'})
    assert (second.name, json.loads(second.extra)) == ("b,c.mp4", {"id": "2", "ti,tle": None})


def test_a_table_in_jsonl_keeps_its_types(tmp_path):
    text = '{"url": "https://e.org/a.mp4", "n": [1, {"x": null}], "nan": NaN}\n{"path": "b.mp4", "url": "c"}\n'
    first, second = rows(tmp_path / "films.jsonl", text)
    assert (first.name, json.loads(first.extra)) == ("https://e.org/a.mp4", {"n": [1, {"x": None}], "nan": None})
    assert second == Row(f"{tmp_path}/films.jsonl:2", "b.mp4", "{}")


def test_a_table_in_parquet_is_read_in_batches(tmp_path):
    count = 3000
    table = pyarrow.table({"path": [f"{k}.mp4" for k in range(count)], "day": pyarrow.array([18000] * count, "date32")})
    pyarrow.parquet.write_table(table, tmp_path / "films.parquet")
    found = list(SourceList(str(tmp_path / "films.parquet")).rows())
    assert [row.name for row in found] == [f"{k}.mp4" for k in range(count)]
    assert json.loads(found[-1].extra) == {"day": "2019-04-14"}


def parquet(path, columns: dict, **options) -> str:
    pyarrow.parquet.write_table(pyarrow.table(columns), path, **options)
    return str(path)


def test_a_cell_that_python_cannot_have_costs_its_row_alone(tmp_path):
    types = [pyarrow.timestamp("us"), pyarrow.timestamp("us", tz="UTC"), pyarrow.timestamp("us", tz="Mars/Base")]
    columns = {f"column {k}": pyarrow.array([0, 2**60, 1], kind) for k, kind in enumerate(types[:2])}
    listed = parquet(tmp_path / "films.parquet", {"path": ["a.mp4", "b.mp4", "c.mp4"], **columns})
    assert [row.name for row in SourceList(listed).rows()] == ["a.mp4", f"{listed}:2", "c.mp4"]
    listed = parquet(tmp_path / "mars.parquet", {"path": ["a.mp4"], "day": pyarrow.array([0], types[2])})
    (row,) = SourceList(listed).rows()
    assert row.problem.startswith("the column 'day': expected a value that can be read")


def test_a_cell_that_stands_for_much_more_than_its_bytes_takes_little_memory(tmp_path):
    count = 200
    cells = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * count, "int32"), pyarrow.array(["x" * 2**20]))
    listed = parquet(tmp_path / "films.parquet", {"path": ["a.mp4"] * count, "x": cells}, compression="zstd")
    tracemalloc.start()
    try:
        problems = {row.problem for row in SourceList(listed).rows()}
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert problems == {
        "the column 'x': expected a value that can be read: 'at most 65,536 bytes, got 1,048,576'",
    }
    assert peak < 10_000_000


def test_rows_before_the_damage_of_a_table_are_used(tmp_path):
    names = [f"{k}.mp4" for k in range(1000)]
    listed = parquet(
        tmp_path / "films.parquet", {"path": names}, row_group_size=2 * source_list.ROWS_AT_ONCE, compression="zstd"
    )
    content = (tmp_path / "films.parquet").read_bytes()
    place = content.rindex(b"\x28\xb5\x2f\xfd")  # a frame of zstd
    (tmp_path / "films.parquet").write_bytes(content[:place] + bytes(8) + content[place + 8 :])
    *whole, last = SourceList(listed).rows()
    assert [row.name for row in whole] == names[: 2 * source_list.ROWS_AT_ONCE]
    assert last.problem.startswith("neither this row nor those after it can be read: expected a Parquet file")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("x.csv", "path,a\nb.mp4\n", "expected 2 columns"),
        ("x.csv", "path,a\nb.mp4,1,2\n", "expected 2 columns"),
        ("x.csv", 'path,a\n"b"x,1\n', "expected a row of a table"),
        ("x.csv", f"path,a\nb,{'y' * 200_000}\n", "expected a row of a table"),
        ("x.csv", "path,a\n,1\n", "expected a name in the column path or url, got none"),
        ("x.csv", f"path,a\nb,{'y' * 70_000}\n", "expected other columns of at most 65,536 bytes"),
        ("x.jsonl", "{", "expected an object in JSON"),
        ("x.jsonl", "[" * 100_000, "expected an object in JSON"),
        ("x.jsonl", "[1]", "expected an object with path or url, got <list>"),
        ("x.jsonl", '{"path": 5}', "expected a name in the column path or url, got 5"),
        ("x.jsonl", '{"path": ""}', "expected a path or an address, got ''"),
        ("x.jsonl", '{"path": "a\\u0000b"}', "expected a path or an address"),
        ("x.jsonl", '{"path": "https://me:hidden@e.org/a.mp4"}', "expected an address without a name and password"),
        ("x.jsonl", '{"path": "http://[x/a.mp4"}', "expected a host after http://"),
        ("x.jsonl", '{"path": "\\ud800.mp4"}', "expected a path or an address"),
        ("x.jsonl", '{"path": "a.mp4", "x": ' + "[" * 200 + "]" * 200 + "}", "nested at most 100 deep"),
        ("x.csv", f"path,a\nb,{'y' * 2**21}\n", "expected a row of a table"),
        ("x.txt", "y" * 2**20 + "y", "expected names of at most 1,048,576 bytes"),
    ],
)
def test_a_row_that_cannot_be_used_says_why_and_others_are_used(tmp_path, name, content, reason):
    last = {"x.csv": "last.mp4,1\n", "x.jsonl": '\n{"path": "last.mp4"}', "x.txt": "\nlast.mp4"}[name]
    bad, *_, after = rows(tmp_path / name, content + last)
    line = 2 if name == "x.csv" else 1
    assert bad.name == f"{tmp_path / name}:{line}"
    assert reason in bad.problem
    assert "hidden" not in bad.problem
    assert (after.name, after.problem) == ("last.mp4", "")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("x.csv", "file,a\nb.mp4,1\n", "expected a column path or url, found 'file', 'a'"),
        ("x.csv", "", "expected a column path or url, found none"),
        ("x.csv", "path,größe\n".encode("latin-1"), "expected names of columns in UTF-8, got others"),
        ("x.parquet", "no table", "expected a Parquet file"),
    ],
)
def test_a_table_without_names_is_refused(tmp_path, name, content, reason):
    with pytest.raises(UsageError, match=reason):
        rows(tmp_path / name, content)


def test_a_list_that_is_not_there_is_refused(tmp_path):
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(UsageError, match=f"--from {path}: expected a file with a list of sources"):
            SourceList(str(path))


def test_a_long_line_takes_little_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(source_list, "MOST_BYTES", 1000)
    found = rows(tmp_path / "list", b"x" * 1_000_000 + b"\n" + b"y" * 1000)
    assert [bool(row.problem) for row in found] == [True, False]


def test_a_row_of_many_lines_takes_little_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(source_list, "MOST_BYTES", 1000)
    bad, *_, last = rows(tmp_path / "films.csv", 'path,a\nb,"' + 'y\n","' * 1000 + "\nlast.mp4,1\n")
    assert bad.problem.startswith("expected a row of a table")
    assert last.name == "last.mp4"


def test_columns_go_into_records_and_stay_there(media, tmp_path):
    table = tmp_path / "films.csv"
    table.write_text(f"path,title\n{media / 'old.avi'},One\nnone.mp4,Two\n,Three\n{media / 'old.avi'},Four\n")
    command = reelscribe("shots", "--out", tmp_path / "out", "--format", "csv")
    run = subprocess.run([*command, "--from", table], capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode == 3, run.stderr

    def found() -> dict:
        lines = (tmp_path / "out" / "annotations.jsonl").read_text().splitlines()
        return {record["source"]["path"]: record for record in map(json.loads, lines)}

    assert {name: record["extra"] for name, record in found().items()} == {
        str(media / "old.avi"): {"title": "One"},
        "none.mp4": {"title": "Two"},
        f"{table}:4": None,
    }
    assert "expected a name in the column path or url" in found()[f"{table}:4"]["error"]["message"]
    with (tmp_path / "out" / "sources.csv").open(newline="") as file:
        assert {row["extra"] for row in csv.DictReader(file)} == {'{"title":"One"}', '{"title":"Two"}', ""}
    subprocess.run([*command, media / "old.avi"], check=True, capture_output=True, timeout=PATIENCE)
    assert found()[str(media / "old.avi")]["extra"] == {"title": "One"}


def test_names_come_through_a_pipe(media, tmp_path):
    listed = b"\0".join(os.fsencode(media / name) for name in ("old.avi", "same-640x360.webm"))
    command = reelscribe("shots", "--out", tmp_path / "out", "--from", "-", "-0")
    subprocess.run(command, input=listed, check=True, capture_output=True, timeout=PATIENCE)
    lines = (tmp_path / "out" / "annotations.jsonl").read_text().splitlines()
    assert [json.loads(line)["source"]["path"] for line in lines] == [
        str(media / "old.avi"),
        str(media / "same-640x360.webm"),
    ]
