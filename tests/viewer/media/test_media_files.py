"""Only the file that the run has read is played and decoded, whatever has taken its place."""

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from reelscribe.viewer.media import source_previews
from reelscribe.viewer.media.media_files import MediaFiles, MediaRefused
from reelscribe.viewer.media.source_previews import SourcePreviews
from support.browsing import caption, open_index, record_of_file, row_of, write_annotations
from support.videos import write


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A folder of two videos of the same size, one of which a run has captioned; "linked" is a link to its folder."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "real").mkdir()
    (folder / "other").mkdir()
    write(folder / "real" / "a.avi", "mpeg4", [50] * 5)
    content = bytearray((folder / "real" / "a.avi").read_bytes())
    content[-100] ^= 1
    (folder / "other" / "a.avi").write_bytes(content)
    return folder


@pytest.fixture
async def linked(library, tmp_path):
    """The source as it was given to the run, through a link to its folder; and the folder of results beside it."""
    (tmp_path / "linked").symlink_to(library / "real")
    await caption(tmp_path / "out", tmp_path / "linked" / "a.avi")
    return tmp_path / "linked" / "a.avi"


def opened(out, path) -> bytes:
    """The content of a source as it is decoded for pages."""
    with open_index(out) as index, MediaFiles(out).checked_path(row_of(index, path)) as checked:
        return checked.read_bytes()


async def test_a_library_behind_a_link_is_read_as_long_as_the_link_leads_to_the_same_file(library, linked, tmp_path):
    assert opened(tmp_path / "out", linked) == linked.read_bytes()
    linked.parent.unlink()
    linked.parent.symlink_to(library / "other")
    with pytest.raises(MediaRefused, match="leads through a symbolic link to a file that the run has not read"):
        opened(tmp_path / "out", linked)


async def test_a_folder_in_the_place_of_another_is_refused_too(library, linked, tmp_path):
    linked.parent.unlink()
    linked.parent.mkdir()
    linked.write_bytes((library / "other" / "a.avi").read_bytes())
    with pytest.raises(MediaRefused, match="is a file that the run has not read"):
        opened(tmp_path / "out", linked)


async def test_without_a_ledger_no_link_is_on_the_way(library, linked, tmp_path):
    (tmp_path / "out" / "ledger.sqlite").unlink()
    with pytest.raises(MediaRefused, match="leads through a symbolic link, and no ledger knows"):
        opened(tmp_path / "out", linked)
    linked.parent.unlink()
    os.rename(library / "real", linked.parent)
    try:
        assert opened(tmp_path / "out", linked) == linked.read_bytes()
    finally:
        os.rename(linked.parent, library / "real")


def test_what_was_checked_is_read_whatever_takes_its_place_meanwhile(library, tmp_path):
    path = tmp_path / "a.avi"
    path.write_bytes(b"checked")
    write_annotations(tmp_path / "out", record_of_file(path))
    with (
        open_index(tmp_path / "out") as index,
        MediaFiles(tmp_path / "out").checked_path(row_of(index, path)) as checked,
    ):
        path.unlink()
        path.symlink_to("/etc/passwd")
        assert checked.read_bytes() == b"checked"


def test_a_record_without_a_size_plays_nothing_and_says_so(tmp_path):
    path = tmp_path / "a.avi"
    path.write_bytes(b"four")
    value = record_of_file(path)
    value["source"]["bytes"] = None
    write_annotations(tmp_path / "out", value)
    with pytest.raises(MediaRefused, match="it has 4 bytes, and its record says no size"):
        opened(tmp_path / "out", path)


@pytest.fixture
async def row(library, tmp_path):
    await caption(tmp_path / "out", library / "real" / "a.avi")
    with open_index(tmp_path / "out") as index:
        return row_of(index, library / "real" / "a.avi")


async def test_a_preview_is_found_while_another_one_is_being_made(row, tmp_path, monkeypatch):
    made = SourcePreviews(tmp_path, MediaFiles(tmp_path / "out"))
    assert made.find(row) is None
    os.close(made.make(row, Event()).descriptor)
    other, begun, ends = row._replace(content="0" * 64), Event(), Event()

    def make_slowly(_, path, *, cancelled):
        begun.set()
        ends.wait()
        path.write_bytes(b"slow")

    monkeypatch.setattr(source_previews, "make_preview", make_slowly)
    with ThreadPoolExecutor(1) as thread:
        making = thread.submit(made.make, other, Event())
        begun.wait()
        os.close(made.find(row).descriptor)
        assert made.find(other) is None
        ends.set()
        os.close(making.result().descriptor)


async def test_a_preview_that_nobody_waits_for_is_not_made_until_somebody_does(row, tmp_path):
    made = SourcePreviews(tmp_path, MediaFiles(tmp_path / "out"))
    gone = Event()
    gone.set()
    with pytest.raises(MediaRefused, match="nobody waits"):
        made.make(row, gone)
    os.close(made.make(row, Event()).descriptor)


async def test_the_previews_that_were_not_asked_for_the_longest_go_first(row, tmp_path):
    made = SourcePreviews(tmp_path, MediaFiles(tmp_path / "out"), most_bytes=2**30 + 150)
    for name, age in (("old", 300), ("new", 100), ("mine", 900)):
        path = tmp_path / "previews" / (f"{name}.webm" if name == "mine" else f"{name[0].encode().hex() * 32}.webm")
        path.write_bytes(bytes(100))
        os.utime(path, (1e9 - age, 1e9 - age))
    os.close(made.make(row, Event()).descriptor)
    kept = set(os.listdir(tmp_path / "previews"))
    assert kept == {"mine.webm", f"{b'n'.hex() * 32}.webm", f"{row.content}.webm"}


@pytest.mark.parametrize("digest", [None, "", "../../x", "A" * 64])
async def test_a_record_without_a_digest_has_no_preview(row, tmp_path, digest):
    made = SourcePreviews(tmp_path, MediaFiles(tmp_path / "out"))
    with pytest.raises(MediaRefused, match="no SHA-256"):
        made.find(row._replace(content=digest))
