"""Snapshots and records of a run, as its meter makes them."""

import socket
from dataclasses import replace

from reelscribe.contract.outcomes import SourceError
from reelscribe.contract.source import Source
from reelscribe.reporting.meter import NodeSnapshot, Snapshot, TrackSnapshot
from reelscribe.reporting.plan import Choice, Plan
from reelscribe.reporting.time_left import TimeLeft
from reelscribe.results.records import CaptionResult, Model, ModelSettings, Record

FRAMES = TrackSnapshot(
    counts="frames",
    done=1200.0,
    decoded=1300.0,
    decode_share=0.5,
    network_share=0.1,
    queue_share=0.2,
    compute_share=0.7,
    server_share=0.9,
    bottleneck="decoding is the limit: add --decode-workers",
    done_before=300.0,
    unsent=100.0,
    requests=40,
    retries=2,
    eta_seconds=754.0,
)
SOUND = replace(
    FRAMES, counts="seconds of audio", done=5400.4, bottleneck="the server is the limit: add GPUs", eta_seconds=60.0
)

SNAPSHOT = Snapshot(
    sources=5,
    sources_done=2,
    sources_failed=1,
    seconds=60.0,
    media_seconds_per_second=2.5,
    eta_seconds=754.0,
    done_share=0.4,
    tracks=(FRAMES,),
    eta_plus_minus=120.0,
    sources_before=1,
    sources_copies=1,
    failures=(("b [1].mp4", "MediaError", "the [file] is empty"),),
)

NODES = (
    NodeSnapshot("store-1", "ready", 12, 1030, 41.25, "decoding is the limit: add --decode-workers"),
    NodeSnapshot("store-2", "lost: it has not answered for 30 s", 0, 7, 0.0, ""),
    NodeSnapshot("store-3", "starting", 0, 0, 0.0, ""),
)
ON_NODES = replace(SNAPSHOT, nodes=NODES, nodes_lost=2)
"""That of a run over many machines."""

PLAN = Plan(
    sources=5,
    before=1,
    excluded=2,
    media_seconds=9000.0,
    estimated=False,
    unknown=1,
    choices=(Choice("one frame a second", "frame", 9000), Choice("speech", "chunk", 300)),
    replaced=3,
    changed_settings=("language", "vad"),
    left=TimeLeft(1500.0, 240.0),
)

SETTINGS = ModelSettings("{}", Model("m", "r"), {})
GOOD = Record(Source("a.mp4"), CaptionResult(SETTINGS))
BAD = Record(Source("b [1].mp4"), CaptionResult(SETTINGS, error=SourceError("MediaError", "the [file] is empty")))


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]
