import io
import struct

import numpy as np
import pytest
import soundfile

from reelscribe.contract.speech import SampleArray
from reelscribe.errors import LimitExceeded, SpeechError, UnsupportedFormat, WireError
from transcripts.audio_file import decode, is_audio_file, open_audio_file

RATE = 16_000
SECONDS = 1.5


def read_audio_file(body: bytes, sample_rate: int, max_seconds: float) -> SampleArray:
    return decode(open_audio_file(body, max_seconds), sample_rate)


def tone(rate: int, channels: int = 1) -> np.ndarray:
    """440 Hz at half of full scale."""
    wave = 0.5 * np.sin(2 * np.pi * 440 * np.arange(int(SECONDS * rate)) / rate)
    return np.stack([wave] * channels, axis=1)


def save(samples: np.ndarray, rate: int, kind: str, codec: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=codec)
    return file.getvalue()


@pytest.mark.parametrize(
    ("kind", "codec", "rate", "channels", "tolerance"),
    [
        ("WAV", "PCM_16", 16_000, 1, 2),
        ("WAV", "PCM_U8", 8_000, 1, 400),
        ("WAV", "PCM_24", 96_000, 2, 30),
        ("WAV", "FLOAT", 44_100, 2, 30),
        ("WAV", "ULAW", 8_000, 1, 600),
        ("WAVEX", "PCM_16", 48_000, 8, 30),
        ("FLAC", "PCM_16", 22_050, 1, 30),
        ("FLAC", "PCM_24", 48_000, 2, 30),
        ("OGG", "VORBIS", 44_100, 2, 1500),
        ("OGG", "OPUS", 48_000, 1, 1500),
    ],
)
def test_files_of_every_kind_hold_the_same_audio(kind, codec, rate, channels, tolerance):
    body = save(tone(rate, channels), rate, kind, codec)
    assert is_audio_file(body)
    samples = read_audio_file(body, RATE, max_seconds=10)
    assert samples.dtype == np.int16
    assert len(samples) == pytest.approx(SECONDS * RATE, abs=400)
    middle = slice(RATE // 4, RATE)
    expected = 32768 * tone(RATE)[middle, 0]
    assert samples[middle] == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize("codec", ["VORBIS", "OPUS"])
@pytest.mark.parametrize("appended", [b"TAG" + bytes(125), bytes(4096)], ids=["tag", "zeros"])
def test_what_a_program_has_appended_to_ogg_changes_nothing(codec, appended):
    body = save(tone(48_000), 48_000, "OGG", codec)
    assert np.array_equal(read_audio_file(body + appended, RATE, 10), read_audio_file(body, RATE, 10))


def test_a_chain_of_ogg_recordings_is_refused_as_libsndfile_would_read_one_of_them():
    body = save(tone(RATE), RATE, "OGG", "VORBIS")
    with pytest.raises(UnsupportedFormat, match=r"one recording, got a chain of several .* `reelscribe transcribe`"):
        open_audio_file(body + body, 10)


def test_channels_are_averaged():
    left = np.stack([tone(RATE)[:, 0], np.zeros(int(SECONDS * RATE))], axis=1)
    assert np.abs(read_audio_file(save(left, RATE, "WAV", "PCM_16"), RATE, 10)).max() == pytest.approx(8192, abs=2)


def test_frequencies_above_half_the_target_rate_are_not_aliased():
    high = 0.9 * np.sin(2 * np.pi * 10_000 * np.arange(48_000) / 48_000)
    samples = read_audio_file(save(high, 48_000, "WAV", "PCM_16"), RATE, 10)
    assert np.abs(samples[800:-800]).max() <= 3  # -80 dB


def test_a_body_of_another_kind_is_no_audio_file():
    assert not any(map(is_audio_file, [b"", b"RIFF", b"RIFF\0\0\0\0AVI ", b"ID3", b"\x93RSBODY"]))


WAV = save(tone(RATE), RATE, "WAV", "PCM_16")
FLAC = save(tone(RATE), RATE, "FLAC", "PCM_16")


@pytest.mark.parametrize("body", [WAV[:12], WAV[:30], FLAC[:20], FLAC[:4] + bytes(200)])
def test_a_damaged_file_is_an_error_of_its_own(body):
    with pytest.raises(WireError, match="a damaged one"):
        read_audio_file(body, RATE, 10)


def patched(body: bytes, at: int, layout: str, value: int) -> bytes:
    changed = bytearray(body)
    struct.pack_into(layout, changed, at, value)
    return bytes(changed)


@pytest.mark.parametrize(
    ("body", "error", "reason"),
    [
        (save(tone(8000, 9), 8000, "WAV", "PCM_16"), LimitExceeded, "at most 8 channels, got more"),
        (save(tone(400_000), 400_000, "WAV", "PCM_16"), SpeechError, "4000 to 192000 samples a second, got more"),
        (save(tone(2000), 2000, "WAV", "PCM_16"), SpeechError, "samples a second, got fewer"),
        (save(tone(RATE), RATE, "WAV", "GSM610"), UnsupportedFormat, "got GSM610 in WAV; convert it to FLAC"),
        (save(tone(RATE)[:0], RATE, "WAV", "PCM_16"), SpeechError, "at least one sample"),
        (save(tone(RATE) * np.nan, RATE, "WAV", "FLOAT"), SpeechError, "NaN"),
        (save(tone(RATE) * 32768, RATE, "WAV", "FLOAT"), SpeechError, "floats are from -1 to 1, got larger ones"),
    ],
)
def test_audio_that_cannot_be_speech_is_refused(body, error, reason):
    with pytest.raises(error, match=reason):
        read_audio_file(body, RATE, 10)


def test_a_file_whose_header_claims_too_long_a_duration_is_not_decoded():
    with pytest.raises(LimitExceeded, match="at most 1 seconds, got a longer one"):
        read_audio_file(FLAC, RATE, 1)


def test_a_flac_file_without_a_length_in_its_header_has_a_message_of_its_own():
    unknown = patched(patched(FLAC, 22, ">I", 0), 21, ">B", FLAC[21] & 0xF0)  # total samples of STREAMINFO: 36 bits
    with pytest.raises(UnsupportedFormat, match="FLAC from a pipe"):
        read_audio_file(unknown, RATE, 10)


def test_a_wav_file_shorter_than_its_header_claims_is_damaged():
    whole = save(tone(RATE), RATE, "WAV", "PCM_16")
    with pytest.raises(WireError, match=f"{len(whole) // 2} bytes, fewer than its header says"):
        read_audio_file(whole[: len(whole) // 2], RATE, 10)


def test_a_flac_file_shorter_than_its_header_claims_is_damaged():
    with pytest.raises(WireError, match="a damaged one"):
        read_audio_file(FLAC[: len(FLAC) // 2], RATE, 10)
