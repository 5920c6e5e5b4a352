"""The two processes of a model in two stages, started as torchrun starts them."""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

PATIENCE = 60.0
"""Seconds for whatever should come at once, on a busy machine."""

_runs = count()


@dataclass(frozen=True)
class Stages:
    """Both processes, and a pipe to each."""

    processes: tuple[BaseProcess, BaseProcess]
    pipes: tuple[Connection, Connection]

    def send(self, rank: int, value: object) -> None:
        self.pipes[rank].send(value)

    def receive(self, rank: int) -> Any:
        """What it says next; EOFError if it ends before."""
        assert self.pipes[rank].poll(PATIENCE), f"stage {rank} says nothing"
        return self.pipes[rank].recv()

    def ask(self, value: object) -> Any:
        """What the first stage answers."""
        self.send(0, value)
        return self.receive(0)

    def exit_code(self, rank: int) -> int | None:
        """When it has ended."""
        self.processes[rank].join(PATIENCE)
        return self.processes[rank].exitcode


@contextmanager
def running(first: Callable[..., None], second: Callable[..., None], *arguments: object) -> Iterator[Stages]:
    """Have functions of a test module, which are given a pipe and `arguments`, run as rank 0 and rank 1."""
    spawn = multiprocessing.get_context("spawn")
    run_id = f"{os.getpid()} {next(_runs)}"
    ours, theirs = zip(*(spawn.Pipe() for _ in range(2)), strict=True)
    processes = tuple(
        spawn.Process(target=_run, args=(rank, run_id, function, theirs[rank], arguments))
        for rank, function in enumerate((first, second))
    )
    for process in processes:
        process.start()
    for pipe in theirs:
        pipe.close()  # or nobody would see the other end close
    try:
        yield Stages(processes, ours)
    finally:
        for process in processes:
            process.kill()
            process.join()
        for pipe in ours:
            pipe.close()


def _run(
    rank: int, run_id: str, function: Callable[..., None], pipe: Connection, arguments: tuple[object, ...]
) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", TORCHELASTIC_RUN_ID=run_id, TORCHELASTIC_RESTART_COUNT="0")
    function(pipe, *arguments)
