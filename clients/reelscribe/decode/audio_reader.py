"""The sound of an open file, decoded by PyAV frame by frame; what cannot be decoded is left out and counted."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeGuard

import av
from av.audio.stream import AudioStream
from av.stream import Discard, Disposition, Stream

from reelscribe.decode.source_file import MISSING_SECONDS, PACKETS_PER_HEARTBEAT, first_line
from reelscribe.errors import MediaError

CHANNELS = range(1, 65)
"""That FFmpeg can mix."""

SAMPLE_RATES = range(1_000, 3_072_001)
"""From less than telephones to more than DSD; a header that says anything else was made up."""

UNDECODABLE_SHARE = 0.02
"""Decoders refuse a packet now and then, often the first; a file with more of them, and one, is damaged."""

GUESSED = {"aac", "ac3", "dts", "eac3", "mp3", "truehd"}
"""Formats of bare frames: unless a header tells it, FFmpeg guesses the length from the first frames' bit rate."""

GUESSED_WITHIN = 0.01
"""Of the bytes."""

_RIFF_UNKNOWN = 0x7FFF0000
"""Programs that write to a pipe claim the largest size that they can think of."""


class AudioReader:
    """Reads the sound that players choose: the first stream that is marked as default, or else the first.

    Calls `heartbeat` now and then. Raises MediaError for a codec that nobody knows and for a header that cannot be true.
    """

    stream: AudioStream
    packets: int = 0
    """That were read of it."""
    undecodable: int = 0
    """Of them."""
    seconds: float = 0.0
    """That were decoded."""
    cut: str | None = None
    """Why the sound is not whole, as far as it was read."""

    def __init__(self, container: av.container.InputContainer, heartbeat: Callable[[], None]) -> None:
        self._container, self._beat = container, heartbeat
        sounds = container.streams.audio
        self.stream = next((sound for sound in sounds if sound.disposition & Disposition.default), sounds[0])
        codec = self.stream.codec_context
        if codec is None:
            raise MediaError("expected sound in a codec that FFmpeg can decode, got one that it does not know")
        layout = codec.layout
        if unlikely := _unlikely(layout.nb_channels, codec.sample_rate):
            raise MediaError(unlikely)
        if " channels" in layout.name:
            # PyAV frees an unusual order of channels twice, which ends the process. With no order, none is freed.
            codec.layout = f"{layout.nb_channels} channels"
        codec.thread_count = 1
        self._bit_rate = codec.bit_rate or 0
        self._bytes = self._undecodable_bytes = 0
        self._ends = [0] * len(container.streams)  # of each stream, in its ticks
        # MP4 finds the sound by its index, and then reads nothing else. Other containers are read from end to end
        # anyway; there the pictures tell that reading gets on, and where the file ends.
        self._sound_alone = "mp4" in container.format.name
        for other in container.streams:
            if self._sound_alone and other is not self.stream:
                other.discard = Discard.all

    def frames(self) -> Iterator[av.AudioFrame]:
        """All that can be decoded, in order. Once: then `cut` is known."""
        for packet in self._read():
            self.packets += 1
            try:
                frames = packet.decode()
            except av.FFmpegError:
                self.undecodable += 1
                self._undecodable_bytes += packet.size
                continue
            for frame in frames:
                if unlikely := _unlikely(frame.layout.nb_channels, frame.sample_rate):
                    self.cut = f"cut short: {unlikely} further on"
                    return
                self.seconds += frame.samples / frame.sample_rate
                yield frame
        with suppress(av.FFmpegError):
            yield from self.stream.decode(None)  # what the decoder still holds
        self.cut = self.cut or self._why_not_whole()

    def _read(self) -> Iterator[av.Packet[AudioStream]]:
        packets = enumerate(self._container.demux())
        while True:
            try:
                count, packet = next(packets)
            except StopIteration:
                return
            except (av.FFmpegError, UnicodeError) as error:
                self.cut = f"cut short: it cannot be read any further: {first_line(error)}"
                return
            if count % PACKETS_PER_HEARTBEAT == 0:
                self._beat()
            if packet.size == 0:
                continue  # the end of a stream; a decoder would take it for the end of all
            if packet.pts is not None:
                index = packet.stream_index
                self._ends[index] = max(self._ends[index], packet.pts + (packet.duration or 0))
            if _is_of(packet, self.stream):
                self._bytes += packet.size
                yield packet

    def _why_not_whole(self) -> str | None:
        """The packets are held against what the header says."""
        missing_seconds = self._missing_seconds()
        if missing_seconds > MISSING_SECONDS:
            return f"cut short: it ends {missing_seconds:.1f} s before it says it does"
        if self.undecodable > 1 + UNDECODABLE_SHARE * self.packets or self.undecodable == self.packets > 0:
            return f"damaged: {self.undecodable} of {self.packets} packets cannot be decoded"
        # What lies between two frames that can be found is one packet, however much it is.
        if self._undecodable_bytes > UNDECODABLE_SHARE * self._bytes + 2 * self._bytes / max(1, self.packets):
            return f"damaged: {self._undecodable_bytes} of {self._bytes} bytes of sound cannot be decoded"
        if self._container.format.name == "flac" and self.stream.duration:
            said = float(self.stream.duration * (self.stream.time_base or 0))
            if said - self.seconds > max(MISSING_SECONDS, UNDECODABLE_SHARE * said):
                return f"damaged: {said - self.seconds:.1f} of {said:.1f} s of sound cannot be found"
        return None

    def _missing_seconds(self) -> float:
        if self._container.format.name == "wav" and self._bit_rate:
            return self._missing_bytes_of_riff() * 8 / self._bit_rate
        ends = [float(end * (s.time_base or 0)) for end, s in zip(self._ends, self._container.streams, strict=True)]
        if self.stream.duration:
            tick = float(self.stream.time_base or 0)
            guessed = (
                self._container.format.name in GUESSED
                and abs(self.stream.duration * tick * self._bit_rate / 8 - self._bytes) < GUESSED_WITHIN * self._bytes
            )
            said = ((self.stream.start_time or 0) + self.stream.duration) * tick
            return 0.0 if guessed else said - ends[self.stream.index]
        if self._sound_alone and len(ends) > 1:
            return 0.0  # what was not read may be longer
        said = ((self._container.start_time or 0) + (self._container.duration or 0)) / av.time_base
        return said - max(ends)

    def _missing_bytes_of_riff(self) -> int:
        """FFmpeg shortens the length that a WAV file says to what is there."""
        with Path(self._container.name).open("rb") as file:
            kind, size = struct.unpack("<4sI", file.read(8))
        known = kind == b"RIFF" and size < _RIFF_UNKNOWN
        return size + 8 - self._container.size if known else 0


def _unlikely(channels: int, sample_rate: int) -> str | None:
    """What is wrong with them."""
    if channels not in CHANNELS:
        return f"expected sound of {CHANNELS[0]} to {CHANNELS[-1]} channels, got {channels}"
    if sample_rate not in SAMPLE_RATES:
        return f"expected sound of {SAMPLE_RATES[0]} to {SAMPLE_RATES[-1]} samples a second, got {sample_rate}"
    return None


def _is_of(packet: av.Packet[Stream], sound: AudioStream) -> TypeGuard[av.Packet[AudioStream]]:
    return packet.stream is sound
