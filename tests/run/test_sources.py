import os
from pathlib import Path

import pytest

from reelscribe.contract.source import MEDIA_SUFFIXES
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
