"""Speech models with a CTC head: wav2vec2, HuBERT, WavLM, Parakeet and others.

Decoding is greedy (Graves et al. 2006): take the most probable token of each frame, merge repetitions, and drop blanks.
The frames of a word's first and last token give its times. Chunks whose words are known are aligned with these instead
(ctc_alignment.py).
"""

from __future__ import annotations

import math
from itertools import groupby
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCTC, AutoProcessor

from reelscribe.contract.fields import round_confidence
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment, Word
from reelscribe.errors import PromptError, StartupError
from runtime.metrics import Counters
from runtime.model_settings import load_pretrained, revision_of
from transcripts.ctc_alignment import SpelledWords, Speller, TokenSpan, align, aligned_transcript
from transcripts.speech_model import Chunk, SpeechSettings, round_seconds
from transcripts.word_trimming import fit_words

DEFAULT_CHUNK_SECONDS = 30.0
"""Longest chunk in seconds: these models have no window, but their attention takes memory quadratic in the length."""

MIN_SECONDS = 0.1
"""Shorter chunks are padded to this many seconds, as the model needs enough samples for at least one frame."""

_WORD_START = "▁"
"""The character with which the first token of a word begins in vocabularies of SentencePiece."""


class _Token(NamedTuple):
    """The most probable token of consecutive frames."""

    token_id: int
    first: int
    """Index of the first of these frames."""
    stop: int
    """Index of the frame after the last of them."""
    probability: float
    """Mean probability of the token in these frames."""


class _Frames(NamedTuple):
    """The most probable token of each frame of a chunk."""

    ids: list[int]
    probabilities: list[float]


class _Aligned(NamedTuple):
    """The words of a chunk, and the frames of their tokens; no frames if they could not be aligned."""

    words: SpelledWords
    spans: list[TokenSpan]


class _SpokenWord(NamedTuple):
    """A word, and the probabilities of its tokens."""

    word: Word
    probabilities: list[float]


class CtcModel:
    """A loaded model with its processor, on one device. It implements `SpeechModel`, in one stage."""

    languages: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ("transcribe",)
    word_times = True
    prompt_tokens = 0
    beams = 1
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
        self._counters = counters or Counters()
        self._device = device
        processor: Any = AutoProcessor.from_pretrained(settings.pretrained, revision=settings.revision)
        self._tokenizer, self._extractor = processor.tokenizer, processor.feature_extractor
        self.model = load_pretrained(AutoModelForCTC, settings, device)
        self.revision = revision_of(settings, self.model)
        self.dtype = str(self.model.dtype).removeprefix("torch.")
        self.sample_rate: int = self._extractor.sampling_rate
        self.chunk_seconds: float = settings.chunk_seconds or DEFAULT_CHUNK_SECONDS
        self.generation = {"pause_seconds": settings.pause_seconds, "logprob_threshold": settings.logprob_threshold}
        self._pause_seconds, self._logprob_threshold = settings.pause_seconds, settings.logprob_threshold
        self._blank: int = self.model.config.pad_token_id
        self._word_delimiter: str | None = getattr(self._tokenizer, "word_delimiter_token", None)
        self._speller = Speller(self._tokenizer, self._word_delimiter)
        self._frame_seconds = self._samples_per_frame() / self.sample_rate
        if settings.language is not None:
            raise StartupError(
                f"YAML, handler, language: expected null, as {type(self.model).__name__} has a single language, got"
                f" {settings.language}"
            )

    def check_previous_text(self, text: str) -> None:  # noqa: ARG002 - no text is accepted
        """Raise PromptError: nothing in these models reads a text."""
        raise PromptError("initial_prompt, hotwords: expected none, as CTC models read no text; use a Whisper for them")

    def transcribe(self, chunks: list[Chunk]) -> list[ChunkTranscript]:
        """Transcribe chunks; returns one transcript for each."""
        return self.collect(self.submit(chunks))

    def submit(self, chunks: list[Chunk]) -> tuple[list[Chunk], list[_Frames | _Aligned]]:
        """Run the model: for each chunk, what `encode` returns. There is no second stage."""
        return chunks, self.encode(chunks)

    def collect(self, pending: tuple[list[Chunk], list[_Frames | _Aligned]]) -> list[ChunkTranscript]:
        """Make what `submit` returned one transcript for each chunk."""
        return [self._transcript(*each) for each in zip(*pending, strict=True)]

    def _transcript(self, chunk: Chunk, frames: _Frames | _Aligned) -> ChunkTranscript:
        duration = len(chunk.samples) / self.sample_rate
        if isinstance(frames, _Aligned):
            transcript = aligned_transcript(*frames, self._frame_seconds, duration)
            return fit_words(transcript, chunk.samples, self.sample_rate)
        tokens = self._merge_repetitions(frames)
        self._counters.add("tokens", len(tokens))
        return self.decode(tokens, duration, word_times=chunk.options.word_times)

    def encode(self, chunks: list[Chunk]) -> list[_Frames | _Aligned]:
        """Run the model.

        Args:
            chunks: Their samples are float32 at the model's sample rate.

        Returns:
            For each chunk, the most probable token of each of its frames; or, if its words are known, the frames of
            each of their tokens.
        """
        shortest = round(MIN_SECONDS * self.sample_rate)
        padded = [
            chunk._replace(samples=np.pad(chunk.samples, (0, max(0, shortest - len(chunk.samples)))))
            for chunk in chunks
        ]
        with torch.inference_mode():
            if self._extractor.return_attention_mask:
                return self._run(padded)
            # A model that was trained without a mask mistakes padding for audio, so only equal lengths run together.
            order = sorted(range(len(padded)), key=lambda i: len(padded[i].samples))
            frames: dict[int, _Frames | _Aligned] = {}
            for _, group in groupby(order, key=lambda i: len(padded[i].samples)):
                places = list(group)
                frames.update(zip(places, self._run([padded[i] for i in places]), strict=True))
            return [frames[i] for i in range(len(padded))]

    def decode(self, tokens: list[_Token], duration: float, *, word_times: bool) -> ChunkTranscript:
        """Make the transcript of a chunk of `duration` seconds from its tokens.

        A long pause starts a new segment. Segments that are not probable are dropped: music and noise have such words.
        """
        words = [self._word(spelled, duration) for spelled in self._split_words(tokens)]
        # Short audio is padded, and no word begins in the padding.
        words = [spoken for spoken in words if spoken.word.text and spoken.word.start < spoken.word.end]
        segments: list[list[_SpokenWord]] = []
        for spoken in words:
            if not segments or spoken.word.start - segments[-1][-1].word.end > self._pause_seconds:
                segments.append([])
            segments[-1].append(spoken)
        segments = [spoken for spoken in segments if self._is_probable(spoken)]
        words = [word for spoken in segments for word in spoken]
        return ChunkTranscript(
            text=" ".join(spoken.word.text for spoken in words),
            language=None,
            segments=tuple(_segment(spoken, word_times=word_times) for spoken in segments),
            avg_logprob=_average_logprob(words),
        )

    def _is_probable(self, spoken: list[_SpokenWord]) -> bool:
        average = _average_logprob(spoken)
        return self._logprob_threshold is None or (average is not None and average >= self._logprob_threshold)

    def _run(self, chunks: list[Chunk]) -> list[_Frames | _Aligned]:
        samples = [chunk.samples for chunk in chunks]
        inputs = self._extractor(samples, sampling_rate=self.sample_rate, padding=True, return_tensors="pt")
        inputs = inputs.to(self._device)
        inputs = {name: v.to(self.model.dtype) if v.is_floating_point() else v for name, v in inputs.items()}
        logits = self.model(**inputs).logits.float()
        mask = inputs.get("attention_mask")
        counts = [logits.shape[1]] * len(logits) if mask is None else self._frame_counts(mask.sum(-1).cpu()).tolist()
        probabilities, ids = logits.softmax(-1).max(-1)
        frames: list[_Frames | _Aligned] = [
            _Frames(row[:count], of_row[:count])
            for row, of_row, count in zip(ids.tolist(), probabilities.tolist(), counts, strict=True)
        ]
        known = {k: self._speller.spell(chunk.words) for k, chunk in enumerate(chunks) if chunk.words is not None}
        if known:
            places, texts = list(known), [spelled.tokens for spelled in known.values()]
            spans = align(logits[places].log_softmax(-1), [counts[k] for k in places], texts, self._blank)
            for k, of_text in zip(places, spans, strict=True):
                frames[k] = _Aligned(known[k], of_text)
        return frames

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

    def _merge_repetitions(self, frames: _Frames) -> list[_Token]:
        """One token for each run of equal IDs, without blanks."""
        tokens, at = [], 0
        for token_id, run in groupby(frames.ids):
            stop = at + len(list(run))
            if token_id != self._blank:
                tokens.append(_Token(token_id, at, stop, fmean(frames.probabilities[at:stop])))
            at = stop
        return tokens

    def _split_words(self, tokens: list[_Token]) -> list[list[_Token]]:
        words: list[list[_Token]] = [[]]
        special = set(self._tokenizer.all_special_ids)
        for token in tokens:
            piece = self._tokenizer.convert_ids_to_tokens(token.token_id)
            if piece == self._word_delimiter or piece.startswith(_WORD_START):
                words.append([])
            if piece != self._word_delimiter and token.token_id not in special:
                words[-1].append(token)
        return [word for word in words if word]

    def _word(self, tokens: list[_Token], duration: float) -> _SpokenWord:
        text = self._tokenizer.decode([token.token_id for token in tokens], group_tokens=False).strip()
        start, end = (min(frame * self._frame_seconds, duration) for frame in (tokens[0].first, tokens[-1].stop))
        probabilities = [token.probability for token in tokens]
        confidence = round_confidence(fmean(probabilities))
        return _SpokenWord(Word(round_seconds(start), round_seconds(end), text, confidence), probabilities)


def _segment(spoken: list[_SpokenWord], *, word_times: bool) -> SpeechSegment:
    words = tuple(word for word, _ in spoken)
    text = " ".join(word.text for word in words)
    return SpeechSegment(words[0].start, words[-1].end, text, words if word_times else None, _average_logprob(spoken))


def _average_logprob(spoken: list[_SpokenWord]) -> float | None:
    """The average log-probability of the tokens of words; None if there are none."""
    logprobs = [math.log(probability) for _, probabilities in spoken for probability in probabilities]
    return round_confidence(fmean(logprobs)) if logprobs else None
