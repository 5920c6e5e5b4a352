"""Clips: which frames of each are read, at which times and sizes, and in how many decodings."""

import json
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest

from reelscribe.contract.clips import ClipBudget
from reelscribe.contract.source import Section, Span
from reelscribe.decode import clips
from reelscribe.decode.clips import ClipCutting, ClipTask, ClipVideo, FrameBuffer, ReadClip
from reelscribe.decode.shots import ShotDetection
from reelscribe.decode.video import OpenVideo
from support import odd_media, shots, videos

RATE = 10
"""Frames per second of the videos, unless a test says otherwise."""

BUDGET = ClipBudget(16, min_pixels=16 * 16, max_pixels=64 * 48, total_pixels=8 * 64 * 48, whole_clip=True)

LEVELS = [20 + 47 * k % 200 for k in range(100)]
"""The grey levels of the frames of a video of 10 s."""


def windows(seconds: float, overlap: float = 0.0) -> ClipCutting:
    return ClipCutting("windows", window_seconds=seconds, overlap_seconds=overlap)


def task_of(path: Path, cutting: ClipCutting | None = None, budget: ClipBudget = BUDGET) -> ClipTask:
    return ClipTask(str(path), budget, cutting or windows(2))


def read(task: ClipTask, ordinals: range | None = None) -> list[ReadClip]:
    """Clips of a video, by default all of them."""
    with ClipVideo(task) as video:
        return list(video.read([Span() if ordinals is None else Span(ordinals.start, ordinals.stop)]))


@pytest.fixture(scope="module")
def greys(tmp_path_factory) -> Path:
    """A video of 10 s whose frames have the levels of LEVELS."""
    path = tmp_path_factory.mktemp("clips") / "greys.mkv"
    videos.write(path, "ffv1", LEVELS)
    return path


def test_the_frames_of_a_clip_are_those_shown_in_the_middle_of_equally_long_parts(greys):
    clips = read(task_of(greys, windows(4)))
    assert [clip.clip.ordinal for clip in clips] == [0, 1, 2]
    assert [clip.frame_indices for clip in clips] == [
        [2, 7, 12, 17, 22, 27, 32, 37],  # two a second
        [42, 47, 52, 57, 62, 67, 72, 77],
        [82, 87, 92, 97],
    ]
    for clip in clips:
        assert clip.pts_seconds == [index / RATE for index in clip.frame_indices]
        levels = [LEVELS[index] for index in clip.frame_indices]
        assert [image.mean() for image in clip.images] == pytest.approx(levels, abs=2)


def test_frames_have_the_size_that_the_budget_gives_as_many(greys):
    (short, *_), (long,) = (read(task_of(greys, windows(seconds))) for seconds in (2, 10))
    assert [len(clip.images) for clip in (short, long)] == [4, 20]
    for clip in (short, long):
        size = BUDGET.frame_size(len(clip.images), 64, 48)
        assert {image.shape for image in clip.images} == {(size.height, size.width, 3)}
    assert short.images[0].shape != long.images[0].shape


def test_a_long_clip_of_narrow_frames_has_as_many_as_fit_into_a_request(tmp_path):
    videos.write_pictures(tmp_path / "narrow.mkv", "ffv1", (np.zeros((20, 2000, 3), np.uint8) for _ in range(800)))
    qwen3_vl = ClipBudget(32, min_pixels=4096, total_pixels=13_333_333, whole_clip=True, fps=10)
    (clip,) = read(task_of(tmp_path / "narrow.mkv", windows(80), qwen3_vl))
    assert 50_000_000 < sum(image.nbytes for image in clip.images) < 50 * 2**20


def test_as_many_frames_are_taken_of_each_window_wherever_it_begins(tmp_path):
    path = tmp_path / "late.mkv"
    shots.write(path, shots.moving(0, 1200), rate=Fraction(5), start=0.033)
    clips = read(task_of(path, windows(10)))
    assert [len(clip.frame_indices) for clip in clips] == [20] * 24


def write_numbers(path: Path, frames: int, **options) -> list[float]:
    """Write a video whose frames tell their numbers, and return their presentation times as PyAV reads them."""
    rows, columns = np.arange(shots.HEIGHT) * 48 // shots.HEIGHT, np.arange(shots.WIDTH) * 64 // shots.WIDTH
    shots.write(path, (odd_media.picture(k)[rows][:, columns] for k in range(frames)), **options)
    return [seconds for seconds, _ in videos.read_with_av(path)]


@pytest.mark.parametrize("cutting", [windows(2), windows(3, overlap=1), ClipCutting(max_seconds=4)])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("variable.mkv", {"durations": [1, 1, 5, 1, 2] * 30}),
        ("late.mkv", {"start": 7.3}),
        ("late.ts", {"start": 7.3}),
        ("ntsc.mp4", {"rate": Fraction(30000, 1001)}),
    ],
)
def test_the_times_of_frames_are_those_that_the_file_gives_them(tmp_path, name, options, cutting):
    shown = write_numbers(tmp_path / name, 150, **options)
    fixed = replace(BUDGET, resized_width=64, resized_height=48)
    for clip in read(task_of(tmp_path / name, cutting, fixed)):
        own = [shown[odd_media.number_of(image)] for image in clip.images]
        assert clip.pts_seconds == pytest.approx(own, abs=1e-4)
        marks, expected = (np.reshape(times, (-1, 2)).mean(1) for times in (clip.pts_seconds, own))
        assert np.abs(marks - expected).max() < 0.05  # what the model reads
        assert clip.clip.span.start_seconds <= own[0] < own[-1] < clip.clip.span.end_seconds


def test_of_frames_that_are_shown_for_longer_than_a_part_none_is_taken_twice(tmp_path):
    shots.write(tmp_path / "slides.mkv", shots.moving(0, 10), durations=[1, 1, 1, 1, 1, 1, 1, 1, 100, 100])
    (clip,) = read(task_of(tmp_path / "slides.mkv", windows(10)))
    assert clip.frame_indices == [0, 1, 3, 4, 5, 6, 8, 9]  # eight of ten, as the clip is 4.4 s long


def test_overlapping_windows_share_frames_that_are_decoded_once(greys):
    with ClipVideo(task_of(greys, windows(2, overlap=1))) as video:
        clips = list(video.read([Span()]))
        assert video.decoded <= len(LEVELS)
    assert len(clips) == 9
    for one, other in pairwise(clips):
        assert one.frame_indices[2:] == other.frame_indices[:2]
        assert np.array_equal(one.images[2:], other.images[:2])


@pytest.mark.parametrize("ordinals", [range(3, 4), range(5), range(7, 9), range(4, 4)])
@pytest.mark.parametrize("cutting", [windows(2, overlap=1), windows(1.1), ClipCutting(min_seconds=0, max_seconds=1.1)])
def test_any_range_of_clips_can_be_read(greys, cutting, ordinals):
    everything = read(task_of(greys, cutting))
    some = read(task_of(greys, cutting), ordinals)
    assert [clip.clip for clip in some] == [everything[ordinal].clip for ordinal in ordinals]
    for clip in some:
        whole = everything[clip.clip.ordinal]
        assert (clip.frame_indices, clip.pts_seconds) == (whole.frame_indices, whole.pts_seconds)
        assert np.array_equal(clip.images, whole.images)


def damage(path: Path, frames: Iterable[int]) -> None:
    """Make frames of a video of PNGs undecodable."""
    with av.open(str(path)) as container:
        at = [packet.pos for packet in container.demux(video=0) if packet.size]
    content = bytearray(path.read_bytes())
    for frame in frames:
        content[at[frame] : at[frame] + 8] = bytes(8)  # the signature of a PNG
    path.write_bytes(content)


def test_damaged_frames_are_missing_in_their_own_clips_alone(tmp_path):
    path = tmp_path / "damaged.mov"
    videos.write(path, "png", LEVELS, pix_fmt="rgb24")
    whole = read(task_of(path))
    damage(path, [7, *range(40, 60), 82, 87, 92, 97])
    clips = read(task_of(path))
    assert [clip.clip for clip in clips] == [clip.clip for clip in whole]
    assert [clip.frame_indices for clip in clips] == [[2, 12, 17], [22, 27, 32, 37], [], [62, 67, 72, 77], []]
    assert [len(clip.images) for clip in clips] == [3, 4, 0, 4, 0]
    assert np.array_equal(clips[0].images, np.delete(whole[0].images, 1, axis=0))
    assert np.array_equal(clips[3].images, whole[3].images)


def test_a_video_of_one_frame_is_read(tmp_path):
    videos.write(tmp_path / "one.mkv", "libx264", [100])
    (clip,) = read(task_of(tmp_path / "one.mkv", ClipCutting()))
    assert (clip.clip.span, clip.frame_indices, clip.pts_seconds) == (Section(0, 1, 0.0, 0.1), [0], [0.0])
    assert [image.shape for image in clip.images] == [(48, 64, 3)]


LENGTHS = (30, 10, 60)
CLIPS_OF_SHOTS = [Section(0, 30, 0.0, 1.2), Section(30, 100, 1.2, 4.0)]


def test_clips_begin_at_the_cuts_of_a_video(tmp_path):
    shots.write(tmp_path / "cut.mp4", shots.cut(*LENGTHS))
    with ClipVideo(task_of(tmp_path / "cut.mp4", ClipCutting())) as video:
        assert (video.count, video.shots) == (None, None)
        assert [read.clip.span for read in video.read([Span()])] == CLIPS_OF_SHOTS
        assert [shot.start_frame for shot in video.shots] == [0, 30, 40]
        assert video.count == 2
    blind = ClipCutting(detection=ShotDetection(1000))
    assert [read.clip.span for read in read(task_of(tmp_path / "cut.mp4", blind))] == [Section(0, 100, 0.0, 4.0)]


def search_and_read_again(task: ClipTask) -> tuple[list[ReadClip], list[ReadClip], int]:
    """The clips of a video as they are found, those read when the shots are known, and the frames decoded at first."""
    with ClipVideo(task) as video:
        found = list(video.read([Span()]))
        again = read(replace(task, known_shots=video.shots))
        with OpenVideo(task.path, detection=task.cutting.detection) as searched:
            assert video.shots == searched.shots
        return found, again, video.decoded


def assert_equal_clips(found: list[ReadClip], again: list[ReadClip]) -> None:
    assert [clip[:3] for clip in found] == [clip[:3] for clip in again]
    assert all(np.array_equal(one.images, other.images) for one, other in zip(found, again, strict=True))


SHORT_AND_LONG = (30, 10, 60, 12, 40, 120, 5, 50, 7)
"""Frames of shots of 0.2 to 4.8 s."""


@pytest.mark.parametrize("options", [{}, {"min_seconds": 0}, {"max_seconds": 2}, {"min_seconds": 2.5}])
def test_clips_that_are_read_while_shots_are_looked_for_are_those_of_known_shots(tmp_path, options):
    shots.write(tmp_path / "cut.mp4", shots.cut(*SHORT_AND_LONG))
    cutting = ClipCutting(**options)
    found, again, _ = search_and_read_again(task_of(tmp_path / "cut.mp4", cutting))
    assert found
    assert_equal_clips(found, again)


def test_a_video_is_decoded_once_while_its_shots_are_looked_for(tmp_path):
    shots.write(tmp_path / "cut.mp4", shots.cut(60, 100, 45, 70))
    found, again, decoded = search_and_read_again(task_of(tmp_path / "cut.mp4", ClipCutting()))
    assert [clip.clip.span.start_frame for clip in found] == [0, 60, 160, 205]
    assert_equal_clips(found, again)
    assert decoded <= 275


def test_clips_with_damaged_frames_are_the_same_when_they_are_found(tmp_path):
    path = tmp_path / "damaged.mov"
    shots.write(path, shots.cut(40, 60, 50), codec="png", pix_fmt="rgb24")
    damage(path, [12, *range(40, 52), 103])
    found, again, _ = search_and_read_again(task_of(path, ClipCutting()))
    assert 12 not in found[0].frame_indices
    assert_equal_clips(found, again)


@pytest.mark.parametrize("max_bytes", [0, 20 * 64 * 48 * 2])
def test_frames_that_are_too_many_to_hold_are_decoded_again(tmp_path, monkeypatch, max_bytes):
    monkeypatch.setattr(clips, "MAX_BUFFERED_BYTES", max_bytes)
    shots.write(tmp_path / "cut.mp4", shots.cut(60, 400))
    found, again, decoded = search_and_read_again(task_of(tmp_path / "cut.mp4", ClipCutting()))
    assert decoded > 460
    assert_equal_clips(found, again)


def test_held_frames_are_limited_whatever_the_length_of_a_shot():
    times = np.arange(100_000) / 25
    held, picture = FrameBuffer(times, step=0.25, longest_seconds=30), av.VideoFrame(4, 4, "rgb24")
    most = 0
    for index in range(5000):
        held.add(index, picture)
        most = max(most, sum(held.take([k]) is not None for k in range(index + 1)) if index % 100 == 0 else 0)
    assert most <= 30 * 4 + 16


@pytest.mark.parametrize("name", ["cut.mp4", "cut.mkv", "cut.avi", "cut.ts"])
def test_a_long_shot_is_decoded_twice_at_most(tmp_path, name):
    shots.write(tmp_path / name, shots.moving(0, 500))
    cutting = ClipCutting(max_seconds=1.5)
    found, again, decoded = search_and_read_again(task_of(tmp_path / name, cutting))
    assert len(found) >= 14
    assert decoded <= 1100
    assert_equal_clips(found, again)


@pytest.mark.parametrize("options", [{"durations": [1, 1, 5, 1, 2] * 30}, {"start": 7.3}])
def test_clips_of_variable_rates_and_late_starts_are_the_same_when_they_are_found(tmp_path, options):
    shots.write(tmp_path / "cut.mkv", shots.cut(40, 60, 50), **options)
    found, again, _ = search_and_read_again(task_of(tmp_path / "cut.mkv", ClipCutting(min_seconds=0.5)))
    assert len(found) == 3
    assert_equal_clips(found, again)


def test_clips_go_on_where_the_last_one_ended_even_if_cuts_are_found_elsewhere(tmp_path):
    shots.write(tmp_path / "cut.mp4", shots.cut(30, 50, 40, 60, 30))
    whole = read(task_of(tmp_path / "cut.mp4", ClipCutting()))
    rest = [Span(1, 2, whole[0].clip.span.end_frame), Span(3, None, whole[2].clip.span.end_frame)]
    with ClipVideo(task_of(tmp_path / "cut.mp4", ClipCutting())) as video:
        assert_equal_clips(list(video.read(rest)), [whole[1], *whole[3:]])
        assert video.count == 5
    finds_no_cut = ClipCutting(detection=ShotDetection(1000))
    with ClipVideo(task_of(tmp_path / "cut.mp4", finds_no_cut)) as video:
        (clip,) = video.read([Span(2, None, 80)])
        assert (clip.clip.ordinal, clip.clip.span, video.count) == (2, Section(80, 210, 3.2, 8.4), 3)


def test_a_limit_that_is_no_limit_costs_nothing(tmp_path):
    shots.write(tmp_path / "cut.mp4", shots.cut(40, 40))
    endless = ClipCutting(max_seconds=1e12)
    found, again, _ = search_and_read_again(task_of(tmp_path / "cut.mp4", endless, replace(BUDGET, fps=1e9)))
    assert [len(clip.frame_indices) for clip in found] == [40, 40]
    assert_equal_clips(found, again)


def test_shots_that_are_known_are_not_looked_for(tmp_path):
    shots.write(tmp_path / "cut.mp4", shots.cut(*LENGTHS))
    known = [Section(0, 50, 0.0, 2.0), Section(50, 100, 2.0, 4.0)]
    task = replace(task_of(tmp_path / "cut.mp4", ClipCutting()), known_shots=known)
    with ClipVideo(ClipTask.from_json(json.loads(json.dumps(task.to_json())))) as video:
        assert (video.shots, video.count, video.decoded) == (known, 2, 0)


def test_windows_need_no_search_for_shots(greys):
    with ClipVideo(task_of(greys)) as video:
        assert (video.shots, video.decoded) == (None, 0)


@pytest.mark.parametrize("cutting", [windows(2, overlap=1), ClipCutting(detection=ShotDetection(0.5))])
def test_a_task_is_the_same_after_it_was_sent_as_json(cutting):
    task = replace(task_of(Path("x.mp4"), cutting), resize="exact", known_shots=[Section(0, 9, 0, 0.9)])
    stated = replace(cutting, detection=ShotDetection.from_json(cutting.detection.to_json()))
    assert ClipTask.from_json(json.loads(json.dumps(task.to_json()))) in (task, replace(task, cutting=stated))
