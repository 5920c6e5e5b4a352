"""One media file -> the description of its sound, and its samples in chunks. Runs inside decode processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from itertools import chain
from types import TracebackType
from typing import Any, NamedTuple

import av
from av.container import InputContainer
from av.stream import Disposition

from reelscribe.contract.chunking import SILENCE_DB, Chunker, Cutting, is_silent
from reelscribe.contract.source import AudioInfo
from reelscribe.contract.speech import SampleArray
from reelscribe.decode.audio_reader import AudioReader
from reelscribe.decode.mono import MonoResampler
from reelscribe.decode.source_file import first_line, open_file
from reelscribe.decode.vad import VoiceActivity, check_vad
from reelscribe.errors import MediaError

JUMP_SECONDS = 0.1
"""Where presentation times differ by more than this from what the samples before them tell, they are believed."""


@dataclass(frozen=True)
class AudioTask:
    """What to read: the sound of the file at `path`, mono at `sample_rate`, in chunks of up to `chunk_samples`.

    A chunk counts as silent if nothing in it is as loud as `silence_db` (None: none does), or, with `vad`, if a model
    of voice activity hears no speech in it. Raises UsageError if the chunks are too short for how they are to be cut,
    or there is no such model.
    """

    path: str
    sample_rate: int
    chunk_samples: int
    cutting: Cutting = field(default_factory=Cutting)
    silence_db: float | None = SILENCE_DB
    vad: bool = False

    def __post_init__(self) -> None:
        self.chunker()
        if self.vad:
            check_vad(self.sample_rate)

    def chunker(self) -> Chunker:
        """What cuts its sound."""
        return Chunker(self.chunk_samples, self.sample_rate, self.cutting)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> AudioTask:
        """What `to_json` made. Raises TypeError, KeyError or UsageError."""
        return cls(**{**value, "cutting": Cutting(**value["cutting"])})


class AudioChunk(NamedTuple):
    """Some of the sound that lies in one piece."""

    first: int
    """Number of its first sample, at the wanted rate, from the first of the stream."""
    stop: int
    """Number of the sample after its last."""
    start_seconds: float
    """Presentation time of its first sample."""
    samples: SampleArray
    """(stop - first,) int16, mono."""
    silent: bool = False
    """Whether there is nothing to hear in it."""


class Audio:
    """An open media file's sound; use it as a context manager.

    It is the stream that players choose: the first that is marked as default, or else the first. Calls `heartbeat` whenever
    it gets on. Raises MediaError for what is no media file, for headers that cannot be true, and for unknown codecs.
    """

    info: AudioInfo | None = None
    """None: there is no sound."""
    pictures: bool
    """Whether it is a video: the picture on a record's cover is none."""
    samples: int = 0
    """How many were read so far, at the wanted rate."""

    def __init__(self, task: AudioTask, heartbeat: Callable[[], None] = lambda: None) -> None:
        self._task = task
        self._voice = VoiceActivity(task.sample_rate) if task.vad else None
        self._reader: AudioReader | None = None
        self._frames: Iterator[av.AudioFrame] = iter(())
        with ExitStack() as stack:
            name = stack.enter_context(open_file(task.path))
            try:
                container = stack.enter_context(av.open(name))
            except (av.FFmpegError, UnicodeError) as error:
                raise MediaError(f"not a media file that can be read: {first_line(error)}") from None
            self.pictures = any(not s.disposition & Disposition.attached_pic for s in container.streams.video)
            if container.streams.audio:
                self._reader = AudioReader(container, heartbeat)
                self._open(self._reader, container)
            self._close = stack.pop_all().close

    def __enter__(self) -> Audio:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _open(self, reader: AudioReader, container: InputContainer) -> None:
        """Decode the first frame: headers do not know about priming, nor all codecs their own rate."""
        frames = reader.frames()
        first = next(frames, None)
        codec = reader.stream.codec_context
        start = float((first and _time(first)) or 0)
        media_start = start if container.start_time is None else container.start_time / av.time_base
        self.info = AudioInfo(
            codec=codec.name,
            sample_rate=first.sample_rate if first else codec.sample_rate,
            channels=first.layout.nb_channels if first else codec.layout.nb_channels,
            start_seconds=round(start, 6),
            media_start_seconds=round(min(start, media_start), 6),
            duration_seconds=round((container.duration or 0) / av.time_base, 6),
        )
        self._frames = chain([first] if first else [], frames)

    @property
    def cut(self) -> str | None:
        """Why the sound is not whole, if it is not; known when all chunks have been read."""
        return self._reader.cut if self._reader else None

    @property
    def read_seconds(self) -> float:
        """How much was decoded so far."""
        return self.samples / self._task.sample_rate

    def chunks(self, first: int = 0) -> Iterator[AudioChunk]:
        """All that can be decoded from sample `first` on, in order; to be called once.

        `first` is the `stop` of a chunk of another reading, and then the chunks are those that came after it there.
        """
        # Decoders and the resampler remember what came before, so reading begins where it always does: samples after a
        # seek are nearly the same, but a chunk must be the same to the bit, or its transcript might be another.
        for chunk in self._all_chunks():
            self.samples = chunk.stop
            if chunk.stop > first:
                wanted = self._without_its_start(chunk, first) if chunk.first < first else chunk
                yield wanted._replace(silent=self._is_silent(wanted.samples))

    def _without_its_start(self, chunk: AudioChunk, first: int) -> AudioChunk:
        """Where another version of the decoders made `first` a cut, nothing is told twice, and nothing is left out."""
        seconds = round(chunk.start_seconds + (first - chunk.first) / self._task.sample_rate, 6)
        return chunk._replace(first=first, start_seconds=seconds, samples=chunk.samples[first - chunk.first :])

    def _is_silent(self, samples: SampleArray) -> bool:
        rate, threshold = self._task.sample_rate, self._task.silence_db
        if threshold is not None and is_silent(samples, rate, threshold):
            return True
        return self._voice is not None and not self._voice.hears_speech(samples)

    def _all_chunks(self) -> Iterator[AudioChunk]:
        stretch: _Stretch | None = None
        for frame in self._frames:
            if stretch is None:
                stretch = _Stretch(self._task, 0, _time(frame) or Fraction(0), frame.sample_rate)
            elif not stretch.goes_on_with(frame):
                yield from stretch.finish()
                start = _time(frame)
                start = stretch.end if start is None else start
                stretch = _Stretch(self._task, stretch.stop, start, frame.sample_rate)
            yield from stretch.push(frame)
        if stretch:
            yield from stretch.finish()


class _Stretch:
    """Sound at one sample rate and without a jump in its presentation times; chunks never go beyond it.

    So where sound is missing, or comes twice, none is made up and none is dropped. Presentation times that drift away
    from the count of samples are no jump: chunks begin when they say.
    """

    def __init__(self, task: AudioTask, first: int, start: Fraction, sample_rate: int) -> None:
        self.stop = first
        """Number of the sample after the last chunk."""
        self._task, self._first, self._sample_rate = task, first, sample_rate
        self._read = 0
        # What comes next is heard then, as the last frame says, and as the samples since the last anchor say. Floating
        # point, as frames are many, and a jump is far larger than its errors.
        self._next_time = self._counted_time = float(start)
        self._anchors = deque([(0, start)])  # samples that were read, and when the next one is heard
        self._resampler = MonoResampler(sample_rate, task.sample_rate)
        self._chunker = task.chunker()

    @property
    def end(self) -> Fraction:
        """Presentation time of what comes next, if nothing is missing."""
        read, time = self._anchors[-1]
        return time + Fraction(self._read - read, self._sample_rate)

    def goes_on_with(self, frame: av.AudioFrame) -> bool:
        if frame.sample_rate != self._sample_rate:
            return False
        return frame.time is None or abs(frame.time - self._next_time) <= JUMP_SECONDS

    def push(self, frame: av.AudioFrame) -> Iterator[AudioChunk]:
        if frame.time is not None:
            self._next_time = frame.time
            if abs(frame.time - self._counted_time) > JUMP_SECONDS:
                self._anchors.append((self._read, _time(frame) or Fraction(0)))
                self._counted_time = frame.time
        self._read += frame.samples
        self._next_time += frame.samples / self._sample_rate
        self._counted_time += frame.samples / self._sample_rate
        for samples in self._resampler.push(frame):
            yield from map(self._chunk, self._chunker.push(samples))

    def finish(self) -> Iterator[AudioChunk]:
        for samples in self._resampler.flush():
            yield from map(self._chunk, self._chunker.push(samples))
        yield from map(self._chunk, self._chunker.flush())

    def _chunk(self, samples: SampleArray) -> AudioChunk:
        first, self.stop = self.stop, self.stop + len(samples)
        start = round(float(self._heard(Fraction(first - self._first, self._task.sample_rate))), 6)
        return AudioChunk(first, self.stop, start, samples)

    def _heard(self, since_first: Fraction) -> Fraction:
        """Presentation time of what comes so many seconds of sound after the first sample; later and later ones."""
        read = since_first * self._sample_rate
        while len(self._anchors) > 1 and self._anchors[1][0] <= read:
            self._anchors.popleft()
        anchor, time = self._anchors[0]
        return time + (read - anchor) / self._sample_rate


def _time(frame: av.AudioFrame) -> Fraction | None:
    """Presentation time in seconds."""
    return None if frame.pts is None or frame.time_base is None else frame.pts * frame.time_base
