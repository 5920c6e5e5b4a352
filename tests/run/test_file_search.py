import errno
import os
import re
import tarfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from reelscribe.contract.source import MEDIA_SUFFIXES, VIDEO_SUFFIXES
from reelscribe.errors import UsageError
from reelscribe.reporting.plan import other_files
from reelscribe.run.file_search import Found, Selection, check_names, find_sources
from reelscribe.storage.stores import Stores
from support.buckets import SCHEMES, bucket_server


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
        ("notes.tar", "expected media files in this archive, found none$"),
        ("empty", "expected media files in this folder, found none$"),
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


TREE = [
    "films [2020]/one.mp4",
    "films 2/two.mp4",
    "star1/deep/three.mp4",
    "star2/four.DV",
    "star*x/five.mp4",
    "what?.mp4",
    "whats.mp4",
    "stars.txt",
]


@pytest.fixture(params=["folder", *SCHEMES], scope="module")
def places(request, tmp_path_factory):
    """A folder or a bucket with these files, as what stands before their names."""
    tree = tmp_path_factory.mktemp("tree")
    for name in TREE:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()
    with pytest.MonkeyPatch.context() as monkeypatch, ExitStack() as stack:
        if request.param in SCHEMES:
            stack.enter_context(bucket_server(request.param, monkeypatch, tree))
        yield f"{tree}/" if request.param == "folder" else f"{request.param}://bucket/"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("films [2020]", ["films [2020]/one.mp4"]),
        ("films [2020]/", ["films [2020]/one.mp4"]),
        ("films [2020]/*.mp4", ["films [2020]/one.mp4"]),
        ("films [2020]/o[nm]e.mp4", ["films [2020]/one.mp4"]),
        ("films [2]/*.mp4", ["films 2/two.mp4"]),
        ("what?.mp4", ["what?.mp4"]),
        ("wha[t]?.mp4", ["what?.mp4", "whats.mp4"]),
        ("star[12]", ["star1/deep/three.mp4", "star2/four.DV"]),
        ("star*/", ["star*x/five.mp4", "star1/deep/three.mp4", "star2/four.DV"]),
        ("star*x/*", ["star*x/five.mp4"]),
        ("star**/f*.mp4", ["star*x/five.mp4"]),
        ("**/", [each for each in TREE if not each.endswith("txt")]),
    ],
)
def test_a_name_means_itself_and_else_a_glob_in_folders_as_in_buckets(places, name, expected):
    found = {each.removeprefix(places).removeprefix("./") for each in paths([places + name])}
    assert sorted(found) == sorted(expected)


def test_what_a_folder_holds_besides_is_counted(library):
    others = ["b.txt", "photo.JPG", "sub/.b.mp4", "Makefile", "._b.mp4", "sub/.DS_Store", "__MACOSX/._a", "song.mp3"]
    for name in [*others, "out/ledger.sqlite", "out/thumbnails/1.jpg"]:
        (library / name).parent.mkdir(exist_ok=True)
        (library / name).touch()
    (library / "link").symlink_to(library / "deep")
    left_out = Counter[str]()
    assert len(list(find_sources([str(library)], VIDEO_SUFFIXES, Stores(), left_out))) == 3
    kinds = {".txt": 2, ".jpg": 1, ".mp3": 1, "hidden": 1, "without suffix": 1, "links to folders": 1}
    assert left_out == kinds
    assert other_files(left_out) == (
        "7 other files: .txt 2, .jpg 1, .mp3 1, hidden 1, links to folders 1, without suffix 1"
    )


def test_what_a_bucket_and_an_archive_hold_besides_is_counted(places, tmp_path):
    with tarfile.open(tmp_path / "s.tar", "w") as tar:
        for name in ("0.mp4", "0.json", "._0.mp4", "0.jpg", "inner.tar", "1.zip"):
            tar.addfile(tarfile.TarInfo(name))
    left_out = Counter[str]()
    list(find_sources([places, str(tmp_path / "s.tar")], VIDEO_SUFFIXES, Stores(), left_out))
    assert left_out == {".txt": 1, ".jpg": 1, ".tar": 1, ".zip": 1}


def test_a_folder_without_media_says_what_it_holds(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(
        UsageError, match=r"media files in this folder, found none, but 1 other file: \.txt 1; video or audio that"
    ):
        check_names([str(tmp_path)], VIDEO_SUFFIXES, Selection(), Stores())


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


@pytest.mark.parametrize("chosen", ["films [2020]/one.mp4", "films [2020]/*", "o[n]e.mp4", "one [[]a].mp4"])
def test_brackets_in_globs_stand_for_themselves_too(chosen):
    found = Found("films [2020]/one.mp4" if "a]" not in chosen else "one [a].mp4")
    assert Selection(include=[chosen]).takes(found)
    assert not Selection(exclude=[chosen]).takes(found)
