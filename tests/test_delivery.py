"""What the benchmarks of whole runs are made of."""

import pytest

from delivery import rate_after_start
from reelscribe.contract.frames import InputSize
from reelscribe.decode.video import Video, VideoTask
from resize import write_clip
from scaling import repeat_clip


def test_two_devices_that_answer_together_count_from_the_second_answer_on():
    # 32 frames of each device, each second.
    answers = [(10.0, 32), (10.0, 32), (11.0, 32), (11.0, 32), (12.0, 32), (12.0, 32)]
    assert rate_after_start(answers, at_once=2) == 64
    assert rate_after_start(answers, at_once=1) == 80  # more than there can be


def test_a_short_run_has_a_rate_as_soon_as_there_are_two_answers():
    assert rate_after_start([(1.0, 32), (3.0, 8)], at_once=4) == 4


@pytest.mark.parametrize("times", [1, 3])
def test_a_clip_that_is_repeated_is_one_whole_file_of_so_many_times_its_frames(tmp_path, times):
    write_clip(tmp_path / "clip.mp4", 64, 64, 5)
    repeat_clip(tmp_path / "clip.mp4", tmp_path / "longer.mp4", times)
    with Video(VideoTask(str(tmp_path / "longer.mp4"), InputSize(32, 32))) as video:
        frames = list(video.frames(range(len(video.chosen))))
    assert video.cut is None
    assert [frame.pts_seconds for frame in frames] == [round(k / 25, 6) for k in range(5 * times)]
    assert all(frame.image is not None for frame in frames)
