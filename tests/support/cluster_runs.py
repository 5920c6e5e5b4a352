"""Runs over the nodes of a local cluster, for tests: one frame a request, and one decode process a node."""

import asyncio
from pathlib import Path

from reelscribe._track_specs import ModelSpec
from reelscribe.client.endpoint import Server
from reelscribe.cluster.driver import ClusterRun
from reelscribe.decode.sampling import Sampling
from reelscribe.run.bulk import Summary
from reelscribe.run.tracks.options import CaptionOptions
from reelscribe.server.finding import FoundServer
from support.fake_torchserve import FakeTorchServe
from support.local_cluster import LocalCluster
from support.patience import PATIENCE
from support.sending import no_waiting


def caption_spec(server: FakeTorchServe, **options) -> ModelSpec:
    """Captions by the model of a server."""
    made = CaptionOptions(Sampling(every=1), **{"frames_per_request": 1, "decode_workers": 1, **options})
    return ModelSpec(made, [FoundServer(Server(server.url))], "captioner", 8)


def cluster_run(
    server: FakeTorchServe, out: Path, cluster: LocalCluster, *, limit: int | None = None, **options
) -> ClusterRun:
    """A run that captions."""
    return ClusterRun([caption_spec(server, **options)], out, cluster, limit=limit)


async def completed(run: ClusterRun, *names: Path) -> Summary:
    """The outcome of a run. A run that hangs fails."""
    with no_waiting():
        return await asyncio.wait_for(run.run([str(name) for name in names]), PATIENCE)


def sent(server: FakeTorchServe) -> list[int]:
    """The grey levels of all frames that were sent to a server, in order of their size."""
    return sorted(name for request in server.received for name in request.names())
