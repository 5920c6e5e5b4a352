from pathlib import Path

import pytest

from reelscribe.errors import UsageError
from reelscribe.media import Source
from reelscribe.records import Model, Record
from reelscribe.writers import write_annotations

RECORD = Record(Source("a.mp4"), Model("m", "r"), {})


def test_the_file_appears_when_it_is_whole(tmp_path: Path):
    path = tmp_path / "new" / "annotations.jsonl"
    with write_annotations(path) as write:
        write(RECORD)
        assert not path.exists()
    assert path.read_text() == RECORD.to_line() + "\n"
    assert list(path.parent.iterdir()) == [path]


def test_a_run_that_breaks_off_leaves_an_older_file_alone(tmp_path: Path):
    path = tmp_path / "annotations.jsonl"
    path.write_text("older\n")
    with pytest.raises(RuntimeError), write_annotations(path) as write:
        write(RECORD)
        raise RuntimeError
    assert path.read_text() == "older\n"
    assert path.with_name("annotations.jsonl.partial").read_text() == RECORD.to_line() + "\n"


def test_a_second_run_is_refused_and_the_first_is_not_disturbed(tmp_path: Path):
    path = tmp_path / "annotations.jsonl"
    with write_annotations(path) as write:
        write(RECORD)
        with pytest.raises(UsageError, match="another run is writing"), write_annotations(path):
            pass
        write(RECORD)
    assert path.read_text() == (RECORD.to_line() + "\n") * 2


def test_a_folder_in_the_place_of_the_file_is_seen_at_once(tmp_path: Path):
    (tmp_path / "annotations.jsonl").mkdir()
    with pytest.raises(UsageError, match="is a folder"), write_annotations(tmp_path / "annotations.jsonl"):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written to"), write_annotations(tmp_path / "file" / "a.jsonl"):
        pass
