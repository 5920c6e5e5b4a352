"""Models of speech with a CTC head (wav2vec2, HuBERT, WavLM, Parakeet and others): chunks in, transcripts out.

Greedy decoding (Graves et al. 2006): the most probable token of each frame, repetitions merged, blanks left out. The
frames of a word's first and last token are its times.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCTC, AutoProcessor

from runtime.settings import load_pretrained
from reelscribe.errors import StartupError
from reelscribe.speech import ChunkTranscript, SpeechSegment, Word
from transcripts.chunks import Samples, SpeechChunk, seconds
from transcripts.settings import SpeechSettings
from runtime.metrics import Tally

DEFAULT_CHUNK_SECONDS = 30.0
"""These models have no window; their attention takes memory by the square of it."""

SHORTEST_SECONDS = 0.1
"""Shorter chunks are padded: a few samples are not one frame."""

_WORD_START = "▁"
"""Begins the first piece of a word in the vocabularies of sentencepiece."""


class _Token(NamedTuple):
    number: int
    first: int
    stop: int
    """Frames, from `first` to before `stop`."""


class CtcModel:
    """A loaded model with its processor, on one device."""

    languages: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ("transcribe",)
    word_times = True

    def __init__(self, settings: SpeechSettings, device: torch.device, tally: Tally | None = None) -> None:
        """`tally` counts tokens."""
        self._tally = tally or Tally()
        self._device = device
        processor: Any = AutoProcessor.from_pretrained(settings.pretrained, revision=settings.revision)
        self._tokenizer, self._extractor = processor.tokenizer, processor.feature_extractor
        self.model = load_pretrained(AutoModelForCTC, settings, device)
        self.sample_rate: int = self._extractor.sampling_rate
        self.chunk_seconds: float = settings.chunk_seconds or DEFAULT_CHUNK_SECONDS
        self.generation = {"pause_seconds": settings.pause_seconds}
        self._pause_seconds = settings.pause_seconds
        self._blank: int = self.model.config.pad_token_id
        self._between_words: str | None = getattr(self._tokenizer, "word_delimiter_token", None)
        self._frame_seconds = self._samples_per_frame() / self.sample_rate
        if settings.language is not None:
            raise StartupError(
                f"YAML, handler, language: expected null, as {type(self.model).__name__} knows but one, got"
                f" {settings.language}"
            )

    def transcribe(self, chunks: list[SpeechChunk]) -> list[ChunkTranscript]:
        """What is heard in each chunk, whatever the others are."""
        shortest = round(SHORTEST_SECONDS * self.sample_rate)
        samples = [np.pad(c.samples, (0, max(0, shortest - len(c.samples)))) for c in chunks]
        with torch.inference_mode():
            tokens = [self._tokens(numbers) for numbers in self._most_probable(samples)]
        self._tally.add("tokens", sum(map(len, tokens)))
        return [
            self._transcript(t, len(chunk.samples) / self.sample_rate, chunk.asked.word_times)
            for t, chunk in zip(tokens, chunks, strict=True)
        ]

    def begin(self, chunks: list[SpeechChunk]) -> list[SpeechChunk]:
        """Nothing is done ahead."""
        return chunks

    def finish(self, begun: list[SpeechChunk]) -> list[ChunkTranscript]:
        """`transcribe`."""
        return self.transcribe(begun)

    def _most_probable(self, samples: list[Samples]) -> list[list[int]]:
        """The token of each frame."""
        if self._extractor.return_attention_mask:
            return self._run(samples)
        # A model that was trained without a mask hears the padding, so only equal lengths run together.
        order = sorted(range(len(samples)), key=lambda i: len(samples[i]))
        numbers: dict[int, list[int]] = {}
        for _, group in groupby(order, key=lambda i: len(samples[i])):
            places = list(group)
            numbers.update(zip(places, self._run([samples[i] for i in places]), strict=True))
        return [numbers[i] for i in range(len(samples))]

    def _run(self, samples: list[Samples]) -> list[list[int]]:
        inputs = self._extractor(samples, sampling_rate=self.sample_rate, padding=True, return_tensors="pt")
        inputs = inputs.to(self._device)
        inputs = {name: v.to(self.model.dtype) if v.is_floating_point() else v for name, v in inputs.items()}
        best = self.model(**inputs).logits.argmax(-1).cpu()
        mask = inputs.get("attention_mask")
        frames = [best.shape[1]] * len(best) if mask is None else self._frames(mask.sum(-1).cpu()).tolist()
        return [row[:count].tolist() for row, count in zip(best, frames, strict=True)]

    def _frames(self, lengths: Tensor) -> Tensor:
        """How many frames the model makes of inputs of these lengths."""
        if hasattr(self.model, "_get_subsampling_output_length"):
            lengths = self.model._get_subsampling_output_length(lengths)
        else:
            lengths = self.model._get_feat_extract_output_lengths(lengths)
        return lengths

    def _samples_per_frame(self) -> int:
        config = self.model.config
        encoder = getattr(config, "encoder_config", config)
        known = hasattr(self.model, "_get_feat_extract_output_lengths") and hasattr(config, "inputs_to_logits_ratio")
        if known and self._extractor.model_input_names[0] == "input_values":
            return int(config.inputs_to_logits_ratio)
        if hasattr(self.model, "_get_subsampling_output_length"):
            return int(self._extractor.hop_length * encoder.subsampling_factor)
        raise StartupError(
            f"model {type(self.model).__name__}: expected one whose frames' times are known, such as wav2vec2, HuBERT,"
            " WavLM or Parakeet with a CTC head"
        )

    def _tokens(self, numbers: list[int]) -> list[_Token]:
        tokens, at = [], 0
        for number, run in groupby(numbers):
            stop = at + len(list(run))
            if number != self._blank:
                tokens.append(_Token(number, at, stop))
            at = stop
        return tokens

    def _transcript(self, tokens: list[_Token], duration: float, word_times: bool) -> ChunkTranscript:
        words = [word for spelled in self._split_words(tokens) if (word := self._word(spelled, duration)).text]
        segments: list[list[Word]] = []
        for word in words:
            if not segments or word.start - segments[-1][-1].end > self._pause_seconds:
                segments.append([])
            segments[-1].append(word)
        return ChunkTranscript(
            text=" ".join(word.text for word in words),
            language=None,
            segments=tuple(
                SpeechSegment(s[0].start, s[-1].end, " ".join(w.text for w in s), tuple(s) if word_times else None)
                for s in segments
            ),
        )

    def _split_words(self, tokens: list[_Token]) -> list[list[_Token]]:
        words: list[list[_Token]] = [[]]
        special = set(self._tokenizer.all_special_ids)
        for token in tokens:
            piece = self._tokenizer.convert_ids_to_tokens(token.number)
            if piece == self._between_words or piece.startswith(_WORD_START):
                words.append([])
            if piece != self._between_words and token.number not in special:
                words[-1].append(token)
        return [word for word in words if word]

    def _word(self, tokens: list[_Token], duration: float) -> Word:
        text = self._tokenizer.decode([token.number for token in tokens], group_tokens=False).strip()
        start, end = (min(frame * self._frame_seconds, duration) for frame in (tokens[0].first, tokens[-1].stop))
        return Word(seconds(start), seconds(end), text)
