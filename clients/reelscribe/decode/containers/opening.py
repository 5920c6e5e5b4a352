"""Open files with FFmpeg, but only those of containers and streams of video and audio.

FFmpeg also reads lists of other files, such as playlists, and would open whatever they name: files of the machine, its
own pipes, and addresses on the network.
"""

from __future__ import annotations

from typing import Any

import av
from av.container import InputContainer

from reelscribe.errors import MediaError

_CONTAINERS = "asf avi dv flv gxf ivf matroska mov mpeg mpegts mxf nut ogg rm yuv4mpegpipe"
_AUDIO = "aac ac3 aiff amr amrnb amrwb ape au caf dts dtshd eac3 flac loas mlp mp3 tak truehd tta w64 wav wv"
_VIDEO_STREAMS = "apng av1 gif h263 h264 hevc m4v mjpeg mpegvideo obu vc1 vvc"

FORMATS = tuple(f"{_CONTAINERS} {_AUDIO} {_VIDEO_STREAMS}".split())
"""FFmpeg's names of the formats that are read. None of them makes FFmpeg open another file."""

_SAFETY = {"format_whitelist": ",".join(FORMATS), "protocol_whitelist": "file"}
"""The protocol "file" opens the file itself; nothing else is opened, by whatever protocol."""


def open_container(name: str, **options: str) -> InputContainer:
    """Open a file with FFmpeg. Every file that is read is opened by this function.

    Args:
        name: The name that `open_for_ffmpeg` yields.
        options: Further options of FFmpeg.

    Returns:
        The open file.

    Raises:
        MediaError: The file has a format that is not read.
        av.FFmpegError: The file is not a media file, or cannot be read.
    """
    try:
        # Old programs wrote titles in the encodings of their countries, in which nothing is read.
        return av.open(name, options={**options, **_SAFETY}, metadata_errors="replace")
    except av.error.ArgumentError as error:
        log: Any = error.log  # PyAV annotates it wrongly
        _, ffmpegs_name, message = log or (0, "", "")
        if not message.startswith("Format not on whitelist"):
            raise
        raise MediaError(
            "expected video or audio in a container such as MP4, Matroska or WAV, got the format that FFmpeg calls "
            f'"{ffmpegs_name}", which is not read; if it is a playlist, name the files that it lists'
        ) from None


def ffmpeg_reason(error: Exception) -> str:
    """Return the first line of an error's message, up to 200 characters, or the name of its class if it has none."""
    lines = [line.strip() for line in (getattr(error, "strerror", None) or str(error)).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
