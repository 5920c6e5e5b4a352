"""A small CTC model for measurements: convolutions that are trained in minutes to spell words of `synthetic.phrases`.

No published CTC model is to be had where these measurements run. As wav2vec2 does, this one has a frame for each 20 ms
and a token for each letter. It is trained with the CTC loss alone, on voices that are not held out, and is told nothing
about when words are spoken. Each frame depends on a quarter of a second around it: a model that sees all at once, such
as a head on the encoder of the demo speech model, learns to spell words half a second after they are spoken.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    AutoConfig,
    AutoModelForCTC,
    PretrainedConfig,
    PreTrainedModel,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2Processor,
    WhisperFeatureExtractor,
)
from transformers.modeling_outputs import CausalLMOutput

from synthetic.phrases import SAMPLE_RATE, WORDS, recording

LETTERS = ("<pad>", "<s>", "</s>", "<unk>", "|", *sorted({letter.upper() for word in WORDS for letter in word}))
"""The vocabulary, as that of wav2vec2: the blank, three that are not used, the word delimiter, and letters."""

SEED, RECORDINGS, EPOCHS, BATCH = 20_261_128, 1_500, 8, 16
MEL_BINS, CHANNELS, KERNEL, LAYERS = 80, 96, 7, 4


class SmallCtcConfig(PretrainedConfig):
    """The configuration: how many frames of the spectrogram make one of the model, and the blank."""

    model_type = "small-ctc"
    subsampling_factor: int = 2
    pad_token_id: int = 0


class SmallModelForCTC(PreTrainedModel):
    """Convolutions over the spectrogram of a Whisper."""

    config_class = SmallCtcConfig
    main_input_name = "input_features"

    def __init__(self, config: SmallCtcConfig) -> None:
        super().__init__(config)
        self.first = nn.Conv1d(MEL_BINS, CHANNELS, 5, stride=2, padding=2)
        self.layers = nn.ModuleList(nn.Conv1d(CHANNELS, CHANNELS, KERNEL, padding=KERNEL // 2) for _ in range(LAYERS))
        self.spell = nn.Linear(CHANNELS, len(LETTERS))
        cast(Any, self).post_init()  # which has no types

    def forward(self, input_features: Tensor, **_: Any) -> CausalLMOutput:
        """Return the logits, (N, frames, len(LETTERS)), of spectrograms, (N, MEL_BINS, 2 * frames)."""
        channels = functional.gelu(self.first(input_features))
        for layer in self.layers:
            channels = channels + functional.gelu(layer(channels))
        return CausalLMOutput(logits=self.spell(channels.transpose(1, 2)))

    def _get_subsampling_output_length(self, lengths: Tensor) -> Tensor:
        return (lengths + 1) // 2


AutoConfig.register(SmallCtcConfig.model_type, SmallCtcConfig)
AutoModelForCTC.register(SmallCtcConfig, SmallModelForCTC)


def train(folder: Path) -> Path:
    """Train a model, which takes minutes, and save it.

    Args:
        folder: A new folder.

    Returns:
        The folder with the model.
    """
    torch.manual_seed(SEED)
    extractor = WhisperFeatureExtractor(feature_size=MEL_BINS)
    model = SmallModelForCTC(SmallCtcConfig(architectures=[SmallModelForCTC.__name__]))
    _fit(model, *_examples(extractor))
    model.save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({letter: number for number, letter in enumerate(LETTERS)}))
    Wav2Vec2Processor(extractor, Wav2Vec2CTCTokenizer(str(folder / "vocab.json"))).save_pretrained(folder)
    return folder


def _examples(extractor: WhisperFeatureExtractor) -> tuple[list[Tensor], list[Tensor]]:
    """Return the spectrograms of recordings of some phrases, (frames, MEL_BINS) each, and their letters."""
    rng = random.Random(SEED)  # noqa: S311 - a seed is needed, not secrecy
    noise = np.random.default_rng(SEED)
    spectrograms: list[Tensor] = []
    letters: list[Tensor] = []
    for _ in range(RECORDINGS):
        spoken = recording(rng, rng.uniform(1, 7))
        samples = spoken.samples / 32768 + noise.normal(0, rng.choice((0, 0, 0.001, 0.005)), len(spoken.samples))
        options: dict[str, Any] = {"sampling_rate": SAMPLE_RATE, "padding": True, "return_tensors": "pt"}
        spectrograms.append(extractor(samples.astype(np.float32), **options)["input_features"][0].T)
        spelled = "|".join(word.upper() for *_, words in spoken.phrases for word in words)
        letters.append(torch.tensor([LETTERS.index(letter) for letter in spelled]))
    return spectrograms, letters


def _fit(model: SmallModelForCTC, spectrograms: list[Tensor], letters: list[Tensor]) -> None:
    """Train a model with the CTC loss."""
    optimizer = torch.optim.AdamW(model.parameters())
    steps = EPOCHS * (RECORDINGS // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for step in range(steps):
        if step % (RECORDINGS // BATCH) == 0:
            order = torch.randperm(RECORDINGS).tolist()
        chosen, order = order[:BATCH], order[BATCH:]
        padded = nn.utils.rnn.pad_sequence([spectrograms[i] for i in chosen], batch_first=True)
        log_probs = model(padded.transpose(1, 2)).logits.log_softmax(-1).transpose(0, 1)
        frames = model._get_subsampling_output_length(torch.tensor([len(spectrograms[i]) for i in chosen]))
        counts = torch.tensor([len(letters[i]) for i in chosen])
        loss = functional.ctc_loss(log_probs, torch.cat([letters[i] for i in chosen]), frames, counts)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
