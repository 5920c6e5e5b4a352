"""Parts of a file that FFmpeg skips in silence are told, and what is behind them is read.

Pictures show their number, and picture n was given the time n / 25 s.
"""

from pathlib import Path

import av
import numpy as np
import pytest

from reelscribe.contract.frames import InputSize
from reelscribe.contract.source import Gap
from reelscribe.decode.video import Video, VideoTask
from support import audio, odd_media
from support.odd_media import FPS, hole, number_of, write

NUMBERS = range(250)
SECONDS = len(NUMBERS) / FPS


class Seen:
    """What is said about a video, with every frame decoded."""

    def __init__(self, path: Path) -> None:
        with Video(VideoTask(str(path), InputSize(odd_media.WIDTH, odd_media.HEIGHT), resize="exact")) as video:
            self.why_incomplete, self.gaps, self.times = video.why_incomplete, video.info.gaps, video.times
            frames = list(video.frames(range(len(video.chosen))))
        self.numbers = [None if frame.image is None else number_of(frame.image) for frame in frames]


CODECS = {
    "hole.mkv": ("libx264", "libopus"),
    "hole.webm": ("libvpx", "libopus"),
    "hole.ts": ("mpeg2video", "mp2"),
    "hole.mpg": ("mpeg2video", "mp2"),
    "hole.flv": ("flv1", "aac"),
    "hole.nut": ("mpeg4", "mp2"),
    "hole.asf": ("wmv2", "mp2"),
}


@pytest.mark.parametrize("name", CODECS)
def test_a_hole_of_zeros_is_damage_and_what_is_behind_it_is_read(tmp_path, name):
    codec, sound = CODECS[name]
    path = write(tmp_path / name, codec, NUMBERS, audio=sound)
    whole = Seen(path)
    assert (whole.why_incomplete, whole.gaps, audio.read(path).why_incomplete) == (None, None, None)
    seen, read = Seen(hole(path, 0.3, 0.7)), audio.read(path)
    assert seen.why_incomplete.startswith("damaged: ")
    assert read.why_incomplete.startswith("damaged: ")
    assert seen.numbers[-1] == NUMBERS[-1]
    assert 0.4 < len(seen.numbers) / len(NUMBERS) < 0.75
    assert 0.35 < len(read.samples) / audio.RATE / SECONDS < 0.75
    (gap,) = seen.gaps
    before = int(np.searchsorted(seen.times, gap.start))
    assert gap == Gap(pytest.approx(seen.times[before - 1] + 1 / FPS, abs=0.05), pytest.approx(seen.times[before]))
    assert gap.end - gap.start > 2


def test_a_frame_of_which_the_decoder_has_invented_a_part_is_missing(tmp_path):
    path = write(tmp_path / "bits.mp4", "libx264", range(50), options={"g": "25"})
    with av.open(str(path)) as file:
        begin = [packet.pos for packet in file.demux(video=0) if packet.size][5] + 10
    content = bytearray(path.read_bytes())
    content[begin : begin + 3] = bytes(255 - byte for byte in content[begin : begin + 3])
    path.write_bytes(content)
    assert [at for at, number in enumerate(Seen(path).numbers) if number is None] == [5]


def test_a_hole_of_whole_packets_that_a_decoder_skips_is_damage(tmp_path):
    path = write(tmp_path / "hole.mp2", None, range(800), audio="mp2")
    assert audio.read(path).why_incomplete is None
    frame = path.read_bytes().index(path.read_bytes()[:3], 3)
    content = [path.read_bytes()[at : at + frame] for at in range(0, path.stat().st_size, frame)]
    path.write_bytes(b"".join([*content[:400], *[bytes(frame)] * 400, *content[800:]]))
    assert " bytes of audio cannot be decoded" in audio.read(path).why_incomplete


def test_a_hole_in_ogg_is_damage_and_what_is_behind_it_is_read(tmp_path):
    path = write(tmp_path / "hole.opus", None, range(800), audio="libopus")
    whole = audio.read(path)
    assert whole.why_incomplete is None
    read = audio.read(hole(path, 0.3, 0.7))
    assert read.why_incomplete.startswith("damaged: ")
    assert len(read.samples) > 0.5 * len(whole.samples)
    last = read.chunks[-1]
    assert last.start_seconds + len(last.samples) / audio.RATE == pytest.approx(32, abs=0.1)


@pytest.mark.parametrize("name", ["a.ts", "a.mpg"])
def test_zeros_at_the_end_of_a_recording_without_a_stated_length_are_not_its_end(tmp_path, name):
    path = hole(write(tmp_path / name, "mpeg2video", NUMBERS, audio="mp2"), 0.6, 1)
    reason = "cut short: nothing can be read in the last "
    assert Seen(path).why_incomplete.startswith(reason)
    assert audio.read(path).why_incomplete.startswith(reason)


FRAGMENTS = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}


@pytest.mark.parametrize(("kept", "reason"), [(True, "cut short: nothing can be "), (False, "damaged: ")])
def test_fragments_of_mp4_that_became_zeros_or_are_missing_are_told(tmp_path, kept, reason):
    path = write(tmp_path / "a.mp4", "libx264", NUMBERS, audio="aac", container=FRAGMENTS)
    assert Seen(path).why_incomplete is None
    content = path.read_bytes()
    fragments = odd_media.boxes(content, b"moof")
    first, stop = fragments[5].start, fragments[14].start
    path.write_bytes(content[:first] + bytes(kept * (stop - first)) + content[stop:])
    assert Seen(path).why_incomplete.startswith(reason)
    assert audio.read(path).why_incomplete.startswith(reason)


PAUSES = {
    "still.avi": ("mpeg4", "mp2", {}),
    "still.flv": ("flv1", "aac", {}),
    "still.mkv": ("libx264", "libopus", {}),
    "index.mkv": ("libx264", "libopus", {"reserve_index_space": "20000"}),
    "still.mp4": ("libx264", "aac", {}),
    "still.ts": ("mpeg2video", "mp2", {}),
    "filled.ts": ("mpeg2video", "mp2", {"muxrate": "3000000"}),
    "still.mpg": ("mpeg2video", "mp2", {}),
    "still.webm": ("libvpx", "libopus", {}),
}


@pytest.mark.parametrize("name", PAUSES)
def test_pictures_that_stand_still_are_no_damage(tmp_path, name):
    codec, sound, container = PAUSES[name]
    path = write(tmp_path / name, codec, [*range(0, 600, 30), *range(600, 620)], audio=sound, container=container)
    seen = Seen(path)
    assert (seen.why_incomplete, seen.gaps, audio.read(path).why_incomplete) == (None, None, None)


def test_pictures_that_end_before_the_sound_in_each_joined_part_are_no_damage(tmp_path):
    part = write(tmp_path / "part.ts", "mpeg2video", range(50), audio="mp2", audio_start=0.5)
    path = odd_media.join(tmp_path / "joined.ts", *[part] * 8)
    assert (Seen(path).why_incomplete, audio.read(path).why_incomplete) == (None, None)


WRAP = 2**33 / 90_000
"""Seconds after which the clock of a transport stream begins again."""


@pytest.mark.parametrize("start", [1000, 95_440])
@pytest.mark.parametrize("codec", ["libx264", "mpeg2video"])
def test_times_go_on_when_the_clock_of_a_long_recording_wraps(tmp_path, codec, start):
    """FFmpeg lets times wrap a minute before the recording has lasted as long as its clock counts, and then again."""
    wraps = [round(number * WRAP + start - 60) for number in (1, 2)]
    seconds = [start, *(start + k * 30_000 for k in range(1, 7)), *(at + k for at in wraps for k in range(-3, 4))]
    numbers = [25 * each + k for each in sorted(seconds) for k in range(25)]
    path = odd_media.write_times(tmp_path / "long.ts", codec, numbers)
    seen = Seen(path)
    assert seen.why_incomplete is None
    assert seen.times - seen.times[0] == pytest.approx([(number - numbers[0]) / FPS for number in numbers], abs=1e-6)
    assert seen.numbers == [number % 251 for number in numbers]
