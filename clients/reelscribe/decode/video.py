"""Read one video file: a description of it, and the chosen frames, scaled to a model's input size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self, get_args

import av
import numpy as np
from numpy.typing import NDArray

from reelscribe._files import OpenSource, SparseFile
from reelscribe.contract.frames import FrameArray, InputSize, PixelBudget, Resize, input_size_from_json
from reelscribe.contract.scaling import crop
from reelscribe.contract.source import Section, VideoInfo
from reelscribe.decode.container import open_for_ffmpeg
from reelscribe.decode.frame_conversion import FrameScaler, cropped, deinterlace, with_neighbours
from reelscribe.decode.frame_reader import Decoder, DecordReader, FrameReader, open_with_decord
from reelscribe.decode.packet_index import index_packets
from reelscribe.decode.random_access import find_entry_points
from reelscribe.decode.sampling import Sampling
from reelscribe.decode.shots import ShotDetection, find_shots

PIXELS_PER_SECOND = 240e6
"""Pixels that a core decodes and scales in a second, about: H.264 at 1080p, 100 frames a second."""

OVERHEAD_PIXELS = 300_000
"""Pixels that could be decoded in the time that a frame takes whatever its size."""


@dataclass(frozen=True)
class VideoTask:
    """A request to a decode process for frames of a video."""

    path: str
    """Path of the video file."""
    input_size: InputSize | PixelBudget
    """Input size of the model."""
    sampling: Sampling | None = field(default_factory=partial(Sampling, every=1))
    """The choice of frames; by default every frame, None for no frames."""
    resize: Resize = "fast"
    """Method of scaling frames."""
    deinterlace: bool = False
    """If True, frames that are marked as interlaced are deinterlaced."""
    detection: ShotDetection | None = None
    """Settings of the detection of shots, from which `sampling` may choose; None if nobody asks for shots."""
    known_shots: Sequence[Section] | None = None
    """The shots, if they have been found before."""
    stat: str = ""
    """The `file_stat` that the file must have; empty for the one that it has when it is opened."""
    decoder: Decoder = "pyav"
    """What decodes and scales the frames of files that it can read; PyAV reads the others."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            **vars(self),
            "input_size": vars(self.input_size),
            "sampling": self.sampling and self.sampling.to_json(),
            "detection": self.detection and self.detection.to_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Make a task from what `to_json` returned.

        Args:
            value: The parsed JSON.

        Returns:
            The task.

        Raises:
            TypeError: A field is unknown or missing. KeyError says the same.
            ValueError: `resize` or `decoder` is unknown.
            UsageError: A value of the sampling is out of its range.
        """
        for name, known in (("resize", get_args(Resize)), ("decoder", get_args(Decoder))):
            if value[name] not in known:
                raise ValueError(f"{name}: expected one of {', '.join(known)}, got {value[name]!r}")
        input_size, sampling = input_size_from_json(value["input_size"]), value["sampling"]
        detection, shots = value["detection"], value["known_shots"]
        return cls(
            **{
                **value,
                "input_size": input_size,
                "sampling": sampling and Sampling.from_json(sampling),
                "detection": detection and ShotDetection.from_json(detection),
                "known_shots": None if shots is None else [Section(*shot) for shot in shots],
            }
        )


Picture = av.VideoFrame | FrameArray
"""A frame as it was decoded; from decord one that has been scaled, but not cropped, (height, width, 3) uint8 RGB."""


class ChosenFrame(NamedTuple):
    """One of the chosen frames of a video."""

    ordinal: int
    """Number of the frame among the chosen frames, from 0."""
    frame_index: int
    """Number of the frame among all frames of the video, from 0."""
    pts_seconds: float
    """Presentation time in seconds."""
    image: FrameArray | None
    """(height, width, 3) uint8 RGB, or None if the frame cannot be decoded."""


class OpenVideo:
    """An open video file, as a context manager that closes the file.

    Args:
        path: Path of the file.
        stat: The `file_stat` that it must have; empty for the one that it has now.
        deinterlace: Whether frames that are marked as interlaced are deinterlaced.
        detection: Settings of the detection of shots; None if nobody asks for them.
        known_shots: The shots, if they have been found before.
        heartbeat: Called regularly while reading makes progress.
        fetch: Waits until everything from one block to before another is there, if the file has only what was fetched;
            None for all other files.

    Raises:
        MediaError: The file is missing, empty, or not a video.
        SourceChanged: It has another `file_stat`.
    """

    file: OpenSource | SparseFile
    """The open file."""
    info: VideoInfo
    """Description of the video stream."""
    times: NDArray[np.float64]
    """(frames,) float64, presentation time of each frame in seconds, ascending."""
    why_incomplete: str | None
    """Reason why frames are missing; None if the file is complete."""
    shots: Sequence[Section] | None
    """The shots; None if nobody asked for them."""
    undecodable: int
    """Number of frames that could not be decoded when shots were looked for; 0 if they were not."""

    def __init__(
        self,
        path: str,
        *,
        stat: str = "",
        deinterlace: bool = False,
        detection: ShotDetection | None = None,
        known_shots: Sequence[Section] | None = None,
        heartbeat: Callable[[], None] = lambda: None,
        fetch: Callable[[int, int], None] | None = None,
    ) -> None:
        self._deinterlace, self._heartbeat = deinterlace, heartbeat
        with ExitStack() as stack:
            name: str | SparseFile
            if fetch:
                name = self.file = stack.enter_context(SparseFile(path, fetch))
            else:
                self.file = stack.enter_context(open_for_ffmpeg(path, stat))
                name = self.file.name
            self._name, self._packets = name, (packets := index_packets(name, heartbeat))
            self.info, self.times, self.why_incomplete = packets.info, packets.times, packets.why_incomplete
            self._reader = FrameReader(name, packets, heartbeat)
            self.shots, self.undecodable = known_shots, 0
            if detection and known_shots is None:
                self.find_shots(detection)
            self._until_exit = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._until_exit.__exit__(kind, error, trace)

    @property
    def decoded(self) -> int:
        """Number of frames that have been decoded, wanted or not."""
        return self._reader.decoded

    @property
    def can_seek(self) -> bool:
        """True if a part of the video can be decoded again without everything before it."""
        return self._reader.can_seek

    def find_shots(self, detection: ShotDetection) -> None:
        """Decode the whole video to find `shots`."""
        frames = self.decode(range(len(self.times)))
        self.shots, self.undecodable = find_shots(frames, self.times, self.info.end_seconds, detection)

    def seconds(self, index: int) -> float:
        """Return the presentation time of a frame, in seconds."""
        return round(float(self.times[index]), 6)

    def decode(
        self, wanted: Sequence[int], *, drop_disposable: bool | None = None
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        """Decode frames, deinterlace them if that is asked for, and cut off what their container says.

        Args:
            wanted: Indices of frames, ascending.
            drop_disposable: Whether to drop disposable frames, until damage is met; None to do so if it gains anything.

        Yields:
            (index, frame) for each wanted frame that can be decoded, in order.

        Raises:
            MediaError: The file cannot be opened again.
        """
        if drop_disposable is None:
            drop_disposable = self._is_dropping_worthwhile(wanted)
        frames = self._reader.read(self._needed(wanted), drop_disposable=drop_disposable)
        if self._deinterlace:
            frames = deinterlace(frames, wanted)
        margins = self._packets.stated.margins
        yield from frames if margins is None else ((index, cropped(frame, margins)) for index, frame in frames)

    def _needed(self, wanted: Sequence[int]) -> Sequence[int]:
        """Return which frames must be decoded for those that are wanted."""
        return with_neighbours(wanted, len(self.times)) if self._deinterlace else wanted

    def _is_dropping_worthwhile(self, wanted: Sequence[int]) -> bool:
        return self._reader.is_dropping_worthwhile(self._needed(wanted))

    def scaler(
        self, size: InputSize, resize: Resize, *, keeps_shape: bool = True
    ) -> Callable[[av.VideoFrame], FrameArray | None]:
        """Return a function that scales the frames of this video.

        Args:
            size: The size to which frames are scaled.
            resize: Method of scaling.
            keeps_shape: Whether frames of another shape than the first one get bars, and are not stretched.

        Returns:
            A function that returns (size.height, size.width, 3) uint8 RGB of a frame, or None if the frame cannot be
            converted.
        """
        scale = FrameScaler(self._packets.stated, size, resize, self.info.shown_size if keeps_shape else None)

        def scaled(frame: av.VideoFrame) -> FrameArray | None:
            try:
                return scale(frame)
            except av.FFmpegError:  # it cannot convert some pixel formats; their frames count as undecodable
                return None

        return scaled


class Video(OpenVideo):
    """An open video file of which some frames are chosen, as a context manager that closes the file.

    Args:
        task: The request.
        heartbeat: Called regularly while reading makes progress.
        fetch: As for `OpenVideo`.

    Raises:
        MediaError: The file is missing, empty, or not a video.
    """

    chosen: Sequence[int]
    """Indices of the chosen frames, ascending."""
    input_size: InputSize
    """Size to which frames are scaled."""
    end_seconds: float
    """Presentation time at which the part of the video ends from which frames are chosen, in seconds."""

    def __init__(
        self,
        task: VideoTask,
        heartbeat: Callable[[], None] = lambda: None,
        fetch: Callable[[int, int], None] | None = None,
    ) -> None:
        super().__init__(
            task.path,
            stat=task.stat,
            deinterlace=task.deinterlace,
            detection=task.detection,
            known_shots=task.known_shots,
            heartbeat=heartbeat,
            fetch=fetch,
        )
        self._resize, self._keeps_shape = task.resize, isinstance(task.input_size, PixelBudget)
        self.input_size = task.input_size.for_video(*self.info.shown_size)
        self.chosen, self.end_seconds = range(0), self.info.end_seconds
        if task.sampling:
            keyframes, end = self._packets.keyframes, self.info.end_seconds
            self.chosen = task.sampling.choose(self.times, keyframes, end, self.shots or ())
            self.end_seconds = task.sampling.span_end(self.times, end)
        self._drop_disposable = self._is_dropping_worthwhile(self.chosen)
        self._decord: DecordReader | None = None
        if task.decoder == "decord" and isinstance(self._name, str):
            scaled_size = self.input_size.scaled_size(*self.info.shown_size)
            self._decord = open_with_decord(self._name, self._packets, scaled_size, heartbeat)

    @property
    def decoder(self) -> Decoder:
        """What decodes and scales the chosen frames."""
        return "decord" if self._decord else "pyav"

    @property
    def decoded(self) -> int:
        """Number of frames that have been decoded, wanted or not."""
        return super().decoded + (self._decord.decoded if self._decord else 0)

    def entry_points(self, portion_seconds: float) -> Sequence[int]:
        """Find where other processes may begin to read chosen frames.

        Args:
            portion_seconds: Shortest time to read what is between two of them, in seconds, about.

        Returns:
            Ordinals, ascending; empty if one process must read the video, because anything is odd about it, or would do
            so in little time, or because decord reads it, from the beginning.
        """
        gops = self._packets.gops
        min_frames = portion_seconds * PIXELS_PER_SECOND / (self.info.width * self.info.height + OVERHEAD_PIXELS)
        if self._decord or gops is None or not self.can_seek or len(self.times) < 2 * min_frames:
            return ()
        return find_entry_points(self.chosen, self._packets.keyframes, gops, min_frames)

    def frames(
        self, ordinals: range, look_at: Callable[[int, Picture], None] = lambda *_: None
    ) -> Iterator[ChosenFrame]:
        """Read chosen frames.

        Args:
            ordinals: Ordinals of the frames among the chosen frames, ascending.
            look_at: Called with the index and the picture of each of them that can be decoded.

        Yields:
            The frame of each ordinal, in order.

        Raises:
            MediaError: The file cannot be opened again.
        """
        scale = self.scaler(self.input_size, self._resize, keeps_shape=self._keeps_shape)
        decoded = self._pictures(self.chosen[ordinals.start : ordinals.stop])
        end = (self.info.frames, None)  # the index of no frame
        decoded_index, picture = next(decoded, end)
        for ordinal in ordinals:
            frame_index, image = self.chosen[ordinal], None
            if decoded_index == frame_index:
                if picture is not None:
                    look_at(frame_index, picture)
                    image = scale(picture) if isinstance(picture, av.VideoFrame) else crop(picture, self.input_size)
                decoded_index, picture = next(decoded, end)
            yield ChosenFrame(ordinal, frame_index, self.seconds(frame_index), image)

    def _pictures(self, wanted: Sequence[int]) -> Iterator[tuple[int, Picture]]:
        if self._decord:
            return self._decord.read(wanted)
        # Whether to drop is decided for all chosen frames, so that it does not depend on which of them a process reads.
        return self.decode(wanted, drop_disposable=self._drop_disposable)
