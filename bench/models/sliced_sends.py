"""Where each stage of a model has two processes, what do sends of slices save that the receivers join by all-gather?

    scripts/bench sliced_sends [--rounds 5] [--clips 16] [--json FILE]

The demo clip model on four processes with one thread each, by gloo, without TorchServe. Both ranks of the first stage
encode the same clips, and each sends to one rank of the second stage. There, the language model is split by torch's
tensor parallelism. No handler works like this; docs/origins.md says why.

whole: each rank sends all features.
sliced: each rank sends its half of every tensor, and the two receivers join the halves by all-gather.

The first table has calls of --clips clips: clips/s, what a rank of the first stage sends for a call, and whether both
ranks got the descriptions of one process. The second table has the features alone, as many bytes as Qwen3-VL-2B has for
four clips of 2,000 tokens, and nothing that computes: the milliseconds until both receivers have all of it.
Each round runs both ways once, one after the other. Figures are medians and, in brackets, smallest and largest.
"""

from __future__ import annotations

import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers.utils.logging import disable_progress_bar

from clip_handler import ClipHandler
from clips.describer import ClipSettings
from lib.command import add_json_option, command_parser, run_command
from lib.report import Report, publish, take_turns
from lib.stage_runs import CPU, EMULATED_BYTES, LOAD_SECONDS, RESPONSE_SECONDS
from pipeline.stage_link import Sending, StageLink
from pipeline.tensor_tree import flatten
from reelscribe.contract.clips import Clip
from runtime.second_stage import StageFunction, TensorTree
from servers.torchserve import CLIPS
from synthetic.event_clips import random_event_clip

WAYS = ("whole", "sliced")
RANKS = 2
"""Processes of each stage."""

SETTINGS = ClipSettings(str(CLIPS), device_batch=4)
COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
ROWS = ("self_attn.o_proj", "mlp.down_proj")


def mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """A tree with `leaf` in place of each tensor, and of each dict that stands for one."""
    if isinstance(value, list):
        return [mapped(item, leaf) for item in value]
    if isinstance(value, dict) and "slice" not in value:
        return {name: mapped(item, leaf) for name, item in value.items()}
    return leaf(value)


def sliced(rank: int, value: Any) -> Any:
    """The slice of a rank, and the shape of the whole; tensors that cannot be divided stay as they are."""
    if not isinstance(value, Tensor) or value.numel() % RANKS:
        return value
    return {"slice": value.flatten().tensor_split(RANKS)[rank], "shape": list(value.shape)}


def joined(group: dist.ProcessGroup, value: Any) -> Any:
    """What `sliced` has cut, joined with the slices of the other receivers."""
    if not isinstance(value, dict):
        return value
    whole = value["slice"].new_empty(RANKS * len(value["slice"]))
    dist.all_gather_single(whole, value["slice"], group)
    return whole.view(value["shape"])


class Sender:
    """The second stage as a rank of the first stage uses it."""

    def __init__(self, link: StageLink, rank: int) -> None:
        self._link, self._rank = link, rank
        self.way, self.sent_bytes = WAYS[0], 0

    def submit(self, tree: TensorTree) -> Sending:
        """Send a batch without waiting."""
        message = mapped(dict(tree), partial(sliced, self._rank)) if self.way == "sliced" else tree
        self.sent_bytes += sum(tensor.nbytes for tensor in flatten(message)[1])
        return self._link.isend_tensor_dict(message)

    def result(self, pending: Sending) -> TensorTree:
        """Receive the answer to the oldest batch, which `submit` has sent."""
        answer = self._link.recv_tensor_dict()
        pending.wait()
        return answer


def tensor_parallel(mesh: Any) -> StageFunction:
    """The second stage, of which this process has a part; all of them compute every batch together."""
    compute = cast(partial[TensorTree], ClipHandler().load_second_stage(SETTINGS, CPU))
    plan = {f"layers.*.{name}": ColwiseParallel() for name in COLUMNS}
    parallelize_module(
        compute.args[0].model.language_model, mesh, plan | {f"layers.*.{n}": RowwiseParallel() for n in ROWS}
    )
    return compute


def run_rank(rank: int, store: Path, pipe: Connection) -> None:
    """Main function of a process; ranks 0 and 1 are the first stage."""
    disable_progress_bar()
    torch.set_num_threads(1)
    file_store = dist.FileStore(str(store), 2 * RANKS)  # type: ignore[attr-defined]  # it lacks a type
    dist.init_process_group("gloo", store=file_store, rank=rank, world_size=2 * RANKS)
    mesh = init_device_mesh("cpu", (2, RANKS), mesh_dim_names=("stage", "rank"))["rank"]
    link = StageLink((rank + RANKS) % (2 * RANKS), seconds=LOAD_SECONDS)
    if rank >= RANKS:
        compute = tensor_parallel(mesh)
        while True:
            tree = mapped(link.recv_tensor_dict(), partial(joined, mesh.get_group()))
            link.send_tensor_dict({} if "features" in tree else compute(tree))
    sender = Sender(link, rank)
    model = ClipHandler().load_model(SETTINGS, CPU, RESPONSE_SECONDS, sender)
    while True:
        sender.way, items = pipe.recv()
        sender.sent_bytes, began = 0, time.monotonic()
        if isinstance(items, dict):
            answers: Any = sender.result(sender.submit(items))
        else:
            (answers,) = model.batches.map([items])
        pipe.send((time.monotonic() - began, sender.sent_bytes, answers))


def run(pipes: Sequence[Connection], way: str, items: Any) -> list[tuple[float, int, Any]]:
    """Let both ranks of the first stage do the same; returns the seconds, bytes sent and answers of each."""
    for pipe in pipes:
        pipe.send((way, items))
    return [pipe.recv() for pipe in pipes]


def rate(pipes: Sequence[Connection], way: str, items: Sequence[Clip]) -> float:
    """Clips that are described in a second."""
    return len(items) / run(pipes, way, items)[0][0]


def milliseconds(pipes: Sequence[Connection], way: str, features: TensorTree) -> float:
    """Milliseconds until both receivers have all features."""
    return 1000 * max(each[0] for each in run(pipes, way, features))


def clips(count: int) -> list[Clip]:
    """Clips of 8 frames in which something happens."""
    drawn = [random_event_clip(random.Random(seed)) for seed in range(count)]  # noqa: S311 - a seed, no secret
    frames = [np.stack([np.asarray(clip.draw(k / 8, 160, 96)) for k in range(8)]) for clip in drawn]
    return [Clip(each, [k / 2 for k in range(8)]) for each in frames]


def measure(pipes: Sequence[Connection], items: Sequence[Clip], rounds: int) -> list[Report]:
    """The two tables."""
    (expected,) = ClipHandler().load_model(SETTINGS, CPU, RESPONSE_SECONDS).batches.map([items])
    assert isinstance(expected, list), expected
    texts = [each.text for each in expected]
    features = {"features": torch.zeros(4 * EMULATED_BYTES["emulated-clips"], dtype=torch.uint8)}
    for way in WAYS:  # warms up
        run(pipes, way, items)
    calls = take_turns(rounds, {way: partial(rate, pipes, way, items) for way in WAYS})
    alone = take_turns(rounds, {way: partial(milliseconds, pipes, way, features) for way in WAYS})
    described = Report(f"Calls of {len(items)} clips", ("way", "clips/s", "MB of a rank", "same descriptions"))
    sent = Report("Features alone", ("way", "ms", "MB of a rank"))
    for way in WAYS:
        both = run(pipes, way, items)
        same = all([each.text for each in answers] == texts for _, _, answers in both)
        described.add(way, calls[way], both[0][1] / 1e6, "yes" if same else "NO")
        sent.add(way, alone[way], run(pipes, way, features)[0][1] / 1e6)
    return [described, sent]


def main() -> None:
    """Print the tables."""
    parser = command_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clips", type=int, default=16, help="clips in a call")
    add_json_option(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    spawn = multiprocessing.get_context("spawn")
    pipes = [spawn.Pipe() for _ in range(2 * RANKS)]
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        processes = [
            spawn.Process(target=run_rank, args=(rank, store, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in processes:
            process.start()
        try:
            publish(measure([ours for ours, _ in pipes[:RANKS]], clips(options.clips), options.rounds), options.json)
        finally:
            for process in processes:  # all of them, before one sees that another is gone
                process.kill()
            for process in processes:
                process.join()


if __name__ == "__main__":
    run_command(main)
