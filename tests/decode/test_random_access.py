"""Where other processes may begin to read a video, and that they get the frames that one process would."""

import random
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reelscribe.contract.frames import InputSize
from reelscribe.decode.random_access import (
    find_entry_points,
    highest_decoded,
    max_decode_ahead,
    reorder_depth,
    spaced_entry_points,
)
from reelscribe.decode.sampling import Sampling
from reelscribe.decode.video import ChosenFrame, Video, VideoTask
from support.videos import write_pictures

FRAMES = 80
NO_TIME = 1e-9
"""Shortest time of a portion with which every possible entry point is one."""
SAMPLINGS = [
    Sampling(every=1),
    Sampling(every=3),
    Sampling(fps=2, start=1.3, end=6.2),
    Sampling(frames=16),
    Sampling(keyframes=True),
]
DIVIDED = {
    "b-frames.mp4": ("libx264", {"g": "12", "bf": "3"}),
    "b-frames.mkv": ("libx264", {"g": "12", "bf": "3"}),
    "pyramid.mp4": ("libx264", {"g": "12", "bf": "8", "refs": "4", "x264-params": "b-adapt=0"}),
    "variable-lengths.mp4": ("libx264", {"g": "12", "bf": "3", "coder": "0"}),
    "slices.mp4": ("libx264", {"g": "12", "bf": "3", "slices": "4"}),
    "other.webm": ("libvpx-vp9", {"g": "12", "deadline": "realtime", "cpu-used": "8"}),
}
WHOLE = {
    "open-groups.mp4": ("libx264", {"g": "12", "bf": "3", "x264-params": "open-gop=1"}),
    "renewed.mp4": ("libx264", {"g": "12", "x264-params": "intra-refresh=1"}),
    "no-index.ts": ("libx264", {"g": "12"}),
    "silent-about-damage.mp4": ("libx265", {"x265-params": "log-level=none:keyint=12"}),
    "numbered-packets.avi": ("libx264", {"g": "12", "bf": "0"}),
}


@pytest.fixture(scope="module")
def moving(tmp_path_factory):
    """Returns the path of a video of a noisy picture that moves, by a name of `DIVIDED` or `WHOLE`."""
    folder = tmp_path_factory.mktemp("moving")
    noise = np.random.default_rng(0).integers(0, 255, (30, 60, 3), np.uint8).repeat(8, 0).repeat(8, 1)

    def made(name: str) -> Path:
        path = folder / name
        if not path.exists():
            codec, options = {**DIVIDED, **WHOLE}[name]
            write_pictures(
                path, codec, [noise[k : k + 96, 2 * k : 2 * k + 160].copy() for k in range(FRAMES)], options=options
            )
        return path

    return made


def task_of(path: Path, sampling: Sampling) -> VideoTask:
    return VideoTask(str(path), InputSize(64, 48), sampling)


def outline(frame: ChosenFrame) -> tuple:
    return frame.ordinal, frame.frame_index, frame.pts_seconds, None if frame.image is None else frame.image.tobytes()


def read_whole(task: VideoTask) -> tuple[list[tuple], list[int]]:
    """What one process reads, and the entry points."""
    with Video(task) as video:
        return [outline(frame) for frame in video.frames(range(len(video.chosen)))], [*video.entry_points(NO_TIME)]


def read_portions(task: VideoTask, first_ordinals: list[int], count: int) -> list[tuple]:
    """What several processes read, each of which begins at one of these frames; the last portions first."""
    frames = []
    for first, stop in reversed([*zip([0, *first_ordinals], [*first_ordinals, count], strict=True)]):
        with Video(task) as video:
            frames += [outline(frame) for frame in video.frames(range(first, stop))]
    return sorted(frames)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=Sampling.describe)
@pytest.mark.parametrize("name", DIVIDED)
def test_portions_have_the_frames_of_the_whole(moving, name, sampling):
    task = task_of(moving(name), sampling)
    frames, entry_points = read_whole(task)
    assert len(entry_points) >= 3
    assert read_portions(task, entry_points, len(frames)) == frames


@pytest.mark.parametrize("inversions", [1, 3, 10, 40])
@pytest.mark.parametrize("name", DIVIDED)
def test_frames_of_damaged_files_do_not_depend_on_where_reading_begins(moving, tmp_path, name, inversions):
    chance, content = random.Random(inversions), bytearray(moving(name).read_bytes())
    for _ in range(inversions):
        content[chance.randrange(len(content) // 10, len(content) * 9 // 10)] ^= 1 << chance.randrange(8)
    (tmp_path / name).write_bytes(content)
    for sampling in SAMPLINGS[:2]:
        task = task_of(tmp_path / name, sampling)
        frames, entry_points = read_whole(task)
        assert inversions < 10 or frames != read_whole(task_of(moving(name), sampling))[0]
        assert read_portions(task, entry_points, len(frames)) == frames
        assert read_portions(task, sorted(chance.sample(range(1, len(frames)), 3)), len(frames)) == frames


@pytest.mark.parametrize("name", ["b-frames.mp4", "b-frames.mkv", "slices.mp4"])
def test_a_keyframe_that_cannot_be_decoded_costs_its_group_alone(moving, tmp_path, name):
    content = moving(name).read_bytes()
    with av.open(str(moving(name))) as container:
        fourth = [bytes(packet) for packet in container.demux(video=0) if packet.is_keyframe][3]
    (tmp_path / name).write_bytes(content.replace(fourth[8:], bytes(len(fourth) - 8)))
    task, (intact, _) = task_of(tmp_path / name, SAMPLINGS[0]), read_whole(task_of(moving(name), SAMPLINGS[0]))
    frames, entry_points = read_whole(task)
    group = range(36, 48)
    assert [frame for frame in frames if frame[0] not in group] == [frame for frame in intact if frame[0] not in group]
    assert frames[36] != intact[36]
    assert read_portions(task, entry_points, len(frames)) == frames
    with Video(task) as video:
        assert len(list(video.frames(range(FRAMES)))) == FRAMES
        assert video.decoded <= FRAMES + 3 * len(group)


@pytest.mark.parametrize("name", WHOLE)
def test_where_portions_could_differ_there_are_no_entry_points(moving, name):
    assert read_whole(task_of(moving(name), Sampling(every=1)))[1] == []


def test_a_file_that_is_cut_short_has_no_entry_points(moving, tmp_path):
    content = moving("b-frames.mkv").read_bytes()
    (tmp_path / "short.mkv").write_bytes(content[: len(content) * 2 // 3])
    assert read_whole(task_of(tmp_path / "short.mkv", Sampling(every=1)))[1] == []


def test_a_short_video_has_no_entry_points(moving):
    with Video(task_of(moving("b-frames.mp4"), Sampling(every=1))) as video:
        assert video.entry_points(2.0) == ()


def entry_points(chosen: list[int], keyframes: list[int], least: float = 1) -> list[int]:
    is_keyframe = np.isin(np.arange(100), keyframes)
    return find_entry_points(chosen, is_keyframe, np.cumsum(is_keyframe), least)


def test_entry_points_are_the_first_chosen_frames_of_groups():
    every_fifth = [*range(0, 100, 5)]
    assert entry_points(every_fifth, keyframes=[0, 22, 61, 63]) == [5, 13]  # frames 25 and 65
    assert entry_points(every_fifth, keyframes=[0, 22, 61], least=30) == [13]
    assert entry_points([10, 20], keyframes=[0]) == []


POSSIBLE = st.sets(st.integers(1, 99)).map(sorted)


@given(POSSIBLE, st.lists(st.integers(1, 9), min_size=100, max_size=100), st.integers(1, 300), st.integers(1, 20))
def test_portions_are_not_small_and_not_many(possible, costs, least, most_portions):
    decoded_before = np.append(0, np.cumsum(costs))
    spaced = spaced_entry_points(np.array(possible, np.int64), decoded_before, least, most_portions)
    assert set(spaced) <= set(possible)
    portions = np.diff(decoded_before[[0, *spaced, 100]])
    assert len(portions) <= most_portions
    assert len(portions) == 1 or portions.min() >= least


def test_portions_are_as_many_as_they_may_be():
    possible, decoded_before = np.arange(1, 100), np.arange(101)
    assert spaced_entry_points(possible, decoded_before, 30, 20) == [30, 60]
    assert spaced_entry_points(possible, decoded_before, 1, 4) == [25, 50, 75]


@pytest.mark.parametrize(
    ("file_order", "depth"), [([0, 1, 2, 3], 0), ([0, 2, 1, 4, 3], 1), ([0, 3, 2, 1, 4], 2), ([0], 0)]
)
def test_reorder_depth_is_how_many_frames_wait_for_an_earlier_one(file_order, depth):
    assert reorder_depth(np.array(file_order)) == depth


def test_a_damaged_frame_shows_in_those_before_it_that_are_stored_behind_it():
    assert highest_decoded(np.array([0, 4, 2, 3, 1])).tolist() == [0, 4, 4, 4, 4]
    assert highest_decoded(np.array([0, 2, 1, 4, 3])).tolist() == [0, 2, 2, 4, 4]
    assert max_decode_ahead(np.array([0, 4, 2, 3, 1])) == 3
