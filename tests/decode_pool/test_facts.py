import hashlib
import os

import pytest

from reelscribe.decode_pool.child_main import digest_file, read_header
from reelscribe.errors import MediaError, SourceChanged


def test_a_file_is_described_by_its_size_and_the_digest_of_its_bytes(tmp_path):
    path = tmp_path / "a.mp4"
    path.write_bytes(b"video")
    source = digest_file(str(path))
    assert (source.path, source.bytes, source.sha256) == (str(path), 5, hashlib.sha256(b"video").hexdigest())


def test_the_heartbeat_is_called_while_a_large_file_is_read(tmp_path):
    path, beats = tmp_path / "large.mp4", []
    path.write_bytes(bytes(5 * 2**20))
    digest_file(str(path), lambda: beats.append("heartbeat"))
    assert len(beats) >= 5


def test_a_file_that_is_written_to_meanwhile_gets_no_digest(tmp_path):
    path = tmp_path / "a.mp4"
    path.write_bytes(b"video")
    with pytest.raises(SourceChanged, match="it was changed while it was being read"):
        digest_file(str(path), lambda: path.write_bytes(b"other"))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing.mp4", "it cannot be read: No such file or directory"),
        ("folder", "expected a regular file"),
        ("pipe.mp4", "expected a regular file"),
        ("file.mp4/b.mp4", "it cannot be read: Not a directory"),
    ],
)
def test_what_cannot_be_read_gives_the_reason_without_its_path(tmp_path, name, reason):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.mp4").touch()
    os.mkfifo(tmp_path / "pipe.mp4")
    with pytest.raises(MediaError) as caught:
        digest_file(str(tmp_path / name))
    assert str(caught.value).startswith(reason)
    assert str(tmp_path) not in str(caught.value)


def test_no_header_is_read_from_a_pipe_which_would_never_answer(tmp_path):
    os.mkfifo(tmp_path / "pipe.mp4")
    with pytest.raises(MediaError, match="expected a regular file"):
        read_header(str(tmp_path / "pipe.mp4"))
