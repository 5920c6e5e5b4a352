"""A CTC model for measurements: a head that is trained on the encoder of the demo speech model.

No published CTC model is to be had where these measurements run. The encoder of a Whisper has a frame of 20 ms, as
wav2vec2 has, so a head of two convolutions is trained on it with the CTC loss alone, to spell the words of
`synthetic.phrases` by voices that are not held out. It is told nothing about when words are spoken.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    AutoConfig,
    AutoModelForCTC,
    PreTrainedModel,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2Processor,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from synthetic.phrases import SAMPLE_RATE, WORDS, recording

LETTERS = ("<pad>", "<s>", "</s>", "<unk>", "|", *sorted({letter.upper() for word in WORDS for letter in word}))
"""The vocabulary, as that of wav2vec2: the blank, three that are not used, the word delimiter, and letters."""

SEED, RECORDINGS, EPOCHS, BATCH = 20_261_128, 1_500, 8, 16
CHANNELS, KERNEL = 64, 5


class WhisperCtcConfig(WhisperConfig):
    """The configuration of the encoder, and how many frames of the spectrogram make one of the model."""

    model_type = "whisper-ctc"
    subsampling_factor: int = 2


class WhisperEncoderForCTC(PreTrainedModel):
    """The encoder of a Whisper with a head that spells."""

    config_class = WhisperCtcConfig
    main_input_name = "input_features"

    def __init__(self, config: WhisperCtcConfig) -> None:
        super().__init__(config)
        self.encoder = WhisperEncoder(config)
        widths = ((config.d_model, CHANNELS), (CHANNELS, CHANNELS))
        self.convolutions = nn.ModuleList(nn.Conv1d(*width, KERNEL, padding=KERNEL // 2) for width in widths)
        self.spell = nn.Linear(CHANNELS, len(LETTERS))
        self.post_init()

    def forward(self, input_features: Tensor, **_: Any) -> CausalLMOutput:
        """Return the logits of each frame, (N, frames, len(LETTERS)), of spectrograms without padding."""
        frames = input_features.shape[-1]
        window = 2 * self.config.max_source_positions
        # What the extractor makes of silence: it keeps a range of 8 below the loudest value, divided by 4.
        silence = input_features.amax((1, 2), keepdim=True) - 2
        padding = silence.expand(-1, input_features.shape[1], window - frames)
        states = self.encoder(torch.cat([input_features, padding], 2)).last_hidden_state
        return CausalLMOutput(logits=self.head(states[:, : -(-frames // 2)]))

    def head(self, states: Tensor) -> Tensor:
        """Return the logits of the states of the encoder, (N, positions, width)."""
        channels = states.transpose(1, 2)
        for convolution in self.convolutions:
            channels = functional.gelu(convolution(channels))
        logits: Tensor = self.spell(channels.transpose(1, 2))
        return logits

    def _get_subsampling_output_length(self, lengths: Tensor) -> Tensor:
        return (lengths + 1) // 2


AutoConfig.register(WhisperCtcConfig.model_type, WhisperCtcConfig)
AutoModelForCTC.register(WhisperCtcConfig, WhisperEncoderForCTC)


def train(whisper: Path, folder: Path) -> Path:
    """Train a model on the encoder of a Whisper, which takes minutes, and save it.

    Args:
        whisper: The folder of the Whisper, whose window is 10 s.
        folder: A new folder.

    Returns:
        The folder with the model.
    """
    torch.manual_seed(SEED)
    config = WhisperCtcConfig.from_pretrained(whisper)
    config.update({"architectures": [WhisperEncoderForCTC.__name__], "vocab_size": len(LETTERS), "pad_token_id": 0})
    model = WhisperEncoderForCTC(config)
    model.encoder = WhisperForConditionalGeneration.from_pretrained(whisper).model.encoder.eval()
    extractor = WhisperFeatureExtractor.from_pretrained(whisper)
    _fit_head(model, *_examples(model, extractor))
    model.eval().save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({letter: number for number, letter in enumerate(LETTERS)}))
    Wav2Vec2Processor(extractor, Wav2Vec2CTCTokenizer(str(folder / "vocab.json"))).save_pretrained(folder)
    return folder


def _examples(model: WhisperEncoderForCTC, extractor: WhisperFeatureExtractor) -> tuple[list[Tensor], list[Tensor]]:
    """Return the encoder's states for recordings of several phrases, (positions, width) each, and their letters."""
    rng = random.Random(SEED)  # noqa: S311 - a seed is needed, not secrecy
    noise = np.random.default_rng(SEED)
    states: list[Tensor] = []
    letters: list[Tensor] = []
    while len(states) < RECORDINGS:
        spoken = recording(rng, rng.uniform(1, 7))
        if len(spoken.samples) > model.config.max_source_positions * extractor.hop_length * 2:
            continue
        samples = spoken.samples / 32768 + noise.normal(0, rng.choice((0, 0, 0.001, 0.005)), len(spoken.samples))
        mel = extractor(samples.astype(np.float32), sampling_rate=SAMPLE_RATE, return_tensors="pt")["input_features"]
        with torch.inference_mode():
            encoded = model.encoder(mel).last_hidden_state[0, : -(-len(samples) // (2 * extractor.hop_length))]
        states.append(encoded.clone())
        spelled = "|".join(word.upper() for *_, words in spoken.phrases for word in words)
        letters.append(torch.tensor([LETTERS.index(letter) for letter in spelled]))
    return states, letters


def _fit_head(model: WhisperEncoderForCTC, states: list[Tensor], letters: list[Tensor]) -> None:
    """Train the head with the CTC loss."""
    model.train()
    head = [*model.convolutions.parameters(), *model.spell.parameters()]
    optimizer = torch.optim.AdamW(head)
    steps = EPOCHS * (len(states) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
    for _ in range(EPOCHS):
        order = torch.randperm(len(states)).tolist()
        for at in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[at : at + BATCH]
            padded = nn.utils.rnn.pad_sequence([states[i] for i in chosen], batch_first=True)
            logits = model.head(padded).log_softmax(-1).transpose(0, 1)
            lengths = torch.tensor([[len(states[i]), len(letters[i])] for i in chosen]).T
            loss = functional.ctc_loss(logits, torch.cat([letters[i] for i in chosen]), *lengths)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
