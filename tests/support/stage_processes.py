"""The two processes of a model in two stages, started with the environment that torchrun gives them."""

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from support.patience import PATIENCE

processes = multiprocessing.get_context("forkserver")
"""Starts processes that have already imported the large libraries."""
processes.set_forkserver_preload(
    [
        "torch",
        "torch.distributed",
        "transformers.models.blip_2.modeling_blip_2",
        "transformers.models.whisper.modeling_whisper",
        "transformers.models.auto.modeling_auto",
        "transformers.models.qwen3_vl.modeling_qwen3_vl",
        *("caption_handler", "clip_handler", "speech_handler"),
        *("reelscribe.decode.audio", "synthetic.event_clips", "synthetic.phrases"),
    ]
)

_runs = count()


@dataclass(frozen=True)
class Stages:
    """Both processes, a pipe to each, and the file that both write their standard error to."""

    processes: tuple[BaseProcess, BaseProcess]
    pipes: tuple[Connection, Connection]
    log: Path

    def send(self, rank: int, value: object) -> None:
        self.pipes[rank].send(value)

    def receive(self, rank: int) -> Any:
        """What the process of a rank sends next; EOFError if it ends before."""
        assert self.pipes[rank].poll(PATIENCE), f"stage {rank} sends nothing"
        return self.pipes[rank].recv()

    def ask(self, value: object) -> Any:
        """What the first stage answers."""
        self.send(0, value)
        return self.receive(0)

    def exit_code(self, rank: int) -> int | None:
        """The exit code of the process of a rank, once it has ended."""
        self.processes[rank].join(PATIENCE)
        return self.processes[rank].exitcode


@contextmanager
def running(first: Callable[..., None], second: Callable[..., None], *arguments: object) -> Iterator[Stages]:
    """Run functions of a test module as rank 0 and rank 1; each gets a pipe and `arguments`."""
    run_id = f"{os.getpid()} {next(_runs)}"
    ours, theirs = zip(*(processes.Pipe() for _ in range(2)), strict=True)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        log.touch()
        ranks = tuple(
            processes.Process(target=_run, args=(rank, run_id, str(log), function, theirs[rank], arguments))
            for rank, function in enumerate((first, second))
        )
        for process in ranks:
            process.start()
        for pipe in theirs:
            pipe.close()  # or nobody would notice that a process has closed its end
        try:
            yield Stages(ranks, ours, log)
        finally:
            for process in ranks:
                process.kill()
                process.join()
            for pipe in ours:
                pipe.close()


def _run(
    rank: int,
    run_id: str,
    log: str,
    function: Callable[..., None],
    pipe: Connection,
    arguments: tuple[object, ...],
) -> None:
    os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), 2)
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", TORCHELASTIC_RUN_ID=run_id, TORCHELASTIC_RESTART_COUNT="0")
    function(pipe, *arguments)
