"""Choose the streams of a media file that a player shows and plays, and find out whether they go on in others."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, Literal

import av
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.format import Flags
from av.stream import Disposition, Stream
from av.video.stream import VideoStream

from reelscribe.decode.container import MISSING_SECONDS, has_format_flag, is_followed, is_fragmented

_IMPAIRED = Disposition.hearing_impaired | Disposition.visual_impaired
"""What audio for some listeners is marked with, such as a description of the pictures."""

_SHORT_BYTES = 20 * 188
"""Distance between packets of known streams in which there is no other stream worth mentioning."""

_OVERHEAD = 1.05
"""Size of a packet in a transport stream, with all headers, per byte of it, at most."""

_PACKET_START = re.compile(
    rb"\x47(?![\x40\x60][\x00-\x1f])([\x40-\x7f].)[\x10-\x3f].{0,183}?\x00\x00\x01[\xbd\xc0-\xef]", re.DOTALL
)
"""What a packet of video or audio begins with in a transport stream: ISO/IEC 13818-1, sections 2.4.3.2 and 2.4.3.6."""

_SEARCHED_BYTES = 2**20
"""How much of a stretch without packets of known streams is searched for those of others."""


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


class Continuation:
    """Finds out whether what a stream shows or plays goes on, or began, in others, where the stream itself does not.

    In recordings, for example, the identifiers of streams change where programmes or advertisements begin.

    Args:
        container: The open file.
        stream: The stream that is read.
    """

    successor: int | None = None
    """Number of the stream of the same kind in which it goes on; None if there is none."""

    def __init__(self, container: InputContainer, stream: VideoStream | AudioStream) -> None:
        self._stream, self._container = stream, container
        ticks = {each.index: float(each.time_base or 0) for each in streams_of(stream.type, container)}
        self._index, self._tick = stream.index, ticks.pop(stream.index)
        self._others = ticks  # seconds, of each other stream of the kind
        self._is_recording = has_format_flag(container.format, Flags.ts_discont)
        self._is_transport_stream = container.format.name == "mpegts"
        self._identifiers = {each.id for each in container.streams}
        self._is_needed = bool(self._others) or self._is_transport_stream
        self._start: int | None = None  # of the first packet, in ticks, as the next one
        self._end = 0
        self._began: dict[int, float | None] = {}  # times at which other streams began, since the last packet
        self._ended: dict[int, tuple[float, float]] = {}  # from when to when others lasted before the first packet
        self._position = 0  # in the file, behind all packets so far
        self._unlisted: tuple[int, float] | None = None

    def add(self, packet: av.Packet[Any]) -> None:
        """Take the next packet of the file, of any stream."""
        if not self._is_needed:
            return
        index, pts = packet.stream_index, packet.pts
        if self._is_transport_stream and (position := packet.pos) is not None:
            if position > self._position + _SHORT_BYTES:
                self._search(position)
            if (behind := position + int(_OVERHEAD * packet.size)) > self._position:
                self._position = behind
        if pts is None or (self.successor is not None and not self._returns(index, pts)):
            return
        self.successor = None
        if index == self._index:
            self._start = pts if self._start is None else self._start
            if (end := pts + (packet.duration or 0)) > self._end:
                self._end = end
            if self._began:
                self._began = dict.fromkeys(self._began)
        elif tick := self._others.get(index):
            self._add_other(index, pts * tick)

    def _add_other(self, index: int, seconds: float) -> None:
        first, last = self._ended.get(index, (seconds, seconds))
        if self._start is None:
            self._ended[index] = first, max(last, seconds)
        elif seconds > last + MISSING_SECONDS:
            self._ended.pop(index, None)  # it goes on beside this one
        # Streams of a recording may have different clocks.
        follows = self._is_recording or seconds > self._end * self._tick - MISSING_SECONDS
        began = self._began.setdefault(index, seconds if follows and self._start is not None else None)
        if began is not None and seconds - began > MISSING_SECONDS:
            self.successor = index

    def _returns(self, index: int, pts: int) -> bool:
        """Return whether the stream only paused while its successor began, as that of a participant of a meeting."""
        began = self._began.get(self.successor or 0) or 0.0
        # In a recording, the identifiers have changed back, and what was in the successor is not read.
        return index == self._index and not self._is_recording and pts * self._tick > began + MISSING_SECONDS

    @property
    def _predecessor(self) -> int | None:
        """Number of the stream in which it began; None if there is none."""
        long = (index for index, (first, last) in self._ended.items() if last - first > MISSING_SECONDS)
        return next(long, None)

    @property
    def can_be_followed(self) -> bool:
        """True if the file may be opened with `FOLLOW` to read the other stream as part of this one."""
        index = self._predecessor if self.successor is None else self.successor
        if index is None or not self._is_transport_stream or is_followed(self._container):
            return False
        other = self._container.streams[index].codec_context
        return self._stream.type == "audio" or bool(other and other.name == self._stream.codec_context.name)

    @property
    def why_incomplete(self) -> str | None:
        """What is not read, after the last packet of the file; None if nothing goes on elsewhere."""
        if self.successor is not None:
            return (
                f"cut short: after {self._end * self._tick:.1f} s it goes on in another stream, number {self.successor}"
                " of the file, which is not read; split the file there"
            )
        if (index := self._predecessor) is not None and self._start is not None:
            return (
                f"cut short: what is before {self._start * self._tick:.1f} s is in another stream, number {index} of"
                " the file, which is not read; split the file there"
            )
        if self._is_transport_stream:
            self._search(self._container.size)
        if self._unlisted:
            unread, seconds = self._unlisted
            return (
                f"cut short: {unread} of its bytes, after {seconds:.1f} s, belong to streams that it does not list at"
                " its beginning; split the file there"
            )
        return None

    def _search(self, position: int) -> None:
        """Look for packets of other streams between those of known ones, if these lie far apart."""
        unread, seconds = position - self._position, (self._end - (self._start or 0)) * self._tick
        is_long = seconds > MISSING_SECONDS and unread * seconds > MISSING_SECONDS * self._position
        if is_long and not self._unlisted:
            with suppress(OSError), open(self._container.name, "rb") as file:  # a fetched copy has no name
                file.seek(self._position)
                starts = _PACKET_START.finditer(file.read(min(unread, _SEARCHED_BYTES)))
                # There may be padding, or a hole with packets of known streams behind it.
                if {int.from_bytes(start[1]) & 0x1FFF for start in starts} - self._identifiers:
                    self._unlisted = unread, self._end * self._tick
