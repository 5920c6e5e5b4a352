"""Reads clips from requests, and makes responses of their descriptions.

A body is in a format of `reelscribe.wire`, or a JPEG, PNG or WebP still, or a video. In the first case, it is a dict
with a list of clips under "clips", one such clip, or an array of the frames of one. A clip is a dict: "frames" is an
array, and "pts_seconds" and "prompt" may be left out.

With a video, headers say what clips it is cut into, and what is asked about them: X-Reelscribe-Clips: shots or windows,
X-Reelscribe-Prompt, X-Reelscribe-Fps, X-Reelscribe-Max-Frames and X-Reelscribe-Total-Pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from PIL import Image

from clips.describer import Describer
from reelscribe import wire
from reelscribe.contract.clips import MAX_ASPECT, Clip, ClipBudget, ClipDescription
from reelscribe.contract.descriptions import ClipModelDescription
from reelscribe.contract.frames import FrameArray, InputSize
from reelscribe.contract.scaling import fit
from reelscribe.errors import CallFull, FramesError, LimitExceeded, PromptError, UsageError, kind_of
from worker.media_file import CallLimits, FileKind, MediaFiles, is_media_file
from worker.request_batch import Headers, Row, Unread, kind_without, request_body, wrong_format
from worker.still_image import is_still, open_still, to_frame

STILL_PIXELS_PER_CALL = 2_000_000_000
"""The most pixels of all stills in one call. Decoding them takes a minute, well below TorchServe's responseTimeout,
after which it would replace the worker."""

ACCEPTED = "clips or frames (pickle, .npy), a JPEG, PNG or WebP still, or a video"
"""The formats of a body, for error messages."""

_FIELDS = {"frames", "pts_seconds", "prompt"}


@dataclass(frozen=True)
class ClipRequest:
    """The clips of one request."""

    items: list[Clip]
    """At least one."""
    single: bool
    """True if the client sent one clip or a still, rather than a list of clips."""

    def response(self, results: list[ClipDescription]) -> dict[str, Any] | list[dict[str, Any]]:
        """Return the description of a single clip, or a list of descriptions, as JSON."""
        descriptions = [description.to_json() for description in results]
        return descriptions[0] if self.single else descriptions


class ClipsOfFiles(FileKind):
    """Videos become descriptions of their clips; see `worker.media_file.FileKind`."""

    headers = frozenset({"clips", "prompt", "fps", "max-frames", "total-pixels"})
    fields = ("media", "shots", "clips", "clip_failures")

    def __init__(self, describer: Describer, description: ClipModelDescription) -> None:
        """Take the model, which knows what prompts it accepts, and its description as a client has it."""
        super().__init__(description, describer.settings.max_clips)
        self._check_prompt = describer.check_prompt

    def options(self, values: Mapping[str, str]) -> Any:
        """Return the client's options of these values of headers."""
        from reelscribe.decode.clips import ClipCutting
        from reelscribe.run.tracks.clips import ClipOptions
        from reelscribe.run.tracks.prompts import has_field

        if (prompt := values.get("prompt")) and any(has_field(prompt, name) for name in ("name", "transcript")):
            raise UsageError(
                "prompt: expected no {name} and no {transcript}, which a posted file lacks; leave them out"
            )
        cut: Any = values.get("clips")
        return ClipOptions(
            cutting=ClipCutting(cut),
            prompt=prompt,
            fps=float(values["fps"]) if "fps" in values else None,
            max_frames=int(values["max-frames"]) if "max-frames" in values else None,
            total_pixels=int(values["total-pixels"]) if "total-pixels" in values else None,
        )

    def items(self, batches: Sequence[Any], _options: Any) -> list[Clip]:
        """Return the clips of decoded batches, in order; raises PromptError for a prompt that they may not have."""
        clips = [clip for batch in batches for clip in batch.items]
        # Only now are their fields filled in, with which the model reads them.
        for prompt in {clip.prompt for clip in clips if clip.prompt is not None}:
            self._check_prompt(prompt)
        return clips

    def results(self, saved: Sequence[Any]) -> Iterator[Any]:
        """Yield the result of each clip."""
        from reelscribe.results.batches import clip_results

        return clip_results(saved)


class ClipReader:
    """Reads the requests of one call. Together they may hold as many clips as a single request may."""

    def __init__(self, describer: Describer, files: MediaFiles | None = None) -> None:
        """Begin a call of a model, which knows the limits of a request; without `files`, videos are refused."""
        self._describer, self._settings, self._files = describer, describer.settings, files
        self._call = CallLimits()
        self._clips_left, self._still_pixels_left = self._settings.max_clips, STILL_PIXELS_PER_CALL

    def __call__(self, row: Row, headers: Headers) -> ClipRequest | Unread:
        """Read the clips of one request; files are decoded later, and frames of another size are scaled later.

        Args:
            row: The request as TorchServe passes it.
            headers: Its HTTP headers, which may have options for a video; all others are in the body.

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
        tree: Any = wire.unpack(body)
        listed = isinstance(tree, dict) and set(tree) == {"clips"}
        sent = tree["clips"] if listed else [tree]
        if not isinstance(sent, list) or not sent:
            raise FramesError(f"clips: expected a list of at least one clip, got {kind_of(sent)}")
        if len(sent) > self._settings.max_clips:
            raise LimitExceeded(
                f"clips: at most {self._settings.max_clips} a request, got {len(sent)}; send them in several requests"
            )
        clips = [self._read_clip(each) for each in sent]
        self._reserve(len(clips))
        if not any(map(self._is_to_be_scaled, clips)):
            return ClipRequest(clips, single=not listed)
        pixels = sum(clip.frames.size // 3 for clip in clips)
        return Unread(lambda: ClipRequest([self._scale(clip) for clip in clips], single=not listed), pixels)

    def _read_still(self, body: bytes | bytearray) -> Unread:
        image = open_still(body)
        self._check_sides(*image.size)
        pixels = image.width * image.height
        self._reserve(1, pixels)
        size = self._describer.family.still_budget.frame_size(1, *image.size)
        return Unread(lambda: ClipRequest([Clip(to_frame(image, size)[None], [0.0])], single=True), pixels)

    def _read_clip(self, sent: Any) -> Clip:
        tree = {"frames": sent} if isinstance(sent, np.ndarray) else sent
        if not isinstance(tree, dict) or "frames" not in tree or not set(tree) <= _FIELDS:
            raise FramesError(
                "clip: expected an array, or a dict with frames and optionally pts_seconds and prompt, got"
                f" {kind_without(sent, 'frames')}"
            )
        frames = self._check_frames(tree["frames"])
        times = tree.get("pts_seconds")
        if times is None:
            times = [k / self._budget(len(frames)).fps for k in range(len(frames))]
        return Clip(frames, _check_times(times, len(frames)), self._check_prompt(tree))

    def _check_frames(self, frames: Any) -> FrameArray:
        if not isinstance(frames, np.ndarray):
            raise FramesError(f"frames: expected an array, got {kind_of(frames)}")
        if frames.dtype != np.uint8:
            raise FramesError(f"frames: expected uint8 (0 to 255), got {frames.dtype}; convert before sending")
        if frames.ndim not in (3, 4) or frames.shape[-1] != 3 or frames.size == 0:
            got = frames.shape if frames.size else "no pixel"
            raise FramesError(f"frames: expected (H, W, 3) or (N, H, W, 3) RGB with at least one pixel, got {got}")
        array: FrameArray = frames if frames.ndim == 4 else frames[None]
        if len(array) > self._describer.budget.max_frames:
            raise LimitExceeded(
                f"frames: at most {self._describer.budget.max_frames} a clip, got {len(array)}; leave some out"
            )
        self._check_sides(array.shape[2], array.shape[1])
        return array

    def _check_sides(self, width: int, height: int) -> None:
        if max(width, height) > self._settings.max_side:
            raise LimitExceeded(
                f"frames: sides of at most {self._settings.max_side} pixels, got a longer one; scale them down"
            )
        if max(width, height) > MAX_ASPECT * min(width, height):
            raise FramesError(
                f"frames: the longer side may be at most {MAX_ASPECT} times the other, got a longer one; crop them"
            )

    def _budget(self, count: int) -> ClipBudget:
        return self._describer.family.still_budget if count == 1 else self._describer.budget

    def _size(self, clip: Clip) -> InputSize:
        """The size that the model's own processor gives the frames of a clip."""
        count, height, width, _ = clip.frames.shape
        return self._budget(count).frame_size(count, width, height)

    def _is_to_be_scaled(self, clip: Clip) -> bool:
        """Return whether the frames have another size; those of our client have it already."""
        size = self._size(clip)
        return (size.height, size.width) != clip.frames.shape[1:3]

    def _scale(self, clip: Clip) -> Clip:
        size = self._size(clip)
        if not self._is_to_be_scaled(clip):
            return clip
        return replace(clip, frames=np.stack([fit(Image.fromarray(frame), size) for frame in clip.frames]))

    def _check_prompt(self, tree: dict[str, Any]) -> str | None:
        prompt = tree.get("prompt")
        if prompt is None:
            return None
        if not isinstance(prompt, str) or not prompt.strip():
            raise PromptError(f"prompt: expected a text that is not empty, got {kind_of(prompt)}")
        self._describer.check_prompt(prompt)
        return prompt

    def _reserve(self, clips: int, still_pixels: int = 0) -> None:
        """Reserve room in this call, before anything large is decoded."""
        if clips > self._clips_left or still_pixels > self._still_pixels_left:
            raise CallFull("call: too many clips in the requests that were joined with this one; try again")
        self._clips_left -= clips
        self._still_pixels_left -= still_pixels


def _check_times(times: Any, count: int) -> list[float]:
    numbers = isinstance(times, list) and all(type(time) in (int, float) and math.isfinite(time) for time in times)
    if not numbers or len(times) != count:
        got = f"{len(times)} of them" if numbers else kind_of(times)
        raise FramesError(f"pts_seconds: expected a list of {count} finite numbers, one for each frame, got {got}")
    if any(second < first for first, second in pairwise(times)):
        raise FramesError("pts_seconds: expected times that ascend, got one before the one in front of it")
    return [float(time) for time in times]
