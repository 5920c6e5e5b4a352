"""Which audio stream of a file is read, and what is said about truncated, damaged and impossible files."""

from pathlib import Path

import av
import numpy as np
import pytest

from reelscribe.decode.audio import Audio, AudioTask
from reelscribe.errors import MediaError
from support.audio import CHUNK, RATE, caf, read, tone, wav, write


def test_channels_in_an_unusual_order_do_not_crash_the_process(tmp_path):
    path = tmp_path / "right-left.caf"
    samples = np.array([[1000, 3000]], np.int16) * np.ones((RATE, 1), np.int16)
    path.write_bytes(caf(samples, labels=(2, 1)))
    assert set(read(path).samples) == {2000}


def test_the_video_of_an_mp4_file_is_not_read(tmp_path):
    path = tmp_path / "both.mp4"
    grain = np.random.default_rng(0).integers(0, 256, (20, 240, 320, 3), np.uint8)
    with av.open(str(path), "w") as file:
        video, audio = (
            file.add_stream("libx264", rate=10, options={"qp": "1", "preset": "ultrafast"}),
            file.add_stream("aac", rate=RATE),
        )
        video.width, video.height, video.pix_fmt = 320, 240, "yuv420p"
        frame = av.AudioFrame.from_ndarray(tone(440, 2)[None], format="fltp", layout="mono")
        frame.sample_rate = RATE
        for picture in grain:
            file.mux(video.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux([*video.encode(), *audio.encode(frame), *audio.encode()])
    before = bytes_read()
    assert read(path).why_incomplete is None
    assert bytes_read() - before < path.stat().st_size / 2


def bytes_read() -> int:
    """How many bytes this process has read so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_reading_calls_the_heartbeat(tmp_path):
    path = tmp_path / "long.flac"
    write(path, tone(440, 60, 48_000), 48_000, "flac")
    with av.open(str(path)) as file:
        packets = sum(1 for packet in file.demux() if packet.size)
    heartbeats = []
    with Audio(AudioTask(str(path), RATE, CHUNK), lambda: heartbeats.append(None)) as audio:
        assert len(list(audio.chunks())) > 5
    assert len(heartbeats) >= packets // 100


@pytest.mark.parametrize(
    ("name", "codec", "container"),
    [
        ("cut.wav", "pcm_s16le", {}),
        ("cut.mp3", "libmp3lame", {}),
        ("cut.flac", "flac", {}),
        ("cut.mka", "aac", {}),
        ("cut.m4a", "aac", {"movflags": "faststart"}),
        ("cut.au", "pcm_mulaw", {}),
    ],
)
@pytest.mark.parametrize("share", [0.3, 0.8])
def test_a_truncated_file_gives_the_audio_that_is_left_and_the_reason(tmp_path, name, codec, container, share):
    path = tmp_path / name
    write(path, tone(440, 20), RATE, codec, container=container)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    audio = read(path)
    assert audio.why_incomplete.startswith("cut short: it ends ")
    assert 0.15 < len(audio.samples) / (20 * RATE) < 0.9


def test_a_truncated_video_gives_the_reason(media, tmp_path):
    path = tmp_path / "cut.mkv"
    with av.open(str(media / "spoken.mp4")) as whole, av.open(str(path), "w") as file:
        streams = {stream.index: file.add_stream_from_template(stream) for stream in whole.streams}
        for packet in whole.demux():
            if packet.dts is not None:
                packet.stream = streams[packet.stream.index]
                file.mux(packet)
    assert read(path).why_incomplete is None
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert read(path).why_incomplete.startswith("cut short: it ends ")


def test_audio_that_ends_before_the_video_is_complete(tmp_path):
    path = tmp_path / "short-audio.mkv"
    with av.open(str(path), "w") as file:
        video, audio = file.add_stream("mpeg4", rate=10), file.add_stream("pcm_s16le", rate=RATE, layout="mono")
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 2 * RATE), np.int16), format="s16", layout="mono")
        frame.sample_rate = RATE
        file.mux(audio.encode(frame))
        for level in range(100):
            picture = np.full((48, 64, 3), level, np.uint8)
            file.mux(video.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(video.encode())
    assert read(path).why_incomplete is None


def test_a_file_is_not_truncated_because_it_is_shorter_than_an_estimate(tmp_path):
    path = tmp_path / "joined.mp3"
    with path.open("wb") as file:
        for rate in (32_000, 320_000):
            part = tmp_path / f"{rate}.mp3"
            with av.open(str(part), "w", options={"write_xing": "0", "id3v2_version": "0"}) as audio:
                stream = audio.add_stream("libmp3lame", rate=44_100, layout="mono")
                stream.bit_rate = rate
                frame = av.AudioFrame.from_ndarray(tone(440, 20, 44_100)[None], format="fltp", layout="mono")
                frame.sample_rate = 44_100
                audio.mux([*stream.encode(frame), *stream.encode()])
            file.write(part.read_bytes())
    with av.open(str(path)) as audio:
        assert audio.duration / 1e6 > 150  # what FFmpeg guesses
    audio = read(path)
    assert len(audio.samples) / RATE == pytest.approx(40, abs=0.2)
    assert audio.why_incomplete is None


@pytest.mark.parametrize(
    ("damaged", "reason"), [([7], None), (range(5, 35), "damaged: 30 of 140 packets cannot be decoded")]
)
def test_damaged_packets_cost_their_own_samples_and_shift_no_others(tmp_path, damaged, reason):
    path = tmp_path / "damaged.mka"
    rustle = np.random.default_rng(0).normal(0, 0.01, 8 * RATE).astype(np.float32)
    samples = np.concatenate([rustle, tone(880, 2)])
    write(path, samples, RATE, "flac")
    with av.open(str(path)) as file:
        packets = [bytes(packet) for packet in file.demux() if packet.size]
    content = path.read_bytes()
    for number in damaged:
        assert content.count(packets[number]) == 1
        content = content.replace(packets[number], bytes(len(packets[number])))
    path.write_bytes(content)
    broken = read(path)
    assert broken.why_incomplete == (reason and reason.replace("140", str(len(packets))))
    last = broken.chunks[-1]
    tone_seconds = last.start_seconds + np.argmax(np.abs(last.samples) > 10_000) / RATE
    assert tone_seconds == pytest.approx(8, abs=0.1)


@pytest.mark.parametrize(("name", "codec"), [("hole.mp3", "libmp3lame"), ("hole.flac", "flac")])
def test_a_hole_in_a_file_without_a_container_is_damage(tmp_path, name, codec):
    path = tmp_path / name
    rustle = np.random.default_rng(0).normal(0, 0.1, 20 * RATE).astype(np.float32)
    write(path, rustle, RATE, codec)
    content = path.read_bytes()
    start, hole = len(content) // 3, len(content) // 5
    path.write_bytes(content[:start] + bytes(hole) + content[start + hole :])
    assert read(path).why_incomplete.startswith("damaged: ")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"hello\n" * 1000, "not a media file that can be read: "),
        (bytes(5000), "not a media file that can be read: "),
        (wav(bytes(4000), channels=0), "expected audio of 1 to 64 channels, got 0"),
        (wav(bytes(48_000), channels=100), "expected audio of 1 to 64 channels, got 100"),
        (wav(bytes(48_000), channels=1000), "expected audio of 1 to 64 channels, got "),
        (wav(bytes(4000), rate=1), "expected audio of 1000 to 3072000 samples a second, got 1"),
        (wav(bytes(4000), rate=2_000_000_000), "samples a second, got 2000000000"),
        (wav(bytes(4000), rate=4_000_000_000), "not a media file that can be read: "),
        (wav(bytes(4000), rate=0), "not a media file that can be read: "),
        (wav(bytes(4000), kind=0x7FFF), "expected audio in a codec that FFmpeg can decode, got one that it does not"),
    ],
)
def test_files_that_cannot_be_audio_are_media_errors(tmp_path, content, reason):
    path = tmp_path / "x.wav"
    path.write_bytes(content)
    with pytest.raises(MediaError, match=reason) as error:
        read(path)
    assert str(path) not in str(error.value)  # whoever shows it knows which file it was


def test_audio_of_which_no_packet_can_be_decoded_is_damaged(tmp_path):
    path = tmp_path / "destroyed.mka"
    write(path, tone(440, 5), RATE, "flac")
    with av.open(str(path)) as file:
        packets = [bytes(packet) for packet in file.demux() if packet.size]
    content = path.read_bytes()
    for packet in packets:
        content = content.replace(packet, bytes(len(packet)))
    path.write_bytes(content)
    audio = read(path)
    assert (audio.info.sample_rate, audio.chunks) == (RATE, [])
    assert audio.why_incomplete == f"damaged: {len(packets)} of {len(packets)} packets cannot be decoded"
