"""Decode the audio of an open file with PyAV, and convert it to samples at a model's sample rate.

FFmpeg mixes the channels, unless each is wanted by itself, and soxr resamples. There is no dither: models do not need
it, and without it the same audio always gives the same samples.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import av
import numpy as np
import soxr
from av.audio.stream import AudioStream
from av.filter import Graph
from av.format import Flags
from av.stream import Discard, Disposition
from numpy.typing import NDArray

from reelscribe.contract.speech import to_int16
from reelscribe.decode.container import (
    MISSING_SECONDS,
    has_format_flag,
    missing_seconds,
    read_error_reason,
    stated_end,
    why_fragments_missing,
)
from reelscribe.decode.packets import Timeline, belongs_to, demux, encrypted_share, encryption_reason, is_encrypted
from reelscribe.errors import MediaError

CHANNELS = range(1, 65)
"""Numbers of channels that FFmpeg can mix."""

SAMPLE_RATES = range(1_000, 3_072_001)
"""Plausible sample rates, in Hz: from below that of telephones to above that of DSD."""

UNDECODABLE_SHARE = 0.02
"""A file is damaged if more than this share of its packets, plus one packet, cannot be decoded. Sometimes a decoder
refuses a packet of an undamaged file, often the first."""

PACKETS_PER_LOOK = 16
"""Number of packets after which a reader looks again whether they are encrypted."""

LEADING_PACKETS = 50
"""Number of packets at the beginning of a recording that may be undecodable: it may begin in the middle of a frame."""

ESTIMATED_FORMATS = {"aac", "ac3", "amr", "dts", "eac3", "mp3", "truehd"}
"""Formats that have no container. If no header states the duration of such a file, FFmpeg estimates it from the file
size and the bit rate of the first frames."""

ESTIMATE_TOLERANCE = 0.01
"""A duration is an estimate if the file size that follows from it differs from the true one by less than this share."""

_AMR_PAUSES = {"amrnb": 8, "amrwb": 9}
"""Codecs with discontinuous transmission, and the first frame type of pauses: FFmpeg does not decode the comfort noise.
The type is in bits 3 to 6 of the first byte of a packet (RFC 4867, section 5.3)."""

_RIFF_UNKNOWN_SIZE = 0x7FFF0000
"""Sizes from this one on mean "unknown": programs that write a WAV file to a pipe state the largest size they can."""

_FloatArray = NDArray[np.float32]
"""(N, channels) float32; full scale is 1."""

BLOCK_SAMPLES = 2**14
"""Number of samples that are resampled at once, whatever the size of the frames is."""

DAMAGED_FROM = 256.0
"""Samples of this absolute value or more are damaged and become 0, and so does NaN. Full scale is 1; intact
floating-point audio may exceed it, but not by 48 dB."""


class AudioReader:
    """Decode the audio stream that players choose: the first that is marked as default, or else the first.

    Packets that cannot be decoded are left out and counted.

    Args:
        container: The open file, which has an audio stream.
        heartbeat: Called regularly while reading makes progress.

    Raises:
        MediaError: The codec is unknown, or the header is implausible.
    """

    stream: AudioStream
    """The chosen stream."""
    timeline: Timeline
    """The timeline of the file; it is complete when all frames have been read."""
    why_incomplete: str | None = None
    """Reason why audio is missing or damaged; None if it is complete. It is final when all frames have been read."""

    def __init__(self, container: av.container.InputContainer, heartbeat: Callable[[], None]) -> None:
        self._container, self._heartbeat = container, heartbeat
        streams = container.streams.audio
        self.stream = next((stream for stream in streams if stream.disposition & Disposition.default), streams[0])
        codec = self.stream.codec_context
        if codec is None:
            raise MediaError("expected audio in a codec that FFmpeg can decode, got one that it does not know")
        layout = codec.layout
        self._packets = self._undecodable_packets = self._encrypted_packets = 0
        problem = _header_problem(layout.nb_channels, codec.sample_rate)
        if (share := self._encrypted_share(is_odd=bool(problem))) == 1:
            raise MediaError(encryption_reason(self.stream, share))
        if problem:
            raise MediaError(problem)
        if " channels" in layout.name:
            # PyAV frees a custom channel order twice, which crashes the process. A layout without an order is safe.
            codec.layout = f"{layout.nb_channels} channels"
        codec.thread_count = 1
        self._bit_rate = codec.bit_rate or 0
        self._bytes = self._undecodable_bytes = 0
        self._decoded_seconds = 0.0
        self._is_recording = has_format_flag(container.format, Flags.ts_discont)
        self.timeline = Timeline(container, container.name)
        # MP4 files have an index of the audio packets, so nothing else is read. Other containers must be read from end
        # to end anyway, so their other streams are used for heartbeats and to find out where the file ends.
        self._reads_audio_only = "mp4" in container.format.name
        for other in container.streams:
            if self._reads_audio_only and other is not self.stream:
                other.discard = Discard.all

    def frames(self) -> Iterator[av.AudioFrame]:
        """Decode all frames that can be decoded, in order; call this once. At its end, set `why_incomplete`."""
        for packet in self._demux():
            self._packets += 1
            may_be_encrypted = self._encrypted_packets or self._packets % PACKETS_PER_LOOK == 1  # asking takes long
            if may_be_encrypted and is_encrypted(packet):
                self._encrypted_packets += 1
                continue
            try:
                frames = packet.decode()
            except av.FFmpegError:
                if self._is_undamaged(packet):
                    continue
                self._undecodable_packets += 1
                self._undecodable_bytes += packet.size
                continue
            for frame in frames:
                if problem := _header_problem(frame.layout.nb_channels, frame.sample_rate):
                    self.why_incomplete = f"cut short: {problem} further on"
                    return
                self._decoded_seconds += frame.samples / frame.sample_rate
                yield frame
        with suppress(av.FFmpegError):
            yield from self.stream.decode(None)  # frames that the decoder still holds
        self.why_incomplete = self.why_incomplete or self._find_damage()

    def _demux(self) -> Iterator[av.Packet[AudioStream]]:
        try:
            for packet in demux(self._container, self._heartbeat, self.timeline):
                if belongs_to(packet, self.stream):
                    self._bytes += packet.size
                    yield packet
        except (av.FFmpegError, UnicodeError) as error:
            self.why_incomplete = read_error_reason(self._container, error)

    def _is_undamaged(self, packet: av.Packet[AudioStream]) -> bool:
        """Return whether a packet that cannot be decoded is no damage."""
        if first_pause := _AMR_PAUSES.get(self.stream.codec_context.name):
            return memoryview(packet)[0] >> 3 & 0xF >= first_pause
        # The recording begins in the middle of a packet.
        return self._is_recording and not self._decoded_seconds and self._packets <= LEADING_PACKETS

    def _find_damage(self) -> str | None:
        """Compare what was read with what the header states."""
        damage = self.timeline.why_damaged(self.timeline.gaps(self.stream))
        if share := self._encrypted_share(is_odd=bool(damage)):
            return encryption_reason(self.stream, share)
        missing_seconds = self._missing_seconds()
        if missing_seconds > MISSING_SECONDS:
            return f"cut short: it ends {missing_seconds:.1f} s before it says it does"
        if reason := why_fragments_missing(self._container, self._container.name):
            return reason
        undecodable, packets = self._undecodable_packets, self._packets
        if undecodable > 1 + UNDECODABLE_SHARE * packets or undecodable == packets > 0:
            return f"damaged: {undecodable} of {packets} packets cannot be decoded"
        # Without a container, everything between two intact frames is one packet, so a single packet may be large.
        if self._undecodable_bytes > UNDECODABLE_SHARE * self._bytes + 2 * self._bytes / max(1, packets):
            return f"damaged: {self._undecodable_bytes} of {self._bytes} bytes of audio cannot be decoded"
        if self._container.format.name == "flac" and self.stream.duration:
            stated = float(self.stream.duration * (self.stream.time_base or 0))
            missing = stated - self._decoded_seconds
            if missing > max(MISSING_SECONDS, UNDECODABLE_SHARE * stated):
                return f"damaged: {missing:.1f} of {stated:.1f} s of audio cannot be found"
        return damage

    def _encrypted_share(self, *, is_odd: bool) -> float:
        counts = self._packets, self._encrypted_packets
        return encrypted_share(self._container, self._container.name, self.stream, *counts, is_odd=is_odd)

    def _missing_seconds(self) -> float:
        """Return how much earlier the file ends than its header states; 0 or less if nothing is missing."""
        if self._container.format.name == "wav" and self._bit_rate:
            return self._missing_bytes_of_riff() * 8 / self._bit_rate
        if len(self.timeline.offsets) > 1:
            return 0.0  # the header knows the clock of one part only
        end_seconds = self.timeline.end_seconds
        if self.stream.duration and (self._reads_audio_only or self._container.format.name in ESTIMATED_FORMATS):
            implied_bytes = self.stream.duration * float(self.stream.time_base or 0) * self._bit_rate / 8
            estimated = (
                self._container.format.name in ESTIMATED_FORMATS
                and abs(implied_bytes - self._bytes) < ESTIMATE_TOLERANCE * self._bytes
            )
            return 0.0 if estimated else stated_end(self._container, self.stream) - end_seconds
        if self._reads_audio_only and len(self._container.streams) > 1:
            return 0.0  # another stream, which was not read, may be the longest
        return missing_seconds(self._container, end_seconds)

    def _missing_bytes_of_riff(self) -> int:
        """Return how much larger a WAV file should be; FFmpeg itself reduces the stated size to the actual one."""
        with Path(self._container.name).open("rb") as file:
            kind, size = struct.unpack("<4sI", file.read(8))
        known = kind == b"RIFF" and size < _RIFF_UNKNOWN_SIZE
        return size + 8 - self._container.size if known else 0


def _header_problem(channels: int, sample_rate: int) -> str | None:
    """Return what is wrong with a header, or None."""
    if channels not in CHANNELS:
        return f"expected audio of {CHANNELS[0]} to {CHANNELS[-1]} channels, got {channels}"
    if sample_rate not in SAMPLE_RATES:
        return f"expected audio of {SAMPLE_RATES[0]} to {SAMPLE_RATES[-1]} samples a second, got {sample_rate}"
    return None


class Resampler:
    """Convert audio of one sample rate, whose layout and sample format may change, to another sample rate.

    Sample k of the output is at the time k / `output_rate`, and sample k of the input at k / `input_rate`. From n input
    samples, n * `output_rate` / `input_rate` output samples are made, rounded to the nearest whole number.

    Args:
        input_rate: Sample rate of the frames, in Hz.
        output_rate: Sample rate of the result, in Hz.
        channels: Number of channels of the result: 1 for the mix of all, or else that of all frames.
    """

    def __init__(self, input_rate: int, output_rate: int, channels: int = 1) -> None:
        self._channels = channels
        self._mixer: _Mixer | None = None
        self._stream = None
        if input_rate != output_rate:
            self._stream = soxr.ResampleStream(input_rate, output_rate, channels, dtype="float32", quality="HQ")

    def push(self, frame: av.AudioFrame) -> Iterator[NDArray[np.int16]]:
        """Convert the next frame, and yield the samples that are ready, in arrays of any length, (N, channels)."""
        if self._mixer is None or not self._mixer.accepts(frame):
            yield from self._flush_mixer()
            self._mixer = _Mixer(frame, self._channels)
        yield from map(self._resample, self._mixer.mix(frame))

    def flush(self) -> Iterator[NDArray[np.int16]]:
        """End the audio, and yield the remaining samples, (N, channels)."""
        yield from self._flush_mixer()
        yield self._resample(np.empty((0, self._channels), np.float32), last=True)

    def _flush_mixer(self) -> Iterator[NDArray[np.int16]]:
        if self._mixer:
            yield from map(self._resample, self._mixer.mix(None))

    def _resample(self, samples: _FloatArray, *, last: bool = False) -> NDArray[np.int16]:
        # A single NaN would spread over the whole filter of the resampler. The comparison is false for NaN, too.
        valid = np.where(np.abs(samples) < DAMAGED_FROM, samples, np.float32(0))
        if self._stream:
            valid = self._stream.resample_chunk(valid, last=last)
        return to_int16(valid)


class _Mixer:
    """Convert frames of one sample format, channel layout and sample rate to floats, all channels mixed or each."""

    def __init__(self, first: av.AudioFrame, channels: int) -> None:
        self._format, self._channels = _format(first), channels
        self._graph = Graph()
        source = self._graph.add(
            "abuffer",
            sample_rate=str(first.sample_rate),
            sample_fmt=first.format.name,
            channel_layout=first.layout.name,
            time_base=f"1/{first.sample_rate}",
        )
        # The order in which filters are added decides which formats FFmpeg chooses between them, and so the last bit of
        # each sample.
        layout = ":channel_layouts=mono" if channels == 1 else ""
        to_float = self._graph.add("aformat", f"sample_fmts=flt{layout}")
        mix = [self._graph.add(*_mix(first))] if channels == 1 else []
        self._graph.link_nodes(source, *mix, to_float, self._graph.add("abuffersink")).configure()
        self._graph.set_audio_frame_size(BLOCK_SAMPLES)

    def accepts(self, frame: av.AudioFrame) -> bool:
        return _format(frame) == self._format

    def mix(self, frame: av.AudioFrame | None) -> Iterator[_FloatArray]:
        """Convert the next frame, or None at the end, and yield the blocks that are complete."""
        self._graph.push(frame)
        while True:
            try:
                samples: NDArray[Any] = self._graph.pull().to_ndarray()
            except (BlockingIOError, EOFError):  # the graph needs more frames, or has ended
                return
            yield samples.reshape(-1, self._channels)


def _mix(frame: av.AudioFrame) -> tuple[str, str]:
    """Return the filter that mixes all channels of such frames to one, with its arguments."""
    layout, channels = frame.layout.name, frame.layout.nb_channels
    if " channels" in layout or "ambisonic" in layout:
        # The positions of the channels are unknown, so they are averaged.
        return "pan", "mono|c0<" + "+".join(f"c{k}" for k in range(channels))
    # FFmpeg's matrix gives the centre, which carries the dialogue, the largest weight. It is scaled so that the mix
    # cannot overflow.
    return "aresample", "rematrix_maxval=1"


def _format(frame: av.AudioFrame) -> tuple[str, str, int]:
    return frame.format.name, frame.layout.name, frame.sample_rate
