import errno
import os
import re
import tarfile
import time
from pathlib import Path

import pytest

from reelscribe.contract.source import MEDIA_SUFFIXES, VIDEO_SUFFIXES
from reelscribe.errors import UsageError
from reelscribe.run.file_search import Found, Selection, check_names, find_sources
from reelscribe.storage.stores import Stores


@pytest.fixture
def library(tmp_path: Path) -> Path:
    for name in ("b.mp4", "a.MKV", "notes.txt", "deep/er/c.webm"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path


def paths(names: list[str], suffixes=VIDEO_SUFFIXES) -> list[str]:
    return [found.path for found in find_sources(names, suffixes, Stores())]


def test_a_folder_stands_for_its_media_sorted(library):
    (library / "._b.mp4").touch()
    (library / "folder.mp4").mkdir()
    (library / "gone.mp4").symlink_to("nowhere")
    found = [os.path.relpath(path, library) for path in paths([str(library)])]
    assert found == ["a.MKV", "b.mp4", "deep/er/c.webm", "gone.mp4"]


def test_where_sound_is_wanted_files_of_sound_alone_are_found_too(library):
    for name in ("speech.WAV", "deep/song.ogg"):
        (library / name).touch()
    assert not any(path.endswith(("WAV", "ogg")) for path in paths([str(library)]))
    found = paths([str(library)], MEDIA_SUFFIXES)
    assert {str(library / "speech.WAV"), str(library / "deep" / "song.ogg")} <= set(found)


def test_files_and_globs_stand_in_order(library):
    text = str(library / "notes.txt")
    again = str(library / "deep" / ".." / "b.mp4")
    assert paths([text, str(library / "*.mp4"), again]) == [text, str(library / "b.mp4"), again]


def test_a_glob_that_matches_folders_stands_for_the_media_in_them(library):
    found = set(paths([str(library / "**")]))
    assert sorted(os.path.relpath(path, library) for path in found) == ["a.MKV", "b.mp4", "deep/er/c.webm", "notes.txt"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing.mp4", "no such file or folder; check the path"),
        ("notes.tar", "expected media files in this archive, found none; media files end in .3gp"),
        ("empty", "expected media files in this folder, found none; media files end in .3gp"),
        ("*.webm", "matches nothing; check it, and quote it"),
        ("ftp://example.org/a.mp4", "or addresses with s3, gs, az, https, http; download it first"),
        ("-", "cannot be read from standard input"),
    ],
)
def test_a_name_that_matches_nothing_is_refused(library, monkeypatch, name, reason):
    (library / "empty").mkdir()
    tarfile.open(library / "notes.tar", "w").close()
    monkeypatch.chdir(library)
    with pytest.raises(UsageError, match=rf"^'{re.escape(name)}': .*{reason}"):
        check_names(["b.mp4", name], VIDEO_SUFFIXES, Selection(), Stores())


def test_a_file_that_may_not_be_looked_at_is_not_called_missing(monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "lstat", refuse)
    with pytest.raises(UsageError, match=r"'closed/a\.mp4': you may not look into its folder"):
        check_names(["closed/a.mp4"], VIDEO_SUFFIXES, Selection(), Stores())


def test_the_order_is_that_of_the_paths_and_links_to_folders_are_not_followed(tmp_path):
    names = ["a/1.mp4", "a/b/2.mp4", "a-b.mp4", "a.mp4", "a0.mp4", "b/c-d/3.mp4", "b/c/4.mp4", "b/c.mp4"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a" / "circle").symlink_to(tmp_path)
    assert paths([str(tmp_path)]) == sorted(str(tmp_path / name) for name in names)


def test_a_file_that_is_being_written_is_left_until_it_rests(library):
    file, waiting = Found(str(library / "b.mp4")), Selection(rest_seconds=3600)
    os.utime(file.path, (0, 0))  # a copy may keep the time of the original
    assert not waiting.takes(file)
    assert Selection().takes(file)
    assert waiting.takes(Found("s3://bucket/b.mp4"))  # objects appear whole
    assert waiting.takes(Found(str(library / "gone.mp4")))


def test_a_file_rests_if_the_clock_was_set_back_since_it_was_written(library, monkeypatch):
    yesterday = time.time() - 86_400
    monkeypatch.setattr(time, "time", lambda: yesterday)
    assert Selection(rest_seconds=3600).takes(Found(str(library / "b.mp4")))


def test_what_cannot_be_a_source_is_never_left_out():
    assert Selection(include=["*.mp4"], exclude=["*"]).takes(Found("films.csv:17", problem="no name"))


def test_globs_see_the_file_names_of_members_and_addresses():
    chosen = Selection(include=["one.*"])
    assert chosen.takes(Found("shards/0.tar::a/one.mp4"))
    assert chosen.takes(Found("https://example.org/one.mp4?x=1"))
    assert not chosen.takes(Found("shards/one.tar::two.mp4"))
