"""Parakeet with a token-and-duration transducer (TDT): text in 25 languages, with the times of words.

A transducer goes through the frames of the audio and predicts at each a token, or a blank, and by how many frames to go
on (Xu et al. 2023). The loop is that of transformers' `generate`, and chooses the same tokens. It differs where a model
does not go on: as in NeMo, it is moved by a frame after `max_symbols_per_step` tokens. So each chunk ends, no audio is
left out, and no chunk waits for more tokens than its own frames allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import ParakeetForTDT
from transformers.models.parakeet.modeling_parakeet import ParakeetEncoderModelOutput

from reelscribe.contract.speech import ChunkTranscript
from runtime.metrics import Counters
from transcripts.one_stage_model import OneStageModel
from transcripts.speech_model import Chunk, SpeechSettings
from transcripts.timed_tokens import WORD_START, TimedToken, TokenJoiner


class _Emission(NamedTuple):
    """What the model predicts in one step for one chunk."""

    token_id: int
    frame: int
    """The frame of the prediction."""
    duration: int
    """How many frames further the next step is."""
    probability: float
    """Probability of the token."""


class TdtModel(OneStageModel[list[TimedToken]]):
    """A loaded Parakeet-TDT with its processor, on one device. It implements `SpeechModel`, in one stage."""

    model_class = ParakeetForTDT
    word_times = True

    def __init__(self, settings: SpeechSettings, device: torch.device, counters: Counters | None = None) -> None:
        """Load the model.

        Args:
            settings: Which model, and how its words become segments.
            device: Where to load it.
            counters: Counts tokens.

        Raises:
            StartupError: The settings name a language.
        """
        super().__init__(settings, device, counters)
        config = self.model.config
        self._samples_per_frame: int = self._extractor.hop_length * config.encoder_config.subsampling_factor
        self._joiner = TokenJoiner(self.tokenizer, self._samples_per_frame / self.sample_rate, settings)
        self.generation = self._joiner.generation
        self._durations = torch.tensor(config.durations, device=device)

    def run(self, chunks: list[Chunk]) -> list[list[TimedToken]]:
        """Run the model; returns the tokens of each chunk."""
        encoded = self.model.get_audio_features(**self.features(chunks))
        emissions = self._decode(encoded.pooler_output, encoded.attention_mask.sum(-1))
        tokens = [
            self._timed(row, len(chunk.samples) / self._samples_per_frame)
            for chunk, row in zip(chunks, emissions, strict=True)
        ]
        self.count_tokens(tokens)
        return tokens

    def transcript(self, chunk: Chunk, answer: list[TimedToken]) -> ChunkTranscript:
        """Join the tokens of a chunk."""
        return self._joiner.transcript(answer, self.seconds(chunk), word_times=chunk.options.word_times)

    def _decode(self, states: Tensor, lengths: Tensor) -> list[list[_Emission]]:
        """Predict greedily until each chunk has gone through its frames.

        Args:
            states: The projected states of the encoder, (B, T, D).
            lengths: How many frames each chunk has, (B,).

        Returns:
            For each chunk, what was predicted in each step, also blanks.
        """
        blank, size = self.model.config.blank_token_id, self.model.config.vocab_size
        rows = torch.arange(len(states), device=states.device)
        frames = torch.zeros_like(lengths)
        at_frame = torch.zeros_like(lengths)  # tokens that were predicted at the same frame
        tokens = torch.full_like(lengths, blank)
        cache, steps = None, []
        while bool((active := frames < lengths).any()):
            here = states[rows, frames.clamp(max=states.shape[1] - 1), None]
            output = self.model(
                decoder_input_ids=tokens[:, None],
                encoder_outputs=ParakeetEncoderModelOutput(pooler_output=here),
                decoder_cache=cache,
                use_decoder_cache=True,
            )
            cache, logits = output.decoder_cache, output.logits[:, 0].float()
            probabilities, tokens = logits[:, :size].softmax(-1).max(-1)
            durations = self._durations[logits[:, size:].argmax(-1)]
            at_frame = torch.where((tokens == blank) | (durations > 0), 0, at_frame + 1)
            stuck = (durations == 0) & ((tokens == blank) | (at_frame >= self.model.max_symbols_per_step))
            durations, at_frame = torch.where(stuck, 1, durations), torch.where(stuck, 0, at_frame)
            steps.append((tokens, frames, durations, probabilities, active))
            frames = frames + durations
            tokens = torch.where(frames < lengths, tokens, blank)  # a chunk that has ended changes no more
        columns = [torch.stack(parts, 1).tolist() for parts in zip(*steps, strict=True)]
        return [
            [_Emission(*values) for *values, is_active in zip(*row, strict=True) if is_active]
            for row in zip(*columns, strict=True)
        ]

    def _timed(self, emissions: Sequence[_Emission], frame_count: float) -> list[TimedToken]:
        """The tokens of a chunk of `frame_count` frames, each with its times.

        Tokens of the same frame share the time until the next frame that the model went to. Punctuation has no time of
        its own, as in NeMo: it ends with the token before it, and not with the pause after it.
        """
        tokens: list[TimedToken] = []
        waiting: list[_Emission] = []  # those of one frame
        for emission in emissions:
            if emission.token_id != self.model.config.blank_token_id:
                waiting.append(emission)
            if waiting and emission.duration:
                first, stop = waiting[0].frame, min(emission.frame + emission.duration, frame_count)
                share = (stop - first) / len(waiting)
                for k, each in enumerate(waiting):
                    start, end = first + k * share, first + (k + 1) * share
                    if tokens and self._is_punctuation(each.token_id):
                        start = end = tokens[-1].stop
                    tokens.append(TimedToken(each.token_id, start, end, each.probability))
                waiting = []
        return tokens

    def _is_punctuation(self, token_id: int) -> bool:
        """Whether a token goes on with a word, and is neither a letter nor a digit."""
        piece = self.tokenizer.convert_ids_to_tokens(token_id)
        return not piece.startswith(WORD_START) and not any(letter.isalnum() for letter in piece)
