"""What limits the speed, by what a track has counted at two moments and what it has now."""

from dataclasses import replace

import pytest

from reelscribe.client.balancer import Outage
from reelscribe.client.in_flight import InFlight
from reelscribe.reporting.bottleneck import find_bottleneck
from reelscribe.reporting.counters import Counters, NodeReport, Resources
from reelscribe.reporting.meter import NodeFigures

FRAMES = Resources("frames", decode_workers=2, server_workers=4, requests_in_flight=32, cores=8, sources_waiting=9)
LAST = replace(FRAMES, sources_waiting=0)
SUMMARIES = replace(LAST, counts="summaries", decode_workers=0, server_workers=1)
CAPPED = replace(FRAMES, requests_in_flight=24, requests_wanted=256, most_requests=24)

BEFORE = Counters(seconds=900.0, with_file=1800.0, busy=1790.0, in_flight=900.0, compute=800.0, requests=500)

DECODING = Counters(
    seconds=100.0, with_file=200.0, busy=198.0, queue=10.0, compute=100.0, network=5.0, in_flight=115.0, requests=50
)
"""In 100 s, both decode processes are busy, and one of four workers."""
SERVING = replace(DECODING, busy=60.0, compute=390.0, in_flight=3200.0)
IDLE = replace(DECODING, with_file=40.0, busy=40.0)
"""Decode processes have a file for a fifth of the time."""
ANSWERLESS = Counters(seconds=100.0, in_flight=3200.0)
"""All is decoded, and nothing is answered."""


def limit(spent: Counters, has: Resources = FRAMES, *, before: Counters = BEFORE, more_to_come: bool = False) -> str:
    return find_bottleneck(before, Counters.total([before, spent]), has, more_to_come=more_to_come)


@pytest.mark.parametrize(
    ("spent", "has", "cause"),
    [
        (replace(IDLE, saving=80.0), FRAMES, "saving is the limit: use a faster disk"),
        (replace(DECODING, digesting=150.0), FRAMES, "reading files is the limit: use faster storage"),
        (DECODING, replace(FRAMES, cores=2), "decoding is the limit: use more cores"),
        (DECODING, FRAMES, "decoding is the limit: add --decode-workers"),
        (SERVING, FRAMES, "the server is the limit: add GPUs"),
        (replace(SERVING, network=900.0), FRAMES, "the network is the limit: use a faster one"),
        (SERVING, replace(FRAMES, outage=Outage("refused", 1.0, 2.0)), "waiting for a server: refused"),
        (
            replace(ANSWERLESS, retries=7),
            FRAMES,
            "no request is answered, and some are sent again: the server's workers may be starting",
        ),
        (replace(SERVING, with_file=100.0, busy=0.0), SUMMARIES, "the server is the limit: add GPUs"),
        (replace(IDLE, depending=100.0), FRAMES, "waiting for what other models make of the sources"),
        (replace(DECODING, client_cpu=97.0), FRAMES, "the client's core is the limit: run several clients"),
    ],
)
def test_there_is_one_cause_with_advice(spent, has, cause):
    assert limit(spent, has) == cause


@pytest.mark.parametrize(
    ("spent", "has", "more_to_come", "cause"),
    [
        (IDLE, LAST, True, "waiting for more sources"),
        (IDLE, LAST, False, "few sources are left: nothing to add"),
        (IDLE, FRAMES, False, "opening files is the limit: use faster storage"),
        (IDLE, replace(LAST, is_fetching=True), True, "the store is the limit: get closer to it"),
        (IDLE, replace(LAST, is_fetching=True), False, "few sources are left: nothing to add"),
        (replace(ANSWERLESS, in_flight=100.0), LAST, False, "the last answers are awaited: nothing to add"),
    ],
)
def test_why_decode_processes_have_no_files_is_told(spent, has, more_to_come, cause):
    assert limit(spent, has, more_to_come=more_to_come) == cause


@pytest.mark.parametrize("has", [FRAMES, LAST])
@pytest.mark.parametrize("before", [BEFORE, Counters(seconds=5.0, with_file=9.0, busy=9.0)])
def test_while_the_server_computes_what_is_decoded_it_is_the_limit(has, before):
    for spent in (ANSWERLESS, replace(IDLE, in_flight=3200.0), replace(ANSWERLESS, saving=3.0)):
        assert limit(spent, has, before=before) == "the server is the limit: add GPUs"


@pytest.mark.parametrize(
    ("has", "told"),
    [
        (FRAMES, "starting"),
        (replace(FRAMES, is_fetching=True), "fetching the first sources"),
        (SUMMARIES, "waiting for texts to summarise"),
    ],
)
def test_before_anything_is_done_nothing_is_known(has, told):
    assert limit(Counters(seconds=1.0, with_file=1.0, busy=1.0), has, before=Counters()) == told


def test_a_server_that_tells_its_queue_is_named_with_it():
    told = "the server is the limit, 1,200 requests wait in its queue: add GPUs or servers"
    assert limit(SERVING, replace(FRAMES, queued=1200)) == told


def test_a_single_decoder_that_is_always_busy_is_the_limit_or_the_last_sources_are():
    busy = replace(DECODING, with_file=100.0, busy=96.0, compute=30.0)
    assert limit(busy, replace(FRAMES, decode_workers=1, cores=2)) == "decoding is the limit: add --decode-workers"
    assert limit(busy, LAST) == "few sources are left: nothing to add"


def test_audio_has_an_option_of_its_own_and_cpus_have_their_advice():
    assert limit(DECODING, replace(FRAMES, counts="seconds of audio")) == "decoding is the limit: add --audio-workers"
    assert limit(SERVING, replace(FRAMES, on_cpu=True)) == "the server is the limit: add GPUs or cores"


def test_too_few_requests_leave_workers_idle():
    few = replace(FRAMES, requests_in_flight=4, requests_wanted=128, most_requests=4)
    idle = replace(SERVING, compute=100.0)
    assert limit(idle, few) == "requests are the limit: raise --requests-in-flight"
    assert limit(idle, replace(few, most_requests=256)) == "the server's queue is the limit: raise job_queue_size"


def test_a_limit_that_nodes_share_is_not_blamed_on_the_server():
    permits = InFlight(64)
    permits.share(4)
    permits.set_taken(256, 512)
    few = replace(FRAMES, requests_in_flight=permits.limit, requests_wanted=permits.wanted, most_requests=permits.most)
    assert limit(replace(SERVING, compute=100.0), few) == "requests are the limit: raise --requests-in-flight"


@pytest.mark.parametrize(
    ("spent", "has", "cause"),
    [
        (SERVING, FRAMES, "sending is the limit: use more cores"),
        (SERVING, CAPPED, "requests are the limit: raise --requests-in-flight"),
        (SERVING, replace(CAPPED, most_requests=512), "the server's queue is the limit: raise job_queue_size"),
        (replace(DECODING, compute=396.0), FRAMES, "decoding is the limit: add --decode-workers"),
    ],
)
def test_workers_that_are_busy_with_small_calls_are_not_the_limit(spent, has, cause):
    small, has = replace(spent, items=83_000.0, calls=1000.0), replace(has, full_call=512)
    assert limit(small, has) == cause
    assert limit(replace(small, calls=200.0), has) == "the server is the limit: add GPUs"


@pytest.mark.parametrize("told", [{"calls": 9.0, "items": 200.0}, {"calls": 200.0, "items": 5800.0, "queue": 2900.0}])
def test_small_calls_at_the_start_or_beside_a_long_queue_leave_the_server_the_limit(told):
    assert limit(replace(SERVING, **told), replace(FRAMES, full_call=64)) == "the server is the limit: add GPUs"
    sent_late = replace(SERVING, calls=200.0, items=5800.0)
    assert limit(sent_late, replace(FRAMES, full_call=64)) == "sending is the limit: use more cores"


def test_the_limit_is_that_of_the_last_half_minute_and_of_none_in_which_there_was_no_server():
    node = NodeFigures("a")
    for second in range(1, 301):
        outage = Outage("gone", 1.0, 2.0) if 250 <= second < 290 else None
        sums = Counters(seconds=float(second), with_file=float(min(second, 200)))
        node.keep(NodeReport(0.0, [(sums, replace(FRAMES, outage=outage))]))
        if second == 240:
            assert sums.since(node.window[0][0]) == Counters(seconds=30.0, with_file=0.0)
    assert sums.since(node.window[0][0]).seconds == 11.0
