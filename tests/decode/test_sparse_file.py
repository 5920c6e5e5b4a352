"""Frames that are read of a video with ranges missing are those of the whole video, whatever is in the file."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from reelscribe import _files
from reelscribe.contract.frames import InputSize
from reelscribe.decode.sampling import Sampling
from reelscribe.decode.video import Video, VideoTask
from reelscribe.errors import MediaError
from support.odd_media import write
from support.videos import write_noise

BLOCK = 2**12
LONG = range(150)
WITH_SOUND = {"audio": "aac", "options": {"g": "12", "bf": "2"}}
HEVC = {"x265-params": "log-level=none:keyint=25:bframes=3:scenecut=0"}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(_files, "BLOCK_BYTES", BLOCK)


class Copy:
    """A copy of a file that has only what was fetched."""

    def __init__(self, path: Path) -> None:
        self.content, self.blocks = path.read_bytes(), set()
        self.path = path.with_name(f"copy-{path.name}")
        self.path.write_bytes(bytes(len(self.content)))

    def fetch(self, first: int, stop: int) -> None:
        self.blocks.update(range(first, stop))
        with self.path.open("r+b") as file:
            file.seek(first * BLOCK)
            file.write(self.content[first * BLOCK : stop * BLOCK])

    @property
    def share(self) -> float:
        return len(self.blocks) * BLOCK / len(self.content)


def seen(path: Path, sampling: Sampling, fetch: Callable[[int, int], None] | None = None) -> list:
    """Everything that is said of a video, with the chosen frames; or the error."""
    try:
        with Video(VideoTask(str(path), InputSize(64, 48), sampling), fetch=fetch) as video:
            frames = [
                (frame.frame_index, frame.pts_seconds, None if frame.image is None else frame.image.tobytes())
                for frame in video.frames(range(len(video.chosen)))
            ]
            return [video.info, video.why_incomplete, video.times.tolist(), video.chosen, frames]
    except MediaError as error:
        return [type(error), str(error)]


def damaged(path: Path, media: Path) -> None:
    content = bytearray((media / "spoken.mp4").read_bytes())
    at, chance = content.index(b"mdat"), random.Random(1)
    for _ in range(5):
        place = chance.randrange(at + 1000, len(content) * 3 // 4)
        content[place : place + 200] = chance.randbytes(200)
    path.write_bytes(content)


def cut(path: Path, media: Path) -> None:
    write(path, "libx264", LONG, container={"movflags": "faststart"}, **WITH_SOUND)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 4])


MAKERS = {
    "end.mp4": lambda path, media: shutil.copy(media / "same-1920x1080.mp4", path),
    "spoken.mp4": lambda path, media: shutil.copy(media / "spoken.mp4", path),
    "variable.mp4": lambda path, media: shutil.copy(media / "variable-rate.mp4", path),
    "first.mov": lambda path, media: write(path, "libx264", LONG, container={"movflags": "faststart"}, **WITH_SOUND),
    "late.mp4": lambda path, media: write(path, "libx264", LONG, start=5, **WITH_SOUND),
    "hevc.mp4": lambda path, media: write(path, "libx265", LONG, options=HEVC),
    "mpeg4.mp4": lambda path, media: write(path, "mpeg4", LONG),
    "mp2.mov": lambda path, media: write(path, "libx264", LONG, audio="mp2"),
    "fragments.mp4": lambda path, media: write(
        path, "libx264", LONG, container={"movflags": "frag_keyframe+empty_moov"}, **WITH_SOUND
    ),
    "hybrid.mp4": lambda path, media: write(path, "libx264", LONG, container={"movflags": "frag_keyframe"}),
    "really-avi.mp4": lambda path, media: shutil.copy(media / "old.avi", path),
    "text.mp4": lambda path, media: path.write_text("this is text\n" * 1000),
    "damaged.mp4": damaged,
    "cut.mp4": cut,
}


@pytest.mark.parametrize("sampling", [Sampling(frames=1), Sampling(frames=3), Sampling(keyframes=True)])
@pytest.mark.parametrize("name", MAKERS)
def test_what_is_read_in_ranges_is_what_is_in_the_file(name, sampling, media, tmp_path):
    MAKERS[name](tmp_path / name, media)
    copy = Copy(tmp_path / name)
    assert seen(copy.path, sampling, copy.fetch) == seen(tmp_path / name, sampling)


def test_only_what_is_around_the_frames_is_fetched(tmp_path):
    copy = Copy(write_noise(tmp_path / "long.mp4", 300))
    with Video(VideoTask(str(copy.path), InputSize(64, 48), Sampling(frames=4)), fetch=copy.fetch) as video:
        assert [frame.image is not None for frame in video.frames(range(4))] == [True] * 4
        assert video.why_incomplete is None
    print(f"{copy.share:.3f} of {len(copy.content):,} bytes")
    assert copy.share < 0.4
