"""The folder of an export: its files are whole, and errors of the disk are usage errors."""

import re

import pytest

from reelscribe.errors import UsageError
from reelscribe.export.folder import ExportFolder


def test_folders_are_created_and_the_files_that_were_written_are_known(tmp_path):
    folder = ExportFolder(tmp_path / "new")
    path = tmp_path / "new" / "vtt" / "a.vtt"
    with folder.file("vtt/a.vtt") as file:
        file.write(b"content")
        assert not path.exists()
        assert folder.written == []
    assert path.read_text() == "content"
    assert folder.written == [path]
    assert list(path.parent.iterdir()) == [path]


def test_a_file_whose_block_fails_leaves_nothing_behind(tmp_path):
    folder = ExportFolder(tmp_path)
    with pytest.raises(ZeroDivisionError), folder.file("a.csv") as file:
        file.write(b"content")
        raise ZeroDivisionError
    assert folder.written == []
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_a_usage_error(tmp_path):
    (tmp_path / "file").touch()
    folder = ExportFolder(tmp_path / "file")
    with pytest.raises(UsageError, match=r"file cannot be written to: File exists"), folder.file("a.csv"):
        pytest.fail("the block must not run")


def test_only_old_files_with_the_names_of_exports_are_removed(tmp_path):
    for name in ("1.webp", "2.webp", "notes.txt", "x/1.webp", "x/notes.txt", "y/3.webp", "z/1.webp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    folder, pictures = ExportFolder(tmp_path), re.compile("[0-9][.]webp")
    assert folder.remove(".", pictures, {"2.webp"}) == 1
    assert folder.remove("missing", pictures, ()) == 0
    folder.remove_folders(".", re.compile("[xy]"), (), pictures)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert left == {"2.webp", "notes.txt", "x", "x/notes.txt", "z", "z/1.webp"}


def test_nothing_is_removed_through_a_symbolic_link(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "1.webp").touch()
    (tmp_path / "out").symlink_to("mine")
    folder, pictures = ExportFolder(tmp_path), re.compile("[0-9][.]webp")
    assert folder.remove("out", pictures, ()) == 0
    folder.remove_folders(".", re.compile("out"), (), pictures)
    assert (tmp_path / "mine" / "1.webp").exists()
    assert (tmp_path / "out").is_symlink()
