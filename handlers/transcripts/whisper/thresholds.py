"""When what a Whisper wrote is doubtful, and when it is no speech: the rules of openai/whisper (transcribe.py)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    """Each may be None: then nothing is beyond it."""

    compression_ratio: float | None
    logprob: float | None
    no_speech: float | None

    def is_doubtful(self, avg_logprob: float, compression_ratio: float, no_speech_prob: float) -> bool:
        """Whether it is worth another try: the text is improbable or repeats itself, and may be speech."""
        if self._improbable(avg_logprob) and self._perhaps_silence(no_speech_prob):
            return False
        repeats = self.compression_ratio is not None and compression_ratio > self.compression_ratio
        return repeats or self._improbable(avg_logprob)

    def is_no_speech(self, avg_logprob: float, no_speech_prob: float) -> bool:
        """Whether the text does not count: a probable text overrules the probability of no speech."""
        certain = self.logprob is not None and not self._improbable(avg_logprob)
        return self._perhaps_silence(no_speech_prob) and not certain

    def _improbable(self, avg_logprob: float) -> bool:
        return self.logprob is not None and avg_logprob < self.logprob

    def _perhaps_silence(self, no_speech_prob: float) -> bool:
        return self.no_speech is not None and no_speech_prob > self.no_speech
