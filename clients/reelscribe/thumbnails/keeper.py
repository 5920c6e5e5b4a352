"""Keeps thumbnails of a source that is decoded anyway, in the decode process of a run.

Thumbnails are no result: they are in no record, and no error of theirs is one of the source. Which frames they show
follows from the chosen frames alone, so any number of processes writes the same files. One takes about as much time as
decoding a frame of 1080p.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import av
import numpy as np
from PIL import Image

from reelscribe.contract.frames import FrameArray
from reelscribe.decode.video import OpenVideo, Picture
from reelscribe.thumbnails.pictures import USUAL_COUNT, moments, nearest_frames, thumbnail_size, to_webp
from reelscribe.thumbnails.store import MOST_PICTURES, ThumbnailStore, ThumbnailTask


class Keeper:
    """Takes pictures of one source and keeps some. It raises nothing: after its first failure, it keeps no more."""

    def __init__(self, task: ThumbnailTask, video: OpenVideo) -> None:
        """Begin without a picture.

        Args:
            task: Which thumbnails to keep, and where.
            video: The open video.
        """
        self._task, self._video, self._store = task, video, ThumbnailStore(Path(task.out))
        self.failure: str | None = None
        """The reason why no more thumbnails are kept; None if all went well."""

    def _keep(self, seconds: float, picture: Callable[[], FrameArray | None]) -> None:
        if self.failure is not None:
            return
        try:
            image = picture()
            if image is not None and not self._video.file.is_changed:  # a copy has the same thumbnails
                self._store.write(self._task.sha256, max(0.0, seconds), to_webp(image))
        except Exception as error:  # noqa: BLE001 - whatever it is, the source must not fail because of it
            self.failure = f"no more thumbnails are kept: {error}"

    def _scaled(self, image: FrameArray) -> FrameArray:
        """Return a frame with the shape that players show."""
        size = thumbnail_size(self._video.info.shown_size)
        if max(image.shape[:2]) < max(size.width, size.height):
            size = thumbnail_size(self._video.info.shown_size, max(image.shape[:2]))
        return np.asarray(Image.fromarray(image).resize((size.width, size.height), Image.Resampling.BILINEAR))


class FrameKeeper(Keeper):
    """Keeps the chosen frames that are nearest to the wanted moments."""

    def __init__(self, task: ThumbnailTask, video: OpenVideo, chosen: Sequence[int], end_seconds: float) -> None:
        """Choose the frames. Which they are does not depend on what of the video this process reads.

        Args:
            task: Which thumbnails to keep, and where.
            video: The open video.
            chosen: Indices of the frames that are chosen from it, ascending.
            end_seconds: Presentation time at which the part of the video ends from which they are chosen, in seconds.
        """
        super().__init__(task, video)
        self._scale = video.scaler(thumbnail_size(video.info.shown_size), "fast")
        self._wanted: set[int] = set()
        if len(chosen):
            wanted = moments(task.most, video.shots or (), float(video.times[chosen[0]]), end_seconds)
            self._wanted = nearest_frames(chosen, video.times, wanted)

    def add(self, index: int, picture: Picture) -> None:
        """Keep a decoded frame, if it is one of the wanted ones."""
        if index in self._wanted:
            self._keep(self._video.seconds(index), partial(self._thumbnail, picture))

    def _thumbnail(self, picture: Picture) -> FrameArray | None:
        return self._scale(picture) if isinstance(picture, av.VideoFrame) else self._scaled(picture)


class ClipKeeper(Keeper):
    """Keeps a frame of each clip, and of few clips at most one in each of equal parts of the video.

    It takes the frames that are sent, which show the whole picture: where shots end, and so which frame is the middle
    of one, is known only when they have been scaled.
    """

    def __init__(self, task: ThumbnailTask, video: OpenVideo, *, of_shots: bool) -> None:
        """Begin without a picture.

        Args:
            task: Which thumbnails to keep, and where.
            video: The open video.
            of_shots: Whether the clips are shots.
        """
        super().__init__(task, video)
        usual = MOST_PICTURES if of_shots else USUAL_COUNT
        self._parts = min(usual if task.most is None else task.most, MOST_PICTURES)
        self._done: set[int] = set()

    def add(self, seconds: Sequence[float], images: Sequence[FrameArray]) -> None:
        """Take the frames of the next clip, and perhaps keep the middle one.

        Args:
            seconds: Presentation time of each frame, in seconds.
            images: The frames, (height, width, 3) uint8 RGB each.
        """
        middle = len(images) // 2
        info = self._video.info
        length = max(info.end_seconds - info.start_seconds, 1e-9)
        part = int((seconds[middle] - info.start_seconds) / length * self._parts)
        if part not in self._done:
            self._done.add(part)
            self._keep(seconds[middle], lambda: self._scaled(images[middle]))
