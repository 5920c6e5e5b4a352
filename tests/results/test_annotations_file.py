"""The file of records: it appears under its name only when it is whole."""

from pathlib import Path

import pytest

from reelscribe.contract.source import Source
from reelscribe.errors import OutputError
from reelscribe.results.annotations import AnnotationsWriter, CaptionResult, Model, Record, TranscriptResult

RECORD = Record(Source("a.mp4"), CaptionResult(Model("m", "r"), {}))
LINE = "".join(RECORD.iter_json()) + "\n"


def test_the_file_appears_when_it_is_whole_and_can_be_watched_before(tmp_path: Path):
    path, partial = tmp_path / "annotations.jsonl", tmp_path / "annotations.jsonl.partial"
    with AnnotationsWriter(tmp_path) as writer:
        writer.write(RECORD)
        assert not path.exists()
        assert partial.read_text() == LINE
        writer.write(RECORD)
    assert path.read_text() == LINE * 2
    assert list(tmp_path.iterdir()) == [path]


def test_an_older_file_is_replaced_when_the_new_one_is_whole(tmp_path: Path):
    path = tmp_path / "annotations.jsonl"
    path.write_text("older\n")
    with AnnotationsWriter(tmp_path) as writer:
        writer.write(RECORD)
        assert path.read_text() == "older\n"
    assert path.read_text() == LINE


def test_after_an_error_the_older_file_and_the_partial_file_are_kept(tmp_path: Path):
    path = tmp_path / "annotations.jsonl"
    path.write_text("older\n")
    with pytest.raises(RuntimeError), AnnotationsWriter(tmp_path) as writer:
        writer.write(RECORD)
        raise RuntimeError
    assert path.read_text() == "older\n"
    assert path.with_name("annotations.jsonl.partial").read_text() == LINE


def test_the_partial_file_of_an_earlier_run_is_overwritten(tmp_path: Path):
    (tmp_path / "annotations.jsonl.partial").write_text("left\n" * 100)
    with AnnotationsWriter(tmp_path) as writer:
        writer.write(RECORD)
    assert (tmp_path / "annotations.jsonl").read_text() == LINE


def test_a_path_that_is_not_utf_8_is_written_as_json_escapes(tmp_path: Path):
    with AnnotationsWriter(tmp_path) as writer:
        writer.write(Record(Source("caf\udce9.mp4"), RECORD.caption_result))
    assert r'"path": "caf\udce9.mp4"' in (tmp_path / "annotations.jsonl").read_text()


def test_a_folder_in_the_place_of_the_file_is_refused_at_once(tmp_path: Path):
    (tmp_path / "annotations.jsonl").mkdir()
    with pytest.raises(OutputError, match="a folder; expected a file"), AnnotationsWriter(tmp_path):
        pass


def test_a_missing_folder_is_named(tmp_path: Path):
    with pytest.raises(OutputError, match=r"gone/annotations.jsonl: cannot be written: .*No such file"):
        AnnotationsWriter(tmp_path / "gone").__enter__()


def test_a_full_disk_is_an_output_error_and_the_older_file_is_kept(tmp_path: Path):
    path = tmp_path / "annotations.jsonl"
    path.write_text("older\n")
    (tmp_path / "annotations.jsonl.partial").symlink_to("/dev/full")
    full = pytest.raises(OutputError, match=r"annotations.jsonl: cannot be written: .*No space left")
    with full, AnnotationsWriter(tmp_path) as writer:
        writer.write(RECORD)
    assert path.read_text() == "older\n"


def fail():
    raise KeyError("a bug")


@pytest.mark.parametrize(
    "record",
    [
        Record(Source("a.mp4"), caption_result=CaptionResult(Model("m", "r"), {}, results=fail)),
        Record(Source("a.mp4"), transcript_result=TranscriptResult(Model("m", "r"), {}, results=fail)),
    ],
)
def test_an_error_while_reading_a_record_is_no_output_error(tmp_path: Path, record: Record):
    with pytest.raises(KeyError), AnnotationsWriter(tmp_path) as writer:
        writer.write(record)


def test_an_error_of_the_block_is_no_output_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError), AnnotationsWriter(tmp_path):
        (tmp_path / "gone").read_text()
