import hashlib
import os
from pathlib import Path

import pytest

from reelscribe.decode.source_file import MEDIA_SUFFIXES, digest_file
from reelscribe.errors import MediaError
from reelscribe.run.sources import find_sources


@pytest.fixture
def library(tmp_path: Path) -> Path:
    for name in ("b.mp4", "a.MKV", "notes.txt", "deep/er/c.webm"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path


def test_a_folder_stands_for_its_media_sorted(library):
    (library / "._b.mp4").touch()
    (library / "folder.mp4").mkdir()
    (library / "gone.mp4").symlink_to("nowhere")
    found = [os.path.relpath(path, library) for path in find_sources([str(library)])]
    assert found == ["a.MKV", "b.mp4", "deep/er/c.webm", "gone.mp4"]


def test_where_sound_is_wanted_files_of_sound_alone_are_found_too(library):
    for name in ("speech.WAV", "deep/song.ogg"):
        (library / name).touch()
    assert not any(path.endswith(("WAV", "ogg")) for path in find_sources([str(library)]))
    found = find_sources([str(library)], MEDIA_SUFFIXES)
    assert {str(library / "speech.WAV"), str(library / "deep" / "song.ogg")} <= set(found)


def test_files_globs_and_what_is_not_there_stand_in_order_and_once(library):
    text, missing = str(library / "notes.txt"), str(library / "missing.mp4")
    found = find_sources([text, missing, str(library / "*.mp4"), str(library / "b.mp4")])
    assert found == [text, missing, str(library / "b.mp4")]


def test_a_file_is_identified_by_its_bytes(library):
    source = digest_file(str(library / "b.mp4"))
    assert (source.bytes, source.sha256) == (5, hashlib.sha256(b"b.mp4").hexdigest())


def test_a_file_is_read_with_signs_of_life(library):
    beats = []
    (library / "large.mp4").write_bytes(bytes(5 * 2**20))
    digest_file(str(library / "large.mp4"), lambda: beats.append("heartbeat"))
    assert len(beats) >= 5


def test_what_cannot_be_read_says_why_without_its_path(library):
    os.mkfifo(library / "pipe.mp4")
    for name, reason in {
        "missing.mp4": "it cannot be read: No such file or directory",
        "deep": "a folder without media; expected files that end in .3gp, .asf",
        "pipe.mp4": "expected a regular file",
        "a.MKV/b.mp4": "it cannot be read: Not a directory",
    }.items():
        with pytest.raises(MediaError) as caught:
            digest_file(str(library / name))
        assert str(caught.value).startswith(reason)
        assert str(library) not in str(caught.value)
