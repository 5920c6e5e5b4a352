"""Splits the tokens that Whisper generated for a window into segments with times."""

from __future__ import annotations

from typing import NamedTuple

TIMESTAMPS_PER_SECOND = 50
"""Timestamp tokens are 0.02 s apart."""


class TokenSegment(NamedTuple):
    """The text tokens of a segment."""

    start: float
    """Seconds from the start of the window."""
    end: float
    """Seconds from the start of the window."""
    tokens: list[int]
    """Token IDs, without timestamps."""


def split_segments(tokens: list[int], first_timestamp: int, duration: float) -> tuple[list[TokenSegment], float | None]:
    """Split the tokens of a window where there are timestamps.

    A segment is the text between two timestamps. If the last segment has a start but no end, while others are complete,
    then the model stopped before the end of the window. As in openai/whisper (transcribe.py), the incomplete segment is
    dropped, and the window has to be decoded again from its start. A text without any end timestamp lasts until the end
    of the window.

    Args:
        tokens: IDs of text and timestamp tokens, without the prompt and the end token.
        first_timestamp: The ID of the timestamp token of 0.00 s; text tokens have lower IDs.
        duration: Length of the window, in seconds; no time exceeds it.

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
    return segments, None
