"""The folder of an export: its files are whole, and errors of the disk are usage errors."""

import pytest

from reelscribe.errors import UsageError
from reelscribe.export.folder import ExportFolder


def test_folders_are_created_and_the_files_that_were_written_are_known(tmp_path):
    folder = ExportFolder(tmp_path / "new")
    path = tmp_path / "new" / "vtt" / "a.vtt"
    with folder.file("vtt/a.vtt") as partial:
        partial.write_text("content")
        assert not path.exists()
        assert folder.written == []
    assert path.read_text() == "content"
    assert folder.written == [path]
    assert list(path.parent.iterdir()) == [path]


def test_a_file_whose_block_fails_leaves_nothing_behind(tmp_path):
    folder = ExportFolder(tmp_path)
    with pytest.raises(ZeroDivisionError), folder.file("a.csv") as partial:
        partial.write_text("content")
        raise ZeroDivisionError
    assert folder.written == []
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_a_usage_error(tmp_path):
    (tmp_path / "file").touch()
    folder = ExportFolder(tmp_path / "file")
    with pytest.raises(UsageError, match=r"file cannot be written to: File exists"), folder.file("a.csv"):
        pytest.fail("the block must not run")
