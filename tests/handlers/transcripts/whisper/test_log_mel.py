"""The log-mel spectrograms of Whisper."""

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor

from reelscribe.errors import StartupError
from support.audio import noise
from transcripts.whisper.log_mel import LogMel

CPU = torch.device("cpu")
RATE = 16_000


@pytest.mark.parametrize(("seconds", "mels"), [(5, 80), (30, 128)])
def test_spectrograms_are_those_of_transformers(seconds, mels):
    extractor = WhisperFeatureExtractor(chunk_length=seconds, feature_size=mels)
    # Frames reach 200 samples beyond the audio, and the last ones of a full window are mirrored at its end.
    lengths = (1, 150, 161, RATE, 2 * RATE - 40, seconds * RATE - 201, seconds * RATE - 30, seconds * RATE)
    recordings = [noise(length / RATE, length) for length in lengths]
    recordings += [np.zeros(RATE, np.float32), np.append(np.zeros(RATE, np.float32), noise(1, 0) * 1e-4)]
    expected = extractor(recordings, sampling_rate=RATE, return_tensors="pt")["input_features"]
    got = LogMel(extractor, CPU)(recordings)
    assert (got.shape, got.dtype) == ((len(recordings), mels, 100 * seconds), torch.float32)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["dither", "padding_value"])
def test_a_model_whose_spectrograms_are_other_ones_is_refused(name):
    with pytest.raises(StartupError, match=rf"processor_config\.json, {name}: expected 0, got 0\.5"):
        LogMel(WhisperFeatureExtractor(**{name: 0.5}), CPU)
