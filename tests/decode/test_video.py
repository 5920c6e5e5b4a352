"""The description of a video file, its chosen frames, and what is said about truncated, damaged and other files."""

import os
import shutil
from pathlib import Path

import av
import numpy as np
import pytest

from reelscribe.contract.frames import InputSize, PixelBudget
from reelscribe.decode.container import open_without_probing
from reelscribe.decode.sampling import Sampling
from reelscribe.decode.video import Video, VideoTask
from reelscribe.errors import MediaError, NoPictures
from support.videos import read, read_with_av, write, write_pictures

SIZE = InputSize(224, 224)
SMALL = InputSize(64, 48)
CLIPS = sorted(
    p.name for p in (Path(__file__).parents[2] / "demo" / "media").iterdir() if p.suffix not in (".jsonl", ".ogg")
)


@pytest.mark.parametrize("name", CLIPS)
def test_every_frame_comes_with_the_presentation_time_of_its_packet(media, name):
    expected = [seconds for seconds, _ in read_with_av(media / name)]
    frames = read(media / name, SIZE)
    assert [index for index, _, _ in frames] == list(range(len(expected)))
    assert np.abs(np.subtract([seconds for _, seconds, _ in frames], expected)).max() < 1e-3
    assert {frame.shape for _, _, frame in frames} == {(224, 224, 3)}


@pytest.mark.parametrize("resize", ["exact", "fast"])
@pytest.mark.parametrize("sampling", [Sampling(every=7), Sampling(fps=2, start=1), Sampling(frames=8)])
def test_a_chosen_frame_is_the_same_as_when_all_are_read(media, sampling, resize):
    path = media / "old.avi"
    everything = {index: (seconds, frame) for index, seconds, frame in read(path, SIZE, Sampling(every=1), resize)}
    with Video(VideoTask(str(path), SIZE, sampling, resize)) as video:
        chosen = list(video.frames(range(len(video.chosen))))
    assert [frame.ordinal for frame in chosen] == list(range(len(chosen)))
    for _, index, seconds, image in chosen:
        assert seconds == everything[index][0]
        assert np.array_equal(image, everything[index][1])


@pytest.mark.parametrize(
    ("name", "options", "undecoded"),
    [
        ("plain.mp4", {}, True),
        ("plain.mov", {}, True),
        ("fragmented.mp4", {"movflags": "frag_keyframe+empty_moov"}, False),
        ("other.mkv", {}, False),
    ],
)
def test_nothing_is_decoded_on_opening_where_the_header_tells_the_order_of_frames(tmp_path, name, options, undecoded):
    path = tmp_path / name
    write(path, "libx264", range(20, 220, 10), options={"bf": "3"}, container=options)
    with open_without_probing(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.pix_fmt is None) == undecoded
        assert stream.codec_context.has_b_frames or undecoded
    frames = read(path, SMALL)
    assert [index for index, _, _ in frames] == list(range(len(read_with_av(path))))


def test_any_range_of_the_chosen_frames_can_be_read(media):
    with Video(VideoTask(str(media / "spoken.mp4"), SIZE, Sampling(every=5))) as video:
        everything = list(video.frames(range(24)))
        some = list(video.frames(range(10, 20)))
        assert not list(video.frames(range(3, 3)))
    assert [(frame.ordinal, frame.frame_index) for frame in some] == [(k, 5 * k) for k in range(10, 20)]
    for frame in some:
        assert np.array_equal(frame.image, everything[frame.ordinal].image)


def test_the_description_is_that_of_the_video_stream(media):
    with Video(VideoTask(str(media / "spoken.mp4"), SIZE)) as video:
        info = video.info
        assert (video.why_incomplete, video.end_seconds) == (None, info.end_seconds)
    assert (info.width, info.height, info.frames, info.average_fps) == (640, 360, 120, 10.0)
    assert (info.rotation, info.pixel_aspect, info.shown_size) == (0, 1.0, (640, 360))
    assert (info.video_codec, info.audio_codec) == ("h264", "aac")
    assert (info.start_seconds, info.end_seconds) == (0.0, 12.0)
    assert info.duration_seconds == pytest.approx(12, abs=0.1)


def test_start_and_end_count_from_the_first_frame_of_a_file_that_starts_late(tmp_path):
    path = tmp_path / "clock.ts"
    write(path, "libx264", range(20, 220, 10))
    with Video(VideoTask(str(path), SMALL, Sampling(every=1, start=1, end=1.5))) as video:
        assert video.info.start_seconds > 0
        assert video.info.end_seconds == pytest.approx(video.info.start_seconds + 2)
        assert list(video.chosen) == list(range(10, 15))
        assert video.end_seconds == pytest.approx(video.info.start_seconds + 1.5)


def test_frames_have_the_size_that_the_pixel_budget_gives_the_video(media):
    budget = PixelBudget(28, 28 * 28, 50_000)
    with Video(VideoTask(str(media / "portrait-odd.webm"), budget)) as video:
        assert video.input_size == budget.for_video(361, 481)
        (frame,) = video.frames(range(1))
        assert frame.image.shape == (video.input_size.height, video.input_size.width, 3)


def test_a_task_is_the_same_after_it_was_sent_as_json():
    task = VideoTask("x.mp4", InputSize(32, 24, "bilinear", 40), Sampling(fps=2), "fast")
    assert VideoTask.from_json(task.to_json()) == task
    task = VideoTask("y.mp4", PixelBudget(28, 784, 50_000))
    assert VideoTask.from_json(task.to_json()) == task
    with pytest.raises(ValueError, match="resize: expected one of exact, fast, got 'nearest'"):
        VideoTask.from_json({**task.to_json(), "resize": "nearest"})


def test_reading_calls_the_heartbeat(tmp_path):
    path = tmp_path / "beats.mkv"
    write(path, "libx264", [20 + k % 200 for k in range(250)], options={"bf": "0", "g": "500", "sc_threshold": "0"})
    heartbeats = []
    with Video(VideoTask(str(path), SMALL, Sampling(every=1, start=24.9)), lambda: heartbeats.append(None)) as video:
        scanned = len(heartbeats)
        assert 2 <= scanned < 10
        assert len(list(video.frames(range(1)))) == 1
    assert len(heartbeats) - scanned == 250  # all frames are decoded to get the last one


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "the file is empty"), (b"hello\n" * 1000, "not a media file"), (bytes(5000), "not a media file")],
)
def test_files_that_are_not_media_are_media_errors(tmp_path, content, reason):
    path = tmp_path / "x.mp4"
    path.write_bytes(content)
    with pytest.raises(MediaError, match=reason) as error:
        read(path, SIZE)
    assert str(path) not in str(error.value)  # the caller adds it


def test_a_missing_file_is_a_media_error(tmp_path):
    with pytest.raises(MediaError, match="No such file or directory"):
        read(tmp_path / "nowhere.mp4", SIZE)


def test_an_audio_file_has_no_pictures(media, tmp_path):
    path = tmp_path / "audio.mka"
    with av.open(str(media / "spoken.mp4")) as source, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(source.streams.audio[0])
        for packet in source.demux(audio=0):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    with pytest.raises(NoPictures, match="expected a video stream with pictures, got audio"):
        read(path, SIZE)


def test_a_file_truncated_before_its_first_frame_is_not_an_audio_file(media, tmp_path):
    path = tmp_path / "cut.mp4"
    with (
        av.open(str(media / "spoken.mp4")) as source,
        av.open(str(path), "w", options={"movflags": "faststart"}) as target,
    ):
        streams = {stream.index: target.add_stream_from_template(stream) for stream in source.streams}
        for packet in source.demux():
            if packet.dts is not None:
                packet.stream = streams[packet.stream.index]
                target.mux(packet)
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(b"mdat") + 4])
    with pytest.raises(MediaError, match="expected frames in its video stream, got none") as caught:
        read(path, SIZE)
    assert not isinstance(caught.value, NoPictures)


def test_an_unknown_codec_is_a_media_error(media, tmp_path):
    path = tmp_path / "unknown.webm"
    path.write_bytes((media / "same-640x360.webm").read_bytes().replace(b"V_VP9", b"V_XX9"))
    with pytest.raises(MediaError, match="expected a video codec"):
        read(path, SIZE)


@pytest.mark.parametrize("count", [1, 2])
def test_files_of_one_and_two_frames_are_read(tmp_path, count):
    path = tmp_path / "short.mkv"
    write(path, "libx264", [100, 200][:count])
    assert [(index, seconds) for index, seconds, _ in read(path, SIZE)] == [(0, 0.0), (1, 0.1)][:count]


@pytest.mark.parametrize(
    ("name", "share"),
    [("cut.avi", 0.3), ("cut.avi", 0.8), ("cut.mkv", 0.3), ("cut.mkv", 0.8), ("cut.mp4", 0.6), ("cut.mp4", 0.8)],
)
def test_a_truncated_file_gives_the_frames_that_are_left_and_the_reason(tmp_path, name, share):
    path = tmp_path / name
    codec = "mpeg4" if name.endswith("avi") else "libx264"
    faststart = {"movflags": "faststart"} if name.endswith("mp4") else {}
    write(path, codec, [20 + k % 200 for k in range(200)], options={"g": "10"}, container=faststart)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with Video(VideoTask(str(path), SMALL)) as video:
        assert video.why_incomplete.startswith("cut short: ")
        decoded = [frame for frame in video.frames(range(len(video.chosen))) if frame.image is not None]
    assert 0.1 < len(decoded) / 200 < 0.9
    assert [frame.frame_index for frame in decoded] == list(range(len(decoded)))
    assert [index for index, _, _ in read(path, SMALL, Sampling(every=1), "fast")] == list(range(len(decoded)))


def test_damaged_packets_cost_their_own_frames_only(tmp_path):
    path = tmp_path / "damaged.mov"
    write(path, "png", range(20, 220, 4), pix_fmt="rgb24")
    whole = read(path, SMALL)
    with av.open(str(path)) as container:
        at = [packet.pos for packet in container.demux(video=0) if packet.size][20:23]
    content = bytearray(path.read_bytes())
    for start in at:
        content[start : start + 8] = bytes(8)  # the signature of a PNG
    path.write_bytes(content)
    frames = read(path, SMALL)
    assert [index for index, _, _ in frames] == [k for k in range(50) if k not in (20, 21, 22)]
    for index, seconds, frame in frames:
        assert seconds == whole[index][1]
        assert np.array_equal(frame, whole[index][2])


def test_a_file_whose_name_is_not_utf8_is_read(media, tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.avi")
    shutil.copy(media / "old.avi", path)
    for resize in ("exact", "fast"):
        assert len(read(Path(path), SIZE, Sampling(every=1), resize)) == 90


def test_a_rotated_clip_of_one_frame_is_shown_upright_and_opened_once(tmp_path, monkeypatch):
    """With B-frames, the decoder returns no frame before the end of the file."""
    path = tmp_path / "one.mp4"
    picture = np.zeros((48, 64, 3), np.uint8)
    picture[:24] = 255
    write_pictures(
        path, "libx264", [picture], options={"bf": "2"}, set_up=lambda stream: stream.set_display_rotation(-90)
    )
    opened, av_open = [], av.open
    monkeypatch.setattr(av, "open", lambda *what, **options: opened.append(what[0]) or av_open(*what, **options))
    with Video(VideoTask(str(path), InputSize(48, 64))) as video:
        assert video.info.rotation == 90
        (frame,) = video.frames(range(1))
        assert video.decoded == 1
    assert frame.image[:, :20].mean() < 60 < 200 < frame.image[:, 28:].mean()
    assert sum(isinstance(file, str) for file in opened) == 1  # the others are in memory
