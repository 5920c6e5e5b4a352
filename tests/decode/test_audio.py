"""When what comes out of a file's sound is heard, and where reading goes on."""

import os
import shutil
from pathlib import Path

import av
import numpy as np
import pytest

from reelscribe.contract.chunking import Cutting
from reelscribe.decode.audio import Audio, AudioTask
from reelscribe.errors import MediaError, UsageError
from speech_synthesis import speak
from support.memory import peak_memory
from support.sounds import CHUNK, RATE, read, tone, wav, write, write_pieces
from support.videos import write as write_video


def speech(seconds: float) -> tuple[np.ndarray, int]:
    """Running speech, (N,) float32, and its rate."""
    phrases = [speak(words)[0] for words in ("three red circle", "go left five stop", "yes open white star")]
    rate = speak("one")[1]
    pause = np.zeros(rate // 2, np.int16)
    samples = np.concatenate([part for phrase in phrases for part in (phrase, pause)])
    return np.resize(samples, round(seconds * rate)).astype(np.float32) / 32768, rate


def test_the_description_is_that_of_the_file(media):
    with Audio(AudioTask(str(media / "spoken.mp4"), RATE, CHUNK)) as audio:
        assert (audio.info.codec, audio.info.sample_rate, audio.info.channels) == ("aac", 22_050, 1)
        assert (audio.info.start_seconds, audio.pictures) == (0.0, True)
        assert sum(len(chunk.samples) for chunk in audio.chunks()) == audio.samples
        assert audio.read_seconds == pytest.approx(12, abs=0.1)
        assert audio.cut is None


def test_sound_that_starts_late_says_so(tmp_path):
    path = tmp_path / "late.mkv"
    write(path, tone(440, 25), start=2.5)
    sound = read(path, cutting=Cutting(search_seconds=0))
    assert sound.info.start_seconds == 2.5
    assert [(chunk.first, chunk.start_seconds) for chunk in sound.chunks] == [
        (0, 2.5),
        (CHUNK, 12.5),
        (2 * CHUNK, 22.5),
    ]


def test_where_sound_is_missing_it_begins_anew(tmp_path):
    path = tmp_path / "gap.mkv"
    write_pieces(path, [(0, tone(440, 2)), (3, tone(880, 4))])
    sound = read(path)
    assert [(c.first, c.stop, c.start_seconds) for c in sound.chunks] == [(0, 2 * RATE, 0.0), (2 * RATE, 6 * RATE, 3.0)]
    assert np.array_equal(sound.samples[2 * RATE : 3 * RATE], sound.samples[3 * RATE : 4 * RATE])


def test_where_times_begin_again_so_does_the_sound(tmp_path):
    path = tmp_path / "joined.ts"
    write(path, tone(440, 5), RATE, "mp2")
    path.write_bytes(path.read_bytes() * 2)
    first, second = read(path).chunks
    assert second.first == first.stop
    assert second.start_seconds == pytest.approx(first.start_seconds, abs=0.1)


def test_times_that_are_a_little_off_cut_nothing(tmp_path):
    path = tmp_path / "jitter.mkv"
    write_pieces(path, [(2 * k + offset, tone(440, 2)) for k, offset in enumerate((0, 0.05, 0.02, 0.08))])
    assert [(chunk.first, chunk.stop) for chunk in read(path).chunks] == [(0, 8 * RATE)]


def test_chunks_keep_to_times_that_drift(tmp_path):
    path = tmp_path / "drift.mkv"
    write_pieces(path, [(0.1 * 1.02 * k, tone(440, 0.1)) for k in range(600)])  # a recorder whose clock was slow
    chunks = read(path, cutting=Cutting(search_seconds=0)).chunks
    assert [chunk.first for chunk in chunks] == [k * CHUNK for k in range(6)]
    for chunk in chunks:
        assert chunk.start_seconds == pytest.approx(1.02 * chunk.first / RATE, abs=0.11)


def test_sound_may_change_its_rate(tmp_path):
    path = tmp_path / "joined.aac"
    for rate in (48_000, 22_050):
        write(tmp_path / f"{rate}.aac", tone(440, 5, rate), rate, "aac")
    path.write_bytes((tmp_path / "48000.aac").read_bytes() + (tmp_path / "22050.aac").read_bytes())
    first, second = read(path).chunks
    for chunk in (first, second):
        assert len(chunk.samples) == pytest.approx(5 * RATE, abs=RATE / 10)
        assert int(np.argmax(np.abs(np.fft.rfft(chunk.samples[RATE : 2 * RATE])))) == 440


def test_a_video_without_sound_is_no_error(media):
    with Audio(AudioTask(str(media / "old.avi"), RATE, CHUNK)) as audio:
        assert (audio.info, audio.pictures) == (None, True)
        assert (list(audio.chunks()), audio.samples, audio.cut) == ([], 0, None)


def test_the_picture_on_a_cover_is_no_video(tmp_path):
    path, png = tmp_path / "song.mp3", tmp_path / "cover.png"
    write_video(png, "png", [100], pix_fmt="rgb24")
    with av.open(str(path), "w") as file, av.open(str(png)) as picture:
        sound, cover = file.add_stream("libmp3lame", rate=44_100), file.add_stream("png")
        cover.width, cover.height, cover.pix_fmt = 64, 48, "rgb24"
        cover.disposition = av.stream.Disposition.attached_pic
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 44_100), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 44_100
        packets = list(sound.encode(frame)) + list(sound.encode())
        for packet in picture.demux():
            if packet.size:
                packet.stream = cover
                packets.append(packet)
        for packet in packets:
            file.mux(packet)
    with Audio(AudioTask(str(path), RATE, CHUNK)) as audio:
        assert (audio.info.channels, audio.pictures) == (2, False)
        assert list(audio.chunks())


@pytest.mark.parametrize("name", ["speech.wav", "speech.mp3", "speech.mp4"])
def test_a_later_reading_goes_on_to_the_bit(tmp_path, name):
    path = tmp_path / name
    codec = {"wav": "pcm_s16le", "mp3": "libmp3lame", "mp4": "aac"}[name.split(".")[1]]
    write(path, *speech(30), codec)
    cutting = Cutting(search_seconds=2)
    whole = read(path, chunk_samples=5 * RATE, cutting=cutting)
    assert len(whole.chunks) > 6
    for k in (1, 4, len(whole.chunks) - 1):
        rest = read(path, first=whole.chunks[k].first, chunk_samples=5 * RATE, cutting=cutting).chunks
        assert [part[:3] for part in rest] == [part[:3] for part in whole.chunks[k:]]
        assert all(map(np.array_equal, [part.samples for part in rest], [part.samples for part in whole.chunks[k:]]))


def test_a_reading_from_within_a_chunk_leaves_nothing_out(tmp_path):
    path = tmp_path / "long.wav"
    write(path, tone(440, 25))
    whole, rest = read(path), read(path, first=12_345)
    assert (rest.chunks[0].first, rest.chunks[0].start_seconds) == (12_345, round(12_345 / RATE, 6))
    assert np.array_equal(rest.samples, whole.samples[12_345:])


def test_silent_chunks_say_so(tmp_path):
    path = tmp_path / "silent.wav"
    write(path, np.concatenate([tone(440, 10), np.zeros(10 * RATE, np.float32), tone(440, 10, level=0.01)]))
    fixed = Cutting(search_seconds=0)
    assert [chunk.silent for chunk in read(path, cutting=fixed).chunks] == [False, True, False]
    assert [chunk.silent for chunk in read(path, cutting=fixed, silence_db=-30).chunks] == [False, True, True]
    assert [chunk.silent for chunk in read(path, cutting=fixed, silence_db=None).chunks] == [False, False, False]


def test_a_task_travels_as_json():
    task = AudioTask("x.mp4", RATE, CHUNK, Cutting(2, 0.2), None)
    assert AudioTask.from_json(task.to_json()) == task
    assert AudioTask.from_json(AudioTask("y.wav", RATE, CHUNK).to_json()).silence_db == -60
    with pytest.raises(UsageError, match=r"chunks: expected more than 6\.0 seconds"):
        AudioTask("x.mp4", RATE, 2 * RATE)


def test_long_sound_takes_no_more_memory_than_a_chunk(tmp_path):
    path = tmp_path / "8-minutes.wav"
    minute = np.zeros(60 * 8000, "<i2")
    minute[: 8000 * 30] = tone(300, 30, 8000, level=3000)
    path.write_bytes(wav(minute.tobytes() * 8, rate=8000))
    stop, silent = 0, 0.0
    with Audio(AudioTask(str(path), RATE, CHUNK)) as audio, peak_memory() as peak:
        for chunk in audio.chunks():
            assert (chunk.first, chunk.start_seconds) == (stop, round(stop / RATE, 6))
            stop, silent = chunk.stop, silent + chunk.silent * len(chunk.samples) / RATE
    assert stop == audio.samples == 8 * 60 * RATE
    assert silent > 2 * 60
    assert peak() < 5e6  # all of it is 15 MB


def test_a_wrong_suffix_is_no_obstacle(tmp_path):
    write(tmp_path / "sound.wav", tone(440, 1))
    path = tmp_path / "sound.mp3"
    shutil.move(tmp_path / "sound.wav", path)
    assert read(path).info.codec == "pcm_s16le"


def test_a_name_that_is_not_utf8_is_no_obstacle(tmp_path):
    write(tmp_path / "sound.wav", tone(440, 1))
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.wav")
    shutil.move(tmp_path / "sound.wav", path)
    assert len(read(Path(path)).samples) == RATE


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(MediaError, match="No such file or directory"):
        read(tmp_path / "nowhere.mp3")
