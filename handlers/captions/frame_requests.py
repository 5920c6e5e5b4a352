"""Reads frames from requests, and makes responses of their captions.

A body is either in a format of `reelscribe.wire` (an array of frames, or a dict with such an array under "frames"), or
a JPEG, PNG or WebP still, or a video, of which headers choose frames: X-Reelscribe-Fps: 1, X-Reelscribe-Frames: 10,
X-Reelscribe-Start: 5.0, X-Reelscribe-End: 60.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reelscribe import wire
from reelscribe.contract.frames import FrameArray, FrameCaption, InputSize
from reelscribe.errors import CallFull, FramesError, LimitExceeded
from worker.media_file import CallLimits, FileKind, MediaFiles, is_media_file
from worker.request_batch import Headers, Row, Unread, kind_without, request_body, wrong_format
from worker.still_image import is_still, open_still, to_frame

MAX_ASPECT = 32
"""Limit for longer side / shorter side: scaling a thin line while keeping its aspect ratio could take gigabytes."""

STILL_PIXELS_PER_CALL = 2_000_000_000
"""The most pixels of all stills in one call. Decoding them takes a minute, well below TorchServe's responseTimeout,
after which it would replace the worker."""

ACCEPTED = "an array (pickle, .npy), a JPEG, PNG or WebP still, or a video"
"""The formats of a body, for error messages."""


@dataclass(frozen=True)
class FrameLimits:
    """The limits of one request."""

    frames: int
    """The most frames."""
    side: int
    """Limit for the longer side of a frame, in pixels."""

    def check(self, count: int, width: int, height: int) -> None:
        """Check `count` frames of `width` x `height` pixels.

        Raises:
            LimitExceeded: The frames are too many or too large.
            FramesError: The frames are too long and narrow.
        """
        if count > self.frames:
            raise LimitExceeded(f"frames: at most {self.frames} a request, got {count}; send them in several requests")
        if max(width, height) > self.side:
            raise LimitExceeded(f"frames: sides of at most {self.side} pixels, got a longer one; scale them down")
        if max(width, height) > MAX_ASPECT * min(width, height):
            raise FramesError(
                f"frames: the longer side may be at most {MAX_ASPECT} times the other, got a longer one; crop them"
            )


@dataclass(frozen=True)
class FrameRequest:
    """The frames of one request."""

    items: FrameArray
    """(N, H, W, 3) uint8 RGB."""
    single: bool
    """True if the client sent one frame, (H, W, 3), or a still, rather than an array of frames."""

    def response(self, results: list[FrameCaption]) -> dict[str, Any] | list[dict[str, Any]]:
        """The caption of a single frame, or a list of captions, as JSON."""
        captions = [caption.to_json() for caption in results]
        return captions[0] if self.single else captions


class FramesOfFiles(FileKind):
    """Videos become captions of chosen frames; see `worker.media_file.FileKind`."""

    headers = frozenset({"fps", "frames", "start", "end"})
    fields = ("media", "captions", "caption_spans", "caption_failures")

    def options(self, values: Mapping[str, str]) -> Any:
        """Return the client's options of these values of headers."""
        from reelscribe.decode.sampling import Sampling
        from reelscribe.run.tracks.captions import CaptionOptions

        numbers: Any = {name: int(value) if name == "frames" else float(value) for name, value in values.items()}
        return CaptionOptions(sampling=Sampling(**numbers))

    def items(self, batches: Sequence[Any], _options: Any) -> FrameArray:
        """Return the frames of decoded batches, in order."""
        frames = [batch.frames for batch in batches if len(batch.frames)]
        return np.concatenate(frames) if frames else np.zeros((0, 1, 1, 3), np.uint8)

    def results(self, saved: Sequence[Any]) -> Iterator[Any]:
        """Yield the result of each frame."""
        from reelscribe.results.batches import frame_results

        return frame_results(saved)


class FrameReader:
    """Reads the requests of one call. Together they may hold as many frames as a single request may."""

    def __init__(self, limits: FrameLimits, size: InputSize, files: MediaFiles | None = None) -> None:
        """Set the limits.

        Args:
            limits: The limits of one request.
            size: The model's input size, which stills are scaled to.
            files: Reads videos; None if they are refused.
        """
        self._limits, self._size, self._files = limits, size, files
        self._call = CallLimits()
        self._frames_left, self._still_pixels_left = limits.frames, STILL_PIXELS_PER_CALL

    def __call__(self, row: Row, headers: Headers) -> FrameRequest | Unread:
        """Read the frames of one request; a still or a video is decoded later.

        Args:
            row: The request as TorchServe passes it.
            headers: Its HTTP headers, which may choose frames of a video.

        Raises:
            RequestError: The request cannot be answered.
        """
        body = request_body(row)
        if is_still(body):
            return self._read_still(body)
        if self._files and is_media_file(body):
            return self._files.request(body, headers, self._call)
        if not body.startswith(wire.STARTS):
            raise wrong_format(body, ACCEPTED)
        request = _parse_frames(wire.unpack(body))
        count, height, width, _ = request.items.shape
        self._limits.check(count, width, height)
        self._reserve(count)
        return request

    def _read_still(self, body: bytes | bytearray) -> Unread:
        image = open_still(body)
        self._limits.check(1, *image.size)
        pixels = image.width * image.height
        self._reserve(1, pixels)
        return Unread(lambda: FrameRequest(to_frame(image, self._size)[None], single=True), pixels)

    def _reserve(self, frames: int, still_pixels: int = 0) -> None:
        """Reserve room in this call, before anything large is decoded."""
        if frames > self._frames_left or still_pixels > self._still_pixels_left:
            raise CallFull("call: too many frames in the requests that were joined with this one; try again")
        self._frames_left -= frames
        self._still_pixels_left -= still_pixels


def _parse_frames(tree: Any) -> FrameRequest:
    frames = tree["frames"] if isinstance(tree, dict) and "frames" in tree else tree
    if not isinstance(frames, np.ndarray):
        got = kind_without(frames, "frames")
        raise FramesError(f'frames: expected an array, or a dict with one under "frames", got {got}')
    if frames.dtype != np.uint8:
        raise FramesError(f"frames: expected uint8 (0 to 255), got {frames.dtype}; scale and convert before sending")
    if frames.ndim not in (3, 4) or frames.shape[-1] != 3 or frames.size == 0:
        got = frames.shape if frames.size else "no pixel"
        raise FramesError(f"frames: expected (H, W, 3) or (N, H, W, 3) RGB with at least one pixel, got {got}")
    return FrameRequest(frames if frames.ndim == 4 else frames[None], single=frames.ndim == 3)
