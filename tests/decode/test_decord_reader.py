"""decord reads the files in which it finds the same frames at the same times as PyAV, and no others."""

import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest

from reelscribe.contract.frames import InputSize
from reelscribe.contract.source import Section
from reelscribe.decode.sampling import Sampling
from reelscribe.decode.video import ChosenFrame, Decoder, Video, VideoTask
from support.odd_media import crop
from support.videos import write_noise, write_pictures

SIZE = InputSize(64, 48)
FRAMES = 120
H264 = {"bf": "3", "g": "20"}
READABLE = {
    "b-frames.mp4": ("libx264", H264, {}),
    "open-gop.mp4": ("libx264", {**H264, "x264-params": "open-gop=1"}, {}),
    "long-gop.mkv": ("libx264", {"bf": "3", "g": "250"}, {}),
    "vp8.webm": ("libvpx", {"g": "20"}, {}),
    "mpeg4.mp4": ("mpeg4", {"bf": "2", "g": "20"}, {}),
}
OTHERS = {
    "late.mp4": ("libx264", H264, {"movflags": "frag_keyframe+empty_moov"}),
    "late.flv": ("libx264", H264, {}),
    "live.webm": ("libvpx", {"g": "20"}, {"live": "1"}),
    "wrong-frames.ts": ("libx264", H264, {}),
    "old.avi": ("mpeg4", {"g": "20"}, {}),
}
SAMPLINGS = [Sampling(every=1), Sampling(every=7), Sampling(keyframes=True), Sampling(frames=3, start=4.5)]


def level(number: int) -> int:
    return 20 + number % 25 * 8


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> Path:
    """Grey videos, each frame of which has another level than the frames near it."""
    folder = tmp_path_factory.mktemp("clips")
    for name, (codec, options, container) in (READABLE | OTHERS).items():
        pictures = (np.full((48, 64, 3), level(number), np.uint8) for number in range(FRAMES))
        write_pictures(folder / name, codec, pictures, options=options, container=container)
    return folder


def read(
    path: Path, decoder: Decoder, sampling: Sampling = SAMPLINGS[0], size: InputSize = SIZE, **options
) -> tuple[Decoder, list[ChosenFrame]]:
    """What has decoded the file, and its chosen frames."""
    with Video(VideoTask(str(path), size, sampling, decoder=decoder, **options)) as video:
        return video.decoder, list(video.frames(range(len(video.chosen))))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", READABLE)
def test_decord_reads_the_frames_that_pyav_would(clips, name, sampling):
    decoder, frames = read(clips / name, "decord", sampling)
    assert decoder == "decord"
    assert [frame[:3] for frame in frames] == [frame[:3] for frame in read(clips / name, "pyav", sampling)[1]]
    for frame in frames:
        assert abs(frame.image.mean() - level(frame.frame_index)) < 4  # less than between neighbouring frames


@pytest.mark.parametrize("name", READABLE)
def test_a_portion_has_the_same_frames_as_the_whole(clips, name):
    _, whole = read(clips / name, "decord")
    with Video(VideoTask(str(clips / name), SIZE, decoder="decord")) as video:
        for ordinals in (range(73, 90), range(10, 30), range(100, FRAMES)):
            for frame in video.frames(ordinals):
                assert np.array_equal(frame.image, whole[frame.ordinal].image)


def test_where_the_frame_rate_varies_the_frames_are_the_right_ones(media):
    _, frames = read(media / "variable-rate.mp4", "decord", Sampling(every=7))
    decoder, all_frames = read(media / "variable-rate.mp4", "decord")
    assert (decoder, len(frames)) == ("decord", 15)
    assert all(np.array_equal(frame.image, all_frames[frame.frame_index].image) for frame in frames)


@pytest.mark.parametrize("name", OTHERS)
def test_pyav_reads_files_in_which_decord_finds_other_frames(clips, name):
    (decoder, frames), (_, expected) = read(clips / name, "decord"), read(clips / name, "pyav")
    assert (decoder, len(frames)) == ("pyav", FRAMES)
    assert all(np.array_equal(frame.image, other.image) for frame, other in zip(frames, expected, strict=True))


@pytest.mark.parametrize("degrees", [90, 180, 270])
@pytest.mark.parametrize("size", [SIZE, InputSize(48, 48, shortest_edge=60), InputSize(224, 224)])
def test_decord_shows_frames_as_players_do(tmp_path, degrees, size):
    picture, path = np.zeros((60, 90, 3), np.uint8), tmp_path / "turned.mp4"
    picture[:30, :40], picture[:30, 50:] = (250, 0, 0), (0, 0, 250)
    write_pictures(path, "libx264", [picture] * 2, set_up=lambda stream: stream.set_display_rotation(-degrees))
    (decoder, frames), (_, expected) = read(path, "decord", size=size), read(path, "pyav", size=size)
    assert decoder == "decord"
    assert np.abs(frames[1].image.astype(int) - expected[1].image).mean() < 5


def mirrored(path: Path) -> None:
    pictures = [np.zeros((48, 64, 3), np.uint8)] * 2
    write_pictures(path, "libx264", pictures, set_up=lambda stream: stream.set_display_rotation(0, hflip=True))


def cropped(path: Path) -> None:
    write_pictures(path, "libx264", [np.zeros((48, 64, 3), np.uint8)] * 2)
    crop(path, 0, 8, 0, 0)


def transparent(path: Path) -> None:
    write_pictures(path, "qtrle", [np.zeros((48, 64, 3), np.uint8)] * 2, pix_fmt="argb")


@pytest.mark.parametrize("write", [mirrored, cropped, transparent])
def test_pyav_reads_files_that_decord_would_show_as_no_player_does(tmp_path, write):
    path = tmp_path / ("odd.mov" if write is transparent else "odd.mp4")
    write(path)
    assert read(path, "decord")[0] == "pyav"


def test_pyav_reads_files_of_several_video_streams_of_which_decord_would_take_the_largest(tmp_path):
    with av.open(str(tmp_path / "two.mp4"), "w") as file:
        streams = [file.add_stream("libx264", rate=10, width=width, height=width * 2 // 3) for width in (96, 192)]
        for number in range(20):
            for stream, grey in zip(streams, (50, 200), strict=True):
                picture = av.VideoFrame.from_ndarray(np.full((stream.height, stream.width, 3), grey, np.uint8), "rgb24")
                picture.pts = number
                file.mux(stream.encode(picture))
        for stream in streams:
            file.mux(stream.encode())
    (decoder, frames), (_, expected) = read(tmp_path / "two.mp4", "decord"), read(tmp_path / "two.mp4", "pyav")
    assert decoder == "pyav"
    assert [frame.image.mean() for frame in frames] == [frame.image.mean() for frame in expected]


def test_pyav_reads_files_that_are_cut(tmp_path):
    cut = write_noise(tmp_path / "cut.mkv", 60)
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    assert read(cut, "decord")[0] == "pyav"


def test_shots_are_found_by_pyav_and_their_frames_read_by_decord(clips):
    decoder, frames = read(clips / "b-frames.mp4", "decord", Sampling(per_shot=1), known_shots=[Section(0, 50, 0, 5)])
    assert (decoder, [frame.frame_index for frame in frames]) == ("decord", [25])


def test_it_tells_of_each_frame_that_it_decodes_on_the_way(clips):
    beats: list[None] = []
    task = VideoTask(str(clips / "b-frames.mp4"), SIZE, Sampling(every=50), decoder="decord")
    with Video(task, lambda: beats.append(None)) as video:
        scanned = len(beats)
        assert [frame.frame_index for frame in video.frames(range(3))] == [0, 50, 100]
        assert (video.decoded, len(beats) - scanned) == (101, 101)


def test_pyav_keeps_its_own_libraries(clips, tmp_path):
    """PyAV would call decord's libvpx, and could neither encode nor decode with it."""
    program = f"""
from reelscribe.decode.video import Video, VideoTask
from reelscribe.contract.frames import InputSize
with Video(VideoTask({str(clips / "vp8.webm")!r}, InputSize(64, 48), decoder="decord")) as video:
    assert video.decoder == "decord"
import av
with av.open({str(tmp_path / "vp9.webm")!r}, "w") as file:
    stream = file.add_stream("libvpx-vp9", rate=10)
    stream.width, stream.height = 64, 48
    file.mux(stream.encode(av.VideoFrame(64, 48, "yuv420p")))
    file.mux(stream.encode())
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    with av.open(str(tmp_path / "vp9.webm")) as file:
        assert len(list(file.decode(video=0))) == 1
