"""Clips for benchmarks are what they are made for."""

import pytest

from reelscribe.contract.frames import InputSize
from reelscribe.decode.video import Video, VideoTask
from synthetic.video_files import repeat_video, write_library, write_video


@pytest.mark.parametrize("times", [1, 3])
def test_a_clip_that_is_repeated_is_one_whole_file_of_so_many_times_its_frames(tmp_path, times):
    write_video(tmp_path / "clip.mp4", 64, 64, 5)
    repeat_video(tmp_path / "clip.mp4", tmp_path / "longer.mp4", times)
    with Video(VideoTask(str(tmp_path / "longer.mp4"), InputSize(32, 32))) as video:
        frames = list(video.frames(range(len(video.chosen))))
    assert video.why_incomplete is None
    assert [frame.pts_seconds for frame in frames] == [round(k / 25, 6) for k in range(5 * times)]
    assert all(frame.image is not None for frame in frames)


def test_the_files_of_a_library_are_different_sources_with_the_same_frames(tmp_path):
    paths = write_library(tmp_path / "library", 64, 64, clips=3, frames=2)
    assert len({path.read_bytes() for path in paths}) == 3
    for path in paths:
        with Video(VideoTask(str(path), InputSize(32, 32))) as video:
            assert [frame.image is not None for frame in video.frames(range(len(video.chosen)))] == [True, True]
