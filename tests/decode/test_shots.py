"""Shots are found where the cuts are, and nowhere else; the videos are encoded by the tests."""

import math
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from reelscribe.contract.frames import InputSize
from reelscribe.contract.source import Section
from reelscribe.decode import shots
from reelscribe.decode.sampling import Sampling
from reelscribe.decode.shots import FLASH_FRAMES, ShotDetection
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


@pytest.mark.parametrize("rate", [Fraction(24000, 1001), 25, Fraction(30000, 1001), 50, 60], ids=str)
def test_hard_cuts_are_found_at_every_frame_rate(path, rate):
    write(path, cut(*LENGTHS), rate=Fraction(rate))
    assert cuts_of(path) == CUTS


def test_where_the_frame_rate_varies_the_times_of_shots_are_presentation_times(path):
    times = write(path, cut(*LENGTHS), durations=[1, 1, 2, 1, 3] * 22)
    found = shots_of(path)
    assert [(shot.start_frame, shot.end_frame) for shot in found] == [(0, 20), (20, 55), (55, 67), (67, 107)]
    assert [shot.start_seconds for shot in found] == pytest.approx([times[at] for at in (0, *CUTS)], abs=1e-6)
    assert [shot.end_seconds for shot in found[:-1]] == [shot.start_seconds for shot in found[1:]]


def test_the_times_of_shots_of_a_file_that_begins_late_do_not_begin_with_0(tmp_path):
    write(tmp_path / "late.mkv", cut(20, 35), start=7.3)
    assert shots_of(tmp_path / "late.mkv") == [Section(0, 20, 7.3, 8.1), Section(20, 55, 8.1, 9.5)]


@pytest.mark.parametrize("frames", [1, 2, 60])
def test_a_file_without_cuts_is_one_shot_that_holds_every_frame(path, frames):
    write(path, moving(0, frames))
    assert shots_of(path) == [Section(0, frames, 0.0, frames / 25)]


@pytest.mark.parametrize("frames", [1, 2, 5])
def test_a_short_shot_between_two_others_is_found(path, frames):
    write(path, cut(20, frames, 20))
    assert cuts_of(path) == [20, 20 + frames]


@pytest.mark.parametrize("frames", [1, 2, FLASH_FRAMES])
def test_a_flash_is_no_cut(path, frames):
    shot = moving(0, 60)
    write(path, shot[:30] + WHITE * frames + shot[30 + frames :])
    assert cuts_of(path) == []


def test_a_flash_beside_a_cut_hides_no_cut(path):
    shot = moving(0, 30)
    write(path, [*shot[:20], *WHITE, *shot[21:], *moving(1, 30)])
    assert cuts_of(path) == [30]


def test_neither_the_beginning_nor_the_end_of_a_freeze_is_a_cut(path):
    shot = moving(0, 50)
    write(path, shot[:20] + [shot[20]] * 30 + shot[20:])
    assert cuts_of(path) == []


def test_a_frame_that_is_marked_as_interlaced_is_looked_at_as_a_whole(path):
    blocks = np.random.default_rng(0).choice([20, 220], (6, 8, 1)).repeat(12, 0).repeat(16, 1).repeat(3, 2)
    woven, mixed = np.full((72, 128, 3), 120, np.uint8), (blocks / 2 + 60).astype(np.uint8)
    woven[::2] = blocks[
        ::2
    ]  # as wholes, both look alike at a smaller size, but no field of one is like one of the other
    pictures = [woven] * 20 + [mixed] * 20
    videos.write_pictures(path, "libx264", pictures, options={"x264-params": "tff=1"})
    assert cuts_of(path) == []


@pytest.mark.parametrize("frames", [25, 50])
def test_a_shot_begins_where_a_fade_through_black_leaves_the_black(path, frames):
    shot, down = moving(0, 50 + 2 * frames), np.linspace(1, 0, frames)
    levels = [*np.ones(15), *down, *np.zeros(20), *down[::-1], *np.ones(15)]
    write(path, [(picture * level).astype(np.uint8) for picture, level in zip(shot, levels, strict=True)])
    (at,) = cuts_of(path)
    assert 35 + frames <= at <= 35 + 1.2 * frames


def test_few_frames_are_scaled_to_find_cuts(path, monkeypatch):
    scaled = []
    monkeypatch.setattr(shots, "as_progressive", lambda frame: scaled.append(frame) or frame)
    write(path, cut(50, 50, 50, 50))
    assert cuts_of(path) == [50, 100, 150]
    assert len(scaled) <= 0.4 * 200, len(scaled)


def test_a_threshold_says_how_large_a_change_must_be(path):
    write(path, cut(*LENGTHS))
    assert cuts_of(path, ShotDetection(1000)) == []
    assert cuts_of(path, ShotDetection(0.4)) == CUTS


def test_frames_that_cannot_be_decoded_do_not_shift_shots(tmp_path):
    path = tmp_path / "damaged.mov"
    videos.write_pictures(path, "png", cut(*LENGTHS), pix_fmt="rgb24")
    with av.open(str(path)) as container:
        at = [packet.pos for packet in container.demux(video=0) if packet.size]
    content = bytearray(path.read_bytes())
    for frame in (8, 9, 10, 40, 67, 80):
        content[at[frame] : at[frame] + 8] = bytes(8)  # the signature of a PNG
    path.write_bytes(content)
    assert cuts_of(path) == [20, 55, 68]  # the first frame that is there


def test_a_change_of_resolution_ends_no_search(tmp_path):
    small, large = tmp_path / "small.ts", tmp_path / "large.ts"
    videos.write_pictures(small, "libx264", cut(20, 20))
    videos.write_pictures(large, "libx264", [picture.repeat(2, 0).repeat(2, 1) for picture in moving(2, 20)])
    assert cuts_of(join(tmp_path / "joined.ts", small, large)) == [20, 40]


def test_shots_that_are_known_are_not_looked_for(path):
    write(path, cut(20, 20))
    known = [Section(0, 30, 0.0, 1.2), Section(30, 40, 1.2, 1.6)]
    task = VideoTask(str(path), InputSize(8, 8), Sampling(per_shot=1), detection=ShotDetection(), known_shots=known)
    with Video(VideoTask.from_json(task.to_json())) as video:
        assert (video.shots, list(video.chosen)) == (known, [15, 35])
        assert video.decoded == 0


@pytest.mark.parametrize("threshold", [0, -0.5, math.nan, math.inf])
def test_a_threshold_out_of_range_is_refused(threshold):
    with pytest.raises(UsageError, match="shot threshold: expected a number over 0, got "):
        ShotDetection(threshold)


def test_the_json_of_a_detection_states_the_threshold_that_counts():
    assert ShotDetection().to_json() == {"threshold": 0.75}
    assert ShotDetection.from_json(ShotDetection(0.5).to_json()) == ShotDetection(0.5)
