"""Speech models with a CTC head: wav2vec2, HuBERT, WavLM, Parakeet and others.

Decoding is greedy (Graves et al. 2006): take the most probable token of each frame, merge repetitions, and drop blanks.
The frames of a word's first and last token give its times. Chunks whose words are known are aligned with these instead
(ctc_alignment.py).
"""

from __future__ import annotations

from itertools import groupby
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForCTC

from reelscribe.contract.speech import ChunkTranscript
from reelscribe.errors import StartupError
from runtime.metrics import Counters
from transcripts.ctc_alignment import SpelledWords, Speller, TokenSpan, align, aligned_transcript
from transcripts.one_stage_model import OneStageModel
from transcripts.speech_model import Chunk, SpeechSettings
from transcripts.timed_tokens import TimedToken, TokenJoiner
from transcripts.word_trimming import fit_words


class _Aligned(NamedTuple):
    """The words of a chunk, and the frames of their tokens; no frames if they could not be aligned."""

    words: SpelledWords
    spans: list[TokenSpan]


class CtcModel(OneStageModel["list[TimedToken] | _Aligned"]):
    """A loaded model with its processor, on one device. It implements `SpeechModel`, in one stage."""

    model_class = AutoModelForCTC
    word_times = True
    aligns = True

    def __init__(self, settings: SpeechSettings, device: torch.device, counters: Counters | None = None) -> None:
        """Load the model.

        Args:
            settings: Which model, and how its words become segments.
            device: Where to load it.
            counters: Counts tokens.

        Raises:
            StartupError: The times of the model's frames are not known, or the settings name a language.
        """
        super().__init__(settings, device, counters)
        self._frame_seconds = self._samples_per_frame() / self.sample_rate
        self._joiner = TokenJoiner(self.tokenizer, self._frame_seconds, settings)
        self.generation = self._joiner.generation
        self._blank: int = self.model.config.pad_token_id
        self._speller = Speller(self.tokenizer, getattr(self.tokenizer, "word_delimiter_token", None))

    def run(self, chunks: list[Chunk]) -> list[list[TimedToken] | _Aligned]:
        """Run the model; returns the tokens of each chunk, or those of its words if these are known."""
        answers = self._answers(chunks)
        self.count_tokens(answer for answer in answers if not isinstance(answer, _Aligned))
        return answers

    def transcript(self, chunk: Chunk, answer: list[TimedToken] | _Aligned) -> ChunkTranscript:
        """Join the tokens of a chunk."""
        if isinstance(answer, _Aligned):
            aligned = aligned_transcript(*answer, self._frame_seconds, self.seconds(chunk))
            return fit_words(aligned, chunk.samples, self.sample_rate)
        return self._joiner.transcript(answer, self.seconds(chunk), word_times=chunk.options.word_times)

    def _answers(self, chunks: list[Chunk]) -> list[list[TimedToken] | _Aligned]:
        if self._extractor.return_attention_mask:
            return self._answers_of_batch(chunks)
        # A model that was trained without a mask mistakes padding for audio, so only equal lengths run together.
        order = sorted(range(len(chunks)), key=lambda i: len(chunks[i].samples))
        answers: dict[int, list[TimedToken] | _Aligned] = {}
        for _, group in groupby(order, key=lambda i: len(chunks[i].samples)):
            places = list(group)
            answers.update(zip(places, self._answers_of_batch([chunks[i] for i in places]), strict=True))
        return [answers[i] for i in range(len(chunks))]

    def _answers_of_batch(self, chunks: list[Chunk]) -> list[list[TimedToken] | _Aligned]:
        inputs = self.features(chunks)
        logits = self.model(**inputs).logits.float()
        mask = inputs.get("attention_mask")
        counts = [logits.shape[1]] * len(logits) if mask is None else self._frame_counts(mask.sum(-1).cpu()).tolist()
        probabilities, ids = logits.softmax(-1).max(-1)
        answers: list[list[TimedToken] | _Aligned] = [
            self._merge_repetitions(row[:count], of_row[:count])
            for row, of_row, count in zip(ids.tolist(), probabilities.tolist(), counts, strict=True)
        ]
        known = {k: self._speller.spell(chunk.words) for k, chunk in enumerate(chunks) if chunk.words is not None}
        if known:
            places, texts = list(known), [spelled.tokens for spelled in known.values()]
            spans = align(logits[places].log_softmax(-1), [counts[k] for k in places], texts, self._blank)
            for k, of_text in zip(places, spans, strict=True):
                answers[k] = _Aligned(known[k], of_text)
        return answers

    def _frame_counts(self, lengths: Tensor) -> Tensor:
        """How many frames the model makes of inputs of these lengths."""
        if hasattr(self.model, "_get_subsampling_output_length"):
            counts: Tensor = self.model._get_subsampling_output_length(lengths)
        else:
            counts = self.model._get_feat_extract_output_lengths(lengths)
        return counts

    def _samples_per_frame(self) -> int:
        """Samples between the starts of two frames, which gives the time of each frame."""
        config = self.model.config
        has_ratio = hasattr(config, "inputs_to_logits_ratio") and hasattr(
            self.model, "_get_feat_extract_output_lengths"
        )
        if has_ratio and self._extractor.model_input_names[0] == "input_values":  # wav2vec2, HuBERT and WavLM
            return int(config.inputs_to_logits_ratio)
        if hasattr(self.model, "_get_subsampling_output_length"):  # Parakeet
            encoder = getattr(config, "encoder_config", config)
            return int(self._extractor.hop_length * encoder.subsampling_factor)
        raise StartupError(
            f"model {type(self.model).__name__}: expected one whose frames' times are known, such as wav2vec2, HuBERT,"
            " WavLM or Parakeet with a CTC head"
        )

    def _merge_repetitions(self, ids: list[int], probabilities: list[float]) -> list[TimedToken]:
        """Return one token for each run of equal most probable tokens of frames, without blanks."""
        tokens, at = [], 0
        for token_id, run in groupby(ids):
            stop = at + len(list(run))
            if token_id != self._blank:
                tokens.append(TimedToken(token_id, at, stop, fmean(probabilities[at:stop])))
            at = stop
        return tokens
