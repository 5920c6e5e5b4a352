"""Read the header of a source file, by which a run knows how long its sources are before it opens them."""

from __future__ import annotations

from dataclasses import dataclass

from reelscribe.errors import MediaError


@dataclass(frozen=True)
class Probe:
    """What the header of a media file says, or FFmpeg estimates from it."""

    seconds: float
    """Duration in seconds; 0.0 if the file does not state it."""
    frames_per_second: float | None
    """Average number of frames per second; None if the file has no video, 0.0 if it does not state it."""


def probe_file(path: str) -> Probe:
    """Read the header of a media file.

    Args:
        path: Path of the file.

    Returns:
        What it says.

    Raises:
        MediaError: The file cannot be read, or is no media file. The message has no path.
    """
    # Imported here, because the parent process imports this module too, and must not load FFmpeg.
    import av
    from av.stream import Disposition

    from reelscribe.decode.source_file import ffmpeg_reason, open_for_ffmpeg

    with open_for_ffmpeg(path) as name:
        try:
            with av.open(name) as container:
                videos = [each for each in container.streams.video if not each.disposition & Disposition.attached_pic]
                rate = (videos[0].average_rate or videos[0].guessed_rate or 0) if videos else None
                return Probe(
                    seconds=max(0.0, (container.duration or 0) / av.time_base),
                    frames_per_second=None if rate is None else float(rate),
                )
        except (av.FFmpegError, UnicodeError, ValueError) as error:
            raise MediaError(f"not a media file that can be read: {ffmpeg_reason(error)}") from None
