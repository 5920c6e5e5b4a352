"""The tokens that a Whisper writes about a window -> segments with times."""

from __future__ import annotations

from typing import NamedTuple

TIMESTAMPS_PER_SECOND = 50


class TokenSegment(NamedTuple):
    """Text tokens, and when they were spoken, in seconds from the window's start."""

    start: float
    end: float
    tokens: list[int]


def split_segments(tokens: list[int], first_timestamp: int, duration: float) -> tuple[list[TokenSegment], float | None]:
    """The segments of a window of `duration` seconds, and where it is to be heard again.

    A segment is text between two timestamps. If the last one has begun but not ended, while others have, the window
    went on where the model stopped: as in openai/whisper (transcribe.py), what is written of it does not count, and it
    is heard again from there. Text without any end lasts until the window's.
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
