"""Folder locks, files that appear only when they are complete, and sources that may change while they are read."""

import errno
import fcntl
import os
import signal
import time

import pytest

from reelscribe._files import FolderLock, OpenSource, atomic_file, regular_file, writer_of
from reelscribe.errors import OutputError


def test_only_one_run_at_a_time_can_lock_a_folder(tmp_path):
    out = tmp_path / "new" / "out"
    with FolderLock(out):
        assert writer_of(out) == "run"
        with pytest.raises(OutputError, match="another run is writing there; wait for its end, or choose"):
            FolderLock(out).__enter__()
        assert writer_of(out) == "run"
    assert writer_of(out) is None
    with FolderLock(out):
        assert writer_of(out) == "run"


def test_a_folder_that_does_not_exist_is_not_locked(tmp_path):
    assert writer_of(tmp_path / "nowhere") is None


def test_an_error_names_the_folder_that_cannot_be_created(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"file/out: not a folder that can be written to: .*Not a directory"):
        FolderLock(tmp_path / "file" / "out").__enter__()


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDONLY | os.O_NOFOLLOW, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW])
def test_a_file_on_which_a_program_has_a_lease_is_opened_when_it_is_given_back(tmp_path, flags):
    path = tmp_path / "film.mp4"
    path.write_text("film")
    asked = []
    with path.open("rb") as holder:

        def give_back(*_):
            asked.append(fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_UNLCK))

        before = signal.signal(signal.SIGIO, give_back)
        try:
            fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            with open(regular_file(path, flags), "rb") as file:
                assert file.read() == b"film"
        finally:
            signal.signal(signal.SIGIO, before)
    assert asked


def test_a_disk_without_locks_gets_another_error_than_a_folder_that_cannot_be_written_to(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(
        OutputError, match=r"cannot be locked \(.*No locks available\); choose an --out on a local disk"
    ):
        FolderLock(tmp_path).__enter__()


@pytest.mark.parametrize("durable", [False, True])
def test_an_atomic_file_appears_when_its_block_ends(tmp_path, durable):
    path = tmp_path / "table.csv"
    with atomic_file(path, durable=durable) as file:
        file.write(b"content")
        assert not path.exists()
    assert path.read_text() == "content"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("durable", [False, True])
def test_an_atomic_file_whose_block_fails_leaves_the_old_file_as_it_was(tmp_path, durable):
    path = tmp_path / "table.csv"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_file(path, durable=durable) as file:
        file.write(b"new")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert (tmp_path / "table.csv.partial").exists() == durable


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_file_is_never_written_through_a_link_of_its_names(tmp_path, link):
    other, path = tmp_path / "other", tmp_path / "table.csv"
    other.write_text("of the user")
    link(other, path)
    link(other, tmp_path / "table.csv.partial")
    with atomic_file(path) as file:
        file.write(b"content")
    assert other.read_text() == "of the user"
    assert path.read_text() == "content"
    assert not path.is_symlink()


def test_a_lock_tells_who_writes(tmp_path):
    with FolderLock(tmp_path, "export"):
        assert writer_of(tmp_path) == "export"
        with (
            pytest.raises(OutputError, match="another export is writing there; wait for its end"),
            FolderLock(tmp_path),
        ):
            pass
    with FolderLock(tmp_path):
        assert writer_of(tmp_path) == "run"
    assert writer_of(tmp_path) is None


def test_a_source_is_read_when_all_later_writes_have_another_time(tmp_path):
    path = tmp_path / "source.mp4"
    path.write_bytes(b"just written")
    with OpenSource(str(path)) as source:
        tick = 10_000_000  # nanoseconds, before Linux 6.13
        assert time.time_ns() - os.stat(path).st_ctime_ns > tick
        source.check()
