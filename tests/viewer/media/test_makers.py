"""Thumbnails and previews that are made when somebody wants to see them."""

import io
import os
import threading
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from reelscribe import _child_process
from reelscribe.errors import MediaError, OutputError
from reelscribe.viewer.media.preview_maker import make_preview
from reelscribe.viewer.media.thumbnail_maker import make_thumbnails
from support.videos import beginning, write


def pictures(path, *times):
    """(time, grey level in the middle) of the thumbnails of a file."""
    found = make_thumbnails(path, times or None)
    return [(time, Image.open(io.BytesIO(webp)).convert("L").getpixel((32, 24))) for time, webp in found]


@pytest.fixture(autouse=True)
def modules_of_tests(monkeypatch):
    """Children find `support.bad_child`."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


@pytest.fixture
def grey(tmp_path):
    """Four seconds, ten frames a second, whose level grows by 5 with each frame."""
    write(tmp_path / "grey.mp4", "libx264", [30 + 5 * k for k in range(40)], options={"bf": "2"})
    return tmp_path / "grey.mp4"


def test_a_thumbnail_is_the_picture_that_is_shown_at_its_time(grey):
    for time, level in pictures(grey, 3.25, 0.0, 1.5):
        assert abs(level - (30 + 50 * time)) <= 4


def test_pictures_come_in_the_order_of_time_with_their_own_times(grey):
    assert [time for time, _ in pictures(grey, 3.25, 0.0, 1.5, 99.0)] == [0.0, 1.5, 3.2, 3.9]


def test_by_default_there_are_twelve_over_the_duration(grey):
    times = [time for time, _ in pictures(grey)]
    assert len(times) == 12
    assert times == sorted(times)
    assert times[0] < 0.4
    assert times[-1] > 3.6


@pytest.mark.parametrize("suffix", ["webm", "ogv", "mkv"])
def test_a_file_that_begins_late_has_thumbnails_of_all_its_parts(tmp_path, suffix):
    path = tmp_path / f"late.{suffix}"
    write(path, "libvpx", [30 + 5 * k for k in range(40)], start=10)
    times = [time for time, _ in pictures(path)]
    assert len(times) == 12
    assert times[0] < 10.4
    assert times[-1] > 13.6


def test_of_two_videos_a_thumbnail_is_the_picture_that_is_shown_at_its_time(tmp_path):
    path = tmp_path / "two.mkv"
    with av.open(str(path), "w") as file:
        streams = [
            (file.add_stream("libvpx-vp9", rate=10, options={"g": g}), side) for g, side in (("10", 48), ("47", 96))
        ]
        for stream, side in streams:
            stream.width, stream.height, stream.pix_fmt, stream.bit_rate = side, side, "yuv420p", 2_000_000
        for number in range(60):
            for stream, side in streams:
                frame = av.VideoFrame.from_ndarray(np.full((side, side, 3), 30 + 3 * number, np.uint8))
                frame.pts, frame.time_base = number, Fraction(1, 10)
                file.mux(stream.encode(frame))
        for stream, _ in streams:
            file.mux(stream.encode())
    assert [time for time, _ in pictures(path, 1.0, 3.0, 5.0)] == [1.0, 3.0, 5.0]


def test_a_thumbnail_is_turned_and_shaped_as_players_show_it(media):
    (_, webp), *_ = make_thumbnails(media / "portrait-odd.webm", [1.0])
    assert Image.open(io.BytesIO(webp)).size == (240, 320)


@pytest.mark.parametrize("name", ["missing.mp4", "folder", "text", "empty", "pipe"])
def test_what_is_no_video_is_an_error(tmp_path, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("no video" * 1000)
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(MediaError):
        pictures(tmp_path / name, 1.0)
    with pytest.raises(MediaError):
        make_preview(tmp_path / name, tmp_path / "preview.webm")
    assert not (tmp_path / "preview.webm").exists()
    assert not (tmp_path / "preview.webm.partial").exists()


def test_a_recording_has_no_thumbnails(media):
    with pytest.raises(MediaError, match="expected a video stream with pictures"):
        pictures(media / "phrases.ogg", 1.0)


@pytest.mark.parametrize(("damaged", "left"), [({1}, [0.5, 2.5]), ({0}, [1.5, 2.5])])
def test_a_damaged_file_has_what_can_be_decoded(tmp_path, damaged, left):
    path = tmp_path / "damaged.mp4"
    write(path, "libx264", [30 + 5 * k for k in range(40)], options={"g": "10", "bf": "0"})
    content = bytearray(path.read_bytes())
    with av.open(str(path)) as file:
        for packet in file.demux():
            if packet.size and packet.pts * packet.time_base // 1 in damaged:
                content[packet.pos : packet.pos + packet.size] = bytes(packet.size)
    path.write_bytes(content)
    assert [time for time, _ in pictures(path, 0.5, 1.5, 2.5)] == left


def test_a_child_that_dies_is_an_error_with_its_signal(monkeypatch):
    with pytest.raises(MediaError, match="the process that was reading it ended: SIGSEGV"):
        list(_child_process.messages("support.bad_child", {"do": "crash"}))


def test_a_child_that_hangs_is_killed(monkeypatch):
    monkeypatch.setattr(_child_process, "SILENT_SECONDS", 0.5)
    with pytest.raises(MediaError, match="did not get on and was ended"):
        list(_child_process.messages("support.bad_child", {"do": "hang"}))


def test_a_child_that_takes_too_much_memory_is_an_error():
    with pytest.raises(MediaError, match="ended: exit status 1"):
        list(_child_process.messages("support.bad_child", {"do": "fill"}))


def test_another_thread_can_cancel(monkeypatch):
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(MediaError, match="it was cancelled"):
        list(_child_process.messages("support.bad_child", {"do": "hang"}, cancelled=cancelled))


def test_a_child_ends_when_nobody_wants_more_of_it():
    with closing(_child_process.messages("support.bad_child", {"do": "tell and hang"})) as messages:
        message, _ = next(messages)
    with pytest.raises(ProcessLookupError):
        os.kill(message["pid"], 0)


def test_a_preview_has_the_times_of_its_source(grey, tmp_path):
    make_preview(grey, tmp_path / "preview.webm")
    with av.open(str(tmp_path / "preview.webm")) as container:
        assert container.streams.video[0].codec_context.name in ("vp8", "libvpx")
        found = [(frame.time, int(frame.to_ndarray(format="gray")[24, 32])) for frame in container.decode(video=0)]
    assert len(found) == 40
    for time, level in found:
        assert abs(level - (30 + 50 * time)) <= 5 + 8


def test_a_preview_has_sound_and_small_pictures(media, tmp_path):
    beginning(media / "spoken.mp4", tmp_path / "spoken.mp4", 2.0)
    make_preview(tmp_path / "spoken.mp4", tmp_path / "preview.webm")
    with av.open(str(tmp_path / "preview.webm")) as container, av.open(str(tmp_path / "spoken.mp4")) as source:
        assert container.streams.audio[0].codec_context.name in ("opus", "libopus")
        assert max(container.streams.video[0].width, container.streams.video[0].height) <= 480
        assert abs(container.duration - source.duration) < 0.1 * av.time_base


def test_a_recording_has_a_preview_of_sound_alone(media, tmp_path):
    beginning(media / "phrases.ogg", tmp_path / "phrases.ogg", 2.0)
    make_preview(tmp_path / "phrases.ogg", tmp_path / "preview.webm")
    with av.open(str(tmp_path / "preview.webm")) as container:
        assert [stream.type for stream in container.streams] == ["audio"]


def test_a_preview_that_cannot_be_written_is_said(grey, tmp_path):
    with pytest.raises(OutputError, match="a preview cannot be written"):
        make_preview(grey, tmp_path / "missing" / "preview.webm")
