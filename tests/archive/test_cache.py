"""Archives that were received: kept once, whole, private, and within a limit."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reelscribe.archive.cache import ArchiveCache
from reelscribe.errors import StartupError, UsageError

CHUNKS = [b"chunk", b"", b"of an archive"]


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


SHA256 = digest(b"".join(CHUNKS))


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "archives"


def receive(cache: ArchiveCache, content: bytes, name: str = "model.mar") -> str:
    with cache.receive(digest(content), name) as write:
        write(content)
    return digest(content)


def test_an_archive_that_came_in_chunks_is_there_for_other_processes_too(folder):
    cache, other = ArchiveCache(folder), ArchiveCache(folder)
    with cache.receive(SHA256, "blip2.mar") as write:
        for chunk in CHUNKS:
            write(chunk)
            assert not other.has(SHA256)
    assert other.has(SHA256)
    with other.use(SHA256) as path:
        assert path == folder / SHA256 / "blip2.mar"
        assert path.read_bytes() == b"".join(CHUNKS)


def test_the_usual_folder_is_for_its_user_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cache = ArchiveCache()
    with cache.use(receive(cache, b"1")) as path:
        assert path.relative_to(tmp_path).parts[:2] == (f"reelscribe-{os.getuid()}", "archives")
    assert [each.stat().st_mode & 0o777 for each in (*path.parents[1:3], path)] == [0o700, 0o700, 0o600]


def test_a_wrong_digest_leaves_nothing(folder):
    cache = ArchiveCache(folder)
    refused = pytest.raises(StartupError, match=f"expected the digest {SHA256}, got .*; send it again")
    with refused, cache.receive(SHA256, "x.mar") as write:
        write(b"other")
    assert not cache.has(SHA256)
    assert [path.name for path in folder.iterdir()] == [".lock"]


RECEIVE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from reelscribe.archive.cache import ArchiveCache

with ArchiveCache(Path(sys.argv[1])).receive(sys.argv[2], "x.mar") as write:
    write(b"half of it")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_has_received_is_no_archive_and_is_removed_by_the_next(folder):
    cache = ArchiveCache(folder)
    assert subprocess.run([sys.executable, "-c", RECEIVE_AND_DIE, str(folder), SHA256]).returncode < 0
    assert not cache.has(SHA256)
    assert len(list(folder.iterdir())) == 2
    other = receive(cache, b"another")
    assert {path.name for path in folder.iterdir()} == {".lock", other}


def test_of_several_that_receive_the_same_archive_at_once_the_first_one_counts(folder):
    cache, other = ArchiveCache(folder), ArchiveCache(folder)
    with cache.receive(SHA256, "x.mar") as write:
        with other.receive(SHA256, "x.mar") as write_other:
            write_other(b"".join(CHUNKS))
        with other.use(SHA256) as used:
            inode = used.stat().st_ino
            write(b"".join(CHUNKS))
    assert [path.stat().st_ino for path in folder.glob("*/*")] == [inode]


def test_those_that_were_not_used_for_the_longest_time_are_removed_but_none_that_is_in_use(folder):
    cache, other = ArchiveCache(folder, limit=30), ArchiveCache(folder)
    first, second, third = (receive(cache, bytes([k]) * 10) for k in range(3))
    for k, each in enumerate((first, second, third)):
        os.utime(folder / each / "model.mar", (k, k))
    with other.use(second):
        pass
    with other.use(first):
        fourth = receive(cache, b"4" * 10)
        assert [cache.has(each) for each in (first, second, third, fourth)] == [True, True, False, True]
        os.utime(folder / first / "model.mar", (0, 0))
        huge = receive(cache, b"5" * 100)
    assert [cache.has(each) for each in (first, second, fourth, huge)] == [True, False, False, True]


def test_a_folder_that_others_may_have_prepared_is_refused(folder, tmp_path):
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(StartupError, match=r"expected a folder of this user alone, got .* with mode 755"):
        ArchiveCache(folder)
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(StartupError, match="expected a folder, got a link"):
        ArchiveCache(tmp_path / "link")


def test_a_folder_of_somebody_else_is_refused(folder, monkeypatch):
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(StartupError, match="expected a folder of this user alone"):
        ArchiveCache(folder)


@pytest.mark.parametrize("name", ["../x.mar", "x.zip", "a,b.mar", ".mar", "/x.mar"])
def test_names_that_are_no_file_names_of_archives_are_refused(folder, name):
    with pytest.raises(UsageError, match="expected the file name of an archive"):
        receive(ArchiveCache(folder), b"", name)


def test_an_archive_that_is_not_there_cannot_be_used(folder):
    cache = ArchiveCache(folder)
    with pytest.raises(StartupError, match=r"no archive with the digest .* is there; send it again"), cache.use(SHA256):
        pass
    with pytest.raises(UsageError, match="64 hexadecimal digits"):
        cache.has("../" + SHA256)
