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
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import psutil
import torch
import torch.distributed as dist

from reelscribe.errors import StageLost, StartupError
from pipeline.link import StageLink

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
            with self.ending(name):
                work()

        threading.Thread(target=run, name=name, daemon=True).start()

    @contextmanager
    def ending(self, name: str) -> Iterator[None]:
        """End the process, whatever is raised: the two might no longer speak of the same batch."""
        try:
            yield
        except StageLost as error:
            end_process(str(error))
        except Exception as error:
            logger.exception("stage %d of 2", self.rank + 1)
            end_process(f"{name}: {type(error).__name__}: {error}")


def join_pair(gpu: int | None, *, stage_seconds: float, load_seconds: float) -> StagePair:
    """Find the other process, and from now on end when that has ended, or is stopped for `stage_seconds`.

    `gpu` is None on a CPU. The other one may take `load_seconds` to come. What waits on a GPU, as NCCL
    does, is bounded by TorchServe's responseTimeout. Raises StartupError.
    """
    rank, ranks = (int(os.environ.get(name, "-1")) for name in ("RANK", "WORLD_SIZE"))
    if ranks != STAGES:
        raise StartupError(
            f"YAML, handler, stages: 2 stages are two processes of torchrun, and this is one of {max(ranks, 1)}; build"
            " the archive with --stages 2, which writes what TorchServe needs to know"
        )
    _die_with_parent()
    device, name = stage_device(gpu, rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # Both are on this machine, and what they say to each other is nobody else's business.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    peer = 1 - rank
    try:
        others = _meet(rank, name, load_seconds)
    except RuntimeError as error:  # all that torch.distributed raises
        raise StartupError(
            f"stage {peer + 1} of 2 did not come within {load_seconds:g} s ({str(error).splitlines()[0]}); the log may"
            " say why; if it only takes longer to start, raise startupTimeout in the YAML"
        ) from error
    devices = tuple(device for _, device in others)
    pair = StagePair(
        rank,
        device,
        devices,
        StageLink(peer, device=device, seconds=stage_seconds, name=f"stage {peer + 1} of 2"),
        StageLink(peer, device=CPU, seconds=stage_seconds, name=f"stage {peer + 1} of 2"),
    )
    pair.thread("watching the other stage", lambda: _watch(psutil.Process(others[peer][0]), stage_seconds))
    return pair


def _meet(rank: int, device: str, seconds: float) -> list[tuple[int, str]]:
    """Join the process group, within `seconds`; process id and device of both ranks."""
    place = _meeting_place()
    limit = timedelta(seconds=seconds)
    store = dist.FileStore(str(place), STAGES)  # type: ignore[attr-defined]  # it lacks a type
    store.set_timeout(limit)
    store.set(f"rank {rank}", json.dumps([os.getpid(), device]))
    ranks = [json.loads(store.get(f"rank {r}")) for r in range(STAGES)]
    nccl = device != "cpu" and ranks[0][1] != ranks[1][1]
    backend = "cpu:gloo,cuda:nccl" if nccl else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=STAGES, timeout=limit)
    if not nccl:  # which reads that file again when it first sends
        dist.barrier()
        place.unlink(missing_ok=True)
    return [(pid, where) for pid, where in ranks]


def end_process(reason: str) -> NoReturn:
    """End at once, whatever other threads wait for; TorchServe then starts both processes again."""
    logger.error("stage %s of 2 ends: %s", int(os.environ["RANK"]) + 1, reason)
    logging.shutdown()
    os._exit(1)


def _die_with_parent() -> None:
    """Be killed by the kernel when torchrun is; Linux only, as is TorchServe with torchrun and GPUs.

    A torchrun that ended before this is noticed where PID 1 is the parent then, and not where a sub-reaper is. There,
    TorchServe closes its connection to rank 0 all the same, which ends that, and its end ends rank 1.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1 and os.environ.get("TORCHELASTIC_RUN_ID"):
        end_process("torchrun had ended before it was loaded")


def stage_device(gpu: int | None, rank: int) -> tuple[torch.device, str]:
    """Where a rank computes, and the name of that: torchrun's processes see no other GPUs than those of the pair.

    `gpu` is None on a CPU.
    """
    if gpu is None:
        return CPU, "cpu"
    count = torch.cuda.device_count()
    if count < STAGES:
        logger.warning("both stages share the one GPU that torch sees")
    number = rank % count
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return torch.device("cuda", number), f"cuda:{visible[number] if visible else number}"


def _meeting_place() -> Path:
    """A file that both ranks know, and no ranks before or after them; in a folder that is nobody else's."""
    parent = os.getppid()
    attempt = [os.environ.get(f"TORCHELASTIC_{name}", "") for name in ("RUN_ID", "RESTART_COUNT")]
    key = hashlib.sha256(repr((parent, _started(parent), *attempt)).encode()).hexdigest()
    folder = Path(tempfile.gettempdir()) / f".stages-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise StartupError(
            f"{folder}: expected a folder that is this user's alone (mode 700); remove it, and start again"
        )
    return folder / key[:32]


def _started(pid: int) -> str:
    """When a process began, in a way that both ranks are told alike, even if somebody sets the clock."""
    if sys.platform != "linux":
        return str(psutil.Process(pid).create_time())
    # After the name, which may hold anything, come the fields from the third on; the 22nd is in ticks since the boot.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[22 - 3]


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
