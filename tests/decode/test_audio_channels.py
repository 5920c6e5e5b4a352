"""Each channel of a recording is read by itself, in chunks that come in the order in which they start."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from reelscribe.contract.chunking import Cutting
from reelscribe.decode.audio import Audio, AudioTask
from reelscribe.errors import MediaError
from support.audio import RATE, Read, read, tone, wav, write
from synthetic.espeak import speak

CUTTING = Cutting(search_seconds=2)


def dialogue(rate: int) -> np.ndarray:
    """Two people who take turns, (2, N) float32, and speak at once at the end."""
    spoken = [speak(words)[0].astype(np.float32) / 32768 for words in ("go left five", "yes open white", "stop two")]
    channels = np.zeros((2, sum(map(len, spoken)) + 3 * rate), np.float32)
    at = 0
    for k, samples in enumerate(spoken):
        channels[k % 2, at : at + len(samples)] = samples
        at += len(samples) + rate // 2
    channels[1, at - len(spoken[2]) : at] += spoken[2]
    return np.tile(channels, 3)


def separate(path: Path, **options) -> Read:
    return read(path, chunk_samples=4 * RATE, cutting=CUTTING, channels="separate", **options)


@pytest.mark.parametrize(("name", "codec"), [("two.wav", "pcm_s16le"), ("two.flac", "flac")])
def test_a_channel_has_the_samples_and_the_cuts_of_a_recording_of_its_own(tmp_path, name, codec):
    rate = speak("one")[1]
    channels = dialogue(rate)
    write(tmp_path / name, channels, rate, codec, "stereo")
    chunks = separate(tmp_path / name).chunks
    for k, samples in enumerate(channels):
        write(tmp_path / "alone.wav", samples, rate)
        alone = read(tmp_path / "alone.wav", chunk_samples=4 * RATE, cutting=CUTTING)
        own = [chunk for chunk in chunks if chunk.speaker == f"channel {k + 1}"]
        assert [chunk.start_seconds for chunk in own] == [chunk.start_seconds for chunk in alone.chunks]
        assert all(np.array_equal(a.samples, b.samples) for a, b in zip(own, alone.chunks, strict=True))


def test_chunks_are_numbered_in_the_order_in_which_they_start(tmp_path):
    rate = speak("one")[1]
    write(tmp_path / "two.wav", dialogue(rate), rate, layout="stereo")
    with Audio(AudioTask(str(tmp_path / "two.wav"), RATE, 4 * RATE, CUTTING, channels="separate")) as audio:
        chunks = list(audio.chunks())
        assert (audio.channels, audio.samples_read) == (2, sum(len(chunk.samples) for chunk in chunks))
    assert [chunk.first for chunk in chunks] == [0, *(chunk.stop for chunk in chunks[:-1])]
    order = [(chunk.start_seconds, chunk.speaker) for chunk in chunks]
    assert order == sorted(order)
    assert len(order) > 6
    assert {speaker for _, speaker in order} == {"channel 1", "channel 2"}


def test_reading_on_from_any_chunk_gives_exactly_the_same_chunks(tmp_path):
    rate = speak("one")[1]
    write(tmp_path / "two.mp3", dialogue(rate), rate, "libmp3lame", "stereo")
    whole = separate(tmp_path / "two.mp3").chunks
    for k in range(len(whole)):
        rest = separate(tmp_path / "two.mp3", first=whole[k].first).chunks
        assert [(c.first, c.stop, c.speaker) for c in rest] == [(c.first, c.stop, c.speaker) for c in whole[k:]]
        assert all(np.array_equal(a.samples, b.samples) for a, b in zip(rest, whole[k:], strict=True))


def test_a_recording_with_one_channel_has_no_speakers(tmp_path):
    write(tmp_path / "one.wav", tone(440, 9))
    mixed = read(tmp_path / "one.wav", chunk_samples=4 * RATE, cutting=CUTTING)
    alone = separate(tmp_path / "one.wav")
    assert [chunk.speaker for chunk in alone.chunks] == [None] * len(mixed.chunks)
    assert np.array_equal(alone.samples, mixed.samples)


@pytest.mark.parametrize(
    ("name", "codec", "rate"),
    [("x.wav", "pcm_s16le", 44_100), ("x.mp3", "libmp3lame", 44_100), ("x.m4a", "aac", 48_000)],
)
def test_a_channel_with_the_same_audio_as_another_repeats_it(tmp_path, name, codec, rate):
    samples = np.concatenate([tone(440, 5, rate), tone(880, 5, rate)])
    write(tmp_path / name, np.stack([samples, samples]), rate, codec, "stereo")
    chunks = separate(tmp_path / name).chunks
    assert len(chunks) > 4
    assert [chunk.repeated for chunk in chunks] == [chunk.speaker == "channel 2" for chunk in chunks]


def test_channels_without_names_are_read(tmp_path):
    samples = (1000 * np.arange(1, 6, dtype="<i2")) * np.ones((RATE, 1), "<i2")
    (tmp_path / "recorder.wav").write_bytes(wav(samples.tobytes(), 5))
    chunks = separate(tmp_path / "recorder.wav").chunks
    assert [(chunk.speaker, set(chunk.samples)) for chunk in chunks] == [
        (f"channel {k}", {1000 * k}) for k in range(1, 6)
    ]


def test_too_many_channels_are_refused(tmp_path):
    (tmp_path / "recorder.wav").write_bytes(wav(bytes(2 * 9 * RATE), 9))
    with pytest.raises(MediaError, match="expected at most 8 channels to transcribe each by itself, got 9"):
        separate(tmp_path / "recorder.wav")


def test_a_recording_that_changes_its_number_of_channels_is_read_up_to_there(tmp_path):
    for layout, count in (("stereo", 2), ("mono", 1)):
        write(tmp_path / f"{layout}.aac", np.stack([tone(440 * (k + 1), 6) for k in range(count)]), RATE, "aac", layout)
    (tmp_path / "joined.aac").write_bytes((tmp_path / "stereo.aac").read_bytes() + (tmp_path / "mono.aac").read_bytes())
    joined = separate(tmp_path / "joined.aac")
    assert joined.why_incomplete == (
        "cut short: expected 2 channels to transcribe each by itself, got 1 further on; transcribe the mix of them"
    )
    starts = [chunk.start_seconds for chunk in joined.chunks if chunk.speaker == "channel 2"]
    assert all(before < after for before, after in pairwise(starts))
    assert 2 * 5.5 * RATE < len(joined.samples) < 2 * 6.5 * RATE


def test_voices_beside_a_loud_tone_that_both_channels_have_repeat_nothing(tmp_path):
    voices = np.stack([tone(440, 3, level=0.01), tone(1000, 3, level=0.01)])
    voices[:, : RATE // 2] += tone(700, 0.5, level=0.9)
    write(tmp_path / "two.wav", voices, layout="stereo")
    assert [chunk.repeated for chunk in separate(tmp_path / "two.wav").chunks] == [False, False]


def test_a_channel_with_a_quieter_voice_of_its_own_repeats_nothing(tmp_path):
    music = tone(440, 3)
    with_voice = music.copy()
    with_voice[RATE : RATE + RATE // 4] += tone(1000, 0.25, level=0.1)
    write(tmp_path / "two.wav", np.stack([music, with_voice]), layout="stereo")
    assert [chunk.repeated for chunk in separate(tmp_path / "two.wav").chunks] == [False, False]
