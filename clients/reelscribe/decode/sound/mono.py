"""Convert decoded audio to mono samples at a model's sample rate.

FFmpeg mixes the channels, and soxr resamples. There is no dither: models do not need it, and without it the same audio
always gives the same samples.
"""

from __future__ import annotations

from collections.abc import Iterator

import av
import numpy as np
import soxr
from av.filter import Graph
from numpy.typing import NDArray

from reelscribe.contract.speech import SampleArray, to_int16

_FloatArray = NDArray[np.float32]
"""(N,) float32; full scale is 1."""

BLOCK_SAMPLES = 2**14
"""Number of samples that are resampled at once, whatever the size of the frames is."""

DAMAGED_FROM = 256.0
"""Samples of this absolute value or more are damaged and become 0, and so does NaN. Full scale is 1; intact
floating-point audio may exceed it, but not by 48 dB."""


class MonoResampler:
    """Convert audio of one sample rate, whose channels and sample format may change, to mono at another sample rate.

    Sample k of the output is at the time k / `output_rate`, and sample k of the input at k / `input_rate`. From n input
    samples, n * `output_rate` / `input_rate` output samples are made, rounded to the nearest whole number.

    Args:
        input_rate: Sample rate of the frames, in Hz.
        output_rate: Sample rate of the result, in Hz.
    """

    def __init__(self, input_rate: int, output_rate: int) -> None:
        self._mixer: _Mixer | None = None
        self._stream = None
        if input_rate != output_rate:
            self._stream = soxr.ResampleStream(input_rate, output_rate, 1, dtype="float32", quality="HQ")

    def push(self, frame: av.AudioFrame) -> Iterator[SampleArray]:
        """Convert the next frame, and yield the samples that are ready, in arrays of any length."""
        if self._mixer is None or not self._mixer.accepts(frame):
            yield from self._flush_mixer()
            self._mixer = _Mixer(frame)
        yield from map(self._resample, self._mixer.mix(frame))

    def flush(self) -> Iterator[SampleArray]:
        """End the audio, and yield the remaining samples."""
        yield from self._flush_mixer()
        yield self._resample(np.empty(0, np.float32), last=True)

    def _flush_mixer(self) -> Iterator[SampleArray]:
        if self._mixer:
            yield from map(self._resample, self._mixer.mix(None))

    def _resample(self, samples: _FloatArray, *, last: bool = False) -> SampleArray:
        # A single NaN would spread over the whole filter of the resampler. The comparison is false for NaN, too.
        valid = np.where(np.abs(samples) < DAMAGED_FROM, samples, np.float32(0))
        if self._stream:
            valid = self._stream.resample_chunk(valid, last=last)
        return to_int16(valid)


class _Mixer:
    """Mix frames of one sample format, channel layout and sample rate to one channel."""

    def __init__(self, first: av.AudioFrame) -> None:
        self._format = _format(first)
        layout, channels = first.layout.name, first.layout.nb_channels
        if " channels" in layout or "ambisonic" in layout:
            # The positions of the channels are unknown, so they are averaged.
            mix = ("pan", "mono|c0<" + "+".join(f"c{k}" for k in range(channels)))
        else:
            # FFmpeg's matrix gives the centre, which carries the dialogue, the largest weight. It is scaled so that the
            # mix cannot overflow.
            mix = ("aresample", "rematrix_maxval=1")
        self._graph = Graph()
        source = self._graph.add(
            "abuffer",
            sample_rate=str(first.sample_rate),
            sample_fmt=first.format.name,
            channel_layout=layout,
            time_base=f"1/{first.sample_rate}",
        )
        to_float = self._graph.add("aformat", sample_fmts="flt", channel_layouts="mono")
        self._graph.link_nodes(source, self._graph.add(*mix), to_float, self._graph.add("abuffersink")).configure()
        self._graph.set_audio_frame_size(BLOCK_SAMPLES)

    def accepts(self, frame: av.AudioFrame) -> bool:
        return _format(frame) == self._format

    def mix(self, frame: av.AudioFrame | None) -> Iterator[_FloatArray]:
        """Mix the next frame, or None at the end, and yield the blocks that are complete."""
        self._graph.push(frame)
        while True:
            try:
                yield self._graph.pull().to_ndarray()[0]
            except (BlockingIOError, EOFError):  # the graph needs more frames, or has ended
                return


def _format(frame: av.AudioFrame) -> tuple[str, str, int]:
    return frame.format.name, frame.layout.name, frame.sample_rate
