from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from reelscribe.errors import MediaError
from reelscribe.media import FrameSize
from reelscribe.video import Video, VideoTask

SIZE = FrameSize(224, 224)
CLIPS = sorted(p.name for p in (Path(__file__).parents[1] / "demo" / "media").iterdir() if p.suffix != ".jsonl")


def read(path: Path, frame: FrameSize = SIZE, every: int = 1) -> list[tuple[int, float, np.ndarray]]:
    return list(Video(VideoTask(str(path), frame, every)).frames())


@pytest.mark.parametrize("name", CLIPS)
def test_frames_and_their_times_are_those_of_the_packets(media, name):
    with av.open(str(media / name)) as container:
        expected = [float(frame.pts * frame.time_base) for frame in container.decode(video=0)]
    frames = read(media / name)
    assert [index for index, _, _ in frames] == list(range(len(expected)))
    assert np.abs(np.subtract([seconds for _, seconds, _ in frames], expected)).max() < 1e-3
    assert {frame.shape for _, _, frame in frames} == {(224, 224, 3)}


@pytest.mark.parametrize("every", [2, 7, 1000])
def test_every_nth_frame_is_that_frame(media, every):
    path = media / "old.avi"
    all_frames, chosen = read(path), read(path, every=every)
    assert [index for index, _, _ in chosen] == list(range(0, len(all_frames), every))
    for index, seconds, frame in chosen:
        assert seconds == all_frames[index][1]
        assert np.array_equal(frame, all_frames[index][2])


def test_scaling_is_that_of_the_processors(media):
    path = media / "same-640x360.webm"
    full = read(path, FrameSize(640, 360))[0][2]
    expected = Image.fromarray(full).resize((224, 224), Image.Resampling.BICUBIC)
    assert np.array_equal(read(path)[0][2], np.asarray(expected))
    cut = read(path, FrameSize(224, 224, shortest_edge=224))[0][2]
    expected = Image.fromarray(full).resize((398, 224), Image.Resampling.BICUBIC).crop((87, 0, 311, 224))
    assert np.array_equal(cut, np.asarray(expected))


def test_the_description_is_that_of_the_file(media):
    info = Video(VideoTask(str(media / "spoken.mp4"), SIZE)).info
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
        read(path)


def test_a_file_without_pictures_says_so(media, tmp_path):
    path = tmp_path / "sound.mka"
    with av.open(str(media / "spoken.mp4")) as source, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(source.streams.audio[0])
        for packet in source.demux(audio=0):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    with pytest.raises(MediaError, match="expected a video stream"):
        read(path)


def test_a_file_that_was_cut_gives_what_is_left_or_an_error(media, tmp_path):
    whole = (media / "old.avi").read_bytes()
    for share in (0.01, 0.3, 0.6, 0.9):
        path = tmp_path / f"{share}.avi"
        path.write_bytes(whole[: int(len(whole) * share)])
        try:
            frames = read(path)
        except MediaError as error:
            assert str(path) in str(error)
        else:
            assert 0 < len(frames) < 90
