"""Shots are found where the cuts are, and nowhere else; the videos are encoded by the tests."""

import math
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from reelscribe.contract.frames import InputSize
from reelscribe.contract.source import Section
from reelscribe.decode.sampling import Sampling
from reelscribe.decode.shots import DEFAULT_THRESHOLDS, ShotDetection
from reelscribe.decode.video import Video, VideoTask
from reelscribe.errors import UsageError
from support import videos
from support.odd_media import join
from support.shots import HEIGHT, WIDTH, cut, cuts_of, moving, shots_of, write

WHITE = [np.full((HEIGHT, WIDTH, 3), 255, np.uint8)]
LENGTHS = (20, 35, 12, 40)
CUTS = [20, 55, 67]


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "clip.mp4"


@pytest.mark.parametrize("detector", ["adaptive", "content"])
@pytest.mark.parametrize("rate", [Fraction(24000, 1001), 25, Fraction(30000, 1001), 50, 60], ids=str)
def test_hard_cuts_are_found_at_every_frame_rate(path, rate, detector):
    write(path, cut(*LENGTHS), rate=Fraction(rate))
    assert cuts_of(path, detector) == CUTS


@pytest.mark.parametrize("detector", ["adaptive", "content"])
def test_where_the_frame_rate_varies_the_times_of_shots_are_presentation_times(path, detector):
    times = write(path, cut(*LENGTHS), durations=[1, 1, 2, 1, 3] * 22)
    shots = shots_of(path, ShotDetection(detector))
    assert [(shot.start_frame, shot.end_frame) for shot in shots] == [(0, 20), (20, 55), (55, 67), (67, 107)]
    assert [shot.start_seconds for shot in shots] == pytest.approx([times[at] for at in (0, *CUTS)], abs=1e-6)
    assert [shot.end_seconds for shot in shots[:-1]] == [shot.start_seconds for shot in shots[1:]]


def test_the_times_of_shots_of_a_file_that_begins_late_do_not_begin_with_0(tmp_path):
    write(tmp_path / "late.mkv", cut(20, 35), start=7.3)
    assert shots_of(tmp_path / "late.mkv") == [Section(0, 20, 7.3, 8.1), Section(20, 55, 8.1, 9.5)]


@pytest.mark.parametrize("detector", DEFAULT_THRESHOLDS)
@pytest.mark.parametrize("frames", [1, 2, 60])
def test_a_file_without_cuts_is_one_shot_that_holds_every_frame(path, frames, detector):
    write(path, moving(0, frames))
    assert shots_of(path, ShotDetection(detector)) == [Section(0, frames, 0.0, frames / 25)]


@pytest.mark.parametrize("detector", ["adaptive", "content"])
@pytest.mark.parametrize("frames", [1, 2, 5])
def test_a_short_shot_between_two_others_is_found(path, frames, detector):
    write(path, cut(20, frames, 20))
    assert cuts_of(path, detector) == [20, 20 + frames]


@pytest.mark.parametrize("detector", ["adaptive", "content"])
@pytest.mark.parametrize("frames", [1, 2])
def test_a_flash_is_no_cut(path, frames, detector):
    shot = moving(0, 60)
    write(path, shot[:30] + WHITE * frames + shot[30 + frames :])
    assert cuts_of(path, detector) == []


@pytest.mark.parametrize("detector", ["adaptive", "content"])
def test_a_flash_beside_a_cut_hides_no_cut(path, detector):
    shot = moving(0, 30)
    write(path, [*shot[:20], *WHITE, *shot[21:], *moving(1, 30)])
    assert cuts_of(path, detector) == [30]


@pytest.mark.parametrize("detector", DEFAULT_THRESHOLDS)
def test_neither_the_beginning_nor_the_end_of_a_freeze_is_a_cut(path, detector):
    shot = moving(0, 50)
    write(path, shot[:20] + [shot[20]] * 30 + shot[20:])
    assert cuts_of(path, detector) == []


def faded(shot: list[np.ndarray], frames: int) -> list[np.ndarray]:
    """The pictures with a fade to black after 30 of them, and from black before 30, over so many frames each."""
    down = np.linspace(1, 0, frames)
    levels = [*np.ones(30), *down, *np.zeros(len(shot) - 60 - 2 * frames), *down[::-1], *np.ones(30)]
    return [(picture * level).astype(np.uint8) for picture, level in zip(shot, levels, strict=True)]


@pytest.mark.parametrize("frames", [25, 50])
def test_a_slow_fade_to_black_and_back_is_one_cut_for_threshold_and_else_has_cuts_in_the_black_alone(path, frames):
    write(path, faded(moving(0, 160), frames))
    (at,) = cuts_of(path, "threshold")
    found = {at, *cuts_of(path, "adaptive"), *cuts_of(path, "content")}
    assert all(30 + frames / 2 < cut < 130 - frames / 2 for cut in found)


def test_a_threshold_says_how_large_a_change_must_be(path):
    write(path, cut(*LENGTHS))
    assert cuts_of(path, "content", 200) == cuts_of(path, "adaptive", 1000) == []
    assert cuts_of(path, "content", 20) == CUTS


def test_frames_that_cannot_be_decoded_do_not_shift_shots(tmp_path):
    path = tmp_path / "damaged.mov"
    videos.write_pictures(path, "png", cut(*LENGTHS), pix_fmt="rgb24")
    with av.open(str(path)) as container:
        at = [packet.pos for packet in container.demux(video=0) if packet.size]
    content = bytearray(path.read_bytes())
    for frame in (8, 9, 10, 40, 67, 80):
        content[at[frame] : at[frame] + 8] = bytes(8)  # the signature of a PNG
    path.write_bytes(content)
    assert cuts_of(path, "adaptive") == cuts_of(path, "content") == [20, 55, 68]  # the first frame that is there


def test_a_change_of_resolution_ends_no_search(tmp_path):
    small, large = tmp_path / "small.ts", tmp_path / "large.ts"
    videos.write_pictures(small, "libx264", cut(20, 20))
    videos.write_pictures(large, "libx264", [picture.repeat(2, 0).repeat(2, 1) for picture in moving(2, 20)])
    assert cuts_of(join(tmp_path / "joined.ts", small, large)) == [20, 40]


def test_with_decord_the_same_shots_are_found(path):
    write(path, cut(*LENGTHS))
    task = VideoTask(str(path), InputSize(1, 1), sampling=None, library="decord", detection=ShotDetection())
    with Video(task) as video:
        assert video.shots == shots_of(path)


def test_shots_that_are_known_are_not_looked_for(path):
    write(path, cut(20, 20))
    known = [Section(0, 30, 0.0, 1.2), Section(30, 40, 1.2, 1.6)]
    task = VideoTask(str(path), InputSize(8, 8), Sampling(per_shot=1), detection=ShotDetection(), known_shots=known)
    with Video(VideoTask.from_json(task.to_json())) as video:
        assert (video.shots, list(video.chosen)) == (known, [15, 35])
        assert video.decoded == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["magic"], "shot detector: expected one of adaptive, content, threshold, got 'magic'"),
        (["adaptive", 0], "shot threshold: expected a number over 0, got 0"),
        (["content", -27.0], "shot threshold: expected a number over 0, got -27"),
        (["content", math.nan], "shot threshold: expected a number over 0, got nan"),
        (["threshold", math.inf], "shot threshold: expected a number over 0, got inf"),
    ],
)
def test_an_unknown_detector_and_a_threshold_out_of_range_are_refused(options, reason):
    with pytest.raises(UsageError, match=reason):
        ShotDetection(*options)


def test_the_json_of_a_detection_states_the_threshold_that_counts():
    assert ShotDetection().to_json() == {"detector": "adaptive", "threshold": 3.0}
    assert ShotDetection("content", 30.0).to_json() == {"detector": "content", "threshold": 30.0}
    assert ShotDetection.from_json(ShotDetection("threshold").to_json()) == ShotDetection("threshold", 12.0)
