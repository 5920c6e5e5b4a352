"""Frames are the right ones in every container, and only those are decoded that have to be."""

from pathlib import Path

import av
import numpy as np
import pytest

from reelscribe.contract.frames import InputSize
from reelscribe.decode import frame_reader
from reelscribe.decode.frame_reader import DecodeRun, plan_runs
from reelscribe.decode.sampling import Sampling
from reelscribe.decode.video import Video, VideoTask
from support.videos import read, read_with_av, write, write_pictures

SIZE = InputSize(64, 48)
FRAMES = 300
"""There are enough frames for the reader to seek."""

CONTAINERS = {
    "b-frames.mp4": ("libx264", {"bf": "3", "g": "20"}, {}),
    "open-gop.mp4": ("libx264", {"bf": "3", "g": "20", "x264-params": "open-gop=1"}, {}),
    "fragmented.mp4": ("libx264", {"bf": "3", "g": "20"}, {"movflags": "frag_keyframe+empty_moov"}),
    "b-frames.mkv": ("libx264", {"bf": "3", "g": "20"}, {}),
    "live.webm": ("libvpx-vp9", {"g": "20"}, {"live": "1"}),
    "vp8.webm": ("libvpx", {"g": "20"}, {}),
    "open-gop.ts": ("libx264", {"bf": "3", "g": "20", "x264-params": "open-gop=1"}, {}),
    "long-gop.ts": ("libx264", {"bf": "3", "g": "250"}, {}),
    "mpeg2.mpg": ("mpeg2video", {"bf": "2", "g": "20"}, {}),
    "b-frames.flv": ("libx264", {"bf": "3", "g": "20"}, {}),
    "old.avi": ("mpeg4", {"g": "20"}, {}),
    "b-frames.avi": ("libx264", {"bf": "3", "g": "20"}, {}),
}
SAMPLINGS = [
    Sampling(every=7),
    Sampling(every=130),
    Sampling(keyframes=True),
    Sampling(every=1, start=22.3),
    Sampling(frames=4),
]


def moving(number: int) -> np.ndarray:
    """A picture whose grey level depends on its number, with a moving square, so that frames refer to each other."""
    picture = np.full((48, 64, 3), 20 + number % 25 * 8, np.uint8)
    left = 3 * number % 48
    picture[8:24, left : left + 16] = (200, 60, number % 256)
    return picture


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    for name, (codec, options, container) in CONTAINERS.items():
        write_pictures(folder / name, codec, map(moving, range(FRAMES)), options=options, container=container)
    return folder


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("name", CONTAINERS)
def test_every_frame_is_the_right_one_at_the_right_time(clips, name, mode):
    frames = read(clips / name, SIZE, Sampling(every=1), mode)
    assert [index for index, _, _ in frames] == list(range(FRAMES))
    for index, _, frame in frames:
        assert abs(float(frame[40, 5, 1]) - moving(index)[40, 5, 1]) < 5  # less than between neighbouring frames
    # AVI stores no times: FFprobe, too, says that its first frame is shown when the decoder returns it.
    start = 0.2 if name == "b-frames.avi" else min(seconds for seconds, _ in read_with_av(clips / name))
    assert [seconds for _, seconds, _ in frames] == pytest.approx([start + k / 10 for k in range(FRAMES)], abs=1e-3)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", CONTAINERS)
def test_a_chosen_frame_is_the_same_as_when_all_are_decoded(clips, name, sampling):
    all_frames = {index: frame for index, _, frame in read(clips / name, SIZE)}
    with Video(VideoTask(str(clips / name), SIZE, sampling)) as video:
        expected = list(video.chosen)
    frames = read(clips / name, SIZE, sampling)
    assert [index for index, _, _ in frames] == expected
    for index, _, frame in frames:
        assert np.array_equal(frame, all_frames[index])


def heartbeats_of_reading(path: Path, sampling: Sampling) -> int:
    """How often the heartbeat is called: for each decoded frame, and for every 100th packet that is dropped."""
    heartbeats: list[None] = []
    with Video(VideoTask(str(path), SIZE, sampling, "exact"), lambda: heartbeats.append(None)) as video:
        scanned = len(heartbeats)
        assert all(frame.image is not None for frame in video.frames(range(len(video.chosen))))
    return len(heartbeats) - scanned


READ_FROM_THE_BEGINNING = {"b-frames.avi", "mpeg2.mpg"}
"""Files without unique presentation times: AVI stores none, and FFmpeg gives some frames of the other the same one."""


@pytest.mark.parametrize("name", sorted(CONTAINERS.keys() - READ_FROM_THE_BEGINNING - {"long-gop.ts"}))
def test_only_frames_that_lead_to_a_wanted_frame_are_decoded(clips, name):
    assert heartbeats_of_reading(clips / name, Sampling(every=1)) == FRAMES
    assert 150 <= heartbeats_of_reading(clips / name, Sampling(every=1, start=15)) <= 175
    assert heartbeats_of_reading(clips / name, Sampling(every=290)) <= 25
    with Video(VideoTask(str(clips / name), SIZE, Sampling(keyframes=True))) as video:
        keyframes = len(video.chosen)
    assert keyframes >= 15
    assert heartbeats_of_reading(clips / name, Sampling(keyframes=True)) <= keyframes + 3


def test_packets_far_before_the_first_wanted_frame_are_not_read(tmp_path):
    path = tmp_path / "keyframes.mp4"
    write(path, "mpeg4", [100] * 500, options={"g": "1"})
    assert heartbeats_of_reading(path, Sampling(every=1, start=49.85)) == 1


@pytest.mark.parametrize("name", CONTAINERS)
def test_frames_are_the_right_ones_if_a_seek_lands_too_late(clips, name, monkeypatch):
    expected = read(clips / name, SIZE)[220:]
    monkeypatch.setattr(frame_reader, "IN_FILES", frame_reader.Seeking(packets=100, margin_seconds=-5.0))
    frames = read(clips / name, SIZE, Sampling(every=1, start=21.95))
    assert [index for index, _, _ in frames] == list(range(220, FRAMES))
    assert all(np.array_equal(frame, wanted) for (_, _, frame), (_, _, wanted) in zip(frames, expected, strict=True))


def test_frames_are_the_right_ones_if_decoding_cannot_begin_at_a_keyframe(tmp_path):
    """With intra refresh a picture is renewed strip by strip; a frame that is marked as keyframe has one new strip."""
    path = tmp_path / "intra-refresh.mp4"
    options = {"bf": "0", "g": "30", "x264-params": "intra-refresh=1:scenecut=0", "crf": "30"}
    noise = np.random.default_rng(0).integers(0, 256, (240, 920, 3), np.uint8)
    write_pictures(path, "libx264", (noise[:, 2 * k : 2 * k + 320] for k in range(100)), options=options)
    size = InputSize(320, 240)
    everything = [frame for _, _, frame in read(path, size)]
    frames = read(path, size, Sampling(every=45))
    assert [index for index, _, _ in frames] == [0, 45, 90]
    for index, _, frame in frames:
        assert np.array_equal(frame, everything[index])


def test_frames_with_the_same_presentation_time_are_counted(tmp_path):
    path, twice = tmp_path / "one.mkv", tmp_path / "twice.mkv"
    write(path, "ffv1", range(20, 220, 10))
    with av.open(str(path)) as source, av.open(str(twice), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(source.demux(video=0)):
            if packet.size:
                packet.stream, packet.pts, packet.dts = stream, 100 * (number // 2), 100 * (number // 2)
                target.mux(packet)
    frames = read(twice, SIZE, Sampling(every=3))
    assert [index for index, _, _ in frames] == [0, 3, 6, 9, 12, 15, 18]
    assert [seconds for _, seconds, _ in frames] == [0, 0.1, 0.3, 0.4, 0.6, 0.7, 0.9]
    assert [round(frame.mean() / 10) for _, _, frame in frames] == [2, 5, 8, 11, 14, 17, 20]


def test_vp8_frames_that_are_never_shown_are_left_out(tmp_path):
    path, hidden = tmp_path / "vp8.webm", tmp_path / "hidden.webm"
    write(path, "libvpx", range(20, 220, 10))
    with av.open(str(path)) as source, av.open(str(hidden), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(source.demux(video=0)):
            if packet.size:
                content = bytearray(bytes(packet))
                content[0] &= 0xEF if number == 5 else 0xFF  # show_frame, RFC 6386, section 9.1
                copy = av.Packet(bytes(content))
                copy.stream, copy.pts, copy.dts, copy.time_base = stream, packet.pts, packet.dts, packet.time_base
                copy.is_keyframe = packet.is_keyframe
                target.mux(copy)
    for mode in ("exact", "fast"):
        frames = read(hidden, SIZE, Sampling(every=1), mode)
        assert [index for index, _, _ in frames] == list(range(19))
        assert [seconds for _, seconds, _ in frames] == pytest.approx([k / 10 for k in range(20) if k != 5])
        assert [round(frame.mean() / 10) for _, _, frame in frames] == [k for k in range(2, 22) if k != 7]


KEYS = np.array([True, False, False, False, False, True, False, False, False, False])


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (range(10), [DecodeRun(0, 0, 10, 9)]),
        ([3], [DecodeRun(0, 0, 1, 3)]),
        ([7], [DecodeRun(5, 0, 1, 7)]),
        ([1, 3, 6, 9], [DecodeRun(0, 0, 2, 3), DecodeRun(5, 2, 4, 9)]),
        ([4, 5], [DecodeRun(0, 0, 2, 5)]),
    ],
)
def test_a_new_run_begins_at_a_keyframe_that_saves_decoding(wanted, expected):
    assert list(plan_runs(wanted, KEYS, np.arange(10))) == expected


def test_leading_frames_are_in_the_run_of_the_keyframe_that_they_need():
    """Frames 3 and 4 are shown before keyframe 5 but stored after it."""
    order = np.array([0, 1, 2, 4, 5, 3, 6, 7, 8, 9])
    assert list(plan_runs([3, 7], KEYS, order)) == [DecodeRun(0, 0, 2, 7)]
    assert list(plan_runs([2, 7], KEYS, order)) == [DecodeRun(0, 0, 1, 2), DecodeRun(5, 1, 2, 7)]
    assert list(plan_runs([4, 5], KEYS, order)) == [DecodeRun(0, 0, 2, 4)]


def test_frames_before_the_first_keyframe_are_decoded_from_the_beginning_of_the_file():
    keys = np.array([False, False, True, False, False])
    assert list(plan_runs([0, 1], keys, np.arange(5))) == [DecodeRun(-1, 0, 2, 1)]
    assert list(plan_runs([0, 4], keys, np.arange(5))) == [DecodeRun(-1, 0, 1, 0), DecodeRun(2, 1, 2, 4)]


def test_packets_that_the_container_marks_as_corrupt_cost_their_own_frames_only(tmp_path):
    path = tmp_path / "damaged.ts"
    write_pictures(path, "mpeg2video", map(moving, range(60)), options={"g": "1"})
    whole = read(path, SIZE)
    with av.open(str(path)) as container:
        at = [packet.pos for packet in container.demux(video=0) if packet.size][30]
    content = bytearray(path.read_bytes())
    content[at + 188 + 1] |= 0x80  # transport_error_indicator, ISO/IEC 13818-1, section 2.4.3.3
    path.write_bytes(content)
    with Video(VideoTask(str(path), SIZE, resize="exact")) as video:
        frames = list(video.frames(range(60)))
    assert [frame.pts_seconds for frame in frames] == [seconds for _, seconds, _ in whole]
    lost = [frame.frame_index for frame in frames if frame.image is None]
    assert lost in ([29], [30])  # FFmpeg's parser of MPEG-2 reads a little ahead
    for frame in frames:
        assert frame.frame_index in lost or np.array_equal(frame.image, whole[frame.frame_index][2])


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_frames_outside_an_edit_list_are_left_out(tmp_path, mode):
    """A telephone that trims a clip keeps the frames before it in the file, because others need them to be decoded."""
    path, edited = tmp_path / "whole.mp4", tmp_path / "edited.mp4"
    write(path, "libx264", range(20, 220, 10), options={"bf": "0"})
    with av.open(str(path)) as source, av.open(str(edited), "w", options={"avoid_negative_ts": "disabled"}) as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        tenth = round(1 / source.streams.video[0].time_base / 10)
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream, packet.pts, packet.dts = stream, packet.pts - 5 * tenth, packet.dts - 5 * tenth
                target.mux(packet)
    frames = read(edited, SIZE, Sampling(every=1), mode)
    assert [(index, seconds) for index, seconds, _ in frames] == [(k, k / 10) for k in range(15)]
    assert [round(frame.mean() / 10) for _, _, frame in frames] == list(range(7, 22))


def test_frames_are_undecodable_if_the_first_is_damaged_and_no_keyframe_stated(tmp_path):
    path = tmp_path / "damaged.mp4"
    write(path, "libx264", range(20, 220, 10), options={"bf": "0"})
    with av.open(str(path)) as container:
        first = next(container.demux(video=0))
    content = bytearray(path.read_bytes())
    content[first.pos : first.pos + first.size] = bytes(first.size)
    for box, number in [(b"stss", 99), (b"elst", 1000)]:  # its only keyframe; milliseconds that are shown
        at = content.index(box) + 12  # the first entry, ISO/IEC 14496-12, sections 8.6.2 and 8.6.6
        content[at : at + 4] = number.to_bytes(4)
    path.write_bytes(content)
    with Video(VideoTask(str(path), SIZE)) as video:
        frames = list(video.frames(range(len(video.chosen))))
    assert [frame.frame_index for frame in frames] == list(range(10))
    assert all(frame.image is None for frame in frames)
