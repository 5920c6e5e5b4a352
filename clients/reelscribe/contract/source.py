"""A source file, and what is known of its video and audio streams."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """A file as it was given; without size and digest if it could not be read."""

    path: str
    bytes: int | None = None
    sha256: str = ""


@dataclass(frozen=True)
class VideoInfo:
    """What a video file says of itself, and how many frames its packets really hold."""

    duration_seconds: float
    """That the container states, or FFmpeg's estimate."""
    width: int
    height: int
    """Pixels, as they are stored."""
    rotation: int
    """Degrees that the stored frames are turned clockwise to be shown: 0, 90, 180 or 270."""
    pixel_aspect: float
    """How many times wider than high a stored pixel is shown."""
    frames: int
    average_fps: float
    start_seconds: float
    """Presentation time of the first frame."""
    end_seconds: float
    """When the last frame has been shown."""
    video_codec: str
    audio_codec: str | None

    @property
    def shown_size(self) -> tuple[int, int]:
        """Width and height in square pixels, turned as they are shown."""
        width, height = max(1, round(self.width * self.pixel_aspect)), self.height
        return (height, width) if self.rotation in (90, 270) else (width, height)


@dataclass(frozen=True)
class Span:
    """Some of a video's chosen frames, by their ordinals: from `first` to before `stop`, or to the last."""

    first: int = 0
    stop: int | None = None
    anchor: int | None = None
    """Frame index of the last captioned frame before them, with which the first of them is compared for reuse."""


@dataclass(frozen=True)
class AudioInfo:
    """What the sound of a file is, as it is stored."""

    codec: str
    """FFmpeg's name of the decoder."""
    sample_rate: int
    channels: int
    start_seconds: float
    """Presentation time of the first sample."""
    media_start_seconds: float
    """Presentation time at which players begin with the file, pictures included."""
    duration_seconds: float
    """Of the file, that its container states, or FFmpeg's estimate."""
