"""Open a media file with FFmpeg, choose its streams, and find out whether it is cut short.

FFmpeg also reads lists of other files, such as playlists, and would open whatever they name: files of the machine, its
own pipes, and addresses on the network. So only the formats of containers and streams of video and audio are opened.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol

import av
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.format import Flags
from av.stream import Disposition, Stream
from av.video.stream import VideoStream

from reelscribe._files import OpenSource, SparseFile, size_in
from reelscribe.errors import MediaError

_CONTAINER_FORMATS = "asf avi dv flv gxf ivf matroska mov mpeg mpegts mxf nut ogg rm wtv yuv4mpegpipe"
_AUDIO_FORMATS = (
    "aac ac3 aiff amr amrnb amrwb ape au caf dts dtshd eac3 flac loas mlp mp3 nistsphere tak truehd tta voc w64 wav wv"
)
_VIDEO_FORMATS = "apng av1 gif h263 h264 hevc m4v mjpeg mpegvideo obu vc1 vvc"

FORMATS = tuple(f"{_CONTAINER_FORMATS} {_AUDIO_FORMATS} {_VIDEO_FORMATS}".split())
"""FFmpeg's names of the formats that are read. None of them makes FFmpeg open another file."""

_WHITELISTS = {"format_whitelist": ",".join(FORMATS), "protocol_whitelist": "file"}
"""The protocol "file" opens the file itself; nothing else is opened, by whatever protocol."""

_PLAYLISTS = {"concat", "dash", "hls", "imf", "sdp"}
"""FFmpeg's names of the formats that list other files."""

_COMPRESSED = (
    b"\x1f\x8b",
    b"BZh",
    b"\xfd7zXZ\0",
    b"\x28\xb5\x2f\xfd",
    b"PK\3\4",
    b"7z\xbc\xaf\x27\x1c",
    b"Rar!\x1a\x07",
)
"""The first bytes of what gzip, bzip2, xz, zstd, zip, 7-Zip and RAR write."""

# Damage is reported as MediaError. FFmpeg's own messages, one for every damaged packet, would only flood the log.
av.logging.set_level(av.logging.PANIC)

MISSING_SECONDS = 1.0
"""A file is incomplete if it ends more than this many seconds before the end that its header states. Inexact headers of
complete files differ by less."""

MISSING_SHARE = 0.02
"""A file is incomplete if nothing can be read in more than this share of it at its end, or if its header states more
frames than it has by more than one frame plus this share of its frames. Complete files differ by less."""

DURATION_FROM_ZERO = {"asf", "matroska,webm", "nut", "ogg"}
"""Formats in which some programs state the time at which a file ends, and others how long it is, as its duration. In
Matroska, FFmpeg states the end, and mkvmerge, whose library is libebml, the length."""

FOLLOW = {"merge_pmt_versions": "1"}
"""Options of FFmpeg with which it takes streams of a transport stream for one where their identifiers change on the
way. It goes by their places in the list, and mixes streams where one was inserted, so this is for files alone of which
`Continuation` says that a stream goes on elsewhere.
"""
INDEXED_FORMATS = {"mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm"}
"""FFmpeg's names of the container formats in which a seek finds a keyframe by an index and gives the same packets, even
if the file is damaged."""

DELAYED_PICTURES = 3
"""Number of pictures by which a stated duration may be too long, because B-frames delay the last one."""

_WINDOWS_BITMAPS = {"\0\0\0\0", "\3\0\0\0", "WRAW"}
"""Tags of raw video that say nothing of its pixels but that they are those of Windows."""

_IMPAIRED = Disposition.hearing_impaired | Disposition.visual_impaired
"""What audio for some listeners is marked with, such as a description of the pictures."""

MOST_DELAY = 0.05
"""Largest share of a duration that such a delay is taken for."""

MAX_BOXES = 1_000_000
"""Number of boxes of an MP4 file after which its end is not looked for any further."""

_FRAGMENT_BOXES = (b"moof", b"mdat")
"""Types of the boxes that hold frames. What is behind the last of them may be anything."""

_INDEXED_CODECS = {"aac", "h264", "hevc"}
"""FFmpeg's names of codecs for which the index of an MP4 file says as much about a packet as FFmpeg finds in it."""

FROM_INDEX = {"fflags": "+noparse+nofillin"}
"""Options of FFmpeg for files that `has_full_index`."""


@contextmanager
def open_for_ffmpeg(path: str, stat: str = "") -> Iterator[OpenSource]:
    """Open a file that FFmpeg reads by its `name`.

    FFmpeg would take the beginning of some paths for a protocol, and paths must be UTF-8 for it. The name of the open
    file avoids both, and all that FFmpeg reads is of one file.

    Args:
        path: Path of the file.
        stat: The `file_stat` that it must have; empty for the one that it has now.

    Yields:
        The open file.

    Raises:
        MediaError: The file does not exist, cannot be read, or is empty.
        SourceChanged: It has another `file_stat`, from the beginning or when the block ends with a MediaError, as a
            file that is being written to looks damaged.
    """
    try:
        file = OpenSource(path, stat)
    except (OSError, ValueError) as error:
        raise MediaError(getattr(error, "strerror", None) or str(error)) from None
    with file:
        if size_in(file.stat) == 0:
            raise MediaError("the file is empty")
        try:
            yield file
        except MediaError:
            file.check()
            raise


def open_container(name: str | SparseFile, **options: str) -> InputContainer:
    """Open a file with FFmpeg. Every file that is read is opened by this function.

    Args:
        name: The name that `open_for_ffmpeg` yields, or a copy that has only what was fetched.
        options: Further options of FFmpeg.

    Returns:
        The open file.

    Raises:
        MediaError: The file has a format that is not read.
        av.FFmpegError: The file is not a media file, or cannot be read.
    """
    try:
        # Old programs wrote titles in the encodings of their countries, in which nothing is read.
        file: Any = name.rewind() if isinstance(name, SparseFile) else name
        container: InputContainer = av.open(file, options={**options, **_WHITELISTS}, metadata_errors="replace")
    except (av.error.ArgumentError, av.error.InvalidDataError) as error:
        log: Any = error.log  # PyAV annotates it wrongly
        _, format_name, message = log or (0, "", "")
        if message.startswith("Not detecting m3u8"):  # as the file that is open has no suffix
            format_name = "hls"
        elif not message.startswith("Format not on whitelist"):
            _check_not_compressed(name)
            raise
        advice = "if it is a playlist, name the files that it lists" if format_name in _PLAYLISTS else ""
        if format_name.endswith(("_pipe", "image2")):
            advice = f"it is {'an animated or a' if format_name == 'webp_pipe' else 'a'} still picture"
        raise MediaError(
            "expected video or audio in a container such as MP4, Matroska or WAV, got the format that FFmpeg calls "
            f'"{format_name}", which is not read{advice and "; "}{advice}'
        ) from None
    for codec in (video.codec_context for video in container.streams.video):
        is_raw = codec and codec.name == "rawvideo" and codec.codec_tag in _WINDOWS_BITMAPS
        if is_raw and codec.bits_per_coded_sample == 32:
            # FFmpeg takes the byte that Windows reserves, which is 0 in most recordings of screens, for transparency.
            # By the other tags, it also turns pictures over.
            if codec.codec_tag != "\0\0\0\0":
                codec.extradata = b"BottomUp\0"
            codec.codec_tag, codec.pix_fmt = "\0\0\0\0", "bgr0"
    return container


def _check_not_compressed(name: str | SparseFile) -> None:
    """Raise MediaError for a file that a program such as gzip, zip or zstd has made."""
    with opened(name) as file:
        if (file.read(6) or b"").startswith(_COMPRESSED):
            raise MediaError(
                "expected video or audio, got a compressed file; unpack it; the files of an archive may be in a folder"
                " or in a .tar that is not compressed"
            )


def open_without_probing(name: str | SparseFile, **options: str) -> InputContainer:
    """Open a media file with FFmpeg, and decode nothing of it where its header tells enough.

    When FFmpeg opens a file, it decodes the beginning of each video stream, which takes as long as all else for a short
    clip. Decoders find out by themselves what it learns from that, except for the order in which they return frames.
    The header of an MP4 or QuickTime file tells it, unless the file is fragmented. This is not for reading audio alone:
    FFmpeg would then read on, up to 5 MB, for the pixel format of a video that nobody wants.

    Args:
        name: The name of a file that `open_for_ffmpeg` yields, or a copy that has only what was fetched.
        options: Further options of FFmpeg.

    Returns:
        The open file.

    Raises:
        MediaError: The file has a format that is not read.
        av.FFmpegError: The file is not a media file, or cannot be read.
    """
    has_full_header = False
    with suppress(OSError), opened(name) as file:  # FFmpeg tells why a file cannot be read
        has_full_header = (file.read(8) or b"")[4:] == b"ftyp"
    if has_full_header:
        container = open_container(name, skip_frame="all", **options)
        if all(video.frames for video in container.streams.video):  # a fragmented file states no number of frames
            return container
        container.close()
    return open_container(name, **options)


class Readable(Protocol):
    """An open file whose bytes are read without FFmpeg."""

    def seek(self, offset: int, /) -> int:
        """Go to a byte."""

    def read(self, size: int, /) -> bytes | None:
        """Return the next bytes."""


@contextmanager
def opened(name: str | SparseFile) -> Iterator[Readable]:
    """Open what `open_for_ffmpeg` yields, or a copy that has only what was fetched, to read its bytes."""
    if isinstance(name, SparseFile):
        yield name.rewind()
    else:
        with open(name, "rb", buffering=0) as file:
            yield file


def ffmpeg_reason(error: Exception) -> str:
    """Return the first line of an error's message, up to 200 characters, or the name of its class if it has none."""
    lines = [line.strip() for line in (getattr(error, "strerror", None) or str(error)).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__


def has_format_flag(container_format: av.ContainerFormat, flag: Flags) -> bool:
    """Return whether FFmpeg gives a container format a flag."""
    mask: Any = flag.value  # PyAV annotates it wrongly
    return bool(container_format.flags & mask)


@cache
def may_be_transparent(pixel_format: str) -> bool:
    """Return whether frames of a pixel format of FFmpeg may be transparent anywhere."""
    known = av.VideoFormat(pixel_format)
    return known.has_palette or any(component.is_alpha for component in known.components)


def is_followed(container: InputContainer) -> bool:
    """Return whether a file was opened with `FOLLOW`."""
    return FOLLOW.keys() <= container.options.keys()


def choose_streams(
    container: InputContainer, empty: Collection[int] = ()
) -> tuple[VideoStream | None, AudioStream | None]:
    """Return the video stream and the audio stream that a player shows and plays.

    Of video, those that are marked as default come first, then larger ones, then those that come first in the file. A
    still picture beside a video, such as the first item of an animated AVIF, is not its video. Of audio, this is the
    choice of FFmpeg's own player among what belongs to the same programme: audio for the impaired comes last, what is
    marked as default first, and else the bit rate decides. Streams that cannot be decoded are left to the last.

    Args:
        container: The open file.
        empty: Numbers of streams that are known to hold nothing, or one picture.

    Returns:
        The streams; None if there is none, or of video only attached pictures, such as the cover of an album.
    """
    videos, audios = streams_of("video", container), streams_of("audio", container)
    readable = [stream for stream in (*videos, *audios) if _may_be_readable(container, stream, empty)]
    videos = [video for video in videos if video in readable] or videos
    moving = [video for video in videos if not (video.disposition & Disposition.still_image or video.frames == 1)]
    video = max(moving or videos, key=lambda video: (_weight(video), _pixels(video)), default=None)
    audios = [audio for audio in audios if audio in readable] or audios
    return video, _best_audio(container, audios, video)


def streams_of(kind: Literal["video", "audio"], container: InputContainer) -> list[Any]:
    """Return the streams of one kind, except for attached pictures.

    Args:
        kind: The kind.
        container: The open file.
    """
    streams = (stream for stream in container.streams if stream.type == kind)
    return [stream for stream in streams if not stream.disposition & Disposition.attached_pic]


def which_stream(container: InputContainer, stream: VideoStream | AudioStream) -> tuple[int | None, int | None]:
    """Return which of several streams is read.

    Args:
        container: The open file.
        stream: The chosen stream.

    Returns:
        Its number in the file, and how many others of its kind there are; both are None if it is the only one.
    """
    others = len(streams_of("video" if isinstance(stream, VideoStream) else "audio", container)) - 1
    return (stream.index, others) if others > 0 else (None, None)


def _may_be_readable(container: InputContainer, stream: Stream, empty: Collection[int]) -> bool:
    states_frames = "mp4" in container.format.name and not is_fragmented(container)
    return bool(stream.codec_context and stream.index not in empty and (stream.frames or not states_frames))


def _weight(stream: Stream) -> int:
    """Return by how much a stream's marks let FFmpeg's player prefer it."""
    return (not stream.disposition & _IMPAIRED) + bool(stream.disposition & Disposition.default)


def _pixels(video: VideoStream) -> int:
    """Return the number of pixels of a frame; 0 if FFmpeg does not know the codec."""
    return video.codec_context.width * video.codec_context.height if video.codec_context else 0


def _best_audio(
    container: InputContainer, audios: Sequence[AudioStream], video: VideoStream | None
) -> AudioStream | None:
    """Return the one of `audios` that FFmpeg's player plays with a video, or another one where it would play none."""
    kept = {stream.index: stream.disposition for stream in container.streams.audio}
    for stream in container.streams.audio:
        if stream not in audios:
            stream.disposition = Disposition.hearing_impaired  # FFmpeg must not choose it, and takes no list
    best: Any = container.streams.best("audio", related=video)
    of_any_programme = container.streams.best("audio")
    for stream in container.streams.audio:
        stream.disposition = kept[stream.index]
    # Audio of another programme than that of the pictures is not theirs.
    return best if best in audios or best is not of_any_programme else max(audios, key=_weight, default=None)


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
        Seconds; 0 or less if nothing is missing. It is 0, too, where no more than the last few pictures could be
        missing, because B-frames delay the stated end by so much.
    """
    start, duration = (container.start_time or 0) / av.time_base, stated_seconds(container)
    end = start + duration
    if may_state_end_time(container):
        end = min(end, duration)
    rates = (stream.average_rate for stream in container.streams.video)
    delay = max((DELAYED_PICTURES / float(rate) for rate in rates if rate), default=0.0)
    return 0.0 if end - end_seconds < min(delay, MOST_DELAY * duration) else end - end_seconds


def may_state_end_time(container: InputContainer) -> bool:
    """Return whether the duration that a file states may be the time at which it ends."""
    muxer = {name.lower(): value for name, value in container.metadata.items()}.get("encoder", "")
    is_from_zero = container.format.name in DURATION_FROM_ZERO or is_fragmented(container)
    return is_from_zero and not muxer.startswith("libebml")


def why_fragments_missing(container: InputContainer, name: str | SparseFile) -> str | None:
    """Return why the end of a fragmented MP4 file is missing.

    Each fragment states its own length alone, so a file that ends between two of them looks complete, and FFmpeg takes
    zeros for its end.

    Args:
        container: The open file.
        name: What was opened.

    Returns:
        The reason; None if nothing is missing, or if the file is no fragmented MP4.
    """
    if not is_fragmented(container):
        return None
    size, last = container.size, _Box(b"", 0)
    with opened(name) as file:
        for box in _boxes(file):
            if box.end > size and box.kind in _FRAGMENT_BOXES:
                return f"cut short: {box.end - size} of the bytes it announces are missing"
            last = box
        file.seek(last.end)
        are_zeros = file.read(8) == bytes(8)
    if are_zeros and size - last.end > MISSING_SHARE * size:
        return f"cut short: nothing can be read in the last {size - last.end} of its {size} bytes"
    return None


def lacks_fragments(container: InputContainer, name: str | SparseFile) -> bool:
    """Return whether fragments of a fragmented MP4 file are missing between others, as far as their numbers tell.

    Some programs leave out numbers for fragments that they write to other files.

    Args:
        container: The open file.
        name: What was opened.
    """
    if not is_fragmented(container):
        return False
    with opened(name) as file:
        numbers = [box.number for box in _boxes(file) if box.kind == b"moof"]
    return any(after > before + 1 for before, after in pairwise(numbers))


class _Box(NamedTuple):
    """An outermost box of an MP4 file."""

    kind: bytes
    """Its type, of four bytes."""
    end: int
    """Where it ends; the last one may reach beyond the file."""
    number: int = 0
    """The sequence number of a fragment (moof)."""


def _boxes(file: Readable) -> Iterator[_Box]:
    """Yield the outermost boxes of an MP4 file.

    Args:
        file: The open file.
    """
    at = 0
    for _ in range(MAX_BOXES):
        file.seek(at)
        # ISO/IEC 14496-12, section 4.2.2: size, type, and the size if 32 bits are too few. A fragment begins with its
        # number, section 8.8.5.
        header = file.read(24) or b""
        size, kind = int.from_bytes(header[:4]), header[4:8]
        size = int.from_bytes(header[8:16]) if size == 1 else size
        if size < 8:  # the box reaches to the end of the file, or this is the end
            return
        at += size
        yield _Box(kind, at, int.from_bytes(header[20:24]))


def has_full_index(file: SparseFile) -> bool:
    """Return whether everything but the content of packets is in the index of a file, and FFmpeg reads it only there.

    Then `FROM_INDEX` are options with which FFmpeg does not look into packets for what the index says.

    Args:
        file: The file.

    Raises:
        MediaError: The file has a format that is not read.
        av.FFmpegError: The file is not a media file, or cannot be read.
    """
    with open_without_probing(file) as container:
        codecs = {stream.codec_context.name for stream in container.streams if stream.codec_context}
        is_indexed = "mp4" in container.format.name and codecs <= _INDEXED_CODECS
    return is_indexed and not any(box.kind == b"moof" for box in _boxes(file.rewind()))


def read_error_reason(container: InputContainer, error: Exception) -> str:
    """Return the reason why a file cannot be read to its end.

    Args:
        container: The open file.
        error: The error with which FFmpeg stopped.
    """
    if container.format.name == "ogg" and isinstance(error, (av.error.PatchWelcomeError, av.error.ArgumentError)):
        return (
            "cut short: it is a chain of several recordings, of which FFmpeg reads only the first; "
            "split it into its recordings"
        )
    return f"cut short: it cannot be read any further: {ffmpeg_reason(error)}"


def _tick(stream: Any) -> float:
    return float(stream.time_base or 0)
