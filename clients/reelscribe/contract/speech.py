"""Audio samples, the options of a transcription, and a speech model's answer for one chunk."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from reelscribe.contract.fields import known_fields, read_confidence, read_list, read_number, read_text
from reelscribe.errors import brief

SampleArray = NDArray[np.int16]
"""Mono audio: (N,) int16 samples, full scale from -32768 to 32767."""

Channels = Literal["mix", "separate"]
"""What is transcribed of a recording with several channels: the mix of all, or each channel by itself."""


def transcribed_channels(channels: Channels, stored: int) -> int:
    """Return how many channels of a recording are transcribed, each by itself; 1 if it is the mix of all.

    Args:
        channels: What is transcribed of a recording.
        stored: Number of channels that the recording has.
    """
    return max(1, stored) if channels == "separate" else 1


def to_int16(samples: NDArray[np.floating[Any]]) -> SampleArray:
    """Round floats, (N,) from -1 to 1, to int16, and clip at full scale."""
    converted: SampleArray = np.clip(np.rint(samples * 32768), -32768, 32767).astype(np.int16)
    return converted


SPEECH_ARCHITECTURES = (
    "WhisperForConditionalGeneration",
    "ParakeetForTDT",
    "CanaryForConditionalGeneration",
    "Qwen3ASRForConditionalGeneration",
)
"""Classes of transformers that the speech handler serves, besides those with a CTC head, whose names end in ForCTC."""


def is_speech_architecture(name: str) -> bool:
    """Return whether the speech handler serves a class of transformers.

    Args:
        name: Name of the class, as config.json has it in "architectures".
    """
    return name in SPEECH_ARCHITECTURES or name.endswith("ForCTC")


ENGLISH = "en"
"""Code of the language that translations are in."""

BOTH = "both"
"""The task that makes a transcript and its translation, for a model that can make either."""

MOST_BEAMS = 10
"""The most texts of a chunk that a request may let a model follow at once."""


@dataclass(frozen=True)
class TranscriptionOptions:
    """Options of a request to a speech model."""

    language: str | None = None
    """Code of the spoken language, such as "en"; several with commas between, such as "en,de", of which it is detected;
    None for the model's own setting, which may be to detect it among all."""
    task: str = "transcribe"
    """Either "transcribe" for text in the spoken language, "translate" for English text, or "both"."""
    word_times: bool = False
    """True if the response has the time of each word."""
    initial_prompt: str | None = None
    """Text that the model takes for what was said before each chunk: it shows names, spelling and punctuation."""
    hotwords: str | None = None
    """Words that may be said, separated by commas or line breaks, such as names that the model does not know."""
    beams: int = 1
    """Number of texts, 1 to MOST_BEAMS, that are followed at once in search of the most probable one."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the request, without those that are None, and without a single beam."""
        fields = {name: value for name, value in asdict(self).items() if value is not None}
        if self.beams == 1:  # as in requests and settings of results from before there were more
            del fields["beams"]
        return fields

    @property
    def languages(self) -> tuple[str, ...]:
        """The codes of the languages that may be spoken; empty for the model's own setting."""
        codes = [] if self.language is None else self.language.split(",")
        return tuple(dict.fromkeys(code.strip() for code in codes))

    @property
    def previous_text(self) -> str:
        """What the model takes for what was said before: hot words, with commas, and the initial prompt."""
        words = [word.strip() for word in re.split("[,\n]", self.hotwords or "")]
        return f"{', '.join(filter(None, words))} {(self.initial_prompt or '').strip()}".strip()


def has_words(text: str) -> bool:
    """Return whether a vocabulary has anything but commas and white space.

    Args:
        text: Hot words, or an initial prompt.
    """
    return bool(text.strip(", \r\n\t"))


@dataclass(frozen=True)
class Word:
    """A spoken word. Its times count from the start of the chunk; in an Utterance they are presentation times."""

    start: float
    """Time at which the word starts, in seconds."""
    end: float
    """Time at which the word ends, in seconds."""
    text: str
    """The word, with its punctuation."""
    probability: float | None = None
    """Mean probability (0 to 1) of its tokens; None if it is not known."""
    speaker: str | None = None
    """Name of who says it, that of its Utterance; None if that is not known, as in a chunk."""


@dataclass(frozen=True)
class SpeechSegment:
    """A stretch of a chunk with the text that is spoken in it."""

    start: float
    """Start, in seconds from the start of the chunk."""
    end: float
    """End, in seconds from the start of the chunk."""
    text: str
    """Text of the speech."""
    words: tuple[Word, ...] | None = None
    """The words with their times; None if the request did not ask for them."""
    avg_logprob: float | None = None
    """Average natural-log probability of its tokens, at most 0; None if it is not known. Whisper's is that of all that
    was decoded at once, with the token that ends it, as openai-whisper has it."""


@dataclass(frozen=True)
class ChunkTranscript:
    """The transcript of one chunk. Values that the model does not compute are None."""

    text: str
    """The whole text; empty if the model found no speech."""
    language: str | None
    """Code of the requested, detected or only language; None if the model does not say which one it knows."""
    segments: tuple[SpeechSegment, ...]
    """The segments of the text, in order."""
    no_speech_prob: float | None = None
    """Probability (0 to 1) that the chunk holds no speech, as Whisper defines it."""
    avg_logprob: float | None = None
    """Mean log probability of the tokens (at most 0), as Whisper defines it."""
    compression_ratio: float | None = None
    """Size of the text divided by its compressed size, as Whisper defines it; high if the text repeats itself."""
    temperature: float | None = None
    """Sampling temperature of the accepted answer, as Whisper defines it; 0.0 for the most probable tokens."""
    translation: ChunkTranscript | None = None
    """The same speech in English, in segments of its own, whose language is the one that is spoken; None unless the
    request asked for both."""
    language_probability: float | None = None
    """Probability (0 to 1) of the language among those that may be spoken; None if it was not detected, or the model
    does not say."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that a handler sends."""
        return asdict(self, dict_factory=known_fields)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Make a transcript from the JSON that a handler sent.

        Args:
            value: The parsed JSON.

        Returns:
            The transcript.

        Raises:
            TypeError: The JSON is not the transcript of a chunk. KeyError and ValueError say the same.
        """
        if not isinstance(value, dict) or "translation" not in value:
            return cls._of_one_text(value)
        transcript = cls._of_one_text({name: each for name, each in value.items() if name != "translation"})
        return replace(transcript, translation=cls._of_one_text(value["translation"]))

    @classmethod
    def _of_one_text(cls, value: Any) -> Self:
        """Make a transcript of JSON that has no translation; see `from_json`."""
        if not isinstance(value, dict) or "translation" in value:
            raise TypeError(f"a transcript: expected an object for one text, got {brief(value)}")
        segments = tuple(_segment(**segment) for segment in read_list("segments", value["segments"]))
        transcript = cls(**{**value, "segments": segments})
        read_text("text", transcript.text)
        if transcript.language is not None:
            read_text("language", transcript.language)
        read_confidence("language_probability", transcript.language_probability)
        read_confidence("no_speech_prob", transcript.no_speech_prob)
        read_confidence("avg_logprob", transcript.avg_logprob)
        for name in ("compression_ratio", "temperature"):
            if getattr(transcript, name) is not None:
                read_number(name, getattr(transcript, name), lowest=0)
        return transcript


def _segment(start: float, end: float, text: str, words: list[Any] | None, avg_logprob: float | None) -> SpeechSegment:
    timed = None if words is None else tuple(_word(**word) for word in read_list("words", words))
    confidence = read_confidence("avg_logprob", avg_logprob)
    return SpeechSegment(
        read_number("start", start), read_number("end", end), read_text("text", text), timed, confidence
    )


def _word(start: float, end: float, text: str, probability: float | None = None) -> Word:
    confidence = read_confidence("probability", probability)
    return Word(read_number("start", start), read_number("end", end), read_text("text", text), confidence)
