import os
import shutil
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from reelscribe.errors import MediaError
from reelscribe.media import FrameSize
from reelscribe.video import Video, VideoTask
from videos import Frames, read, read_with_av, write

SIZE = FrameSize(224, 224)
CLIPS = sorted(p.name for p in (Path(__file__).parents[1] / "demo" / "media").iterdir() if p.suffix != ".jsonl")


@pytest.mark.parametrize("name", CLIPS)
def test_frames_and_their_times_are_those_of_the_packets(media, name):
    expected = [seconds for seconds, _ in read_with_av(media / name)]
    frames = read(media / name, SIZE)
    assert [index for index, _, _ in frames] == list(range(len(expected)))
    assert np.abs(np.subtract([seconds for _, seconds, _ in frames], expected)).max() < 1e-3
    assert {frame.shape for _, _, frame in frames} == {(224, 224, 3)}


@pytest.mark.parametrize("every", [2, 7, 1000])
def test_every_nth_frame_is_that_frame(media, every):
    path = media / "old.avi"
    all_frames, chosen = read(path, SIZE), read(path, SIZE, every)
    assert [index for index, _, _ in chosen] == list(range(0, len(all_frames), every))
    for index, seconds, frame in chosen:
        assert seconds == all_frames[index][1]
        assert np.array_equal(frame, all_frames[index][2])


def test_scaling_is_that_of_the_processors(media):
    path = media / "same-640x360.webm"
    full = read(path, FrameSize(640, 360))[0][2]
    expected = Image.fromarray(full).resize((224, 224), Image.Resampling.BICUBIC)
    assert np.array_equal(read(path, SIZE)[0][2], np.asarray(expected))
    cut = read(path, FrameSize(224, 224, shortest_edge=224))[0][2]
    expected = Image.fromarray(full).resize((398, 224), Image.Resampling.BICUBIC).crop((87, 0, 311, 224))
    assert np.array_equal(cut, np.asarray(expected))


def test_the_description_is_that_of_the_file(media):
    with Video(VideoTask(str(media / "spoken.mp4"), SIZE)) as video:
        info = video.info
    assert (info.width, info.height, info.frames, info.average_fps) == (640, 360, 120, 10.0)
    assert (info.video_codec, info.audio_codec) == ("h264", "aac")
    assert info.duration_seconds == pytest.approx(12, abs=0.1)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "empty"), (b"hello\n" * 1000, "not a media file"), (bytes(5000), "not a media file")],
)
def test_files_that_are_no_video_say_so(tmp_path, content, reason):
    path = tmp_path / "x.mp4"
    path.write_bytes(content)
    with pytest.raises(MediaError, match=reason):
        read(path, SIZE)


def test_a_file_without_pictures_says_so(media, tmp_path):
    path = tmp_path / "sound.mka"
    with av.open(str(media / "spoken.mp4")) as source, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(source.streams.audio[0])
        for packet in source.demux(audio=0):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    with pytest.raises(MediaError, match="expected a video stream"):
        read(path, SIZE)


CONTAINERS = {
    "b-frames.mp4": ("libx264", {"bf": "3", "g": "20"}, {}),
    "fragmented.mp4": ("libx264", {"bf": "3", "g": "20"}, {"movflags": "frag_keyframe+empty_moov"}),
    "b-frames.mkv": ("libx264", {"bf": "3"}, {}),
    "live.webm": ("libvpx-vp9", {}, {"live": "1"}),
    "b-frames.ts": ("libx264", {"bf": "3", "g": "20"}, {}),
    "long-gop.ts": ("libx264", {"bf": "3", "g": "250"}, {}),
    "mpeg2.mpg": ("mpeg2video", {"bf": "2"}, {}),
    "b-frames.flv": ("libx264", {"bf": "3"}, {}),
    "old.avi": ("mpeg4", {}, {}),
}


@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("name", CONTAINERS)
def test_in_every_container_each_frame_is_the_right_one_at_the_right_time(tmp_path, name, every):
    codec, options, container = CONTAINERS[name]
    path = tmp_path / name
    write(path, codec, range(20, 240, 4), options=options, container=container)
    expected = read_with_av(path)
    assert (np.diff([frame.mean() for _, frame in expected]) > 1).all()  # so that a wrong frame is seen
    frames = read(path, FrameSize(64, 48), every)
    assert [index for index, _, _ in frames] == list(range(0, 55, every))
    for index, seconds, frame in frames:
        assert seconds == pytest.approx(expected[index][0], abs=1e-3)
        assert abs(frame.mean() - expected[index][1].mean()) < 1


@pytest.mark.parametrize("count", [1, 2])
def test_very_short_files(tmp_path, count):
    path = tmp_path / "short.mkv"
    write(path, "libx264", [100, 200][:count], options={}, container={})
    assert [(index, seconds) for index, seconds, _ in read(path, SIZE)] == [(0, 0.0), (1, 0.1)][:count]


@pytest.mark.parametrize("name", ["cut.avi", "cut.mkv", "cut.mp4"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.8])
def test_a_file_that_was_cut_gives_what_is_left_and_then_says_so(tmp_path, name, share):
    path = tmp_path / name
    options = {"movflags": "faststart"} if name.endswith("mp4") else {}
    codec = "mpeg4" if name.endswith("avi") else "libx264"
    write(path, codec, [20 + k % 200 for k in range(200)], options={"g": "10"}, container=options)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    frames: Frames = []
    with (
        pytest.raises(MediaError, match=r"cut short|damaged|not a media file") as error,
        Video(VideoTask(str(path), SIZE)) as video,
    ):
        frames.extend(video.frames())
    assert str(path) in str(error.value)


def test_a_name_that_is_not_utf8_is_no_obstacle(media, tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.avi")
    shutil.copy(media / "old.avi", path)
    assert len(read(Path(path), SIZE)) == 90
