"""What limits the speed, by how long the parts of a run were busy."""

from dataclasses import replace

import pytest

from reelscribe.client.in_flight import InFlight
from reelscribe.reporting.bottleneck import Load, LoadWindow, Resources, find_bottleneck

FRAMES = Resources("frames", decode_workers=2, server_workers=4, requests_in_flight=32, cores=8)

CAPPED = replace(FRAMES, requests_in_flight=24, requests_wanted=256, most_requests=24)

BUSY_DECODERS = {"seconds": 100.0, "with_file": 200.0, "busy": 198.0, "queue": 10.0, "compute": 100.0, "network": 5.0}
WAITING_DECODERS = {**BUSY_DECODERS, "busy": 60.0}


def limit(resources: Resources = FRAMES, *, sources_wait: bool = True, **load: float) -> str:
    return find_bottleneck(Load(**load), resources, sources_wait=sources_wait)


@pytest.mark.parametrize(
    ("load", "cause"),
    [
        ({}, "starting"),
        (BUSY_DECODERS, "decoding is the limit: add --decode-workers"),
        (WAITING_DECODERS, "the server is the limit: add GPUs"),
        ({**BUSY_DECODERS, "compute": 390.0}, "the server is the limit: add GPUs"),
        ({**WAITING_DECODERS, "network": 900.0}, "the network is the limit: use a faster one"),
        ({**BUSY_DECODERS, "digesting": 150.0}, "reading files is the limit: use faster storage"),
        ({**BUSY_DECODERS, "client_cpu": 97.0}, "the client's core is the limit: run several clients"),
        ({**BUSY_DECODERS, "with_file": 90.0, "busy": 90.0}, "saving is the limit: use a faster disk"),
    ],
)
def test_there_is_one_cause_with_advice(load, cause):
    assert limit(**load) == cause


def test_a_store_that_is_waited_for_is_named():
    few = {**BUSY_DECODERS, "with_file": 90.0, "busy": 90.0}
    limits = [
        find_bottleneck(Load(**load), FRAMES, sources_wait=waits, is_fetching=True)
        for load, waits in (({}, True), (few, True), (few, False), (BUSY_DECODERS, True))
    ]
    assert limits == [
        "fetching the first sources",
        "the store is the limit: get closer to it",
        "few sources are left: nothing to add",
        "decoding is the limit: add --decode-workers",
    ]


def test_a_server_that_tells_its_queue_is_named_with_it():
    text = find_bottleneck(Load(**WAITING_DECODERS), FRAMES, sources_wait=True, queued=1200)
    assert text == "the server is the limit, 1,200 requests wait in its queue: add GPUs or servers"


def test_a_single_decoder_that_is_always_busy_is_the_limit_or_the_last_sources_are():
    one = Resources("frames", decode_workers=1, server_workers=1, requests_in_flight=32, cores=2)
    busy = {"seconds": 100.0, "with_file": 100.0, "busy": 96.0, "compute": 30.0}
    assert limit(one, **busy) == "decoding is the limit: add --decode-workers"
    assert limit(FRAMES, **busy, sources_wait=False) == "few sources are left: nothing to add"


def test_more_processes_than_cores_are_not_advised():
    assert limit(Resources("frames", 2, 4, 32, cores=2), **BUSY_DECODERS) == "decoding is the limit: use more cores"


def test_where_the_server_has_no_gpus_none_are_to_be_added():
    on_cpu = Resources("frames", 2, 4, 32, on_cpu=True, cores=8)
    assert limit(on_cpu, **WAITING_DECODERS) == "the server is the limit: add GPUs or cores"


def test_audio_has_an_option_of_its_own():
    sound = Resources("seconds of audio", 2, 4, 32, cores=8)
    assert limit(sound, **BUSY_DECODERS) == "decoding is the limit: add --audio-workers"


def test_too_few_requests_leave_workers_idle():
    few = replace(FRAMES, requests_in_flight=4, requests_wanted=128, most_requests=4)
    assert limit(few, **WAITING_DECODERS) == "requests are the limit: raise --requests-in-flight"
    refused = replace(few, most_requests=256)
    assert limit(refused, **WAITING_DECODERS) == "the server's queue is the limit: raise job_queue_size"


def test_a_limit_that_nodes_share_is_not_blamed_on_the_server():
    permits = InFlight(64)
    permits.share(4)
    permits.set_taken(256, 512)
    few = replace(FRAMES, requests_in_flight=permits.limit, requests_wanted=permits.wanted, most_requests=permits.most)
    assert limit(few, **WAITING_DECODERS) == "requests are the limit: raise --requests-in-flight"


@pytest.mark.parametrize(
    ("load", "resources", "cause"),
    [
        (WAITING_DECODERS, FRAMES, "sending is the limit: use more cores"),
        (WAITING_DECODERS, CAPPED, "requests are the limit: raise --requests-in-flight"),
        (
            WAITING_DECODERS,
            replace(CAPPED, most_requests=512),
            "the server's queue is the limit: raise job_queue_size",
        ),
        (BUSY_DECODERS, FRAMES, "decoding is the limit: add --decode-workers"),
    ],
)
def test_workers_that_are_busy_with_small_calls_are_not_the_limit(load, resources, cause):
    small = {**load, "compute": 396.0, "items": 83_000.0, "calls": 1000.0}
    resources = replace(resources, full_call=512)
    assert limit(resources, **small) == cause
    assert limit(resources, **{**small, "calls": 200.0}) == "the server is the limit: add GPUs"


def test_the_limit_is_that_of_the_last_half_minute():
    window = LoadWindow()
    for seconds in range(1, 301):
        busy = float(seconds) if seconds <= 200 else 200.0
        recent = window.add(Load(seconds=float(seconds), with_file=float(seconds), busy=busy))
    assert (recent.seconds, recent.with_file, recent.busy) == (30.0, 30.0, 0.0)
