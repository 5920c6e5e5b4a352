"""Of several streams, those are read that FFmpeg's player shows and plays, and what goes on in others is not lost."""

import io
import re

import pytest
from av.stream import Disposition
from PIL import Image

from reelscribe.contract.frames import InputSize
from reelscribe.decode.video import Video, VideoTask
from reelscribe.viewer.media.preview_maker import make_preview
from reelscribe.viewer.media.thumbnail_maker import make_thumbnails
from support import audio, odd_media, videos
from support.many_streams import RATE, UNMARKED, Pictures, Sound, heard, join_programmes, service, write

DEFAULT, BLIND, DEAF = Disposition.default, Disposition.visual_impaired, Disposition.hearing_impaired

SECOND = {
    "described.ts": [Sound(300, BLIND), Sound(500)],
    "described.mkv": [Sound(300, BLIND), Sound(500)],
    "described-default.ts": [Sound(300, BLIND), Sound(500, UNMARKED, 64_000)],
    "hard-of-hearing.ts": [Sound(300, DEAF), Sound(500)],
    "all-default.mkv": [Sound(300, BLIND | DEFAULT), Sound(500, DEFAULT)],
    "default.mkv": [Sound(300), Sound(500, DEFAULT)],
    "bit-rate.ts": [Sound(300, UNMARKED, 64_000), Sound(500, UNMARKED, 192_000)],
    "empty.ts": [Sound(300, UNMARKED, seconds=0), Sound(500)],
    "empty.mkv": [Sound(300, DEFAULT, seconds=0), Sound(500)],
}


@pytest.mark.parametrize("name", SECOND)
def test_the_second_audio_stream_is_read_where_a_player_plays_it(tmp_path, name):
    path = write(tmp_path / name, Pictures(64), *SECOND[name])
    read, video = audio.read(path), videos.info_of(path)
    assert heard(path) == 500
    assert (read.info.stream_index, read.info.other_streams, read.why_incomplete) == (2, 1, None)
    assert (video.stream_index, video.other_streams) == (None, None)


def test_a_preview_plays_what_is_read(tmp_path):
    path = write(tmp_path / "described.ts", Pictures(64), Sound(300, BLIND), Sound(500))
    make_preview(path, tmp_path / "preview.webm")
    assert heard(tmp_path / "preview.webm") == 500


def test_audio_in_a_codec_that_ffmpeg_lacks_is_passed_over(tmp_path):
    path = write(tmp_path / "phone.mov", Sound(300, DEFAULT), Sound(500), codec="aac")
    # A phone's spatial audio: another type of sample, ISO/IEC 14496-12, section 8.5.2, without its known description
    path.write_bytes(path.read_bytes().replace(b"mp4a", b"apac", 1).replace(b"esds", b"free", 1))
    assert heard(path) == 500


def test_audio_belongs_to_the_programme_of_the_pictures(tmp_path):
    small = write(tmp_path / "1.ts", Pictures(64), Sound(300, UNMARKED, 192_000), **service(1))
    large = write(tmp_path / "2.ts", Pictures(96), Sound(500, UNMARKED, 64_000), Sound(700, BLIND), **service(2))
    path = join_programmes(tmp_path / "both.ts", small, large)
    assert (videos.info_of(path).width, heard(path)) == (96, 500)
    assert audio.read(path).info.other_streams == 2


def test_audio_of_another_programme_is_not_read(tmp_path):
    radio = write(tmp_path / "1.ts", Sound(300), **service(1))
    silent = write(tmp_path / "2.ts", Pictures(96), **service(2))
    path = join_programmes(tmp_path / "both.ts", radio, silent)
    assert (videos.info_of(path).audio_codec, audio.read(path).info) == (None, None)


def test_audio_that_begins_late_is_read_though_nothing_is_known_of_it_at_first(tmp_path):
    path = write(tmp_path / "late.ts", Pictures(64, frames=400), Sound(300, start=38))
    read = audio.read(path)
    assert len(read.samples) / audio.RATE == pytest.approx(2, abs=0.1)
    assert (read.info.sample_rate, read.info.channels) == (RATE, 1)
    assert read.info.start_seconds - videos.info_of(path).start_seconds == pytest.approx(38, abs=0.1)


@pytest.mark.parametrize("first", [Pictures(64, DEFAULT, frames=0), Pictures(64, DEFAULT, 1, "mjpeg")])
def test_a_video_stream_of_no_frames_or_one_is_passed_over(tmp_path, first):
    path = write(tmp_path / "one.mkv", first, Pictures(48))
    info = videos.info_of(path)
    assert (info.width, info.frames, info.stream_index, info.other_streams) == (48, 20, 1, 1)
    assert {Image.open(io.BytesIO(webp)).width for _, webp in make_thumbnails(path)} == {48}
    make_preview(path, tmp_path / "preview.webm")
    preview = videos.info_of(tmp_path / "preview.webm")
    assert (preview.width, preview.frames) == (48, 20)


def test_a_picture_alone_is_read_beside_an_empty_stream(tmp_path):
    path = write(tmp_path / "one.mkv", Pictures(64, DEFAULT, 1, "mjpeg"), Pictures(48, frames=0))
    assert videos.info_of(path).frames == 1


def write_halves(folder, codec="mpeg2video", **options):
    """A recording of four seconds, whose streams have other identifiers in the second half."""
    odd_media.write(folder / "1.ts", "mpeg2video", range(50), audio="mp2")
    container = {"mpegts_start_pid": str(0x200)} | options
    odd_media.write(folder / "2.ts", codec, range(50, 100), start=2, audio="mp2", container=container)
    return odd_media.join(folder / "both.ts", folder / "1.ts", folder / "2.ts")


def read_numbers(path):
    """The numbers of the pictures, when each is shown after the first one, and why some are missing."""
    with Video(VideoTask(str(path), InputSize(odd_media.WIDTH, odd_media.HEIGHT))) as video:
        frames = [frame for frame in video.frames(range(len(video.chosen))) if frame.image is not None]
        times = [frame.pts_seconds - frames[0].pts_seconds for frame in frames]
        return [odd_media.number_of(frame.image) for frame in frames], times, video.why_incomplete


def test_a_recording_is_followed_where_its_identifiers_change(tmp_path):
    path = write_halves(tmp_path)
    numbers, times, why_incomplete = read_numbers(path)
    assert numbers == [number for number in range(100) if number != 49]  # FFmpeg keeps that one until the end
    assert times == pytest.approx([number / 25 for number in numbers], abs=0.05)
    read = audio.read(path)
    assert len(read.samples) / audio.RATE == pytest.approx(4, abs=0.1)
    assert (why_incomplete, read.why_incomplete, read.info.other_streams) == (None, None, None)
    assert list(make_thumbnails(path))
    make_preview(path, tmp_path / "preview.webm")
    assert videos.info_of(tmp_path / "preview.webm").duration_seconds == pytest.approx(4, abs=0.1)
    assert len(audio.read(tmp_path / "preview.webm").samples) / audio.RATE == pytest.approx(4, abs=0.2)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"mpegts_service_id": "7"},
            "cut short: after 2.[0-9] s it goes on in another stream, number [23] of the file",
        ),
        (
            {"mpegts_pmt_start_pid": "5000"},
            "cut short: [0-9]+ of its bytes, after 2.[0-9] s, belong to streams that it",
        ),
    ],
)
@pytest.mark.parametrize("back", [False, True])
def test_what_cannot_be_followed_is_incomplete(tmp_path, options, why, back):
    path = write_halves(tmp_path, **options)
    if back:  # a third part has the identifiers of the first one
        odd_media.write(tmp_path / "3.ts", "mpeg2video", range(100, 150), start=4, audio="mp2")
        path = odd_media.join(tmp_path / "all.ts", path, tmp_path / "3.ts")
    numbers, _, why_incomplete = read_numbers(path)
    assert set(numbers) <= {*range(50), *range(100, 150)}
    assert re.match(why, why_incomplete)
    assert re.match(why, audio.read(path).why_incomplete)


@pytest.mark.parametrize(("options", "frames"), [({}, 39), ({"mpegts_service_id": "7"}, 20)])
def test_where_the_chosen_stream_is_the_later_one_what_was_before_is_not_lost_silently(tmp_path, options, frames):
    empty = Sound(900, seconds=0)  # FFmpeg searches for it, and so sees both halves before they are read
    first = write(tmp_path / "1.ts", Pictures(64), Sound(300, UNMARKED, 64_000), empty)
    second = write(tmp_path / "2.ts", Pictures(96), Sound(500), empty, mpegts_start_pid="512", **options)
    path = odd_media.join(tmp_path / "both.ts", first, second)
    why = "cut short: what is before 0.1 s is in another stream, number [01] of the file, which is not read"
    with Video(VideoTask(str(path), InputSize(64, 48))) as video:
        assert video.info.frames == frames
        assert bool(re.match(why, video.why_incomplete or "")) == (frames == 20)
    assert re.match(why, audio.read(path).why_incomplete)


def test_padding_is_no_other_stream(tmp_path):
    path = odd_media.write(tmp_path / "padded.ts", "mpeg2video", range(50), audio="mp2")
    path.write_bytes(path.read_bytes() + (b"\x47\x1f\xff\x10" + b"\xff" * 184) * (path.stat().st_size // 188))
    assert (read_numbers(path)[2], audio.read(path).why_incomplete) == (None, None)


def test_pictures_in_another_codec_are_not_taken_for_those_of_the_first(tmp_path):
    path = write_halves(tmp_path, "libx264")
    numbers, _, why_incomplete = read_numbers(path)
    assert numbers == list(range(50))
    assert "it goes on in another stream, number 2 of the file, which is not read" in why_incomplete


@pytest.mark.parametrize("seconds", [2, 5])
def test_a_stream_that_pauses_while_another_begins_is_complete(tmp_path, seconds):
    # Two participants of a meeting, of whom the other one falls silent before the first speaks again, or later.
    path = write(tmp_path / "meeting.mkv", Sound(300, again=5), Sound(500, seconds=seconds, start=2.5))
    read = audio.read(path)
    assert (read.info.stream_index, read.info.other_streams, read.why_incomplete) == (0, 1, None)
    assert len(read.samples) / audio.RATE == pytest.approx(4, abs=0.1)


def test_a_stream_that_is_inserted_before_another_is_not_mixed_into_it(tmp_path):
    first = write(tmp_path / "1.ts", Sound(300), mpegts_start_pid="257")
    second = write(tmp_path / "2.ts", Sound(700, start=2), Sound(300, start=2), mpegts_start_pid="256")
    read = audio.read(path := odd_media.join(tmp_path / "both.ts", first, second))
    assert (heard(path), read.why_incomplete) == (300, None)
    assert len(read.samples) / audio.RATE == pytest.approx(4, abs=0.1)
