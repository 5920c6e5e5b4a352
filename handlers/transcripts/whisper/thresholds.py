"""Decides whether a decoding result of Whisper is kept, by the rules of openai/whisper (transcribe.py)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    """Limits for decoding results; a limit that is None is never exceeded."""

    compression_ratio: float | None
    """A higher compression ratio means that the text repeats itself."""
    logprob: float | None
    """A lower average log-probability means that the text is improbable."""
    no_speech: float | None
    """A higher probability of no speech means that the window may be silent."""

    def needs_fallback(self, avg_logprob: float, compression_ratio: float, no_speech_prob: float) -> bool:
        """Whether to decode again at a higher temperature: the text is improbable or repeats itself.

        An improbable text for a window that may be silent is not decoded again.
        """
        if self._improbable(avg_logprob) and self._may_be_silent(no_speech_prob):
            return False
        repeats = self.compression_ratio is not None and compression_ratio > self.compression_ratio
        return repeats or self._improbable(avg_logprob)

    def is_no_speech(self, avg_logprob: float, no_speech_prob: float) -> bool:
        """Whether to drop the text: the window may be silent, and the text is not probable."""
        probable = self.logprob is not None and not self._improbable(avg_logprob)
        return self._may_be_silent(no_speech_prob) and not probable

    def _improbable(self, avg_logprob: float) -> bool:
        return self.logprob is not None and avg_logprob < self.logprob

    def _may_be_silent(self, no_speech_prob: float) -> bool:
        return self.no_speech is not None and no_speech_prob > self.no_speech
