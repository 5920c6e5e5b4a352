"""The two processes of a model in two stages, which torchrun starts: rank 0 answers TorchServe, rank 1 generates.

When a rank ends, TorchServe 0.12.0 notices that its connection is closed, kills torchrun, and starts it again. It does
not kill the other rank, which keeps the pipe of torchrun's output open. When that rank ends later, TorchServe takes the
closed pipe for the end of the ranks that it has started since, and kills these. Therefore, each rank asks the kernel to
kill it as soon as torchrun ends, which also ends a stopped process. Besides that, each rank ends when it loses the
other one.
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

from pipeline.stage_link import StageLink
from reelscribe.errors import StageLost, StartupError

logger = logging.getLogger(__name__)

STAGES = 2
CPU = torch.device("cpu")

_POLL_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1
"""An option of prctl(2): the signal for when the parent ends."""


@dataclass(frozen=True)
class StagePair:
    """This process, and its links to the other one."""

    rank: int
    """0 for the first stage, 1 for the second."""
    device: torch.device
    """Where this process computes."""
    devices: tuple[str, ...]
    """Where both ranks compute: "cpu", or for example "cuda:2", with the GPU number that TorchServe uses."""
    batches: StageLink
    """Carries device batches from the first stage to the second, onto the second's device."""
    results: StageLink
    """Carries results from the second stage to the first, onto the CPU."""

    def start_thread(self, name: str, work: Callable[[], object]) -> None:
        """Run `work` in a daemon thread; if it raises, the process ends. `name` is its name in error messages."""

        def run() -> None:
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)  # each thread has its own current device
            with self.end_on_error(name):
                work()

        threading.Thread(target=run, name=name, daemon=True).start()

    @contextmanager
    def end_on_error(self, name: str) -> Iterator[None]:
        """End the process if the block raises, as the two processes might not agree on the next message afterwards."""
        try:
            yield
        except StageLost as error:
            end_process(str(error))
        except Exception as error:
            logger.exception("stage %d of 2", self.rank + 1)
            end_process(f"{name}: {type(error).__name__}: {error}")


def join_pair(gpu: int | None, *, stage_seconds: float, load_seconds: float) -> StagePair:
    """Connect to the other process, and from then on end when it ends or stays stopped.

    Args:
        gpu: The GPU that TorchServe assigned; None on a CPU.
        stage_seconds: Timeout in seconds for a transfer, and for the other process to stay stopped. Transfers that wait
            on a GPU, as those of NCCL do, are only limited by TorchServe's responseTimeout.
        load_seconds: Timeout in seconds for the other process to connect.

    Returns:
        The devices of both processes, and this process's links to the other one.

    Raises:
        StartupError: This process is not one of two that torchrun started, or the other one did not connect.
    """
    rank, world_size = (int(os.environ.get(name, "-1")) for name in ("RANK", "WORLD_SIZE"))
    if world_size != STAGES:
        raise StartupError(
            "YAML, handler, stages: 2 stages are two processes of torchrun, and this is one of"
            f" {max(world_size, 1)}; build the archive with --stages 2, which also writes the lines that TorchServe"
            " needs"
        )
    _die_with_parent()
    device, name = stage_device(gpu, rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # Both processes are on this machine, and their traffic is not meant for any other.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    peer = 1 - rank
    peer_name = f"stage {peer + 1} of 2"
    try:
        processes = _connect(rank, name, load_seconds)
    except RuntimeError as error:  # the only class of errors that torch.distributed raises
        raise StartupError(
            f"{peer_name} did not come within {load_seconds:g} s ({str(error).splitlines()[0]}); look for its error"
            " in the log; if it only takes longer to start, raise startupTimeout in the YAML"
        ) from error
    pair = StagePair(
        rank,
        device,
        tuple(device_name for _, device_name in processes),
        StageLink(peer, device=device, seconds=stage_seconds, name=peer_name),
        StageLink(peer, device=CPU, seconds=stage_seconds, name=peer_name),
    )
    pid, _ = processes[peer]
    pair.start_thread("watching the other stage", lambda: _watch(psutil.Process(pid), stage_seconds))
    return pair


def _connect(rank: int, device: str, seconds: float) -> list[tuple[int, str]]:
    """Join the process group within `seconds` seconds; returns the process ID and the device of both ranks."""
    file = _rendezvous_file()
    timeout = timedelta(seconds=seconds)
    store = dist.FileStore(str(file), STAGES)  # type: ignore[attr-defined]  # it lacks a type
    store.set_timeout(timeout)
    store.set(f"rank {rank}", json.dumps([os.getpid(), device]))
    ranks = [json.loads(store.get(f"rank {r}")) for r in range(STAGES)]
    nccl = device != "cpu" and ranks[0][1] != ranks[1][1]
    backend = "cpu:gloo,cuda:nccl" if nccl else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=STAGES, timeout=timeout)
    if not nccl:  # NCCL reads the file again when it first sends
        dist.barrier()
        file.unlink(missing_ok=True)
    return [(pid, device_name) for pid, device_name in ranks]


def end_process(reason: str) -> NoReturn:
    """End this process at once, whatever its threads wait for; TorchServe then restarts both processes."""
    logger.error("stage %s of 2 ends: %s", int(os.environ["RANK"]) + 1, reason)
    logging.shutdown()
    os._exit(1)


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when torchrun ends. Linux only, as is TorchServe with torchrun and GPUs.

    If torchrun ended before this call, PID 1 is the parent now, and this process ends here. Where another process
    adopts orphans, that goes unnoticed; but TorchServe then closes its connection to rank 0, so rank 0 ends, and then
    rank 1 does.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1 and os.environ.get("TORCHELASTIC_RUN_ID"):
        end_process("torchrun ended while this process started")


def stage_device(gpu: int | None, rank: int) -> tuple[torch.device, str]:
    """Choose the device of a rank. The processes of torchrun see only the GPUs of their pair.

    Args:
        gpu: The GPU that TorchServe assigned; None on a CPU.
        rank: 0 or 1.

    Returns:
        The device for torch, and its name with the GPU number that TorchServe uses.
    """
    if gpu is None:
        return CPU, "cpu"
    count = torch.cuda.device_count()
    if count < STAGES:
        logger.warning("both stages share one GPU, as torch sees no other")
    number = rank % count
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return torch.device("cuda", number), f"cuda:{visible[number] if visible else number}"


def _rendezvous_file() -> Path:
    """A file by which only these two ranks find each other, in a folder that only this user can access."""
    parent = os.getppid()
    attempt = [os.environ.get(f"TORCHELASTIC_{name}", "") for name in ("RUN_ID", "RESTART_COUNT")]
    key = hashlib.sha256(repr((parent, _start_time(parent), *attempt)).encode()).hexdigest()
    folder = Path(tempfile.gettempdir()) / f".stages-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise StartupError(
            f"{folder}: expected a folder that is this user's alone (mode 700), got owner {status.st_uid} and mode"
            f" {stat.S_IMODE(status.st_mode):o}; remove it, and start again"
        )
    return folder / key[:32]


def _start_time(pid: int) -> str:
    """When a process started. Both ranks read the same value, even if the system clock is changed in between."""
    if sys.platform != "linux":
        return str(psutil.Process(pid).create_time())
    # The second field is the name, which may hold any character. The third follows; the 22nd is the start time in clock
    # ticks since boot.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[22 - 3]


def _watch(peer: psutil.Process, seconds: float) -> None:
    """End this process when the other one has ended, or was stopped for `seconds` seconds."""
    stopped = 0.0
    while stopped < seconds:
        time.sleep(_POLL_SECONDS)
        try:
            status = peer.status() if peer.is_running() else psutil.STATUS_DEAD
        except psutil.NoSuchProcess:
            status = psutil.STATUS_DEAD
        if status in (psutil.STATUS_DEAD, psutil.STATUS_ZOMBIE):
            end_process(f"process {peer.pid}, the other stage, has ended")
        stopped = stopped + _POLL_SECONDS if status == psutil.STATUS_STOPPED else 0.0
    end_process(f"process {peer.pid}, the other stage, was stopped for {seconds:g} s")
