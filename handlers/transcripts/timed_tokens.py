"""Makes words, segments and transcripts of tokens of which the model tells when each was spoken.

CTC models and transducers emit their tokens while they go through the frames of the audio, and so each has its time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from reelscribe.contract.fields import round_confidence
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment, Word
from transcripts.speech_model import SpeechSettings, round_seconds

WORD_START = "▁"
"""The character with which the first token of a word begins in vocabularies of SentencePiece."""


class TimedToken(NamedTuple):
    """A token, and the frames in which it is spoken."""

    token_id: int
    first: float
    """The frame in which it starts, counted from 0; a fraction is a part of a frame."""
    stop: float
    """The frame before which it ends."""
    probability: float
    """Probability of the token; in several frames, the mean of them."""


class _SpokenWord(NamedTuple):
    """A word, and the probabilities of its tokens."""

    word: Word
    probabilities: list[float]


class TokenJoiner:
    """Joins the tokens of a chunk to its transcript.

    A long pause starts a new segment. Segments that are not probable are dropped: music and noise have such words.
    """

    def __init__(self, tokenizer: Any, frame_seconds: float, settings: SpeechSettings) -> None:
        """Read a tokenizer.

        Args:
            tokenizer: The tokenizer of the model.
            frame_seconds: Seconds between the starts of two frames.
            settings: What a long pause is, and which segments are probable.
        """
        self._tokenizer, self._frame_seconds = tokenizer, frame_seconds
        self._pause_seconds, self._logprob_threshold = settings.pause_seconds, settings.logprob_threshold
        self._word_delimiter: str | None = getattr(tokenizer, "word_delimiter_token", None)
        self.generation = {"pause_seconds": settings.pause_seconds, "logprob_threshold": settings.logprob_threshold}

    def transcript(self, tokens: Sequence[TimedToken], duration: float, *, word_times: bool) -> ChunkTranscript:
        """Make the transcript of a chunk of `duration` seconds."""
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

    def _split_words(self, tokens: Sequence[TimedToken]) -> list[list[TimedToken]]:
        words: list[list[TimedToken]] = [[]]
        special = set(self._tokenizer.all_special_ids)
        for token in tokens:
            piece = self._tokenizer.convert_ids_to_tokens(token.token_id)
            if piece == self._word_delimiter or piece.startswith(WORD_START):
                words.append([])
            if piece != self._word_delimiter and token.token_id not in special:
                words[-1].append(token)
        return [word for word in words if word]

    def _word(self, tokens: list[TimedToken], duration: float) -> _SpokenWord:
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
