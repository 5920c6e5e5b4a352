"""Files that are odd but healthy: their frames, times, audio and status are as they should be, and cut ones are cut.

Pictures show their number, and picture n was given the time n / 25 s. So what a file holds is known without asking a
decoder; FFprobe agrees with these numbers of frames, but not always with the times that FFmpeg has to guess.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from reelscribe.contract.frames import InputSize
from reelscribe.contract.source import VideoInfo
from reelscribe.decode.sampling import Sampling
from reelscribe.decode.video import Video, VideoTask
from support import audio, odd_media
from support.odd_media import FPS, NUMBERS, begin_at_keyframe, cut_beginning, join, number_of, write

SIZE = InputSize(odd_media.WIDTH, odd_media.HEIGHT)
LONG = range(75)
B_FRAMES = {"bf": "2", "b_strategy": "0"}
OPEN_GOP = {"x265-params": "log-level=none:open-gop=1:keyint=25:bframes=3:scenecut=0"}


class Seen:
    """What is said about a video, with every chosen frame decoded."""

    def __init__(self, path: Path, sampling: Sampling | None = None) -> None:
        with Video(VideoTask(str(path), SIZE, sampling or Sampling(every=1), "exact")) as video:
            self.info: VideoInfo = video.info
            self.why_incomplete = video.why_incomplete
            frames = list(video.frames(range(len(video.chosen))))
        self.numbers = [None if frame.image is None else number_of(frame.image) for frame in frames]
        self.times = [frame.pts_seconds for frame in frames]
        self.indices = [frame.frame_index for frame in frames]


LATE_VIDEO = {
    "3gp": "mpeg4",
    "asf": "wmv2",
    "flv": "flv1",
    "mkv": "libx264",
    "mov": "libx264",
    "mp4": "libx264",
    "mpg": "mpeg2video",
    "nut": "mpeg4",
    "ts": "mpeg2video",
    "webm": "libvpx",
}
LATE_AUDIO = {"m4a": "aac", "mka": "libopus", "ogg": "libopus", "oga": "flac", "asf": "mp2", "ts": "mp2", "nut": "mp2"}


@pytest.mark.parametrize("start", [0, 0.88, 1.2, 10])
@pytest.mark.parametrize("suffix", LATE_VIDEO)
def test_a_video_that_begins_late_is_complete(tmp_path, suffix, start):
    path = write(tmp_path / f"late.{suffix}", LATE_VIDEO[suffix], range(FPS), start=start)
    seen = Seen(path)
    assert seen.why_incomplete is None
    assert seen.numbers == list(range(FPS))
    moved = seen.times[0] - start if suffix in ("mpg", "ts") else 0.0  # FFmpeg lets recordings begin half a second late
    assert 0 <= moved < 1.5
    assert seen.times == pytest.approx([start + moved + n / FPS for n in range(FPS)], abs=2e-3)


@pytest.mark.parametrize("start", [0, 0.88, 1.2, 10])
@pytest.mark.parametrize("suffix", LATE_AUDIO)
def test_audio_that_begins_late_is_complete(tmp_path, suffix, start):
    path = write(tmp_path / f"late.{suffix}", None, start=start, audio=LATE_AUDIO[suffix])
    read = audio.read(path)
    assert read.why_incomplete is None
    assert len(read.samples) / audio.RATE == pytest.approx(2, abs=0.05)


def test_segments_of_matroska_keep_their_times_and_are_complete(tmp_path):
    first, second = odd_media.write_segments(tmp_path, 1.2)
    assert (Seen(second).why_incomplete, audio.read(second).why_incomplete) == (None, None)
    assert Seen(first).numbers + Seen(second).numbers == list(NUMBERS)
    assert Seen(second).times[0] == pytest.approx(Seen(second).numbers[0] / FPS, abs=0.05)


def test_matroska_may_state_how_long_it_is_and_not_when_it_ends(tmp_path):
    path = odd_media.state_length(write(tmp_path / "merged.mkv", numbers=range(100), start=10), 100 / FPS)
    assert Seen(path).why_incomplete is None
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert Seen(path).why_incomplete.startswith("cut short: it ends ")


@pytest.mark.parametrize("start", [0, 1.2, 10])
def test_a_matroska_file_that_is_cut_is_cut_wherever_it_begins(tmp_path, start):
    path = write(tmp_path / "cut.mkv", numbers=range(100), start=start, audio="aac")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert Seen(path).why_incomplete.startswith("cut short: it ends ")
    assert audio.read(path).why_incomplete.startswith("cut short: it ends ")


FRAGMENTS = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}


@pytest.mark.parametrize(("codec", "audio_start"), [(None, None), ("aac", 0), ("aac", 2.5)])
def test_a_live_stream_that_was_joined_late_is_complete(tmp_path, codec, audio_start):
    whole = write(tmp_path / "live.mp4", "libx264", LONG, audio=codec, audio_start=audio_start, container=FRAGMENTS)
    late = Seen(odd_media.drop_fragments(whole, 9))
    assert late.why_incomplete is None
    assert late.times[0] > 1.5
    assert late.numbers == list(range(late.numbers[0], 75))
    assert late.times == pytest.approx([late.times[0] + k / FPS for k in range(len(late.numbers))], abs=2e-3)
    assert audio.read(whole).why_incomplete is None


@pytest.mark.parametrize("dropped", [0, 4])
def test_a_fragmented_file_that_ends_within_a_fragment_is_cut(tmp_path, dropped):
    path = write(tmp_path / "cut.mp4", "libx264", LONG, audio="aac", container=FRAGMENTS)
    content = odd_media.drop_fragments(path, dropped).read_bytes()
    *_, last = odd_media.boxes(content, b"mdat")
    path.write_bytes(content[: last.stop - 10])
    assert Seen(path).why_incomplete == "cut short: 10 of the bytes it announces are missing"
    assert audio.read(path).why_incomplete == "cut short: 10 of the bytes it announces are missing"
    path.write_bytes(content[: last.stop] + b"no box at all")
    assert (Seen(path).why_incomplete, audio.read(path).why_incomplete) == (None, None)


@pytest.mark.parametrize(("start", "audio_start"), [(0, 3), (3, 0), (10, 12)])
def test_asf_whose_streams_begin_at_different_times_is_complete(tmp_path, start, audio_start):
    path = write(tmp_path / "late.asf", "wmv2", LONG, start=start, audio="mp2", audio_start=audio_start)
    seen, recording = Seen(path), audio.read(path)
    assert (seen.why_incomplete, seen.numbers) == (None, list(LONG))
    assert recording.why_incomplete is None
    assert seen.info.duration_seconds <= max(start, audio_start) + 3.1  # and no stream's beginning is added to it


EVERY_TENTH = [n for n in NUMBERS if n % 10 == 0]
NOT_EVERY_TENTH = [n for n in NUMBERS if n % 10 or n == 0]


@pytest.mark.parametrize("numbers", [EVERY_TENTH, NOT_EVERY_TENTH, [*range(20), 49]])
def test_frames_that_were_dropped_are_not_missing(tmp_path, numbers):
    seen = Seen(write(tmp_path / "dropped.avi", numbers=numbers))
    assert (seen.why_incomplete, seen.numbers) == (None, numbers)
    assert seen.times == pytest.approx([n / FPS for n in numbers])
    assert seen.info.average_fps == pytest.approx(FPS * len(numbers) / (numbers[-1] + 1))


def test_frames_that_are_missing_at_the_end_are_missing(tmp_path):
    path = write(tmp_path / "dropped.avi", numbers=NOT_EVERY_TENTH)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    assert Seen(path).why_incomplete.startswith("cut short: ")


def plain(codec: str, **more: object) -> Callable[[Path], Path]:
    return lambda path: write(path, codec, **more)


def cut(codec: str, share: float, unit: int, numbers: Sequence[int] = LONG) -> Callable[[Path], Path]:
    return lambda path: cut_beginning(write(path, codec, numbers, options=B_FRAMES), share, unit)


def at_keyframe(codec: str, options: dict[str, str]) -> Callable[[Path], Path]:
    return lambda path: begin_at_keyframe(write(path, codec, LONG, options=options), 1)


# For each file: how it is made, the numbers of its frames, the time of the first, and how many frames are skipped.
# AVI has no times: a frame is shown when the decoder returns it, one or two frames late.
ODD = {
    "b-frames.avi": (plain("mpeg4", options=B_FRAMES), NUMBERS, 0.04, 0),
    "packed-b-frames.avi": (odd_media.write_packed, NUMBERS, 0.04, 0),
    "h264.avi": (plain("libx264", options=B_FRAMES), NUMBERS, 0.08, 0),
    "h264.mxf": (plain("libx264", options=B_FRAMES), NUMBERS, 0.0, 0),
    "begins-before-zero.mkv": (plain("libx264", start=-1, options=B_FRAMES), NUMBERS, -1.0, 0),
    "middle-of-group.ts": (cut("libx264", 0.3, 188), range(24, 75), 1.04, 3),
    "middle-of-group-mpeg2.ts": (cut("mpeg2video", 0.3, 188), range(24, 75), 1.0, 3),
    "middle-of-group-mpeg4.ts": (cut("mpeg4", 0.3, 188), range(24, 75), 1.0, 3),
    "middle-of-group.mpg": (cut("mpeg2video", 0.3, 2048, range(200)), range(48, 200), 2.46, 13),
    "open-group-hevc.ts": (at_keyframe("libx265", OPEN_GOP), range(25, 75), 1.08, 1),
    "open-group-mpeg2.ts": (at_keyframe("mpeg2video", B_FRAMES), range(12, 75), 0.52, 2),
    "wraps.ts": (plain("libx264", start=95_441.2, options=B_FRAMES), NUMBERS, None, 0),
    "stream.m4v": (plain("mpeg4", options=B_FRAMES), NUMBERS, 0.0, 0),
    "stream.h264": (plain("libx264", options=B_FRAMES), NUMBERS, 0.0, 0),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_file_has_the_right_frames_at_the_right_times(tmp_path, name):
    make, numbers, start, skipped = ODD[name]
    seen = Seen(make(tmp_path / name))
    assert (seen.why_incomplete, seen.numbers) == (None, list(numbers))
    assert (seen.info.frames, seen.info.skipped_frames) == (len(numbers), skipped)
    start = seen.times[0] if start is None else start
    guessed = 1.1 / FPS if name.endswith("mpg") else 2e-3  # MPEG-PS states the times of few frames
    assert seen.times == pytest.approx([start + k / FPS for k in range(len(numbers))], abs=guessed)
    assert (np.diff(seen.times) > 0).all()
    assert seen.info.average_fps == pytest.approx(FPS)
    assert seen.info.start_seconds == seen.times[0]


def test_keyframes_of_packed_b_frames_are_chosen(tmp_path):
    seen = Seen(odd_media.write_packed(tmp_path / "packed.avi"), Sampling(keyframes=True))
    assert (seen.indices, seen.numbers) == ([0, 12, 24, 36, 48], [0, 12, 24, 36, 48])


def test_packed_b_frames_of_a_few_bytes_are_no_placeholders(tmp_path):
    path = odd_media.write_packed_still(tmp_path / "still.avi")
    assert Seen(path).numbers == [5] * 50
    assert Seen(path, Sampling(keyframes=True)).indices == [0, 12, 24, 36, 48]


@pytest.mark.parametrize("name", ["packed-b-frames.avi", "middle-of-group.ts", "begins-before-zero.mkv"])
def test_a_chosen_frame_of_an_odd_file_is_the_same_as_when_all_are_decoded(tmp_path, name):
    make, _, _, _ = ODD[name]
    path = make(tmp_path / name)
    everything, some = Seen(path), Seen(path, Sampling(every=7, start=0.4))
    assert some.numbers == [everything.numbers[index] for index in some.indices]
    assert some.times == [everything.times[index] for index in some.indices]


def test_a_damaged_first_keyframe_is_not_skipped(tmp_path):
    path = write(tmp_path / "damaged.mkv", "mpeg2video", LONG)
    content = path.read_bytes()
    at = content.index(b"\x1f\x43\xb6\x75") + 30  # in the first cluster, RFC 9559, section 5.1.3
    path.write_bytes(content[:at] + bytes(100) + content[at + 100 :])
    seen = Seen(path)
    assert (seen.info.skipped_frames, seen.info.frames) == (0, len(LONG))
    assert seen.numbers[0] is None


CLOCKS = {"jumps-back.ts": (100, 0), "jumps-back-a-little.ts": (1, 0), "starts-again.ts": (0, 0), "jumps.mpg": (50, 0)}


@pytest.mark.parametrize("name", CLOCKS)
def test_halves_with_different_clocks_stay_in_order(tmp_path, name):
    halves = [range(50), range(50, 100)]
    parts = [
        write(tmp_path / f"{k}{name}", "mpeg2video", half, start=start, options=B_FRAMES, audio="mp2")
        for k, (half, start) in enumerate(zip(halves, CLOCKS[name], strict=True))
    ]
    path = join(tmp_path / name, *parts)
    seen = Seen(path)
    decoded = [number for number in seen.numbers if number is not None]
    assert seen.why_incomplete is None
    assert decoded == sorted(decoded)
    assert len(decoded) >= 98  # FFmpeg marks the packet before the joint as corrupt
    steps = np.diff(seen.times)
    assert steps == pytest.approx([1 / FPS] * 99, abs=0.1)
    assert (steps > 0).all()
    assert seen.info.duration_seconds == pytest.approx(4, abs=0.1)
    read = audio.read(path)
    assert read.why_incomplete is None
    starts = [chunk.start_seconds for chunk in read.chunks]
    assert starts == pytest.approx([starts[0] + chunk.first / audio.RATE for chunk in read.chunks], abs=0.1)
    assert read.info.duration_seconds == pytest.approx(4, abs=0.1)
    assert starts[0] == pytest.approx(seen.times[0], abs=0.1)


def test_a_recording_that_begins_in_the_middle_of_a_packet_of_audio_is_complete(tmp_path):
    path = cut_beginning(write(tmp_path / "middle.mpg", "mpeg2video", LONG, audio="mp2"), 0.5, 2048)
    assert audio.read(path).why_incomplete is None


def test_the_recordings_of_a_chained_ogg_file_follow_one_another(tmp_path):
    one = write(tmp_path / "one.opus", None, audio="libopus")
    read = audio.read(join(tmp_path / "chain.opus", one, one, one))
    assert read.why_incomplete is None
    assert len(read.samples) / audio.RATE == pytest.approx(6, abs=0.05)
    assert read.chunks[-1].start_seconds + len(read.chunks[-1].samples) / audio.RATE == pytest.approx(6, abs=0.1)
    assert read.info.duration_seconds == pytest.approx(6, abs=0.1)


def test_a_chain_of_ogg_recordings_that_ffmpeg_cannot_read_is_called_that(tmp_path):
    parts = [write(tmp_path / f"{codec}.ogg", None, audio=codec) for codec in ("libopus", "flac")]
    read = audio.read(join(tmp_path / "chain.ogg", *parts))
    assert read.why_incomplete.startswith("cut short: it is a chain of several recordings")
    assert len(read.samples) / audio.RATE == pytest.approx(2, abs=0.05)


@pytest.mark.parametrize("suffix", ["amr", "3gp"])
def test_pauses_that_amr_does_not_transmit_are_no_damage(tmp_path, suffix):
    read = audio.read(odd_media.write_pauses(tmp_path / f"pauses.{suffix}"))
    assert read.why_incomplete is None
    assert read.chunks[-1].start_seconds + len(read.chunks[-1].samples) / audio.RATE == pytest.approx(4, abs=0.1)


@pytest.mark.parametrize("name", ["film.m2v", "film.mpg"])
def test_telecined_film_has_its_own_frames(tmp_path, name):
    seen = Seen(odd_media.telecine(write(tmp_path / name, "mpeg2video")))
    assert (seen.why_incomplete, seen.numbers) == (None, list(NUMBERS))
    assert (np.diff(seen.times) > 0).all()
    assert seen.info.average_fps == pytest.approx(len(NUMBERS) / (seen.info.end_seconds - seen.times[0]), rel=0.05)


@pytest.mark.parametrize(("riff", "data"), [(0, 0), (2**32 - 1, 2**32 - 1), (2**31 - 1, 2**31 - 37), (36, 0)])
def test_a_wav_file_that_was_streamed_states_no_length(tmp_path, riff, data):
    path = tmp_path / "streamed.wav"
    content = bytearray(audio.wav(bytes(2 * 2 * audio.RATE)))
    content[4:8], content[40:44] = riff.to_bytes(4, "little"), data.to_bytes(4, "little")
    path.write_bytes(content)
    read = audio.read(path)
    assert (read.why_incomplete, len(read.samples)) == (None, 2 * audio.RATE)
    assert read.info.duration_seconds == pytest.approx(2)


@pytest.mark.parametrize("rate", [12, 30, 50])
def test_a_stream_without_times_has_the_frame_rate_that_it_states(tmp_path, rate):
    seen = Seen(write(tmp_path / "stream.h264", "libx264", rate=rate, options=B_FRAMES))
    assert seen.numbers == list(NUMBERS)
    assert seen.info.average_fps == rate
    assert seen.times == pytest.approx([n / rate for n in NUMBERS], abs=1e-6)
    assert seen.info.duration_seconds == pytest.approx(len(NUMBERS) / rate)


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        (Sampling(keyframes=True, start=1, end=1.4), "no keyframe lies between --start and --end; "),
        (Sampling(every=1, start=9), "no frame lies between --start and --end"),
    ],
)
def test_a_range_without_frames_says_which_frames_it_lacks(tmp_path, sampling, reason):
    path = write(tmp_path / "keyframes.mp4", "libx264", options={"g": "100", "sc_threshold": "0"})
    assert Seen(path, sampling).numbers == []
    assert sampling.why_empty().startswith(reason)
