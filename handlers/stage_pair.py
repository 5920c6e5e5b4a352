"""The two processes of a model in two stages, which torchrun starts: rank 0 answers TorchServe, rank 1 writes the text.

What became of them was measured with TorchServe 0.12.0: when a rank ends, TorchServe sees its connection close, kills
torchrun and starts another one. Nobody ends the other rank, and while that lives, its output stays open; when it ends
at last, TorchServe takes it for the end of the rank that it is just starting, and kills that. So a rank has the kernel
kill it as soon as torchrun is gone, which also ends one that is stopped. All that is left to do is to end when the
other one is lost.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import psutil
import torch
import torch.distributed as dist

from reelscribe.errors import StageLost, StartupError
from stage_link import StageLink

logger = logging.getLogger(__name__)

STAGES = 2
CPU = torch.device("cpu")

_LOOK_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""


@dataclass(frozen=True)
class StagePair:
    """This process, and its way to the other one."""

    rank: int
    device: torch.device
    devices: tuple[str, ...]
    """Of both, by rank: "cpu", or "cuda:2" by the number that the GPU has for TorchServe."""
    ahead: StageLink
    """Carries device batches from the first stage to the second, onto the second's device."""
    back: StageLink
    """Carries answers."""

    def thread(self, name: str, work: Callable[[], object]) -> None:
        """Have something done for as long as the process lasts, which it does not outlive."""

        def run() -> None:
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)  # each thread has its own
            try:
                work()
            except StageLost as error:
                end_process(str(error))
            except Exception as error:
                logger.exception("stage %d of 2", self.rank + 1)
                end_process(f"{name}: {type(error).__name__}: {error}")

        threading.Thread(target=run, name=name, daemon=True).start()


def join_pair(gpu: int | None, *, stage_seconds: float, load_seconds: float) -> StagePair:
    """Find the other process, and from now on end when that has ended, or is stopped for `stage_seconds`.

    `gpu` is None on a CPU. The other one may take `load_seconds` to come. Raises StartupError.
    """
    rank, ranks = (int(os.environ.get(name, "-1")) for name in ("RANK", "WORLD_SIZE"))
    if ranks != STAGES:
        raise StartupError(
            f"YAML, handler, stages: 2 stages are two processes of torchrun, and this is one of {max(ranks, 1)}; build"
            " the archive with --stages 2, which writes what TorchServe needs to know"
        )
    _die_with_parent()
    device, name = _device(gpu, rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # Both are on this machine, and what they say to each other is nobody else's business.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    store = dist.FileStore(str(_meeting_place()), STAGES)  # type: ignore[attr-defined]  # it lacks a type
    store.set_timeout(timedelta(seconds=load_seconds))
    store.set(f"rank {rank}", json.dumps([os.getpid(), name]))
    others = [json.loads(store.get(f"rank {r}")) for r in range(STAGES)]
    devices = tuple(str(device) for _, device in others)
    nccl = device.type == "cuda" and len(set(devices)) == STAGES
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if nccl else "gloo",
        store=store,
        rank=rank,
        world_size=STAGES,
        timeout=timedelta(seconds=load_seconds),
    )
    peer = 1 - rank
    pair = StagePair(
        rank,
        device,
        devices,
        StageLink(peer, device=device, seconds=stage_seconds),
        StageLink(peer, device=CPU, seconds=stage_seconds),
    )
    pair.thread("watching the other stage", lambda: _watch(psutil.Process(others[peer][0]), stage_seconds))
    return pair


def end_process(reason: str) -> NoReturn:
    """End at once, whatever other threads wait for; TorchServe then starts both processes again."""
    logger.error("stage %s of 2 ends: %s", int(os.environ["RANK"]) + 1, reason)
    logging.shutdown()
    os._exit(1)


def _die_with_parent() -> None:
    """Be killed by the kernel when torchrun is; Linux only, as is TorchServe with torchrun and GPUs."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1 and os.environ.get("TORCHELASTIC_RUN_ID"):
        end_process("torchrun had ended before it was loaded")


def _device(gpu: int | None, rank: int) -> tuple[torch.device, str]:
    """Where a rank computes, and the name of that: torchrun's processes see no other GPUs than those of the pair."""
    if gpu is None:
        return CPU, "cpu"
    count = torch.cuda.device_count()
    if count < STAGES:
        logger.warning("both stages share the one GPU that torch sees")
    number = rank % count
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return torch.device("cuda", number), f"cuda:{visible[number] if number < len(visible) else number}"


def _meeting_place() -> Path:
    """A file that both ranks know, and no ranks before or after them."""
    parent = psutil.Process(os.getppid())
    attempt = [os.environ.get(f"TORCHELASTIC_{name}", "") for name in ("RUN_ID", "RESTART_COUNT")]
    key = hashlib.sha256(repr((parent.pid, parent.create_time(), *attempt)).encode()).hexdigest()
    return Path(tempfile.gettempdir()) / f".stages-{key[:32]}"


def _watch(peer: psutil.Process, seconds: float) -> None:
    """Until the other process has ended, or was stopped for so long."""
    stopped = 0.0
    while stopped < seconds:
        time.sleep(_LOOK_SECONDS)
        try:
            status = peer.status() if peer.is_running() else psutil.STATUS_DEAD
        except psutil.NoSuchProcess:
            status = psutil.STATUS_DEAD
        if status in (psutil.STATUS_DEAD, psutil.STATUS_ZOMBIE):
            end_process(f"process {peer.pid}, the other stage, has ended")
        stopped = stopped + _LOOK_SECONDS if status == psutil.STATUS_STOPPED else 0.0
    end_process(f"process {peer.pid}, the other stage, was stopped for {seconds:g} s")
