"""Make golden.npz: the mel spectrogram that librosa 0.11 makes of a second of a chirp in noise.

    python tests/data/mel_powers/make_golden.py

Run it where librosa is installed; nothing here needs it otherwise. These are the inputs of the GE2E voice encoder of
Resemblyzer.
"""

from pathlib import Path

import librosa
import numpy as np

time = np.arange(16_000) / 16_000
chirp = 0.3 * np.sin(2 * np.pi * (100 * time + 3000 * time**2))
samples = (chirp + np.random.default_rng(0).normal(0, 0.01, len(time))).astype(np.float16)
powers = librosa.feature.melspectrogram(
    y=samples.astype(np.float32), sr=16_000, n_fft=400, hop_length=160, n_mels=40
).astype(np.float32)
np.savez_compressed(Path(__file__).with_name("golden.npz"), samples=samples, powers=powers.T)
