"""The special tokens of a Whisper, its prompts, and the segments of text between timestamp tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

from reelscribe.contract.speech import BOTH
from reelscribe.errors import StartupError

TIMESTAMPS_PER_SECOND = 50
"""Timestamp tokens are 0.02 s apart."""

LONGEST_TAIL_SECONDS = 3.0
"""If sound follows the last segment of a window for longer than this, it is decoded, too. Chosen on recorded voices: it
brought back the one sentence that was lost over music in 10,541 words; no window of another 5,297 had such an end."""


class WhisperTokens:
    """The special tokens of a Whisper, as its settings for generation have them.

    Attributes:
        languages: Codes of the supported languages; "en" alone for an English-only model.
        language_ids: Token ID of each of them, by its code; empty for an English-only model.
        tasks: Token ID of each supported task; empty for an English-only model.
        start: The ID of <|startoftranscript|>.
        end: The ID of <|endoftext|>; text tokens have lower IDs.
        no_timestamps: The ID of <|notimestamps|>.
        no_speech: The ID of <|nospeech|>.
        first_timestamp: The ID of the timestamp token of 0.00 s; all other tokens have lower IDs.
        timestamps: Whether text is generated with the times of segments.
    """

    def __init__(self, config: Any, end: int, *, timestamps: bool) -> None:
        """Read a model's settings for generation.

        Args:
            config: The `generation_config` of the model.
            end: The ID of <|endoftext|>.
            timestamps: Whether to generate the times of segments.

        Raises:
            StartupError: The model lacks Whisper's settings.
        """
        if getattr(config, "no_timestamps_token_id", None) is None:
            raise StartupError(
                "generation_config.json: expected no_timestamps_token_id, which every Whisper has; copy the file from"
                " the model that this one was trained from"
            )
        self.timestamps = timestamps
        self.start, self.end = int(config.decoder_start_token_id), end
        self.no_timestamps = int(config.no_timestamps_token_id)
        self.no_speech, self.first_timestamp = self.no_timestamps - 1, self.no_timestamps + 1
        self.language_ids: dict[str, int] = {
            name.strip("<|>"): token for name, token in (getattr(config, "lang_to_id", None) or {}).items()
        }
        self.tasks: dict[str, int] = getattr(config, "task_to_id", None) or {}
        if not getattr(config, "is_multilingual", bool(self.language_ids)):
            self.language_ids, self.tasks = {}, {}
        self.languages = tuple(self.language_ids) or ("en",)

    @property
    def request_tasks(self) -> tuple[str, ...]:
        """The tasks that a request may name: those of the model, and BOTH if it has two."""
        if len(self.tasks) > 1:
            return (*self.tasks, BOTH)
        return tuple(self.tasks) or ("transcribe",)

    def prompt(self, language: str, task: str, *, timestamps: bool | None = None) -> list[int]:
        """Make the tokens that precede the text of a window.

        Args:
            language: Code of the language.
            task: "transcribe" or "translate".
            timestamps: Whether to ask for timestamps; by default, what `__init__` was given.

        Returns:
            Token IDs: <|startoftranscript|>, language and task of multilingual models, and perhaps <|notimestamps|>.
        """
        tokens = [self.start]
        if self.language_ids:
            tokens += [self.language_ids[language], self.tasks[task]]
        timestamps = self.timestamps if timestamps is None else timestamps
        return tokens if timestamps else [*tokens, self.no_timestamps]

    def text_and_timestamps(self, tokens: list[int]) -> list[int]:
        """Return the tokens that are text or timestamps, without the end token and all that follows it."""
        tokens = tokens[: tokens.index(self.end)] if self.end in tokens else tokens
        # The IDs of special tokens are between those of text and of timestamps.
        return [token for token in tokens if token < self.end or token >= self.first_timestamp]


class TokenSegment(NamedTuple):
    """The text tokens of a segment."""

    start: float
    """Seconds from the start of the window."""
    end: float
    """Seconds from the start of the window."""
    tokens: list[int]
    """Token IDs, without timestamps."""


def split_segments(
    tokens: list[int], first_timestamp: int, duration: float, audible: float
) -> tuple[list[TokenSegment], float | None]:
    """Split the tokens of a window where there are timestamps.

    A segment is the text between two timestamps. If the last segment has a start but no end, while others are complete,
    then the model stopped before the end of the window. As in openai/whisper (transcribe.py), the incomplete segment is
    dropped, and the window has to be decoded again from its start. A text without any end timestamp lasts until the end
    of the window. If all segments are complete and the last one ends long before the last sound, the rest is decoded,
    too: over music, Whisper sometimes ends after a sentence though another one follows.

    Args:
        tokens: IDs of text and timestamp tokens, without the prompt and the end token.
        first_timestamp: The ID of the timestamp token of 0.00 s; text tokens have lower IDs.
        duration: Length of the window, in seconds; no time exceeds it.
        audible: When the last sound of the window ends, in seconds.

    Returns:
        The segments, and the second from which to decode again, or None if the window is complete.
    """
    segments: list[TokenSegment] = []
    start: float | None = None
    text: list[int] = []
    for token in tokens:
        if token < first_timestamp:
            text.append(token)
            continue
        time = min((token - first_timestamp) / TIMESTAMPS_PER_SECOND, duration)
        if text:
            segments.append(TokenSegment(start or 0.0, time, text))
            start, text = None, []
        else:
            start = time
    if segments and start is not None:
        return segments, start
    if text:
        segments.append(TokenSegment(start or 0.0, duration, text))
    if segments and 0 < segments[-1].end < audible - LONGEST_TAIL_SECONDS:
        return segments, segments[-1].end
    return segments, None
