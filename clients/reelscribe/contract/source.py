"""Source files: their suffixes, the descriptions of their video and audio streams, and ranges of them."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

from reelscribe.contract.fields import check_types, known_fields, read_list
from reelscribe.errors import MediaError

_VIDEO = (
    ".264 .265 .266 .360 .3g2 .3gp .3gp2 .3gpp .3gpp2 .amv .apng .asf .av1 .avc .avi .cmfv .dif .divx .dv .dvr-ms .f4v"
    " .flv .gif .gxf .h263 .h264 .h265 .h266 .h26l .hdmov .hevc .insv .ismv .ivf .lrv .m1v .m2p .m2t .m2ts .m2v"
    " .m4v .mj2 .mk3d .mkv .mod .mov .mp2v .mp4 .mp4v .mpe .mpeg .mpg .mpv .mqv .mts .mxf .nut .obu .ogm"
    " .ogv .ogx .osv .qt .rm .rmvb .rv .tod .tp .trp .ts .vc1 .vob .vro .vvc .webm .wm .wmv .wtv .xvid .y4m"
)
_AUDIO = (
    ".3ga .a52 .aac .ac3 .adts .aif .aifc .aiff .amr .ape .au .awb .bwf .caf .cmfa .dts .dtshd .eac3 .ec3 .f4a"
    " .f4b .flac .isma .latm .loas .m1a .m2a .m4a .m4b .m4r .mka .mlp .mp1 .mp2 .mp3 .mpa .mpga .oga .ogg .opus .ra"
    " .rf64 .snd .sph .spx .tak .thd .tta .voc .w64 .wav .wave .weba .wma .wv"
)
# What FFmpeg's demuxers, cameras, recorders and programs write in the formats that are read (`decode.container`). Of
# suffixes with several meanings, those are left out that seldom mean media, such as .dat and .bin, and those of stills.

VIDEO_SUFFIXES = frozenset(_VIDEO.split())
"""Suffixes of video files, with the dot, in lower case."""

INDEXED_SUFFIXES = frozenset({".m4v", ".mov", ".mp4"})
"""Suffixes of video files that tell in one place where each frame is."""

AUDIO_SUFFIXES = frozenset(_AUDIO.split())
"""Suffixes of audio files, with the dot, in lower case."""

MEDIA_SUFFIXES = VIDEO_SUFFIXES | AUDIO_SUFFIXES
"""Suffixes of video and audio files, with the dot, in lower case."""

DynamicRange = Literal["sdr", "pq", "hlg"]
"""Dynamic range of a video: standard, or high with the transfer function PQ, as in HDR10, or HLG (ITU-R BT.2100)."""


VERSION_KEY = "version:"
"""Begins the key of a content of which nobody has read every byte."""


def version_key(address: str, size: int, version: str) -> str:
    """Return the key of a content of which nobody has read every byte.

    Sources at other addresses have other keys, whatever they hold.

    Args:
        address: The address of the source in a store.
        size: Its size in bytes.
        version: What the store tells of its version, such as an ETag.
    """
    return VERSION_KEY + hashlib.sha256(f"{address}\n{size} {version}".encode()).hexdigest()


def content_name(key: str) -> str:
    """Return the name of what is kept of a content, by the key of its results: 64 hexadecimal digits."""
    return key.removeprefix(VERSION_KEY)


def is_key(value: object) -> bool:
    """Return whether a value can be the key of results: 64 hexadecimal digits, maybe after `VERSION_KEY`."""
    return isinstance(value, str) and re.fullmatch(f"({VERSION_KEY})?[0-9a-f]{{64}}", value) is not None


def digest_in(key: str | None) -> str | None:
    """Return the SHA-256 of a content by the key of its results; None if it has no key, or a `VERSION_KEY`."""
    return None if not key or key.startswith(VERSION_KEY) else key


@runtime_checkable
class RangedCopy(Protocol):
    """A copy of a source on this machine that has only those blocks of it that were fetched."""

    path: str
    """The path of the copy, for this process and others of the same user. Where nothing was fetched, it has zeros."""

    failure: MediaError | None
    """Why the source cannot be read any further; None as long as it can."""

    async def fetch(self, first: int, stop: int) -> None:
        """Fetch what is still missing from one block to before another. Raises MediaError if it cannot be read."""


@dataclass(frozen=True)
class Source:
    """An input file of a run."""

    path: str
    """Path or address as the user gave it."""
    bytes: int | None = None
    """Size of the file in bytes; None if it could not be read."""
    sha256: str = ""
    """SHA-256 of the content in hexadecimal digits, by which results are kept; or the `VERSION_KEY` of it; empty if the
    file could not be read."""
    stat: str = ""
    """The `file_stat` of the file whose content that is, or the size and version that a store tells; empty if it is not
    known."""
    copy: str = ""
    """Path of a copy of it that this machine keeps for a while; empty for a file, which is read itself."""
    ranges: RangedCopy | None = None
    """The copy, if it has only what was fetched; None for a whole copy, and for a file."""

    @property
    def digest(self) -> str | None:
        """SHA-256 of the content; None if it is not known."""
        return digest_in(self.sha256)

    @property
    def at_rest(self) -> Source:
        """The source without the copy that is kept of it while it is read."""
        return replace(self, copy="", ranges=None)

    @property
    def file(self) -> tuple[str, str]:
        """Path of the file from which it is read, and the `file_stat` that this must have; empty for any."""
        return (self.copy, "") if self.copy else (self.path, self.stat)


@dataclass(frozen=True)
class Header:
    """Duration and frame rate that the header of a media file states, or FFmpeg estimates from it."""

    seconds: float | None
    """Duration in seconds; None if it is not stated."""
    frames_per_second: float | None
    """Average number of frames per second; 0.0 if the file has no video, None if it is not stated."""


@dataclass(frozen=True)
class Gap:
    """A stretch of a video without frames, because a part of the file cannot be read."""

    start: float
    """Time at which the last frame before it disappears, in seconds."""
    end: float
    """Presentation time of the first frame after it, in seconds."""


@dataclass(frozen=True)
class VideoInfo:
    """Description of a video stream, from the header of its file and from its packets."""

    duration_seconds: float
    """Duration of the file in seconds, as its container states it or FFmpeg estimates it."""
    width: int
    """Width of the first frame in pixels as it is stored, without what its container wants to be cut off."""
    height: int
    """Height of it."""
    rotation: int
    """Degrees by which a player turns the stored frames clockwise: 0, 90, 180 or 270, seldom others."""
    pixel_aspect: float
    """Width of a stored pixel divided by its height, as it is shown; 1.0 for square pixels."""
    frames: int
    """Number of frames that are shown, counted in the packets, from the first one that can be decoded."""
    average_fps: float
    """Average number of frames per second: what the file states, unless its frames say otherwise; 0.0 if unknown."""
    start_seconds: float
    """Presentation time of the first frame, in seconds."""
    end_seconds: float
    """Presentation time at which the last frame disappears, in seconds."""
    video_codec: str
    """FFmpeg's name of the video decoder."""
    audio_codec: str | None
    """FFmpeg's name of the decoder of the audio stream that is played with it; None if there is none."""
    skipped_frames: int = 0
    """Number of frames that are left out at the beginning, because the file begins in the middle of a group of
    pictures: they refer to frames that it does not have. No other number or time counts them."""
    dynamic_range: DynamicRange = "sdr"
    """Dynamic range of the stored frames. Frames of a high one are mapped to the colours of a standard one."""
    stream_index: int | None = None
    """Number of the stream in the file, from 0; None if the file has no other video stream."""
    other_streams: int | None = None
    """Number of other video streams, besides pictures such as covers, which are not read; None if there are none."""
    mirrored: bool | None = None
    """True if a player exchanges left and right of the stored frames, before it turns them; None if it does not."""
    gaps: tuple[Gap, ...] | None = None
    """Where frames are missing between others, in the order of time; None if none are."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self, dict_factory=known_fields)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_json` returned.

        Raises:
            TypeError: A field is missing, unknown, or of another type.
        """
        gaps = tuple(Gap(**gap) for gap in read_list("gaps", value.get("gaps", ()))) or None
        info = cls(**{**value, "gaps": gaps})
        for each in (info, *(gaps or ())):
            check_types(each)
        return info

    @property
    def shown_size(self) -> tuple[int, int]:
        """Width and height of a frame as players show it: in square pixels, and after rotation."""
        return shown_size(self.width, self.height, self.rotation, self.pixel_aspect)


def shown_size(width: int, height: int, rotation: int, pixel_aspect: float) -> tuple[int, int]:
    """Return width and height of a frame as players show it, of its fields in `VideoInfo`."""
    width = max(1, round(width * pixel_aspect))
    return (height, width) if rotation in (90, 270) else (width, height)


Transition = Literal["cut", "gradual"]
"""The way in which a shot follows the one before it: at once, or by a dissolve, a fade or a wipe."""


class Section(NamedTuple):
    """A part of a video, by frames and by time: a shot or a clip."""

    start_frame: int
    """Index in the video of its first frame."""
    end_frame: int
    """Index of the first frame after it."""
    start_seconds: float
    """Presentation time of its first frame, in seconds."""
    end_seconds: float
    """Presentation time at which its last frame disappears, in seconds."""


@dataclass(frozen=True)
class Span:
    """A range of a video's chosen frames or clips, or of an audio stream's samples, all counted from 0."""

    first: int = 0
    """Number of the first frame, clip or sample."""
    stop: int | None = None
    """Number of the first frame, clip or sample after the range; None if the range ends with the video or stream."""
    anchor: int | None = None
    """For frames, index in the video of the last captioned frame before the range: the first frames of the range reuse
    its caption if they are nearly equal to it. For clips, index of the frame with which the range begins. None for
    audio, and if there is nothing before the range."""


def before_entry_point(spans: Sequence[Span], entry_points: Sequence[int]) -> tuple[list[Span], list[Span]]:
    """Divide spans at the first entry point that lies behind their beginning.

    Args:
        spans: The spans, in ascending order.
        entry_points: The numbers at which portions may begin, ascending: ordinals of chosen frames.

    Returns:
        What is before that entry point, and the rest; if there is none, all spans and nothing.
    """
    at = bisect_right(entry_points, spans[0].first) if spans else 0
    if at == len(entry_points):
        return list(spans), []
    point = entry_points[at]
    before = [
        replace(span, stop=point if span.stop is None else min(span.stop, point))
        for span in spans
        if span.first < point
    ]
    rest = [
        span if span.first >= point else Span(point, span.stop)
        for span in spans
        if span.stop is None or span.stop > point
    ]
    return before, rest


def after(spans: Sequence[Span], stop: int, anchor: int | None) -> list[Span]:
    """Return the rest of spans of which everything before a number has been read.

    Args:
        spans: The spans, in ascending order.
        stop: The number.
        anchor: `Span.anchor` of a span that begins there.
    """
    rest = [span for span in spans if span.stop is None or span.stop > stop]
    if rest and rest[0].first < stop:
        rest[0] = Span(stop, rest[0].stop, anchor)
    return rest


def join(some: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Return the spans of both, in ascending order; one that begins where another ends continues it."""
    joined = list[Span]()
    for span in sorted([*some, *others], key=lambda span: span.first):
        if joined and joined[-1].stop == span.first:
            joined[-1] = replace(joined[-1], stop=span.stop)
        else:
            joined.append(span)
    return joined


@dataclass(frozen=True)
class AudioInfo:
    """Description of an audio stream, from the header of its file and from its first frame."""

    codec: str
    """FFmpeg's name of the decoder."""
    sample_rate: int
    """Sample rate as stored, in Hz."""
    channels: int
    """Number of channels as stored."""
    start_seconds: float
    """Presentation time of the first sample, in seconds."""
    media_start_seconds: float
    """Presentation time at which players start the file, in seconds; at most `start_seconds`."""
    duration_seconds: float
    """Duration of the file in seconds, as its container states it or FFmpeg estimates it."""
    stream_index: int | None = None
    """Number of the stream in the file, from 0; None if the file has no other audio stream."""
    other_streams: int | None = None
    """Number of other audio streams, which are not read; None if there are none."""
