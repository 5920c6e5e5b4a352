"""Open a media file with FFmpeg, read its packets, and find out whether it is complete.

FFmpeg also reads lists of other files, such as playlists, and would open whatever they name: files of the machine, its
own pipes, and addresses on the network. So only the formats of containers and streams of video and audio are opened.

Times are those of the file, with one exception: where the clock of a recording jumps back, as it does where transport
streams or Ogg files were joined, what follows is moved to the end of what came before. So times never go back. One or
two frames before such a joint of transport streams may count as undecodable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import av
from av.container import InputContainer
from av.format import Flags
from av.stream import Stream

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

# Damage is reported as MediaError. FFmpeg's own messages, one for every damaged packet, would only flood the log.
av.logging.set_level(av.logging.PANIC)

PACKETS_PER_HEARTBEAT = 100
"""Number of packets after which a reader calls its heartbeat again."""

JUMP_BACK_SECONDS = 0.5
"""A clock has jumped back if decoding times decrease by more than this. FFmpeg's guesses of missing times differ by
less."""

JUMP_AHEAD_SECONDS = 40_000.0
"""A clock has jumped back, too, if it seems to jump ahead by more than this: FFmpeg takes some jumps for a wrap of the
clock of 33 bits, which counts 95,444 s, and adds those."""

MISSING_SECONDS = 1.0
"""A file is incomplete if it ends more than this many seconds before the end that its header states. Inexact headers of
complete files differ by less."""

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
            raise
        advice = "if it is a playlist, name the files that it lists" if format_name in _PLAYLISTS else ""
        advice = "it is a still picture" if format_name.endswith(("_pipe", "image2")) else advice
        raise MediaError(
            "expected video or audio in a container such as MP4, Matroska or WAV, got the format that FFmpeg calls "
            f'"{format_name}", which is not read{advice and "; "}{advice}'
        ) from None
    return container


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
    with suppress(OSError), _opened(name) as file:  # FFmpeg tells why a file cannot be read
        has_full_header = (file.read(8) or b"")[4:] == b"ftyp"
    if has_full_header:
        container = open_container(name, skip_frame="all", **options)
        if all(video.frames for video in container.streams.video):  # a fragmented file states no number of frames
            return container
        container.close()
    return open_container(name, **options)


class _Readable(Protocol):
    """What boxes are read from: an open file."""

    def seek(self, offset: int, /) -> int:
        """Go to a byte."""

    def read(self, size: int, /) -> bytes | None:
        """Return the next bytes."""


@contextmanager
def _opened(name: str | SparseFile) -> Iterator[_Readable]:
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


class Timeline:
    """Places the packets of a file on one timeline, even if the clock of the file jumps back.

    Args:
        container: The open file.
        offsets: `offsets` of a timeline that has seen all streams of the file, if this one sees only some of them.
    """

    offsets: list[float]
    """Seconds that are added to the times of each part of the file, from one jump of the clock to the next."""
    end_seconds: float = 0.0
    """Latest time so far at which a packet ends; 0.0 if no packet has a time."""

    def __init__(self, container: InputContainer, offsets: Sequence[float] = ()) -> None:
        self.offsets = list(offsets) or [0.0]
        self._may_jump = has_format_flag(container.format, Flags.ts_discont)
        self._ticks: dict[int, float] = {}  # seconds, for each stream
        # For each stream, the number of its part and its last decoding time. Near a jump, packets of one part may lie
        # behind packets of the next part in other streams.
        self._parts: dict[int, tuple[int, float]] = {}

    def place(self, packet: av.Packet[Any]) -> None:
        """Move a packet to its time on the timeline. Packets must come in the order of the file."""
        stream, pts = packet.stream_index, packet.pts
        tick = self._ticks.get(stream) or self._ticks.setdefault(stream, float(packet.time_base or 0))
        if self._may_jump and packet.dts is not None:
            ticks = round(self._offset(stream, packet.dts * tick) / tick)
            if ticks:
                packet.dts += ticks
                packet.pts = pts = None if pts is None else pts + ticks
        if pts is not None:
            end = (pts + (packet.duration or 0)) * tick
            if end > self.end_seconds:
                self.end_seconds = end

    def _offset(self, stream_index: int, seconds: float) -> float:
        """Return the offset of a packet of a stream with the decoding time `seconds`."""
        part, last = self._parts.get(stream_index, (0, seconds))
        if not -JUMP_BACK_SECONDS <= seconds - last <= JUMP_AHEAD_SECONDS:
            part += 1
            if part == len(self.offsets):
                self.offsets.append(self.end_seconds - seconds)
        self._parts[stream_index] = part, seconds
        return self.offsets[part]


def demux(
    container: InputContainer, heartbeat: Callable[[], None], timeline: Timeline | None = None
) -> Iterator[av.Packet[Stream]]:
    """Read the packets of all streams of an open file, in the order of the file.

    Args:
        container: The open file.
        heartbeat: Called before the first packet and again after every `PACKETS_PER_HEARTBEAT` packets.
        timeline: The timeline on which packets are placed; by default a new one.

    Yields:
        Each packet that has content. The empty ones, which mark the ends of the streams, are left out: a decoder would
        take one for the end of the file.

    Raises:
        av.FFmpegError: The file cannot be read any further.
        UnicodeError: The same; FFmpeg's message is not UTF-8.
    """
    timeline = timeline or Timeline(container)
    for count, packet in enumerate(packets_of(container)):
        if count % PACKETS_PER_HEARTBEAT == 0:
            heartbeat()
        timeline.place(packet)
        yield packet


def packets_of(container: InputContainer, *streams: Stream) -> Iterator[av.Packet[Any]]:
    """Read the packets of streams, with the times that the file states.

    Args:
        container: The open file.
        streams: The streams; none for all of them.

    Yields:
        Each packet that has content, as `demux` does.

    Raises:
        av.FFmpegError: The file cannot be read any further.
        UnicodeError: The same; FFmpeg's message is not UTF-8.
    """
    merged, positions = is_followed(container), dict[int, int]()
    with suppress(IndexError):  # PyAV raises it at the end, if FFmpeg has found streams that it does not know
        for packet in container.demux(*streams):
            if not packet.size:
                continue
            if merged and packet.pos is not None:
                # FFmpeg keeps the last packet before a change of identifiers until the file ends, out of its order.
                if packet.pos < positions.get(packet.stream_index, 0):
                    continue
                positions[packet.stream_index] = packet.pos
            yield packet


def is_followed(container: InputContainer) -> bool:
    """Return whether a file was opened with `FOLLOW`."""
    return FOLLOW.keys() <= container.options.keys()


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
    end = start + duration
    if may_state_end_time(container):
        end = min(end, duration)
    return end - end_seconds


def may_state_end_time(container: InputContainer) -> bool:
    """Return whether the duration that a file states may be the time at which it ends."""
    muxer = {name.lower(): value for name, value in container.metadata.items()}.get("encoder", "")
    is_from_zero = container.format.name in DURATION_FROM_ZERO or is_fragmented(container)
    return is_from_zero and not muxer.startswith("libebml")


def missing_bytes(container: InputContainer, name: str | SparseFile) -> int:
    """Return how many bytes the last fragment of a fragmented MP4 file announces behind the end of the file.

    Each fragment states its own length alone, so a file that ends between two of them looks complete.

    Args:
        container: The open file.
        name: What was opened.

    Returns:
        The number of bytes; 0 if nothing is missing, or if the file is no fragmented MP4.
    """
    if not is_fragmented(container):
        return 0
    with _opened(name) as file:
        kind, end = next(((kind, end) for kind, end in _boxes(file) if end > container.size), (b"", 0))
    return end - container.size if kind in _FRAGMENT_BOXES else 0


def _boxes(file: _Readable) -> Iterator[tuple[bytes, int]]:
    """Yield the type of each outermost box of an MP4 file, and where it ends; the last one may reach beyond the file.

    Args:
        file: The open file.
    """
    at = 0
    for _ in range(MAX_BOXES):
        file.seek(at)
        # ISO/IEC 14496-12, section 4.2.2: size, type, and the size if 32 bits are too few
        header = file.read(16) or b""
        size, kind = int.from_bytes(header[:4]), header[4:8]
        size = int.from_bytes(header[8:16]) if size == 1 else size
        if size < 8:  # the box reaches to the end of the file, or this is the end
            return
        at += size
        yield kind, at


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
    return is_indexed and not any(kind == b"moof" for kind, _ in _boxes(file.rewind()))


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
