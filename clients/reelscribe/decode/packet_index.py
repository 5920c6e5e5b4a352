"""Index a video file by reading its packets: the frames it has, and the presentation time of each.

Only the beginning is decoded, up to the first frame. A decoded frame alone tells how it is turned, and where a
recording begins in the middle of a group of pictures, only decoding tells which frames can be decoded. The first frame
is kept, so that a file of one frame need not be opened again.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import av
import numpy as np
from av.format import Flags
from av.video.stream import VideoStream
from numpy.typing import NDArray

from reelscribe._files import SparseFile
from reelscribe.contract.source import DynamicRange, Gap, VideoInfo
from reelscribe.decode.bitstream import ClosedGopDetector, CodingType, PacketFilter, coding_type, presentation_order
from reelscribe.decode.container import (
    FOLLOW,
    FROM_INDEX,
    INDEXED_FORMATS,
    MISSING_SECONDS,
    MISSING_SHARE,
    choose_streams,
    ffmpeg_reason,
    has_format_flag,
    has_full_index,
    missing_seconds,
    open_without_probing,
    read_error_reason,
    stated_seconds,
    streams_of,
    which_stream,
    why_fragments_missing,
)
from reelscribe.decode.frame_conversion import (
    Stated,
    cropped,
    dynamic_range_of,
    dynamic_range_of_transfer,
    read_stated,
)
from reelscribe.decode.packets import (
    GAP_SECONDS,
    Continuation,
    Timeline,
    belongs_to,
    demux,
    encrypted_share,
    encryption_reason,
    is_encrypted,
    is_usable,
)
from reelscribe.decode.random_access import find_closed_gops
from reelscribe.errors import MediaError, NoPictures

STATED_TOLERANCE = 0.05
"""Largest share by which a stated frame rate may differ from the counted one, and a stated duration be too short."""

REPEATS = 16
"""Number of frames in which a repeated presentation time is made up for."""

FIRST_FRAME_PACKETS = 100
"""Number of packets in which the first frame is searched. Without a limit, a file that cannot be decoded would be
searched to its end."""

LEADING_PACKETS = 1000
"""Largest number of packets before the first keyframe of a recording; no group of pictures is longer. If there are
more, keyframes have been lost, and the file is damaged."""


@dataclass(frozen=True)
class PacketIndex:
    """The frames of a video stream in the order of their presentation. Each array is (frames,), with one item a frame.

    Frames before the first one that can be decoded are left out.
    """

    container_format: str
    """FFmpeg's name of the container format."""
    stream_index: int
    """Number of the video stream in the file."""
    video_streams: int
    """Number of video streams in the file, cover pictures included."""
    pts: NDArray[np.int64]
    """Presentation times in units of the stream's time base, ascending; empty if they do not identify frames."""
    times: NDArray[np.float64]
    """Presentation times in seconds, ascending; computed from decoding times or from the frame rate where the file has
    none."""
    keyframes: NDArray[np.bool_]
    """True for each keyframe, at which decoding can begin."""
    gops: NDArray[np.int64] | None
    """Number of the closed group of pictures (GOP) of each frame, ascending; None if not all GOPs are closed, or
    anything about the file is odd."""
    file_order: NDArray[np.int64]
    """Position of each frame among the frames as stored in the file, which is the order of decoding."""
    leading_packets: int
    """Number of packets at the beginning of the video stream that cannot be decoded."""
    clock_offsets: tuple[float, ...]
    """`Timeline.offsets` of the file: more than one if its clock jumps back."""
    first_frame: av.VideoFrame | None
    """The first frame that was decoded; None if there is none, or the stream does not begin with a keyframe."""
    corrupt_packets: int
    """Number of packets that the container marks as corrupt."""
    stated: Stated
    """What the file states about its frames."""
    info: VideoInfo
    """Description of the stream."""
    why_incomplete: str | None
    """Reason why frames are missing; None if the file is complete."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Further options of FFmpeg with which the file is opened to find these packets."""

    def index_of(self, pts: int | None) -> int:
        """Return the index of the frame with this presentation time; -1 if there is none, or times do not tell."""
        if pts is None:
            return -1
        index = int(np.searchsorted(self.pts, pts))
        return index if index < len(self.pts) and self.pts[index] == pts else -1


def index_packets(name: str | SparseFile, heartbeat: Callable[[], None]) -> PacketIndex:
    """Read all packets of a file once.

    Args:
        name: Name under which FFmpeg opens the file, or a copy that has only what was fetched.
        heartbeat: Called regularly while reading makes progress.

    Returns:
        The index.

    Raises:
        MediaError: The file is not a media file, or its video has no frames or an unknown codec.
        NoPictures: The file has no video stream.
    """
    try:
        indexed = name if isinstance(name, SparseFile) and has_full_index(name) else None
        empty = set[int]()
        while True:
            with open_without_probing(name, **(FROM_INDEX if indexed else {})) as container:
                scan = _Scan(container, heartbeat, name, indexed, empty)
                if scan.is_moving or scan.stream_index in empty or len(streams_of("video", container)) == 1:
                    index, can_be_followed = scan.result(), scan.continuation.can_be_followed
                    break
                empty.add(scan.stream_index)
        if can_be_followed:
            with open_without_probing(name, **FOLLOW) as container:
                followed = _Scan(container, heartbeat, name, None, ()).result()
            if followed.info.frames > index.info.frames:
                index = replace(followed, options=FOLLOW)
    except (av.FFmpegError, UnicodeError) as error:
        raise MediaError(f"not a media file that can be read: {ffmpeg_reason(error)}") from None
    return index


class _Scan:
    """One pass over all packets, and the facts that it collects."""

    def __init__(
        self,
        container: av.container.InputContainer,
        heartbeat: Callable[[], None],
        name: str | SparseFile,
        indexed: SparseFile | None,
        empty: Collection[int],
    ) -> None:
        self._name, self._indexed = name, indexed
        self._container, self._format = container, container.format
        video, self._audio = choose_streams(container, empty)
        if video is None:
            covers = set(container.streams.video) - set(streams_of("video", container))
            kinds = ("an attached picture" if stream in covers else stream.type for stream in container.streams)
            streams = ", ".join(kinds) or "no streams"
            raise NoPictures(f"expected a video stream with pictures, got {streams}")
        self._video, self._video_streams = video, len(container.streams.video)
        if self._video.codec_context is None:
            raise MediaError("expected a video codec that FFmpeg can decode, got one that it does not know")
        self._video.codec_context.thread_count = 1
        self._stated_range = dynamic_range_of_transfer(self._video.codec_context.color_trc)  # a decoder may forget it
        self._filter, self._timeline = PacketFilter(self._video), Timeline(container, name)
        self.continuation = Continuation(container, self._video)
        self._first_decoder = _FirstFrameDecoder(self._video, self._format)
        self._closed_gops = ClosedGopDetector(self._video)
        self._is_mpeg4 = self._video.codec_context.name == "mpeg4"
        # About the frames that are shown, in the order of the file:
        self._pts, self._has_pts, self._dts, self._keyframes = array("q"), array("b"), array("q"), array("b")
        self._gop_starts, self._mpeg4_types = array("b"), array("b")
        self._last_pts, self._last_duration = 0, 0  # of the frame that is shown last
        # About all packets of the video stream:
        self._packets = self._corrupt_packets = self._encrypted_packets = 0
        self._read_error: str | None = None
        self._read(heartbeat)

    def _read(self, heartbeat: Callable[[], None]) -> None:
        marks_encryption = self._format.name.startswith("mov,")  # asking takes as long as all else
        try:
            for packet in demux(self._container, heartbeat, self._timeline):
                self.continuation.add(packet)
                if belongs_to(packet, self._video):
                    self._packets += 1
                    self._corrupt_packets += packet.is_corrupt
                    if packet.is_keyframe or self._encrypted_packets:
                        self._encrypted_packets += marks_encryption and is_encrypted(packet)
                    self._add(self._filter.unpack(packet))
            self._first_decoder.flush()
        except (av.FFmpegError, UnicodeError) as error:
            if not self._keyframes:
                raise
            self._read_error = read_error_reason(self._container, error)

    def _add(self, packet: av.Packet[VideoStream]) -> None:
        self._first_decoder.push(packet)
        if self._indexed and self._first_decoder.has_ended:
            self._indexed.is_counting = True
        if not self._filter.is_shown(packet):
            return
        self._keyframes.append(packet.is_keyframe)
        self._gop_starts.append(self._closed_gops.starts_closed_gop(packet))
        if self._is_mpeg4:
            self._mpeg4_types.append(coding_type(packet))
        self._has_pts.append(packet.pts is not None)
        self._pts.append(packet.pts or 0)
        self._dts.append((packet.pts or 0) if packet.dts is None else packet.dts)
        if packet.pts is not None and (packet.pts >= self._last_pts or len(self._pts) == 1):
            self._last_pts, self._last_duration = packet.pts, packet.duration or 0

    @property
    def stream_index(self) -> int:
        """Number of the video stream in the file."""
        return self._video.index

    @property
    def is_moving(self) -> bool:
        """True if there are several frames in the video stream."""
        return len(self._keyframes) > 1

    def result(self) -> PacketIndex:
        if not self._keyframes:
            self._encryption(is_odd=True)
            raise MediaError("expected frames in its video stream, got none; is it cut short?")
        keyframes, order = np.array(self._keyframes, bool), np.arange(len(self._keyframes))
        pts = np.empty(0, np.int64)
        if all(self._has_pts):
            order = np.argsort(np.array(self._pts), kind="stable")
            pts, keyframes = np.array(self._pts)[order], keyframes[order]
        identify = bool(len(pts)) and (np.diff(pts) > 0).all() and not self._pts_are_packet_numbers(order)
        if self._is_mpeg4 and not identify:
            order = presentation_order(self._mpeg4_types)
            keyframes = np.array(self._mpeg4_types)[order] == CodingType.I
        times = self._times(pts)
        skipped = self._first_decoder.count_undecodable(pts)
        # A keyframe that cannot be decoded is damaged, unless it is one of H.264 that only begins to renew the picture.
        if skipped >= len(times) or (keyframes[:skipped].any() and self._video.codec_context.name != "h264"):
            skipped = 0
        gaps = self._gaps(times)
        why_incomplete = self._why_incomplete(len(times), self._timeline.why_damaged(gaps))
        stated = read_stated(self._container, self._video, self._dynamic_range, self._first_decoder.first_frame)
        is_odd = skipped or why_incomplete or not identify or self._indexed  # its packets tell no GOPs
        return PacketIndex(
            container_format=self._format.name,
            stream_index=self._video.index,
            video_streams=self._video_streams,
            pts=pts[skipped:] if identify else pts[:0],
            times=times[skipped:],
            keyframes=keyframes[skipped:],
            gops=None if is_odd else self._find_gops(keyframes, order),
            file_order=order[skipped:],
            leading_packets=self._first_decoder.leading_packets,
            clock_offsets=tuple(self._timeline.offsets),
            first_frame=None if skipped else self._first_decoder.first_frame,
            corrupt_packets=self._corrupt_packets,
            stated=stated,
            info=self._info(times[skipped:], skipped, stated, gaps),
            why_incomplete=why_incomplete,
        )

    def _find_gops(self, keyframes: NDArray[np.bool_], order: NDArray[np.int64]) -> NDArray[np.int64] | None:
        is_indexed = self._format.name in INDEXED_FORMATS and len(self._timeline.offsets) == 1
        if not is_indexed or self._corrupt_packets or self._first_decoder.leading_packets:
            return None
        gop_starts = np.array(self._gop_starts, bool)[order]
        return find_closed_gops(keyframes, gop_starts, order, self._video.codec_context.reorder_depth)

    def _pts_are_packet_numbers(self, order: NDArray[np.int64]) -> bool:
        """Return whether presentation times are only numbers of packets, and wrong.

        AVI stores no times, nor does FFmpeg know those of H.264 in MXF: it numbers the packets, even if the
        presentation order is not that of the file. Programs that copied packed MPEG-4 numbered the packets, too.
        """
        unreliable = self._format.name in ("avi", "mxf") or self._video.codec_context.name == "mpeg4"
        in_file_order = bool((np.diff(order) > 0).all())
        return self._filter.packed or (unreliable and self._video.codec_context.has_b_frames and in_file_order)

    @property
    def _frame_rate(self) -> float:
        """Number of frames per second, as the file states it; 0.0 if it does not."""
        if has_format_flag(self._format, Flags.no_timestamps):
            # FFmpeg takes 25 for the average of every stream without a container.
            return float(self._video.codec_context.framerate or self._video.guessed_rate or 0)
        return float(self._video.average_rate or self._video.guessed_rate or 0)

    def _times(self, pts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the presentation times of all frames in seconds, ascending.

        Args:
            pts: The presentation times, ascending; empty if not every frame has one.
        """
        tick, frames = float(self._video.time_base or 0), len(self._keyframes)
        if not any(self._has_pts):
            return np.arange(frames) / (self._frame_rate or 1)
        frame_ticks = 1 / ((self._frame_rate or 1) * tick)
        if self._format.name == "avi" and self._video.codec_context.has_b_frames:
            # Each frame is shown when the decoder returns it, which is some packets after it was given the frame's own.
            dts, delay = np.sort(np.array(self._dts)), self._first_decoder.delay
            return np.append(dts, dts[-1] + frame_ticks * np.arange(1, delay + 1))[delay:] * tick
        if not len(pts):
            return self._with_missing_times(frame_ticks) * tick
        if has_format_flag(self._format, Flags.ts_discont):
            return _without_repeats(pts, frame_ticks) * tick
        return np.asarray(pts * tick, np.float64)

    def _with_missing_times(self, frame_ticks: float) -> NDArray[np.float64]:
        """Return the presentation times of all frames in ticks, if only some have one.

        FFmpeg gives no times to frames before the zero of a Matroska file, for example.
        """
        known = np.array(self._pts)[np.array(self._has_pts, bool)]
        first_known = self._has_pts.index(True)
        ticks = list(known.min() + frame_ticks * np.arange(-first_known, 0))
        for pts, has_pts in zip(self._pts[first_known:], self._has_pts[first_known:], strict=True):
            ticks.append(pts if has_pts else ticks[-1] + frame_ticks)
        return np.sort(np.array(ticks, np.float64))

    @property
    def _dynamic_range(self) -> DynamicRange:
        """Dynamic range of the first frame; what the file states if it has none."""
        first = self._first_decoder.first_frame
        return dynamic_range_of(first, self._stated_range) if first else self._stated_range

    def _encryption(self, *, is_odd: bool) -> str | None:
        """Return the reason why a part of the stream is encrypted, or None. If all of it is, raise MediaError."""
        counts = self._packets, self._encrypted_packets
        share = encrypted_share(self._container, self._name, self._video, *counts, is_odd=is_odd)
        if share == 1:
            raise MediaError(encryption_reason(self._video, share))
        return encryption_reason(self._video, share) if share else None

    def _gaps(self, times: NDArray[np.float64]) -> tuple[Gap, ...]:
        """Return where frames are missing: not where those that are stored later than others fill a gap."""
        gaps, frame = list[Gap](), 1 / (self._frame_rate or 1)
        for gap in self._timeline.gaps(self._video):
            first, stop = np.searchsorted(times, [gap.start - 1.5 * frame, gap.end + frame])
            if stop - first > 1:
                before = int(first + np.diff(times[first:stop]).argmax())
                start, end = float(times[before]) + frame, float(times[before + 1])
                if end - start > GAP_SECONDS:
                    gaps.append(Gap(round(start, 6), round(end, 6)))
        return tuple(gaps)

    def _info(self, times: NDArray[np.float64], skipped: int, stated: Stated, gaps: tuple[Gap, ...]) -> VideoInfo:
        audio, codec = self._audio, self._video.codec_context
        first = self._first_decoder.first_frame
        shown = cropped(first, stated.margins) if first else self._video
        # Of all frames, the decoder has seen only the first one.
        aspect = stated.pixel_aspect or float(codec.sample_aspect_ratio or self._video.sample_aspect_ratio or 1)
        last_seconds = self._last_duration * float(self._video.time_base or 0) if all(self._has_pts) else 0.0
        start, fps = float(times[0]), self._frame_rate
        index, others = which_stream(self._container, self._video)
        end = float(times[-1]) + (last_seconds or 1 / (fps or 1))
        duration = stated_seconds(self._container)
        if len(self._timeline.offsets) > 1 or duration < (1 - STATED_TOLERANCE) * (end - start):
            duration = end - start
        if any(self._has_pts) and abs(counted := len(times) / (end - start) - fps) > STATED_TOLERANCE * fps:
            fps += counted
        return VideoInfo(
            duration_seconds=round(duration, 6),
            width=shown.width,
            height=shown.height,
            rotation=stated.degrees,
            pixel_aspect=aspect,
            frames=len(times),
            average_fps=round(fps, 6),
            start_seconds=round(start, 6),
            end_seconds=round(end, 6),
            video_codec=codec.name,
            audio_codec=audio.codec_context.name if audio and audio.codec_context else None,
            skipped_frames=skipped,
            dynamic_range=stated.dynamic_range,
            stream_index=index,
            other_streams=others,
            mirrored=stated.mirrored or None,
            gaps=gaps or None,
        )

    def _why_incomplete(self, frames: int, damage: str | None) -> str | None:
        """Return why frames are missing: they are encrypted, or the header states more than there is, or `damage`."""
        if encryption := self._encryption(is_odd=bool(damage)):
            return encryption
        if why := self._read_error or self.continuation.why_incomplete:
            return why
        end_seconds = self._timeline.end_seconds
        missing = missing_seconds(self._container, end_seconds)
        if end_seconds and missing > MISSING_SECONDS and len(self._timeline.offsets) == 1:
            return f"cut short: it ends {missing:.1f} s before it says it does"
        # AVI counts frames that were dropped while recording; they have a number and no packet.
        numbers = max(self._dts) + 1 if self._format.name == "avi" else 0
        missing_frames = self._video.frames - max(self._packets, numbers)
        if missing_frames > 1 + MISSING_SHARE * frames:
            return f"cut short: {missing_frames} of the frames it announces are missing"
        return why_fragments_missing(self._container, self._name) or damage


def _without_repeats(pts: NDArray[np.int64], frame_ticks: float) -> NDArray[np.float64]:
    """Return ascending times, with repeated ones moved into the gap behind them, or else away from the times behind.

    FFmpeg guesses times that a recording does not state, and guesses some of them twice.
    """
    times = pts.astype(np.float64)
    for k in np.flatnonzero(np.diff(pts) == 0) + 1:
        behind = times[k : k + REPEATS]
        regular = times[k - 1] + frame_ticks * np.arange(1, len(behind) + 1)
        if (gap := behind >= regular).any():
            times[k : k + int(gap.argmax())] = regular[: int(gap.argmax())]
        else:
            before = times[max(0, k - REPEATS) : k]
            times[max(0, k - REPEATS) : k] = np.minimum(before, times[k] - frame_ticks * np.arange(len(before), 0, -1))
    return times


class _FirstFrameDecoder:
    """Decodes the beginning of a video stream, up to the first frame that can be decoded.

    Args:
        video: The video stream.
        container_format: The container format of the file.
    """

    def __init__(self, video: VideoStream, container_format: av.ContainerFormat) -> None:
        self._codec = video.codec_context
        # Before the first keyframe other decoders return nothing, and that of MPEG-4 returns grey frames.
        is_recording = any(has_format_flag(container_format, flag) for flag in (Flags.ts_discont, Flags.no_timestamps))
        self._waits_for_keyframe = is_recording and self._codec.name == "mpeg4"
        self._packets_before_keyframe = self._packets_from_keyframe = 0
        self.has_ended = self._damaged = False
        """`has_ended` is True if no packet is decoded any more."""
        self.first_frame: av.VideoFrame | None = None
        """The first frame; None if none can be decoded."""
        self.delay = 0
        """Number of packets that the decoder needs after the one of the first frame, to return the first frame."""

    def push(self, packet: av.Packet[VideoStream]) -> None:
        """Take the next packet of the stream."""
        if self.has_ended:
            return
        if packet.is_keyframe or self._packets_from_keyframe:
            self._packets_from_keyframe += 1
        else:
            self._packets_before_keyframe += 1
        if not self._waits_for_keyframe or self._packets_from_keyframe:
            self._decode(packet)
        if self._packets_before_keyframe > LEADING_PACKETS:
            self.has_ended = self._damaged = True
        self.has_ended = self.has_ended or self._packets_from_keyframe == FIRST_FRAME_PACKETS

    def _decode(self, packet: av.Packet[VideoStream]) -> None:
        try:
            frames = self._codec.decode(packet) if is_usable(packet) else None
        except av.FFmpegError:
            frames = None
        if frames:
            self.has_ended = True
            self.first_frame = frames[0]
        elif frames is None:
            self._damaged = bool(self._packets_from_keyframe)  # without a keyframe, nothing can be decoded
        else:
            self.delay += 1

    def flush(self) -> None:
        """Take the first frame from a decoder that waited for more packets, at the end of a short file."""
        if not (self.has_ended or self._damaged):
            with suppress(av.FFmpegError):
                self.first_frame = next(iter(self._codec.decode(None)), None)

    @property
    def leading_packets(self) -> int:
        """Number of packets that must not be decoded."""
        can_begin = self._waits_for_keyframe and self._packets_from_keyframe and not self._damaged
        return self._packets_before_keyframe if can_begin else 0

    def count_undecodable(self, pts: NDArray[np.int64]) -> int:
        """Return the number of frames that are shown before the first one that can be decoded.

        Args:
            pts: Presentation times of all frames, ascending; empty if frames have none.
        """
        if self._damaged:
            return 0
        if self.first_frame and self.first_frame.pts is not None and (pts == self.first_frame.pts).any():
            return int(np.searchsorted(pts, self.first_frame.pts))
        return self._packets_before_keyframe
