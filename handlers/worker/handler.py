"""The base class of handlers: a worker loads its model once, and then answers the requests of each call.

When a worker starts, TorchServe imports the archive's handler file (caption_handler.py or speech_handler.py) and calls
its function `handle` with None, which loads the model. From then on it calls `handle` with the requests of one call at
a time: one request, or up to batchSize requests that it joined. Clients ask for the model's description with the header
`describe`, and get it from the same function.
"""

from __future__ import annotations

import ctypes
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic

import torch
import torch.distributed as dist

from reelscribe import wire
from reelscribe.contract import shared_memory
from reelscribe.contract.descriptions import identity_of
from reelscribe.errors import StartupError
from runtime.device_batches import DeviceBatches, Items
from runtime.metrics import Counters, MetricsReporter
from runtime.model_settings import Settings
from runtime.second_stage import SecondStage, StageFunction
from worker.request_batch import Context, RequestBatch, RequestReader, Row, free_bodies
from worker.workers import count_workers, worker_name

logger = logging.getLogger(__name__)

DEFAULT_RESPONSE_SECONDS = 120
"""TorchServe's default for responseTimeout: seconds that a call may take."""

DEFAULT_STARTUP_SECONDS = 120
"""TorchServe's default for startupTimeout: seconds that loading a model may take."""

KEPT_BYTES = 2**30
"""Freed blocks, and free memory at the end of the heap, return to the kernel only above this many bytes."""

DOCUMENTED_BYTES = 32 << 20
"""The largest M_MMAP_THRESHOLD, in bytes, that mallopt(3) promises to accept; glibc 2.36 accepts more."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Values of M_TRIM_THRESHOLD and M_MMAP_THRESHOLD in malloc.h."""


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to answer requests."""

    description: dict[str, Any]
    """The answer to `describe`, as JSON."""
    new_reader: Callable[[], RequestReader]
    """Makes a reader for the requests of one call."""
    batches: DeviceBatches
    """Runs items through the model."""
    counters: Counters = field(default_factory=Counters)
    """The counters of the model and of `batches`."""
    example: Callable[[int], Items] | None = None
    """Makes a number of items, with which compiled steps are warmed up; None where it has none."""

    @cached_property
    def identity(self) -> str:
        """Hash of everything that decides the model's answers; clients notice by it that the model has changed."""
        return identity_of(self.description)


class ModelHandler(ABC, Generic[Settings]):
    """Answers TorchServe's calls with one model; each kind of handler says how to load it."""

    settings_class: type[Settings]
    """The class of the settings under `handler:` in the YAML."""

    _model: LoadedModel
    _metrics: MetricsReporter
    _worker: str
    _read_threads: Executor | None
    """The first three are set when the model is loaded, and never in the process of a second stage."""

    @abstractmethod
    def load_model(
        self,
        settings: Settings,
        device: torch.device,
        response_seconds: float,
        second_stage: SecondStage | None = None,
    ) -> LoadedModel:
        """Load the model, or with a `second_stage` only the first of its two stages.

        Args:
            settings: The settings under `handler:` in the YAML.
            device: Where to load the model.
            response_seconds: TorchServe's timeout for a call, in seconds; part of the description.
            second_stage: The second stage in the other process; None where this process runs both.

        Raises:
            StartupError: The model cannot be served by this handler.
        """

    def load_second_stage(self, settings: Settings, device: torch.device) -> StageFunction:
        """Load the second of two stages onto `device`; only handlers whose models have two stages implement it.

        Returns:
            The function that computes the output of the second stage from the output of the first one.

        Raises:
            StartupError: The model cannot be split into two stages.
        """
        raise NotImplementedError

    def load(self, context: Context) -> None:
        """Load the model of the YAML onto the worker's GPU, or onto the CPU where TorchServe assigns no GPU.

        Args:
            context: TorchServe's context.

        Raises:
            StartupError: A setting is wrong, the model cannot be served, or torch does not see the GPU.
        """
        config = context.model_yaml_config
        settings = self.settings_class.from_yaml(config)
        gpu = context.system_properties.get("gpu_id")
        threads = settings.threads_that_read()
        self._read_threads = ThreadPoolExecutor(threads, "read") if threads else None
        torch.set_num_threads(settings.cpu_threads)
        keep_freed_memory()
        if gpu is not None and not torch.cuda.is_available():
            raise StartupError(
                f"TorchServe gave this worker GPU {gpu}, but torch sees none; install a CUDA build of torch"
            )
        if settings.stages == 1:
            device = torch.device("cpu" if gpu is None else f"cuda:{gpu}")
            model = self.load_model(settings, device, _response_seconds(config))
            if settings.compile:
                model.batches.warm_up(model.example)
            self._start(context, settings, model, device)
        else:
            self._load_stage(context, settings, gpu)

    def _load_stage(self, context: Context, settings: Settings, gpu: int | None) -> None:
        """Load this process's stage of a model in two stages; TorchServe sends requests to the first stage only."""
        # Only models in two stages need this package.
        from pipeline.remote_stage import RemoteSecondStage, serve_second_stage
        from pipeline.stage_pair import join_pair

        config = context.model_yaml_config
        response_seconds = _response_seconds(config)
        load_seconds = config.get("startupTimeout", DEFAULT_STARTUP_SECONDS)
        # The first result may arrive only after the second stage has loaded its weights.
        result_seconds = max(response_seconds, load_seconds)
        pair = join_pair(gpu, stage_seconds=settings.stage_seconds, load_seconds=load_seconds)
        if pair.rank == 1:
            serve_second_stage(pair, self.load_second_stage(settings, pair.device), result_seconds)
            logger.info("%s, second stage, on %s, process %d", settings.model, pair.devices[1], os.getpid())
            return
        second_stage = RemoteSecondStage(pair, result_seconds)
        model = self.load_model(settings, pair.device, response_seconds, second_stage)
        self._start(context, settings, model, *pair.devices)

    def _start(self, context: Context, settings: Settings, model: LoadedModel, *devices: object) -> None:
        """Make a loaded model ready for calls."""
        names = tuple(map(str, devices))
        description = {
            **model.description,
            "stages": settings.stages,
            "joined_requests": context.system_properties.get("batch_size") or 1,
            "devices": names,
            "machine": shared_memory.machine(),
            "cpu_threads": settings.cpu_threads,
        }
        self._model = replace(model, description=description)
        self._worker = worker_name(names)
        logger.info("%s %s on %s", settings.model, description["revision"], ", ".join(names))
        model.counters.take()  # warming up answered no request
        archive = context.manifest["model"]
        name, version = archive["modelName"], archive["modelVersion"]
        self._metrics = MetricsReporter(model.counters, context.metrics, name, version, self._worker)

    def answer(self, data: list[Row], context: Context) -> list[str]:
        """Answer the requests of one call; a request that cannot be answered gets an error of its own.

        Args:
            data: The requests of the call.
            context: TorchServe's context, which takes the headers and the status of each response.

        Returns:
            The text of one response for each request, in order.
        """
        start = time.monotonic()
        model = self._model
        requests = RequestBatch(data, context, model.new_reader(), model.counters, self._read_threads)
        results = model.batches.map(requests.items)
        responses = requests.responses(results, self._description() if requests.ask_for_description else {})
        items = sum(len(each) for each in results if isinstance(each, list))
        # Each response has its share of the time, so that the sum over all responses is the time of all calls.
        seconds = (time.monotonic() - start) / max(1, len(data))
        for i in range(len(data)):
            context.set_response_header(i, wire.COMPUTE_SECONDS_HEADER, f"{seconds:.6f}")
            context.set_response_header(i, wire.IDENTITY_HEADER, model.identity)
            context.set_response_header(i, wire.WORKER_HEADER, self._worker)
            context.set_response_header(i, wire.ITEMS_HEADER, str(items))
        return responses

    def _description(self) -> dict[str, Any]:
        """Describe the model, with the number of workers that it has now."""
        description = self._model.description
        return {**description, "workers": count_workers(description["stages"])}

    def handle(self, data: list[Row] | None, context: Context) -> list[str] | None:
        """Load the model, or answer the requests of one call: TorchServe's entry point.

        Args:
            data: The requests of one call; None in the first call, which loads the model.
            context: TorchServe's context.

        Returns:
            One response for each request, as text; None after loading the model.

        Raises:
            Exception: The model cannot be loaded, or the device or the other stage is lost. In the second case,
                TorchServe answers all requests of the call with status 503.
        """
        if data is None:
            try:
                self.load(context)
            except Exception as error:
                # `reelscribe server start` finds this line in the log and shows it; the traceback follows it.
                logger.exception("cannot load: %s: %s", type(error).__name__, " ".join(str(error).split()))
                if dist.is_initialized():
                    from pipeline.stage_pair import end_process

                    # A normal exit of the interpreter would abort, as threads still wait inside torch.distributed.
                    end_process("its model cannot be loaded")
                raise
            return None
        try:
            return self.answer(data, context)
        except Exception as error:
            self._model.counters.add("errors", len(data), error=type(error).__name__)
            raise
        finally:
            self._metrics.report()
            free_bodies(data)


def _response_seconds(config: dict[str, Any]) -> float:
    """Return the timeout of a call in seconds, which TorchServe reads from the YAML."""
    return float(config.get("responseTimeout", DEFAULT_RESPONSE_SECONDS))


def keep_freed_memory() -> None:
    """Keep memory that this process frees in its heap, so that the next call reuses it.

    By default, glibc returns large blocks to the kernel and later gets them back filled with zeros. For arrays of
    pixels, that takes a third of the time that a small model needs on a CPU (bench/log.md). Variables of the
    environment would do the same, but for Java, too. Does nothing where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    # Where glibc rejects the last setting, the one before it remains.
    settings = (_TRIM_THRESHOLD, KEPT_BYTES), (_MMAP_THRESHOLD, DOCUMENTED_BYTES), (_MMAP_THRESHOLD, KEPT_BYTES)
    accepted = [mallopt(name, value) for name, value in settings]
    if not all(accepted):
        logger.info("mallopt rejected a setting: freed memory may return to the kernel, which costs time")
