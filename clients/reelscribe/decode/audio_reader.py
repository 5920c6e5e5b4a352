"""Decode the audio of an open file with PyAV, and convert it to samples at a model's sample rate.

Channels are mixed with the weights that FFmpeg gives loudspeakers, unless each is wanted by itself, and soxr resamples.
There is no dither: models do not need it, and without it the same audio always gives the same samples.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np
import soxr
from av.audio.stream import AudioStream
from av.filter import Graph
from av.format import Flags
from av.stream import Discard
from numpy.typing import NDArray

from reelscribe.contract.speech import to_int16
from reelscribe.decode.container import (
    FOLLOW,
    MISSING_SECONDS,
    has_format_flag,
    missing_seconds,
    open_container,
    read_error_reason,
    stated_end,
    why_fragments_missing,
)
from reelscribe.decode.packets import (
    Continuation,
    Timeline,
    belongs_to,
    demux,
    encrypted_share,
    encryption_reason,
    is_encrypted,
)
from reelscribe.errors import MediaError

CHANNELS = range(1, 65)
"""Plausible numbers of channels. FFmpeg refuses more."""

SAMPLE_RATES = range(1_000, 3_072_001)
"""Plausible sample rates, in Hz: from below that of telephones to above that of DSD."""

UNDECODABLE_SHARE = 0.02
"""A file is damaged if more than this share of its packets, plus one packet, cannot be decoded. Sometimes a decoder
refuses a packet of an undamaged file, often the first."""

PACKETS_PER_LOOK = 16
"""Number of packets after which a reader looks again whether they are encrypted."""

MPEG_FRAME_BYTES = 4096
"""More than any frame of MP1, MP2 or MP3 has."""

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

CANCELLED_BELOW = 1 / 8
"""Channels cancel each other if their mix has less than this share of the energy that unrelated channels would have in
it. For two channels of one loudness, this is a correlation below -0.88: that of a microphone wired the wrong way round,
but of hardly any music."""

ENERGY_STEP = 8
"""The energy of a block of samples is estimated from every eighth."""

DAMAGED_FROM = 256.0
"""Samples of this absolute value or more are damaged and become 0, and so does NaN. Full scale is 1; intact
floating-point audio may exceed it, but not by 48 dB."""


class AudioReader:
    """Decode an audio stream. Packets that cannot be decoded are left out and counted.

    Args:
        container: The open file.
        stream: The stream of it.
        heartbeat: Called regularly while reading makes progress.

    Raises:
        MediaError: The codec is unknown, or the header is implausible.
    """

    container: av.container.InputContainer
    """The open file."""
    stream: AudioStream
    """The stream that is read."""
    timeline: Timeline
    """The timeline of the file; it is complete when all frames have been read."""
    why_incomplete: str | None = None
    """Reason why audio is missing or damaged; None if it is complete. It is final when all frames have been read."""

    def __init__(
        self, container: av.container.InputContainer, stream: AudioStream, heartbeat: Callable[[], None]
    ) -> None:
        self.container, self._heartbeat, self.stream = container, heartbeat, stream
        codec = stream.codec_context
        if codec is None:
            raise MediaError("expected audio in a codec that FFmpeg can decode, got one that it does not know")
        layout = codec.layout
        self._packets = self._undecodable_packets = self._encrypted_packets = 0
        self._problem = _header_problem(layout.nb_channels, codec.sample_rate)
        if (share := self._encrypted_share(is_odd=bool(self._problem))) == 1:
            raise MediaError(encryption_reason(self.stream, share))
        if self._problem and (layout.nb_channels or codec.sample_rate):  # neither is known of audio that begins late
            raise MediaError(self._problem)
        if " channels" in layout.name and layout.nb_channels:
            # PyAV frees a custom channel order twice, which crashes the process. A layout without an order is safe.
            codec.layout = f"{layout.nb_channels} channels"
        codec.thread_count = 1
        self._bit_rate = codec.bit_rate or 0
        self._bytes = self._undecodable_bytes = 0
        self._decoded_seconds = 0.0
        self._is_recording = has_format_flag(container.format, Flags.ts_discont)
        self.timeline, self._continuation = Timeline(container, container.name), Continuation(container, stream)
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
            if packet.size > MPEG_FRAME_BYTES and self.container.format.name == "mp3":
                self._undecodable_bytes += packet.size  # the decoder skips zeros in silence
            for frame in frames:
                if problem := _header_problem(frame.layout.nb_channels, frame.sample_rate):
                    self.why_incomplete = f"cut short: {problem} further on"
                    return
                self._decoded_seconds += frame.samples / frame.sample_rate
                yield frame
        with suppress(av.FFmpegError):
            yield from self.stream.decode(None)  # frames that the decoder still holds
        if self._problem and not self._decoded_seconds:
            raise MediaError(self._problem)
        self.why_incomplete = self.why_incomplete or self._find_damage()

    def _demux(self) -> Iterator[av.Packet[AudioStream]]:
        try:
            for packet in demux(self.container, self._heartbeat, self.timeline):
                self._continuation.add(packet)
                if belongs_to(packet, self.stream):
                    self._bytes += packet.size
                    yield packet
                elif self._continuation.successor is not None and self._continuation.can_be_followed:
                    self._follow()
                    yield from islice(self._demux(), self._packets, None)
                    return
        except (av.FFmpegError, UnicodeError) as error:
            self.why_incomplete = read_error_reason(self.container, error)
        self.why_incomplete = self.why_incomplete or self._continuation.why_incomplete

    def _follow(self) -> None:
        """Open the file again so that the stream goes on where its identifier changes, and begin with no packet."""
        self.container, index = open_container(self.container.name, **FOLLOW), self.stream.index
        stream = self.container.streams[index]
        assert isinstance(stream, AudioStream)
        self.stream, self._bytes = stream, 0
        self.stream.codec_context.thread_count = 1
        self.timeline, self._continuation = (
            Timeline(self.container, self.container.name),
            Continuation(self.container, stream),
        )

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
        if reason := why_fragments_missing(self.container, self.container.name):
            return reason
        undecodable, packets = self._undecodable_packets, self._packets
        if undecodable > 1 + UNDECODABLE_SHARE * packets or undecodable == packets > 0:
            return f"damaged: {undecodable} of {packets} packets cannot be decoded"
        # Without a container, everything between two intact frames is one packet, so a single packet may be large.
        if self._undecodable_bytes > UNDECODABLE_SHARE * self._bytes + 2 * self._bytes / max(1, packets):
            return f"damaged: {self._undecodable_bytes} of {self._bytes} bytes of audio cannot be decoded"
        if self.container.format.name == "flac" and self.stream.duration:
            stated = float(self.stream.duration * (self.stream.time_base or 0))
            missing = stated - self._decoded_seconds
            if missing > max(MISSING_SECONDS, UNDECODABLE_SHARE * stated):
                return f"damaged: {missing:.1f} of {stated:.1f} s of audio cannot be found"
        return damage

    def _encrypted_share(self, *, is_odd: bool) -> float:
        counts = self._packets, self._encrypted_packets
        return encrypted_share(self.container, self.container.name, self.stream, *counts, is_odd=is_odd)

    def _missing_seconds(self) -> float:
        """Return how much earlier the file ends than its header states; 0 or less if nothing is missing."""
        if self.container.format.name == "wav" and self._bit_rate:
            return self._missing_bytes_of_riff() * 8 / self._bit_rate
        if len(self.timeline.offsets) > 1:
            return 0.0  # the header knows the clock of one part only
        end_seconds = self.timeline.end_seconds
        if self.stream.duration and (self._reads_audio_only or self.container.format.name in ESTIMATED_FORMATS):
            implied_bytes = self.stream.duration * float(self.stream.time_base or 0) * self._bit_rate / 8
            estimated = (
                self.container.format.name in ESTIMATED_FORMATS
                and abs(implied_bytes - self._bytes) < ESTIMATE_TOLERANCE * self._bytes
            )
            return 0.0 if estimated else stated_end(self.container, self.stream) - end_seconds
        if self._reads_audio_only and len(self.container.streams) > 1:
            return 0.0  # another stream, which was not read, may be the longest
        return missing_seconds(self.container, end_seconds)

    def _missing_bytes_of_riff(self) -> int:
        """Return how much larger a WAV file should be; FFmpeg itself reduces the stated size to the actual one."""
        with Path(self.container.name).open("rb") as file:
            kind, size = struct.unpack("<4sI", file.read(8))
        known = kind == b"RIFF" and size < _RIFF_UNKNOWN_SIZE
        return size + 8 - self.container.size if known else 0


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
        self._format = _format(first)
        self._weights = _weights(first.layout) if channels == 1 else None
        self._channels = first.layout.nb_channels
        self._graph = Graph()
        source = self._graph.add(
            "abuffer",
            sample_rate=str(first.sample_rate),
            sample_fmt=first.format.name,
            channel_layout=first.layout.name,
            time_base=f"1/{first.sample_rate}",
        )
        to_float = self._graph.add("aformat", "sample_fmts=flt")
        self._graph.link_nodes(source, to_float, self._graph.add("abuffersink")).configure()
        self._graph.set_audio_frame_size(BLOCK_SAMPLES)

    def accepts(self, frame: av.AudioFrame) -> bool:
        return _format(frame) == self._format

    def mix(self, frame: av.AudioFrame | None) -> Iterator[_FloatArray]:
        """Convert the next frame, or None at the end, and yield the blocks that are complete."""
        self._graph.push(frame)
        while True:
            try:
                samples: NDArray[Any] = self._graph.pull().to_ndarray().reshape(-1, self._channels)
            except (BlockingIOError, EOFError):  # the graph needs more frames, or has ended
                return
            yield samples if self._weights is None else _mixed(samples, self._weights)


def _mixed(samples: _FloatArray, weights: _FloatArray) -> _FloatArray:
    """Mix a block of samples, (N, channels), to one channel, (N, 1)."""
    if len(weights) == 1:
        return samples
    # This is no matrix product, because numpy would use the threads of a library for it.
    mix: _FloatArray = sum(samples[:, k] * weight for k, weight in enumerate(weights) if weight)
    some = samples[::ENERGY_STEP], mix[::ENERGY_STEP]
    energies = np.einsum("nc,nc->c", some[0], some[0]) * weights**2
    if np.einsum("n,n->", some[1], some[1]) < CANCELLED_BELOW * energies.sum():
        # One channel stands for all. It is the first of the loud ones, as the loudest could be another one in the
        # next block, and upside down.
        return samples[:, [int(np.argmax(energies > energies.max() / 2))]]
    return mix[:, np.newaxis]


def _weights(layout: av.AudioLayout) -> _FloatArray:
    """Return the weight of each channel in the mix, (channels,) float32; their sum is 1, so that it cannot overflow.

    The centre, which carries the dialogue, has the largest, as in FFmpeg's own mix. That one leaves out whatever it has
    no rule for: the sides and the ceiling of 22.2. Channels of unknown positions have equal weights. In ambisonics, the
    first channel is what a microphone for all directions hears, and the others are differences between directions.
    """
    names = [channel.name for channel in layout.channels]
    if " channels" in layout.name:
        weights = [1.0] * len(names)
    else:
        weights = [next(weight for pattern, weight in _LOUDSPEAKERS if re.match(pattern, name)) for name in names]
    return np.array(weights, np.float32) / np.float32(sum(weights))


_LOUDSPEAKERS = (
    (r"LFE|AMBI0*[1-9]", 0.0),  # low-frequency effects, and differences between directions
    (r"FC$|AMBI0$", 1.0),
    (r"[BS](L|R|C)$|SS[LR]|SD[LR]", 0.5),
    (r"", math.sqrt(0.5)),
)
"""Patterns of FFmpeg's names of channels, and the weights of these in the mix; the first that fits counts."""


def _format(frame: av.AudioFrame) -> tuple[str, str, int]:
    return frame.format.name, frame.layout.name, frame.sample_rate
