"""Decoded sound -> mono samples at the rate of a model.

FFmpeg mixes the channels, soxr resamples. No dither: a model hears no difference, and equal sound stays equal.
"""

from __future__ import annotations

from collections.abc import Iterator

import av
import numpy as np
import soxr
from av.filter import Graph
from numpy.typing import NDArray

from reelscribe.contract.speech import SampleArray

Floats = NDArray[np.float32]

PIECE = 2**14
"""Samples that are resampled at once, however few or many a frame has."""

LOUDEST = 256.0
"""Full scale is 1. Floating-point sound overshoots it, but not by 48 dB: such samples are damage, like NaN."""


class MonoResampler:
    """Sound of one sample rate, which may change its channels and format, to mono at another.

    Sample k of what comes out lies at the time of k / `wanted_rate`, as sample k of what goes in does at
    k / `sample_rate`; of n samples, n * wanted_rate / sample_rate come out, rounded to the nearest.
    """

    def __init__(self, sample_rate: int, wanted_rate: int) -> None:
        self._mixer: _Mixer | None = None
        self._stream = None
        if sample_rate != wanted_rate:
            self._stream = soxr.ResampleStream(sample_rate, wanted_rate, 1, dtype="float32", quality="HQ")

    def push(self, frame: av.AudioFrame) -> Iterator[SampleArray]:
        """What comes out when a frame goes in: pieces of any length, none if nothing is known yet."""
        if self._mixer is None or not self._mixer.takes(frame):
            yield from self._end_of_mix()
            self._mixer = _Mixer(frame)
        yield from map(self._resample, self._mixer.mix(frame))

    def flush(self) -> Iterator[SampleArray]:
        """The rest, when nothing follows."""
        yield from self._end_of_mix()
        yield self._resample(np.empty(0, np.float32), last=True)

    def _end_of_mix(self) -> Iterator[SampleArray]:
        if self._mixer:
            yield from map(self._resample, self._mixer.mix(None))

    def _resample(self, samples: Floats, *, last: bool = False) -> SampleArray:
        # NaN compares as false. One such sample would silence all that the resampler's filter reaches.
        sound = np.where(np.abs(samples) < LOUDEST, samples, np.float32(0))
        if self._stream:
            sound = self._stream.resample_chunk(sound, last=last)
        whole: SampleArray = np.clip(np.rint(sound * 32768), -32768, 32767).astype(np.int16)
        return whole


class _Mixer:
    """Mixes frames of one kind to one channel."""

    def __init__(self, like: av.AudioFrame) -> None:
        self._kind = _kind(like)
        layout, channels = like.layout.name, like.layout.nb_channels
        if " channels" in layout or "ambisonic" in layout:
            # Nobody knows what they are: the mean of all.
            mix = ("pan", "mono|c0<" + "+".join(f"c{k}" for k in range(channels)))
        else:
            # FFmpeg's matrix, in which dialogue, which is in the centre, is loudest; scaled so that nothing overflows.
            mix = ("aresample", "rematrix_maxval=1")
        self._graph = Graph()
        source = self._graph.add(
            "abuffer",
            sample_rate=str(like.sample_rate),
            sample_fmt=like.format.name,
            channel_layout=layout,
            time_base=f"1/{like.sample_rate}",
        )
        to_float = self._graph.add("aformat", sample_fmts="flt", channel_layouts="mono")
        self._graph.link_nodes(source, self._graph.add(*mix), to_float, self._graph.add("abuffersink")).configure()
        self._graph.set_audio_frame_size(PIECE)

    def takes(self, frame: av.AudioFrame) -> bool:
        return _kind(frame) == self._kind

    def mix(self, frame: av.AudioFrame | None) -> Iterator[Floats]:
        """Pieces that are known now; None: nothing follows."""
        self._graph.push(frame)
        while True:
            try:
                yield self._graph.pull().to_ndarray()[0]
            except (BlockingIOError, EOFError):  # it wants more
                return


def _kind(frame: av.AudioFrame) -> tuple[str, str, int]:
    return frame.format.name, frame.layout.name, frame.sample_rate
