"""Reads windows of frames from requests, and makes responses of the probabilities of their frames.

A body is in a format of `reelscribe.wire`: an array of windows, (N, T, 27, 48, 3), or one window, (T, 27, 48, 3); or a
dict with such an array, or a list of windows that may differ in length, under "windows". A window has up to 100 frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reelscribe import wire
from reelscribe.contract.shots import WindowAnswer, WindowArray, Windowing
from reelscribe.errors import CallFull, FramesError, LimitExceeded, kind_of
from worker.request_batch import Headers, Row, kind_without, request_body, wrong_format

ACCEPTED = "windows of frames (pickle, .npy)"
"""The formats of a body, for error messages."""


@dataclass(frozen=True)
class WindowRequest:
    """The windows of one request."""

    items: Sequence[WindowArray] | WindowArray
    """(T, height, width, 3) uint8 RGB each; an array of all of them where they have the same T."""
    single: bool
    """True if the client sent one window rather than several."""

    def response(self, results: list[WindowAnswer]) -> dict[str, Any] | list[dict[str, Any]]:
        """Return the answer for a single window, or a list of answers, as JSON."""
        answers = [answer.to_json() for answer in results]
        return answers[0] if self.single else answers


class WindowReader:
    """Reads the requests of one call. Together they may hold as many windows as a single request may."""

    def __init__(self, max_windows: int, windowing: Windowing) -> None:
        """Set the limits.

        Args:
            max_windows: The most windows of one request.
            windowing: The size of frames, and the most frames of a window.
        """
        self._max_windows, self._windowing = max_windows, windowing
        self._left = max_windows

    def __call__(self, row: Row, _headers: Headers) -> WindowRequest:
        """Read the windows of one request.

        Args:
            row: The request as TorchServe passes it.
            _headers: Not used; there are no options.

        Raises:
            RequestError: The request cannot be answered.
        """
        body = request_body(row)
        if not body.startswith(wire.STARTS):
            raise wrong_format(body, ACCEPTED)
        request = self._parse(wire.unpack(body))
        count = len(request.items)
        if count > self._max_windows:
            raise LimitExceeded(
                f"windows: at most {self._max_windows} a request, got {count}; send them in several requests"
            )
        if count > self._left:
            raise CallFull("call: too many windows in the requests that were joined with this one; try again")
        self._left -= count
        return request

    def _parse(self, tree: Any) -> WindowRequest:
        windows = tree["windows"] if isinstance(tree, dict) and set(tree) == {"windows"} else tree
        if isinstance(windows, list) and windows and windows is not tree:
            return WindowRequest([self._check(window, 4) for window in windows], single=False)
        if not isinstance(windows, np.ndarray):
            got = kind_without(windows, "windows")
            raise FramesError(f'windows: expected an array, or a dict with one or a list under "windows", got {got}')
        if windows.ndim == 4:
            return WindowRequest(self._check(windows, 4)[None], single=True)
        return WindowRequest(self._check(windows, 5), single=False)

    def _check(self, windows: Any, dimensions: int) -> WindowArray:
        if not isinstance(windows, np.ndarray):
            raise FramesError(f"windows: expected arrays, got {kind_of(windows)}")
        if windows.dtype != np.uint8:
            raise FramesError(f"windows: expected uint8 (0 to 255), got {windows.dtype}; convert before sending")
        size = (self._windowing.height, self._windowing.width, 3)
        if windows.ndim != dimensions or windows.shape[-3:] != size or not windows.size:
            got = windows.shape if windows.size else "no pixel"
            raise FramesError(
                f"windows: expected (N, T) or (T) frames of {size} RGB, at least one, got {got}; scale frames before"
                " sending"
            )
        if windows.shape[-4] > self._windowing.frames:
            raise LimitExceeded(
                f"windows: at most {self._windowing.frames} frames a window, got {windows.shape[-4]}; send several"
            )
        return windows
