"""The audio of a file: its description, its chunks and their presentation times, and reading on from a sample."""

import json
import os
import shutil
from pathlib import Path

import av
import numpy as np
import pytest

from reelscribe.contract.chunking import Cutting
from reelscribe.contract.frames import InputSize
from reelscribe.decode.audio import Audio, AudioTask
from reelscribe.errors import MediaError, NoPictures, UsageError
from support.audio import CHUNK, RATE, read, tone, wav, write, write_pieces
from support.memory import peak_memory
from support.videos import read as read_video
from support.videos import write as write_video
from synthetic.espeak import speak


def speech(seconds: float) -> tuple[np.ndarray, int]:
    """Running speech, (N,) float32, and its rate."""
    phrases = [speak(words)[0] for words in ("three red circle", "go left five stop", "yes open white star")]
    rate = speak("one")[1]
    pause = np.zeros(rate // 2, np.int16)
    samples = np.concatenate([samples for phrase in phrases for samples in (phrase, pause)])
    return np.resize(samples, round(seconds * rate)).astype(np.float32) / 32768, rate


def test_the_description_is_that_of_the_audio_stream(media):
    with Audio(AudioTask(str(media / "spoken.mp4"), RATE, CHUNK)) as audio:
        assert (audio.info.codec, audio.info.sample_rate, audio.info.channels) == ("aac", 22_050, 1)
        assert (audio.info.start_seconds, audio.has_video) == (0.0, True)
        assert sum(len(chunk.samples) for chunk in audio.chunks()) == audio.samples_read
        assert audio.read_seconds == pytest.approx(12, abs=0.1)
        assert audio.why_incomplete is None


def test_audio_that_starts_late_has_later_presentation_times(tmp_path):
    path = tmp_path / "late.mkv"
    write(path, tone(440, 25), start=2.5)
    audio = read(path, cutting=Cutting(search_seconds=0))
    assert audio.info.start_seconds == 2.5
    assert [(chunk.first, chunk.start_seconds) for chunk in audio.chunks] == [
        (0, 2.5),
        (CHUNK, 12.5),
        (2 * CHUNK, 22.5),
    ]


def test_a_gap_in_the_presentation_times_starts_a_new_chunk(tmp_path):
    path = tmp_path / "gap.mkv"
    write_pieces(path, [(0, tone(440, 2)), (3, tone(880, 4))])
    audio = read(path)
    assert [(c.first, c.stop, c.start_seconds) for c in audio.chunks] == [(0, 2 * RATE, 0.0), (2 * RATE, 6 * RATE, 3.0)]
    assert np.array_equal(audio.samples[2 * RATE : 3 * RATE], audio.samples[3 * RATE : 4 * RATE])


def test_presentation_times_that_start_again_go_on(tmp_path):
    path = tmp_path / "joined.ts"
    write(path, tone(440, 5), RATE, "mp2")
    path.write_bytes(path.read_bytes() * 2)
    first, second = read(path).chunks
    assert second.first == first.stop
    assert second.start_seconds == pytest.approx(first.start_seconds + first.stop / RATE, abs=0.1)


def test_small_errors_of_presentation_times_start_no_new_chunk(tmp_path):
    path = tmp_path / "jitter.mkv"
    write_pieces(path, [(2 * k + offset, tone(440, 2)) for k, offset in enumerate((0, 0.05, 0.02, 0.08))])
    assert [(chunk.first, chunk.stop) for chunk in read(path).chunks] == [(0, 8 * RATE)]


def test_chunks_follow_presentation_times_that_drift(tmp_path):
    path = tmp_path / "drift.mkv"
    write_pieces(path, [(0.1 * 1.02 * k, tone(440, 0.1)) for k in range(600)])  # the recorder had a slow clock
    chunks = read(path, cutting=Cutting(search_seconds=0)).chunks
    assert [chunk.first for chunk in chunks] == [k * CHUNK for k in range(6)]
    for chunk in chunks:
        assert chunk.start_seconds == pytest.approx(1.02 * chunk.first / RATE, abs=0.11)


def test_the_sample_rate_may_change_within_a_file(tmp_path):
    path = tmp_path / "joined.aac"
    for rate in (48_000, 22_050):
        write(tmp_path / f"{rate}.aac", tone(440, 5, rate), rate, "aac")
    path.write_bytes((tmp_path / "48000.aac").read_bytes() + (tmp_path / "22050.aac").read_bytes())
    first, second = read(path).chunks
    for chunk in (first, second):
        assert len(chunk.samples) == pytest.approx(5 * RATE, abs=RATE / 10)
        assert int(np.argmax(np.abs(np.fft.rfft(chunk.samples[RATE : 2 * RATE])))) == 440


def test_a_video_without_audio_has_no_info_and_no_chunks(media):
    with Audio(AudioTask(str(media / "old.avi"), RATE, CHUNK)) as audio:
        assert (audio.info, audio.has_video) == (None, True)
        assert (list(audio.chunks()), audio.samples_read, audio.why_incomplete) == ([], 0, None)


def test_a_cover_picture_is_not_a_video(tmp_path):
    path, png = tmp_path / "song.mp3", tmp_path / "cover.png"
    write_video(png, "png", [100], pix_fmt="rgb24")
    with av.open(str(path), "w") as file, av.open(str(png)) as picture:
        audio, cover = file.add_stream("libmp3lame", rate=44_100), file.add_stream("png")
        cover.width, cover.height, cover.pix_fmt = 64, 48, "rgb24"
        cover.disposition = av.stream.Disposition.attached_pic
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 44_100), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 44_100
        packets = list(audio.encode(frame)) + list(audio.encode())
        for packet in picture.demux():
            if packet.size:
                packet.stream = cover
                packets.append(packet)
        for packet in packets:
            file.mux(packet)
    with Audio(AudioTask(str(path), RATE, CHUNK)) as audio:
        assert (audio.info.channels, audio.has_video) == (2, False)
        assert list(audio.chunks())
    with pytest.raises(NoPictures, match=r"got audio, an attached picture$"):
        read_video(path, InputSize(64, 48))


@pytest.mark.parametrize("name", ["speech.wav", "speech.mp3", "speech.mp4"])
def test_reading_on_from_a_chunk_gives_exactly_the_same_chunks(tmp_path, name):
    path = tmp_path / name
    codec = {"wav": "pcm_s16le", "mp3": "libmp3lame", "mp4": "aac"}[name.split(".")[1]]
    write(path, *speech(30), codec)
    cutting = Cutting(search_seconds=2)
    whole = read(path, chunk_samples=5 * RATE, cutting=cutting)
    assert len(whole.chunks) > 6
    for k in (1, 4, len(whole.chunks) - 1):
        rest = read(path, first=whole.chunks[k].first, chunk_samples=5 * RATE, cutting=cutting)
        assert [chunk[:3] for chunk in rest.chunks] == [chunk[:3] for chunk in whole.chunks[k:]]
        assert np.array_equal(rest.samples, np.concatenate([chunk.samples for chunk in whole.chunks[k:]]))


def test_reading_on_from_within_a_chunk_loses_no_sample(tmp_path):
    path = tmp_path / "long.wav"
    write(path, tone(440, 25))
    whole, rest = read(path), read(path, first=12_345)
    assert (rest.chunks[0].first, rest.chunks[0].start_seconds) == (12_345, round(12_345 / RATE, 6))
    assert np.array_equal(rest.samples, whole.samples[12_345:])


def test_silent_chunks_are_marked(tmp_path):
    path = tmp_path / "silent.wav"
    write(path, np.concatenate([tone(440, 10), np.zeros(10 * RATE, np.float32), tone(440, 10, level=0.01)]))
    fixed = Cutting(search_seconds=0)
    assert [chunk.silent for chunk in read(path, cutting=fixed).chunks] == [False, True, False]
    assert [chunk.silent for chunk in read(path, cutting=fixed, silence_db=-30).chunks] == [False, True, True]
    assert [chunk.silent for chunk in read(path, cutting=fixed, silence_db=None).chunks] == [False, False, False]


def test_a_task_is_the_same_after_it_was_sent_as_json():
    for task in (AudioTask("x.mp4", RATE, CHUNK, Cutting(2, 0.2), None), AudioTask("y.wav", RATE, CHUNK)):
        assert AudioTask.from_json(json.loads(json.dumps(task.to_json()))) == task


def test_chunks_that_are_too_short_for_the_search_are_refused():
    with pytest.raises(UsageError, match=r"chunks: expected more than 6\.0 seconds"):
        AudioTask("x.mp4", RATE, 2 * RATE, Cutting(search_seconds=5))


@pytest.mark.parametrize(("channels", "most_bytes"), [(1, 5e6), (4, 9e6)])  # all samples of a channel take 15 MB
def test_reading_long_audio_takes_little_more_memory_than_a_chunk_of_each_channel(tmp_path, channels, most_bytes):
    path = tmp_path / "8-minutes.wav"
    minute = np.zeros((60 * 8000, channels), "<i2")
    minute[: 8000 * 30] = np.outer(tone(300, 30, 8000, level=3000), np.arange(1, channels + 1) / channels)
    path.write_bytes(wav(minute.tobytes() * 8, channels, rate=8000))
    stop, silent = 0, 0.0
    with Audio(AudioTask(str(path), RATE, CHUNK, channels="separate")) as audio, peak_memory() as peak:
        for chunk in audio.chunks():
            assert chunk.first == stop
            stop, silent = chunk.stop, silent + chunk.silent * len(chunk.samples) / RATE
    assert stop == audio.samples_read == 8 * 60 * RATE * channels
    assert silent > 2 * 60 * channels
    assert peak() < most_bytes


def test_a_file_with_a_wrong_suffix_is_read(tmp_path):
    write(tmp_path / "audio.wav", tone(440, 1))
    path = tmp_path / "audio.mp3"
    shutil.move(tmp_path / "audio.wav", path)
    assert read(path).info.codec == "pcm_s16le"


def test_a_file_whose_name_is_not_utf8_is_read(tmp_path):
    write(tmp_path / "audio.wav", tone(440, 1))
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.wav")
    shutil.move(tmp_path / "audio.wav", path)
    assert len(read(Path(path)).samples) == RATE


def test_a_missing_file_is_a_media_error(tmp_path):
    with pytest.raises(MediaError, match="No such file or directory"):
        read(tmp_path / "nowhere.mp3")
