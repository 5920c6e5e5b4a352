"""Encrypted media are called that, and nothing of them is decoded to noise."""

import re
from pathlib import Path

import pytest

from reelscribe.contract.frames import InputSize
from reelscribe.decode.video import Video, VideoTask
from reelscribe.errors import MediaError
from support import audio, odd_media
from support.odd_media import write

KEY = {
    "encryption_scheme": "cenc-aes-ctr",
    "encryption_key": "0123456789abcdef0123456789abcdef",
    "encryption_kid": "fedcba9876543210fedcba9876543210",
}
"""Options with which FFmpeg writes encrypted MP4."""

FRAGMENTS = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}
NUMBERS = range(100)


def why_no_frames(path: Path) -> str | None:
    """Why a video is incomplete, or cannot be read."""
    try:
        with Video(VideoTask(str(path), InputSize(odd_media.WIDTH, odd_media.HEIGHT))) as video:
            return video.why_incomplete
    except MediaError as error:
        return str(error)


def why_no_samples(path: Path) -> str | None:
    """Why audio is incomplete, or cannot be read."""
    try:
        return audio.read(path).why_incomplete
    except MediaError as error:
        return str(error)


def common_encryption(path: Path) -> Path:
    return write(path, "libx264", NUMBERS, audio="aac", container=KEY)


def fragments(path: Path) -> Path:
    return write(path, "libx264", NUMBERS, audio="aac", container=KEY | FRAGMENTS)


def transport_stream(path: Path) -> Path:
    return odd_media.scramble_ts(write(path, "mpeg2video", NUMBERS, audio="mp2"), {0x100, 0x101})


def dvd(path: Path) -> Path:
    return odd_media.scramble_ps(write(path, "mpeg2video", NUMBERS, audio="mp2", file_format="vob"))


def webm(path: Path) -> Path:
    return odd_media.encrypt_webm(write(path, "libvpx", NUMBERS, audio="libopus", container={"live": "1"}))


MAKERS = {"a.mp4": common_encryption, "b.mp4": fragments, "a.ts": transport_stream, "a.vob": dvd, "a.webm": webm}


@pytest.mark.parametrize("name", MAKERS)
def test_an_encrypted_file_is_called_that(tmp_path, name):
    path = MAKERS[name](tmp_path / name)
    assert why_no_frames(path) == "encrypted: 100 % of its video cannot be read; decrypt the file first"
    assert why_no_samples(path) == "encrypted: 100 % of its audio cannot be read; decrypt the file first"


def test_audio_that_a_shop_has_sold_encrypted_is_called_that(tmp_path):
    path = write(tmp_path / "sold.m4a", None, audio="aac")
    path.write_bytes(path.read_bytes().replace(b"mp4a", b"drms"))
    assert why_no_samples(path).startswith("encrypted: 100 % of its audio ")


@pytest.mark.parametrize(("pid", "reasons"), [(0x100, ("encrypted: ", None)), (0x101, (None, "encrypted: "))])
def test_one_encrypted_stream_leaves_the_other_readable(tmp_path, pid, reasons):
    path = odd_media.scramble_ts(write(tmp_path / "a.ts", "mpeg2video", NUMBERS, audio="mp2"), {pid})
    for why, reason in zip((why_no_frames(path), why_no_samples(path)), reasons, strict=True):
        assert (why and why[:11]) == reason


def test_a_file_with_a_clear_beginning_says_how_much_is_encrypted(tmp_path):
    clear, encrypted = write(tmp_path / "clear.ts", "mpeg2video", NUMBERS), tmp_path / "half.ts"
    odd_media.join(encrypted, clear)
    odd_media.scramble_ts(encrypted, {0x100}, first=0.5)
    with Video(VideoTask(str(encrypted), InputSize(64, 48))) as video:
        assert re.fullmatch(r"encrypted: (4|5)\d % of its video cannot be read; .*", video.why_incomplete)
        frames = list(video.frames(range(len(video.chosen))))
    assert 0.3 < len(frames) / len(NUMBERS) < 0.7
    assert sum(frame.image is None for frame in frames) <= 1


def test_marks_that_a_receiver_left_behind_are_no_encryption(tmp_path):
    path = odd_media.scramble_ts(write(tmp_path / "a.ts", "mpeg2video", NUMBERS, audio="mp2"), {0x100, 0x101}, key=0)
    assert (why_no_frames(path), why_no_samples(path)) == (None, None)


def test_sound_with_the_bytes_of_a_scrambled_packet_is_not_encrypted(tmp_path):
    path = write(tmp_path / "tone.vob", "mpeg2video", range(500), audio="ac3", file_format="vob")
    content = bytearray(path.read_bytes())
    for pack in range(1024, len(content), 20 * 2048):  # in the middle of packs, as sound happens to have them
        content[pack : pack + 7] = b"\0\0\1\xc0\1\1\xb0"
    path.write_bytes(content)
    assert "encrypted" not in f"{why_no_frames(path)} {why_no_samples(path)}"
