"""A folder belongs to one process at a time."""

import errno
import fcntl
import os

import pytest

from reelscribe._files import FolderLock, is_locked
from reelscribe.errors import OutputError


def test_a_folder_belongs_to_one_run_at_a_time(tmp_path):
    out = tmp_path / "new" / "out"
    with FolderLock(out):
        assert is_locked(out)
        with pytest.raises(OutputError, match="another run is writing there; choose another --out"):
            FolderLock(out).__enter__()
        assert is_locked(out)
    assert not is_locked(out)
    with FolderLock(out):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"file/out: not a folder that can be written to: .*Not a directory"):
        FolderLock(tmp_path / "file" / "out").__enter__()


def test_a_disk_that_has_no_locks_is_told_from_one_that_cannot_be_written_to(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(
        OutputError, match=r"cannot be locked \(.*No locks available\); choose an --out on a local disk"
    ):
        FolderLock(tmp_path).__enter__()
