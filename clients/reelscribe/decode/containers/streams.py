"""Choose the video stream of a file that has several."""

from __future__ import annotations

from av.container import InputContainer
from av.stream import Disposition
from av.video.stream import VideoStream


def choose_video(container: InputContainer) -> VideoStream | None:
    """Return the video stream that a player shows.

    Streams that are marked as default come first, then larger ones, then those that come first in the file. A still
    picture beside a video, such as the first item of an animated AVIF, is not its video.

    Args:
        container: The open file.

    Returns:
        The stream; None if there are only attached pictures, such as the cover of an album.
    """
    videos = [video for video in container.streams.video if not video.disposition & Disposition.attached_pic]
    moving = [video for video in videos if not _is_still(video)]
    return max(moving or videos, key=lambda video: (_is_default(video), _pixels(video)), default=None)


def _is_still(video: VideoStream) -> bool:
    return bool(video.disposition & Disposition.still_image) or video.frames == 1


def _is_default(video: VideoStream) -> bool:
    return bool(video.disposition & Disposition.default)


def _pixels(video: VideoStream) -> int:
    """Return the number of pixels of a frame; 0 if FFmpeg does not know the codec."""
    return video.codec_context.width * video.codec_context.height if video.codec_context else 0
