"""A TorchServe handler with an emulated device: it reads requests as the captioner does, and then sleeps.

A device captions `frames_per_second`, whatever the machine; workers that share one wait for each other, and while it
sleeps the cores are free, as they are beside a GPU. In the YAML, under `handler:`, stand that rate, the number of
`devices` among which the workers are dealt out, and the `frame` that they want. A caption says what size its frame had.
"""

from __future__ import annotations

import fcntl
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from frame_requests import FrameLimits, FrameReader
from request_batch import Context, RequestBatch

from reelscribe import wire
from reelscribe.contract.frames import input_size_from_json
from reelscribe.contract.model import CaptionerDescription

LIMITS = FrameLimits(frames=512, side=8192)


class EmulatedHandler:
    """One worker of the device."""

    def load(self, context: Context) -> None:
        """Read the settings."""
        settings = context.model_yaml_config["handler"]
        self._frame = input_size_from_json(settings["frame"])
        self._seconds = 1 / settings["frames_per_second"]
        self._workers = context.model_yaml_config["minWorkers"]
        model = context.manifest["model"]["modelName"]
        self._seat, number = _take_seat(model)
        self._device = _open(f"{model}-device-{number % settings['devices']}")

    def answer(self, data: list[dict[str, Any]], context: Context) -> list[Any]:
        """A caption for each frame, when the device has had the time for it."""
        began = time.monotonic()
        requests = RequestBatch(data, context, FrameReader(LIMITS, self._frame.for_video(224, 224)))
        captions = [[f"{frames.shape[2]} x {frames.shape[1]}"] * len(frames) for frames in requests.items]
        fcntl.flock(self._device, fcntl.LOCK_EX)
        time.sleep(self._seconds * sum(map(len, captions)))
        fcntl.flock(self._device, fcntl.LOCK_UN)
        # Shared out, so that a client that adds up what it is told gets the time of the worker.
        seconds = (time.monotonic() - began) / len(data)
        for i in range(len(data)):
            context.set_response_header(i, wire.COMPUTE_SECONDS_HEADER, f"{seconds:.6f}")
        return requests.responses(captions, self._description().to_json())

    def _description(self) -> CaptionerDescription:
        return CaptionerDescription(
            name="emulated",
            revision="1",
            prompt="",
            generation={},
            frame=self._frame,
            mean=(0.5, 0.5, 0.5),
            std=(0.5, 0.5, 0.5),
            dtype="float32",
            device_batch=32,
            max_frames=LIMITS.frames,
            max_side=LIMITS.side,
            workers=self._workers,
        )


def _take_seat(model: str) -> tuple[IO[str], int]:
    """The first number that no other worker of the model has; it is free again when the worker ends."""
    number = 0
    while True:
        seat = _open(f"{model}-worker-{number}")
        try:
            fcntl.flock(seat, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            seat.close()
            number += 1
        else:
            return seat, number


def _open(name: str) -> IO[str]:
    """A file to be locked; each server has a folder of its own for them."""
    return (Path(tempfile.gettempdir()) / name).open("a")


_handler = EmulatedHandler()


def handle(data: list[dict[str, Any]] | None, context: Context) -> list[Any] | None:
    """TorchServe's entry point; `data` is None when the worker starts."""
    if data is None:
        _handler.load(context)
        return None
    return _handler.answer(data, context)
