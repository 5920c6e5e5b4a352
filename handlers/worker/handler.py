"""What handlers of TorchServe have in common: a model is loaded once, and then each call brings requests."""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic

import torch
import torch.distributed as dist

from runtime.device_batches import DeviceBatches
from runtime.metrics import HandlerMetrics
from runtime.heap import keep_freed_memory
from runtime.settings import Settings
from reelscribe import wire
from reelscribe.errors import StartupError
from reelscribe.identity import identity_of
from worker.request_batch import Context, Read, RequestBatch, Row
from pipeline.pair import end_process, join_pair
from runtime.metrics import Tally
from pipeline.remote import SecondStage, SecondStageThere, Work, serve_second_stage

logger = logging.getLogger(__name__)

DEFAULT_RESPONSE_SECONDS = 120
"""TorchServe's responseTimeout where a model says nothing of it."""

DEFAULT_STARTUP_SECONDS = 120
"""Its startupTimeout."""


@dataclass(frozen=True)
class Served:
    """A loaded model, and what answers requests with it."""

    description: dict[str, Any]
    reader: Callable[[], Read]
    """Makes what reads the requests of one call."""
    batches: DeviceBatches
    tally: Tally = field(default_factory=Tally)
    """What the model and `batches` count in."""

    @cached_property
    def identity(self) -> str:
        """Which model it is, for clients that see it change."""
        return identity_of(self.description)


class ModelHandler(ABC, Generic[Settings]):
    """Answers TorchServe's calls."""

    settings: type[Settings]
    """What the YAML is read as."""

    @abstractmethod
    def serve(
        self,
        settings: Settings,
        device: torch.device,
        workers: int,
        response_seconds: float,
        second: SecondStage | None = None,
    ) -> Served:
        """Load the model onto `device`, or what of it comes before `second`.

        `workers` and `response_seconds` are what TorchServe was told of it, for its description.
        """

    def second_stage(self, settings: Settings, device: torch.device) -> Work:
        """Load the second stage onto `device`; returns what it does."""
        raise NotImplementedError

    def load(self, context: Context) -> None:
        """Load the model of the YAML onto the worker's GPU, or the CPU where there is none."""
        config = context.model_yaml_config
        settings = self.settings.from_yaml(config)
        gpu = context.system_properties.get("gpu_id")
        torch.set_num_threads(settings.cpu_threads)
        keep_freed_memory()
        if gpu is not None and not torch.cuda.is_available():
            raise StartupError(
                f"TorchServe gave this worker GPU {gpu}, but torch sees none; install a CUDA build of torch"
            )
        asked = (config.get("minWorkers", 1), config.get("responseTimeout", DEFAULT_RESPONSE_SECONDS))
        if settings.stages == 1:
            device = torch.device("cpu" if gpu is None else f"cuda:{gpu}")
            served = self.serve(settings, device, *asked)
            devices: tuple[str, ...] = (str(device),)
        else:
            load_seconds = config.get("startupTimeout", DEFAULT_STARTUP_SECONDS)
            # The first answer comes when the second stage has loaded.
            answer_seconds = max(asked[1], load_seconds)
            pair = join_pair(gpu, stage_seconds=settings.stage_seconds, load_seconds=load_seconds)
            if pair.rank == 1:
                serve_second_stage(pair, self.second_stage(settings, pair.device), answer_seconds)
                logger.info("%s, second stage, on %s, process %d", settings.model, pair.devices[1], os.getpid())
                return  # TorchServe never calls this process again
            second = SecondStageThere(pair, answer_seconds)
            served = self.serve(settings, pair.device, *asked, second)
            devices = pair.devices
        description = {**served.description, "stages": settings.stages, "devices": devices}
        self._served = replace(served, description=description)
        logger.info("%s %s on %s", settings.model, description["revision"], ", ".join(devices))
        self._served.tally.take()  # what was done to warm up answered nobody
        archive = context.manifest["model"]
        self._metrics = HandlerMetrics(
            self._served.tally, context.metrics, archive["modelName"], archive["modelVersion"]
        )

    def answer(self, data: list[Row], context: Context) -> list[Any]:
        """One response a request; a request that is wrong gets its own status and costs the others nothing."""
        began = time.monotonic()
        served = self._served
        requests = RequestBatch(data, context, served.reader(), served.tally)
        responses = requests.responses(served.batches.map(requests.items), served.description)
        # Shared out, so that a client that adds up what it is told gets the time of the device.
        seconds = (time.monotonic() - began) / max(1, len(data))
        for i in range(len(data)):
            context.set_response_header(i, wire.COMPUTE_SECONDS_HEADER, f"{seconds:.6f}")
            context.set_response_header(i, wire.IDENTITY_HEADER, served.identity)
        return responses

    def handle(self, data: list[Row] | None, context: Context) -> list[Any] | None:
        """TorchServe's entry point; `data` is None when the worker starts."""
        if data is None:
            try:
                self.load(context)
            except Exception as error:
                # One line that `reelscribe server start` finds in the log and shows; the traceback follows it.
                logger.exception("cannot load: %s: %s", type(error).__name__, " ".join(str(error).split()))
                if dist.is_initialized():  # threads wait in it: an interpreter that ended under them would abort
                    end_process("its model cannot be loaded")
                raise
            return None
        try:
            return self.answer(data, context)
        except Exception as error:
            # TorchServe answers all of these requests with 503.
            self._served.tally.add("errors", len(data), error=type(error).__name__)
            raise
        finally:
            self._metrics.report()
