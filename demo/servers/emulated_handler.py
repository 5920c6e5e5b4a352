"""A TorchServe handler with an emulated device: it reads requests as the caption handler does, and sleeps.

A device takes `call_seconds` for each call, and captions `frames_per_second` then, whatever the machine. Workers that
share a device wait for each other. While a worker sleeps, it uses no CPU core, like a worker that waits for a GPU. The
YAML's `handler:` has these two, the number of `devices` among which the workers are divided unless TorchServe assigns
them GPUs, and `frame`, the model's input size, besides `max_frames`. The caption of a frame is its size.
"""

from __future__ import annotations

import fcntl
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from captions.frame_requests import FrameLimits, FrameReader
from reelscribe import wire
from reelscribe.contract import shared_memory
from reelscribe.contract.descriptions import CaptionerDescription
from reelscribe.contract.frames import FrameCaption, input_size_from_json
from worker.handler import keep_freed_memory
from worker.request_batch import Context, RequestBatch
from worker.workers import count_workers, worker_name


class EmulatedHandler:
    """One worker of an emulated device."""

    def load(self, context: Context) -> None:
        """Read the settings, and choose the device that this worker uses."""
        keep_freed_memory()
        settings = context.model_yaml_config["handler"]
        self._frame, self._limits = input_size_from_json(settings["frame"]), FrameLimits(settings["max_frames"], 8192)
        self._joined = context.system_properties["batch_size"]
        self._call_seconds, self._seconds = settings["call_seconds"], 1 / settings["frames_per_second"]
        model = context.manifest["model"]["modelName"]
        # The lock is held as long as the file is open, which is as long as the worker lives.
        self._worker_lock, number = _lock_worker_number(model)
        gpu = context.system_properties["gpu_id"]
        device = number % settings["devices"] if gpu is None else gpu
        self._device, self._name = _lock_file(f"{model}-device-{device}"), worker_name([f"cuda:{device}"])

    def answer(self, data: list[dict[str, Any]], context: Context) -> list[str]:
        """Return captions for all frames, after the time that the device needs for them."""
        began = time.monotonic()
        requests = RequestBatch(data, context, FrameReader(self._limits, self._frame.for_video(224, 224)))
        captions = [[FrameCaption(f"{frames.shape[2]} x {frames.shape[1]}")] * len(frames) for frames in requests.items]
        fcntl.flock(self._device, fcntl.LOCK_EX)
        time.sleep(self._call_seconds + self._seconds * sum(map(len, captions)))
        fcntl.flock(self._device, fcntl.LOCK_UN)
        # Each request gets an equal part of the time, so that their headers add up to the worker's time.
        seconds = (time.monotonic() - began) / len(data)
        for i in range(len(data)):
            context.set_response_header(i, wire.COMPUTE_SECONDS_HEADER, f"{seconds:.6f}")
            context.set_response_header(i, wire.WORKER_HEADER, self._name)
            context.set_response_header(i, wire.ITEMS_HEADER, str(sum(map(len, captions))))
        return requests.responses(captions, self._description().to_json() if requests.ask_for_description else {})

    def _description(self) -> CaptionerDescription:
        return CaptionerDescription(
            name="emulated",
            revision="1",
            prompt="",
            generation={},
            input_size=self._frame,
            mean=(0.5, 0.5, 0.5),
            std=(0.5, 0.5, 0.5),
            dtype="float32",
            device_batch=32,
            joined_requests=self._joined,
            max_frames=self._limits.frames,
            max_side=self._limits.side,
            workers=count_workers(),
            machine=shared_memory.machine(),
        )


def _lock_worker_number(model: str) -> tuple[IO[str], int]:
    """The smallest number that no other worker of the model has, locked until the returned file is closed."""
    number = 0
    while True:
        file = _lock_file(f"{model}-worker-{number}")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            number += 1
        else:
            return file, number


def _lock_file(name: str) -> IO[str]:
    """An open file for a lock. Each server has its own folder for temporary files, so names need no server in them."""
    return (Path(tempfile.gettempdir()) / name).open("a")


_handler = EmulatedHandler()


def handle(data: list[dict[str, Any]] | None, context: Context) -> list[str] | None:
    """TorchServe's entry point: `data` is None when the worker starts, and later a batch of requests."""
    if data is None:
        _handler.load(context)
        return None
    return _handler.answer(data, context)
