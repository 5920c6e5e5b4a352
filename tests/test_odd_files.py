"""Pipes, devices, sockets and endless files that have the names of files which are read, or of sources."""

import hashlib
import json
import os
import socket
from contextlib import closing
from pathlib import Path

import pytest

from reelscribe._files import OpenSource
from reelscribe.archive.build import build
from reelscribe.client.credentials import ApiKey, Credentials
from reelscribe.decode.container import open_for_ffmpeg
from reelscribe.decode_pool.child_main import digest_file
from reelscribe.errors import MediaError, ReelscribeError, UsageError
from reelscribe.export.annotations_reader import read_lines, read_models
from reelscribe.export.speakers import NameChange, change_speaker_names, read_speaker_names
from reelscribe.server.instance import Instance
from reelscribe.server.start_options import StartOptions
from reelscribe.thumbnails.store import ThumbnailStore
from reelscribe.viewer.index import source_index
from support.memory import peak_memory


def bind(path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(os.path.relpath(path))  # a longer path is no name of a socket


def make_sparse(path: Path) -> None:
    path.touch(0o600)
    os.truncate(path, 2**40)


ODD = {
    "pipe": lambda path: os.mkfifo(path, 0o600),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "socket": bind,
    "folder": lambda path: path.mkdir(0o700),
    "endless": make_sparse,
}
READERS = {
    "speakers.toml": lambda path: read_speaker_names(path.parent),
    "run.json": lambda path: read_models(path.with_name("annotations.jsonl")),
    "annotations.jsonl": lambda path: list(read_lines(path, lambda line: int(line))),
    "key_file.json": lambda path: Credentials(path, found=True),
    "config.properties": lambda path: Instance(path.parent).settings(),
    "started-with.json": StartOptions.load,
    "caption.yaml": lambda path: build("a", "caption", "a/b", path.parent, handlers=path.parent),
}


@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_small_file_is_refused_at_once(tmp_path, monkeypatch, name, make):
    monkeypatch.setattr("reelscribe._files.MOST_SMALL_BYTES", 2**16)
    monkeypatch.setattr("reelscribe.export.annotations_reader.MOST_LINE_BYTES", 2**16)
    (tmp_path / "server").mkdir()
    path = (tmp_path / "server" if name == "config.properties" else tmp_path) / name
    make(path)
    with peak_memory() as peak, pytest.raises((OSError, ReelscribeError)):
        READERS[name](path)
    assert peak() < 2**21


def test_a_key_that_somebody_names_may_come_from_a_pipe():
    reader, writer = os.pipe()
    with open(reader, "rb"), open(writer, "w") as program:
        program.write("secret")
        program.close()
        key = ApiKey(f"/dev/fd/{reader}")  # as a shell passes it
        assert not key.reload_after_refusal("secret")  # nothing more comes
    assert key.token == "secret"


def test_models_of_a_large_library_are_more_than_a_small_file(tmp_path, monkeypatch):
    monkeypatch.setattr("reelscribe._files.MOST_SMALL_BYTES", 2**10)
    (tmp_path / "run.json").write_text(json.dumps({"settings": {}, "more": "x" * 2**10}))
    assert read_models(tmp_path / "annotations.jsonl") == {}


@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_no_name_is_saved_in_what_is_no_file(tmp_path, monkeypatch, make):
    monkeypatch.setattr("reelscribe._files.MOST_SMALL_BYTES", 2**16)
    make(tmp_path / "speakers.toml")
    with pytest.raises(UsageError, match="nothing was saved"):
        change_speaker_names(tmp_path, ["/a.mp4"], [NameChange("A", True, "", "Ms B")])


def test_a_pipe_is_no_thumbnail(tmp_path):
    store = ThumbnailStore(tmp_path)
    store.write("0f" * 32, 1.0, b"RIFF")
    path = store.path("0f" * 32, 1.0)
    path.unlink()
    os.mkfifo(path)
    assert store.read("0f" * 32, 1.0) is None


def test_pages_of_a_folder_with_a_pipe_of_records_are_refused_and_wait_for_nobody(tmp_path):
    os.mkfifo(tmp_path / "annotations.jsonl")
    (tmp_path / "cache").mkdir()
    with pytest.raises(OSError, match="not a regular file"), source_index.SourceIndex(tmp_path, tmp_path / "cache"):
        pytest.fail("the block must not run")


@pytest.mark.parametrize("name", ["pipe", "device", "socket"])
@pytest.mark.parametrize("read", [lambda path: open_for_ffmpeg(path).__enter__(), digest_file], ids=["media", "digest"])
def test_a_source_that_became_something_else_since_it_was_listed_keeps_nobody_waiting(
    tmp_path, monkeypatch, name, read
):
    monkeypatch.setattr(os.path, "isfile", lambda path: True)  # as it was then
    ODD[name](tmp_path / "a.mp4")
    with pytest.raises(MediaError, match=r"not a regular file|No such device"):
        read(str(tmp_path / "a.mp4"))


@pytest.mark.parametrize("path", ["/proc/self/status", "/proc/kallsyms"])
def test_a_file_of_the_kernel_is_no_source(path):
    with pytest.raises(MediaError, match="its size is 0, but it has bytes; expected a file of a disk"):
        digest_file(path)


def test_a_sparse_file_of_terabytes_is_no_source_and_takes_no_time(tmp_path):
    path = tmp_path / "a.mp4"
    path.write_bytes(b"\0\0\0\x20ftyp")
    os.truncate(path, 8 * 2**40)
    with pytest.raises(
        MediaError, match=r"of its 8796093022208 bytes, \d+ are on the disk; expected at least one in 64"
    ):
        digest_file(str(path))


@pytest.mark.parametrize("size", [0, 1, 2**20, 2**28])
def test_a_sparse_file_of_another_size_has_the_digest_of_its_bytes(tmp_path, size):
    path = tmp_path / "a.mp4"
    path.touch()
    os.truncate(path, size)
    assert digest_file(str(path)).sha256 == hashlib.sha256(bytes(size)).hexdigest()


def test_a_file_is_whole_if_its_disk_knows_no_holes(tmp_path, monkeypatch):
    path = tmp_path / "a.mp4"
    path.touch()
    os.truncate(path, 2**30)
    monkeypatch.setattr(os, "lseek", lambda fd, offset, whence: 2**30)  # so do file systems that do not tell holes
    with OpenSource(str(path)) as source:
        assert source.read(1) == b"\0"
