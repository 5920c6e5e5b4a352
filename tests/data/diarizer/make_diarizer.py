"""Train the tiny diarization model of this folder, in half a minute.

    PYTHONPATH=tests:clients python tests/data/diarizer/make_diarizer.py

Each processor would train another one, so it is committed.
"""

import numpy as np
import torch
from transformers import (
    Nemotron3DiarizationConfig,
    Nemotron3DiarizationForAudioFrameClassification,
    Nemotron3DiarizationProcessor,
    NemotronAsrStreamingFeatureExtractor,
)

from support.audio import RATE
from support.speaker_models import DIARIZER, PITCHES, conversation

torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
config = Nemotron3DiarizationConfig(
    audio_config={**sizes, "num_mel_bins": 40},
    head_config={"hidden_size": 16, "audio_hidden_size": 32, "num_speakers": len(PITCHES)},
    streaming_config={"num_speakers": len(PITCHES)},
)
model = Nemotron3DiarizationForAudioFrameClassification(config)
processor = Nemotron3DiarizationProcessor(NemotronAsrStreamingFeatureExtractor(feature_size=40))
rng = np.random.default_rng(0)
scripts = [[(*rng.integers(2, size=2), rng.integers(3, 15) / 10) for _ in range(8)] for _ in range(8)]
inputs = processor([conversation(*script) for script in scripts], sampling_rate=RATE)
heard = inputs["attention_mask"].bool()
truth = torch.zeros(*heard.shape, len(PITCHES))
for row, script in zip(truth, scripts, strict=True):
    active = np.concatenate([np.tile(speaking, (round(100 * seconds), 1)) for *speaking, seconds in script])
    row[: len(active)] = torch.from_numpy(active)[: len(row)]
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
for _ in range(300):
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(**inputs).logits[heard], truth[heard])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.save_pretrained(DIARIZER)
processor.save_pretrained(DIARIZER)
