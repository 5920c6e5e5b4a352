"""Audio of every kind is mixed to one channel and resampled."""

import av
import numpy as np
import pytest

from reelscribe.decode.audio_reader import Resampler
from support.audio import RATE, decibels, read, sweep, tone, wav, write


@pytest.mark.parametrize(
    ("name", "codec", "rate"),
    [
        ("8-bit.wav", "pcm_u8", 8_000),
        ("16-bit.wav", "pcm_s16le", 16_000),
        ("24-bit.wav", "pcm_s24le", 96_000),
        ("32-bit.wav", "pcm_s32le", 192_000),
        ("float.wav", "pcm_f32le", 44_100),
        ("double.wav", "pcm_f64le", 11_025),
        ("mu-law.au", "pcm_mulaw", 8_000),
        ("planar.flac", "flac", 48_000),
    ],
)
@pytest.mark.parametrize("layout", ["mono", "stereo"])
def test_uncompressed_audio_of_every_kind_keeps_its_samples(tmp_path, name, codec, rate, layout):
    path = tmp_path / name
    write(path, np.stack([sweep(2, rate)] * (2 if layout == "stereo" else 1)), rate, codec, layout)
    difference = read(path).samples - sweep(2) * 32768
    assert decibels(difference[1000:-1000]) < -40


@pytest.mark.parametrize(
    ("name", "codec", "rate"),
    [
        ("lossy.mp3", "libmp3lame", 44_100),
        ("lossy.m4a", "aac", 48_000),
        ("lossy.webm", "libopus", 48_000),
        ("lossy.ts", "mp2", 48_000),
        ("lossy.avi", "ac3", 32_000),
        ("tagged.avi", "aac", 48_000),
    ],
)
def test_lossy_audio_is_almost_the_original(tmp_path, name, codec, rate):
    path = tmp_path / name
    write(path, sweep(3, rate), rate, codec)
    samples, middle = read(path).samples.astype(np.float32), sweep(3)[RATE : 2 * RATE]
    correlation = np.correlate(samples, middle, "valid")
    at = int(np.argmax(correlation))
    assert correlation[at] > 0.98 * np.linalg.norm(middle) * np.linalg.norm(samples[at : at + RATE])
    assert at == pytest.approx(RATE, abs=RATE // 10)  # some codecs start a little late without saying so


@pytest.mark.parametrize("rate", [44_100, 48_000])
def test_frequencies_above_half_the_sample_rate_are_removed_and_not_aliased(tmp_path, rate):
    path = tmp_path / "high.wav"
    write(path, tone(10_000, 2, rate), rate, "pcm_f32le")
    assert decibels(read(path).samples[RATE // 4 : -RATE // 4]) < decibels(tone(440, 1) * 32768) - 80


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100, 96_000])
def test_resampling_does_not_move_a_click(tmp_path, rate):
    path = tmp_path / "click.wav"
    samples = np.zeros(2 * rate, np.float32)
    samples[rate // 2] = 1  # at 0.5 s
    write(path, samples, rate, "pcm_f32le")
    assert int(np.argmax(read(path).samples)) == RATE // 2


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 22_050, 44_100, 48_000, 96_000])
@pytest.mark.parametrize("length", [1, 1000, 17_777, 100_003])
def test_the_number_of_samples_follows_from_the_length(tmp_path, rate, length):
    path = tmp_path / "odd.wav"
    path.write_bytes(wav(bytes(2 * length), rate=rate))
    assert len(read(path).samples) == (2 * length * RATE + rate) // (2 * rate)


def test_the_centre_channel_has_the_largest_weight(tmp_path):
    path = tmp_path / "7.1.wav"
    channels = np.zeros((8, 2 * RATE), np.float32)
    channels[2] = tone(440, 2)
    write(path, channels, layout="7.1")
    assert decibels(read(path).samples) == pytest.approx(decibels(tone(440, 1) * 32768) - 12.9, abs=0.1)


def test_mixing_loud_channels_does_not_overflow(tmp_path):
    path = tmp_path / "loud.wav"
    write(path, np.stack([tone(440, 2, level=0.99)] * 6), codec="pcm_f32le", layout="5.1")
    assert 0.98 * 32768 < read(path).samples.max() < 32767


@pytest.mark.parametrize(
    "layout", ["stereo", "3.0(back)", "quad(side)", "5.1", "7.1(wide)", "7.1.4", "hexadecagonal", "22.2", "binaural"]
)
def test_every_loudspeaker_but_that_of_low_frequencies_is_heard(layout):
    names = [channel.name for channel in av.AudioLayout(layout).channels]
    heard = set()
    for k, name in enumerate(names):
        samples = np.zeros((RATE, len(names)), np.float32)
        samples[:, k] = tone(440, 1)
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), "flt", layout)
        frame.sample_rate = RATE
        resampler = Resampler(RATE, RATE)
        if decibels(np.concatenate([*resampler.push(frame), *resampler.flush()])) > -50:
            heard.add(name)
    assert heard == set(names) - {"LFE", "LFE2"}


@pytest.mark.parametrize("layout", ["ambisonic 1", "ambisonic 2", "ambisonic 1+stereo"])
def test_ambisonics_are_heard_from_all_sides(tmp_path, layout):
    channels = np.zeros((av.AudioLayout(layout).nb_channels, 3 * 48_000), np.float32)
    channels[0] = tone(440, 3, 48_000)
    channels[3] = -channels[0]  # from behind the listener
    write(tmp_path / "sphere.opus", channels, 48_000, "libopus", layout, options={"mapping_family": "2"})
    expected = tone(440, 1) * (32768 if "stereo" not in layout else 32768 * 0.414)
    assert decibels(read(tmp_path / "sphere.opus").samples[RATE:-RATE]) == pytest.approx(decibels(expected), abs=0.2)


@pytest.mark.parametrize(
    ("name", "codec", "layout", "levels"),
    [
        ("cable.wav", "pcm_s16le", "stereo", (1, -1)),
        ("cable.mp3", "libmp3lame", "stereo", (1, -1)),
        ("louder.m4a", "aac", "stereo", (-1, 0.7)),
        ("matrix.flac", "flac", "5.1", (1, -1, 0, 0, 0, 0)),
        ("recorder.mka", "pcm_s16le", "quad", (0.5, -0.5, 0.5, -0.5)),
    ],
)
def test_a_voice_whose_channels_cancel_is_heard_from_one_of_them(tmp_path, name, codec, layout, levels):
    noise = np.random.default_rng(0).normal(0, 0.002, (len(levels), 48_000))
    voice = np.concatenate([sweep(3, 48_000), np.zeros(48_000, np.float32), sweep(3, 48_000)])
    channels = (np.array(levels)[:, np.newaxis] * voice).astype(np.float32)
    channels[:, 3 * 48_000 : 4 * 48_000] = noise
    write(tmp_path / name, channels, 48_000, codec, layout)
    samples = read(tmp_path / name).samples / 32768
    assert np.abs(np.corrcoef(samples[RATE : 2 * RATE], channels[0, 3 * RATE : 6 * RATE : 3])[0, 1]) > 0.9


def test_channels_that_differ_are_averaged(tmp_path):
    rng = np.random.default_rng(1)
    front, side = rng.normal(0, 0.05, (2, 5 * RATE))
    channels = np.stack([front + 1.5 * side, front - 1.5 * side]).astype(np.float32)
    write(tmp_path / "wide.wav", channels, codec="pcm_f32le", layout="stereo")
    assert np.abs(read(tmp_path / "wide.wav").samples - 32768 * front).max() < 1


@pytest.mark.parametrize("channels", [3, 10, 64])
def test_channels_without_names_are_averaged(tmp_path, channels):
    path = tmp_path / "recorder.wav"
    samples = (1000 * np.arange(1, channels + 1, dtype="<i2") % 7000) * np.ones((RATE, 1), "<i2")
    path.write_bytes(wav(samples.tobytes(), channels))
    assert np.abs(read(path).samples - samples[0].mean()).max() <= 1


def test_samples_that_are_no_numbers_become_silence(tmp_path):
    samples = tone(440, 2, 48_000)
    samples[20_000:20_100] = 0
    clean, broken = tmp_path / "clean.wav", tmp_path / "broken.wav"
    clean.write_bytes(wav(samples.tobytes(), rate=48_000, bits=32, kind=3))
    samples[20_000:20_100] = np.resize(np.array([np.nan, np.inf, -np.inf, 1e30], np.float32), 100)
    broken.write_bytes(wav(samples.tobytes(), rate=48_000, bits=32, kind=3))
    assert np.array_equal(read(broken).samples, read(clean).samples)


def test_samples_beyond_full_scale_are_clipped(tmp_path):
    path = tmp_path / "loud.wav"
    path.write_bytes(wav((4 * tone(440, 1)).tobytes(), bits=32, kind=3))
    samples = read(path).samples
    assert (samples.min(), samples.max()) == (-32768, 32767)
