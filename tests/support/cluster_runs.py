"""Runs over the nodes of a local cluster, for tests: one frame a request, and one decode process a node."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from reelscribe._track_specs import ModelSpec
from reelscribe.client.endpoint import Server
from reelscribe.cluster.session import RemoteNodes
from reelscribe.decode.sampling import Sampling
from reelscribe.reporting.summary import Summary
from reelscribe.run.driver import Run
from reelscribe.run.tracks.captions import CaptionOptions
from reelscribe.server.server_discovery import FoundServer
from support.fake_torchserve import DESCRIPTION, FakeTorchServe
from support.local_cluster import LocalCluster
from support.patience import PATIENCE
from support.sending import no_waiting

AT_ONCE = 2
"""Number of sources that are leased at once to a node that has done none."""

SHARED = replace(DESCRIPTION, workers=4)
"""A model whose servers take what several nodes send at once."""


def caption_spec(server: FakeTorchServe, requests_in_flight: int = 8, *, retry_failed: bool = False) -> ModelSpec:
    """Captions by the model of a server."""
    options = CaptionOptions(Sampling(every=1), frames_per_request=1, decode_workers=1, retry_failed=retry_failed)
    return ModelSpec(options, [FoundServer(Server(server.url))], "captioner", requests_in_flight)


def cluster_run(
    server: FakeTorchServe,
    out: Path,
    cluster: LocalCluster,
    *,
    limit: int | None = None,
    requests_in_flight: int = 8,
    retry_failed: bool = False,
) -> Run:
    """A run that captions."""
    spec = caption_spec(server, requests_in_flight, retry_failed=retry_failed)
    return Run(RemoteNodes([spec], cluster), out, limit=limit, thumbnails=0)


async def completed(run: Run, *names: Path) -> Summary:
    """The outcome of a run. A run that hangs fails."""
    with no_waiting():
        return await asyncio.wait_for(run.run([str(name) for name in names]), PATIENCE)


async def on_one_machine(out: Path, *names: Path) -> Summary:
    """The outcome of a run of the same kind without a cluster, with a server of its own."""
    async with FakeTorchServe() as server, AsyncExitStack() as stack:
        run = Run([await caption_spec(server).open(stack)], out)
        return await asyncio.wait_for(run.run([str(name) for name in names]), PATIENCE)


def records(out: Path) -> bytes:
    """The records of a run."""
    return (out / "annotations.jsonl").read_bytes()


def lines_without(name: str, all_records: bytes) -> list[bytes]:
    """The records of all sources but one."""
    return [line for line in all_records.splitlines() if name.encode() not in line]


def done_by(summary: Summary) -> dict[str, int]:
    """The number of sources that each node has done."""
    return {node.name: node.sources_done for node in summary.snapshot.nodes}


def sent(server: FakeTorchServe) -> list[int]:
    """The grey levels of all frames that were sent to a server, in order of their size."""
    return sorted(name for request in server.received for name in request.names())
