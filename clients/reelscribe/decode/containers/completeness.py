"""Find out whether a file is complete, by what its container states about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
from av.container import InputContainer
from av.stream import Stream

from reelscribe.decode.containers.opening import ffmpeg_reason

MISSING_SECONDS = 1.0
"""A file is incomplete if it ends more than this many seconds before the end that its header states. Inexact headers of
complete files differ by less."""

DURATION_FROM_ZERO = {"asf", "matroska,webm", "nut", "ogg"}
"""Formats in which some programs state the time at which a file ends, and others how long it is, as its duration. In
Matroska, FFmpeg states the end, and mkvmerge, whose library is libebml, the length."""

MOST_BOXES = 1_000_000
"""Number of boxes of a fragmented MP4 file after which its end is not looked for any further."""

_FRAGMENT_BOXES = (b"moof", b"mdat")
"""Types of the boxes that hold frames. What is behind the last of them may be anything."""


def is_fragmented(container: InputContainer) -> bool:
    """Return whether a file is MP4 in fragments, as live streams have it: its header states no numbers of frames."""
    return "mp4" in container.format.name and not any(stream.frames for stream in container.streams)


def stated_seconds(container: InputContainer) -> float:
    """Return the duration that a file states, in seconds, which may also be the time at which it ends.

    Args:
        container: The open file.

    Returns:
        Seconds; 0.0 if it states none.
    """
    if container.format.name == "asf" or is_fragmented(container):
        # FFmpeg takes the end of the file for the length of each stream, and adds the time at which a stream begins.
        stated = [stream.duration * _tick(stream) for stream in container.streams if stream.duration]
        return max(stated, default=0.0)
    return (container.duration or 0) / av.time_base


def stated_end(container: InputContainer, stream: Stream) -> float:
    """Return the time at which one stream ends, as its header states it, in seconds."""
    start = 0 if is_fragmented(container) else stream.start_time or 0
    return (start + (stream.duration or 0)) * _tick(stream)


def missing_seconds(container: InputContainer, end_seconds: float) -> float:
    """Return how much earlier a file ends than its header states.

    Args:
        container: The open file.
        end_seconds: Time at which its last packet ends, in seconds.

    Returns:
        Seconds; 0 or less if nothing is missing.
    """
    start, duration = (container.start_time or 0) / av.time_base, stated_seconds(container)
    stated_end = start + duration
    if may_state_end(container):
        stated_end = min(stated_end, duration)
    return stated_end - end_seconds


def may_state_end(container: InputContainer) -> bool:
    """Return whether the duration that a file states may be the time at which it ends."""
    muxer = {name.lower(): value for name, value in container.metadata.items()}.get("encoder", "")
    is_from_zero = container.format.name in DURATION_FROM_ZERO or is_fragmented(container)
    return is_from_zero and not muxer.startswith("libebml")


def missing_bytes(container: InputContainer) -> int:
    """Return how many bytes the last fragment of a fragmented MP4 file announces behind the end of the file.

    Each fragment states its own length alone, so a file that ends between two of them looks complete.

    Args:
        container: The open file.

    Returns:
        The number of bytes; 0 if nothing is missing, or if the file is no fragmented MP4.
    """
    if not is_fragmented(container):
        return 0
    at = 0
    with Path(container.name).open("rb", buffering=0) as file:
        for _ in range(MOST_BOXES):
            file.seek(at)
            header = file.read(16)  # ISO/IEC 14496-12, section 4.2.2: size, type, and the size if 32 bits are too few
            size, kind = int.from_bytes(header[:4]), header[4:8]
            size = int.from_bytes(header[8:16]) if size == 1 else size
            if size < 8:  # the box reaches to the end of the file, or this is the end
                break
            at += size
            if at > container.size:
                return at - container.size if kind in _FRAGMENT_BOXES else 0
    return 0


def why_cut_short(container: InputContainer, error: Exception) -> str:
    """Return why a file cannot be read to its end, from the error with which FFmpeg stopped."""
    if container.format.name == "ogg" and isinstance(error, (av.error.PatchWelcomeError, av.error.ArgumentError)):
        return (
            "cut short: it is a chain of several recordings, of which FFmpeg reads only the first; "
            "split it into its recordings"
        )
    return f"cut short: it cannot be read any further: {ffmpeg_reason(error)}"


def _tick(stream: Any) -> float:
    return float(stream.time_base or 0)
