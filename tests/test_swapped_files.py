"""Somebody else puts links and other files in the place of what is being written, at the worst moments."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from reelscribe._files import atomic_file
from reelscribe.errors import ReelscribeError
from reelscribe.export.beside import write_beside
from reelscribe.export.folder import ExportFolder
from reelscribe.export.speakers import NameChange, change_speaker_names
from reelscribe.results.annotations import write_results
from reelscribe.thumbnails.store import ThumbnailStore
from support.exporting import annotations, transcript_record


def write_file(folder: Path) -> None:
    with atomic_file(folder / "file") as file:
        file.write(b"ours")


def write_export(folder: Path) -> None:
    with ExportFolder(folder).file("captions.csv") as file:
        file.write(b"ours")


def write_subtitles(folder: Path) -> None:
    value = transcript_record(str(folder / "film.mp4"), "hello")
    value["source"]["absolute_path"] = str(folder / "film.mp4")
    (folder / "out").mkdir()
    done = write_beside(annotations(folder / "out", [value]), folder / "out", ["srt"])
    if done.failures:
        raise OSError(done.failures[0])


WRITERS = {
    "a file": write_file,
    "an export": write_export,
    "beside a source": write_subtitles,
    "results": lambda folder: write_results(folder, []),
    "speakers": lambda folder: change_speaker_names(folder, ["/a.mp4"], [NameChange("A", True, "", "Ms B")]),
    "a thumbnail": lambda folder: ThumbnailStore(folder).write("0f" * 32, 1.0, b"RIFF"),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize("moment", ["unlink", "open"])
def test_nothing_is_written_through_what_is_put_there_meanwhile(tmp_path, monkeypatch, write, moment):
    (tmp_path / "folder").mkdir()
    victim, swapped, call = tmp_path / "victim", [], getattr(os, moment)
    victim.write_text("of somebody")

    def call_and_swap(path, *arguments, dir_fd=None, **options):
        if not str(path).endswith(".partial"):
            return call(path, *arguments, dir_fd=dir_fd, **options)
        with suppress(FileNotFoundError):
            swapped.append(call(path, *arguments, dir_fd=dir_fd, **options))
        if moment == "open":
            os.unlink(path, dir_fd=dir_fd)
        os.symlink(victim, path, dir_fd=dir_fd)
        return swapped and swapped[-1]

    monkeypatch.setattr(os, moment, call_and_swap)
    with pytest.raises((OSError, ReelscribeError)):
        write(tmp_path / "folder")
    assert victim.read_text() == "of somebody"


@pytest.mark.parametrize("durable", [False, True])
def test_what_is_renamed_is_what_was_written(tmp_path, durable):
    path = tmp_path / "file"
    with (
        pytest.raises(FileExistsError, match=r"somebody else has put file\.partial in the place of what was written"),
        atomic_file(path, durable=durable) as file,
    ):
        file.write(b"ours")
        (tmp_path / "other").write_bytes(b"theirs")
        (tmp_path / "other").rename(tmp_path / "file.partial")
    assert not path.exists()
