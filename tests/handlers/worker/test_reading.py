"""Requests of one call are decoded by threads while the device computes those that have been read."""

import io
import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
import soundfile
from PIL import Image

import caption_handler
import speech_handler
from captions.frame_requests import FrameLimits, FrameReader
from reelscribe import wire
from reelscribe.contract.frames import InputSize
from reelscribe.errors import StartupError, WireError
from runtime.device_batches import DeviceBatches
from runtime.model_settings import ModelSettings
from support.fake_context import FakeContext, parsed
from transcripts.audio_requests import AudioReader
from worker.request_batch import RequestBatch, Unread

SECONDS = 30
"""Timeout of what must happen; a test that fails waits for so long."""

RNG = np.random.default_rng(0)

MANY = 10**7
"""Values of a request that is worth a thread."""


@dataclass
class Words:
    """A request of words; its response is what came of them."""

    items: list[str]

    def response(self, results: list[str]) -> str:
        return " ".join(results)


@pytest.fixture
def threads():
    with ThreadPoolExecutor(2) as pool:
        yield pool


def answers(data: list, device: DeviceBatches, threads: Executor | None, context: FakeContext) -> list:
    requests = RequestBatch(data, context, lambda row, _: row["body"], threads=threads)
    return parsed(requests.responses(device.map(requests.items), {}))


def call(*requests: list[str] | Unread) -> list[dict]:
    return [{"body": request if isinstance(request, Unread) else Words(request)} for request in requests]


def shout(slices: list[list[str]]) -> list[str]:
    return [word.upper() for part in slices for word in part]


def test_the_device_computes_full_batches_while_other_requests_are_read(threads):
    computed, batches = threading.Event(), []

    def read() -> Words:
        assert computed.wait(SECONDS), "the device waited for this request"
        return Words(["d", "e"])

    def compute(slices: list[list[str]]) -> list[str]:
        batches.append(shout(slices))
        computed.set()
        return batches[-1]

    got = answers(call(["a"], Unread(read, MANY), ["b", "c"]), DeviceBatches(compute, 2), threads, FakeContext())
    assert got == ["A", "D E", "B C"]
    assert batches == [["A", "B"], ["C", "D"], ["E"]]


def test_a_stage_that_computes_is_waited_for_before_requests_that_are_read(threads):
    collected, steps = threading.Event(), []

    def read() -> Words:
        assert collected.wait(SECONDS), "the batch in flight was not collected"
        return Words(["c"])

    def collect(words: list[str]) -> list[str]:
        steps.append(words)
        collected.set()
        return words

    device = DeviceBatches(collect, 2, submit=shout, in_flight=2)
    assert answers(call(["a", "b"], Unread(read, MANY)), device, threads, FakeContext()) == ["A B", "C"]
    assert steps == [["A", "B"], ["C"]]


def test_requests_are_read_at_once_and_answered_in_their_order(threads):
    both = threading.Barrier(2, timeout=SECONDS)

    def unread(word: str) -> Unread:
        def read() -> Words:
            both.wait()  # raises unless two threads read
            return Words([word])

        return Unread(read, MANY)

    requests = call(*map(unread, "abcd"))
    assert answers(requests, DeviceBatches(shout, 8), threads, FakeContext()) == ["A", "B", "C", "D"]


@pytest.mark.parametrize("pool", [True, False])
def test_a_request_that_cannot_be_read_costs_the_others_nothing(threads, pool):
    def damaged() -> Words:
        raise WireError("it is damaged")

    context = FakeContext()
    requests = call(["a"], Unread(damaged, MANY), Unread(lambda: Words(["b"]), MANY))
    first, error, last = answers(requests, DeviceBatches(shout, 1), threads if pool else None, context)
    assert [first, last] == ["A", "B"]
    assert error["error"] == {"type": "WireError", "message": "it is damaged"}
    assert context.statuses == {1: 400}


def test_when_a_call_fails_what_was_not_read_yet_is_dropped_and_the_next_call_is_answered():
    started, release = threading.Event(), threading.Event()

    def read() -> Words:
        started.set()
        assert release.wait(SECONDS)
        return Words([])

    def fail(slices: list[list[str]]) -> list[str]:
        assert started.wait(SECONDS)
        raise RuntimeError("CUDA error: the device is broken")

    never = Unread(lambda: pytest.fail("read after the call had failed"), MANY)
    with ThreadPoolExecutor(1) as one:
        with pytest.raises(RuntimeError, match="the device is broken"):
            answers(call(["a"], Unread(read, MANY), never), DeviceBatches(fail, 1), one, FakeContext())
        release.set()
        assert answers(
            call(["a"], Unread(lambda: Words(["b"]), MANY)), DeviceBatches(shout, 1), one, FakeContext()
        ) == [
            "A",
            "B",
        ]


class NoThreads(Executor):
    def submit(self, *arguments, **options):
        raise AssertionError("nothing would be gained by a thread")


@pytest.mark.parametrize(
    "requests",
    [
        call(["a"], ["b", "c"]),
        call(Unread(lambda: Words(["a"]), MANY)),
        call(["a"], Unread(lambda: Words(["b"]), 30_000), Unread(lambda: Words(["c"]), 30_000)),
    ],
    ids=["plain", "alone", "short"],
)
def test_what_no_thread_would_speed_up_is_read_without(requests):
    device = DeviceBatches(shout, 8)
    got = answers(requests, device, NoThreads(), FakeContext())
    assert got == answers(requests, device, None, FakeContext())


def still(kind: str) -> dict[str, bytes]:
    file = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (300, 400, 3), np.uint8)).save(file, kind)
    return {"body": file.getvalue()}


def test_stills_that_threads_decode_are_the_same_and_have_the_same_places_in_the_call(threads):
    frames = {"body": b"".join(wire.pack(np.zeros((2, 8, 8, 3), np.uint8)))}
    data = [still("JPEG"), frames, still("PNG"), still("WEBP"), still("JPEG"), frames, still("PNG")]
    contexts = FakeContext(), FakeContext()
    results = []
    for pool, context in zip((threads, None), contexts, strict=True):
        reader = FrameReader(FrameLimits(6, 1000), InputSize(16, 12))
        requests = RequestBatch(data, context, reader, threads=pool)
        results.append(DeviceBatches(lambda slices: [f.copy() for part in slices for f in part], 1).map(requests.items))
        requests.responses([WireError("-")] * len(results[-1]), {})
        assert {i for i, status in context.statuses.items() if status == 503} == {5, 6}
    for threaded, plain in zip(*results, strict=True):
        assert np.array_equal(threaded, plain)


def sound() -> dict[str, bytes]:
    file = io.BytesIO()
    soundfile.write(file, RNG.normal(0, 0.1, 16_000), 16_000, format="FLAC")
    return {"body": file.getvalue()}


@pytest.fixture(params=["stills", "recordings"])
def handler_and_call(request, demo_model, demo_speech):
    """A handler, the settings of its model, the class that reads its requests, and a call of two of them."""
    if request.param == "stills":
        handler, model, reader = caption_handler.CaptionHandler(), demo_model, FrameReader
        call = [still("PNG"), still("JPEG")]
    else:
        handler, model, reader, call = speech_handler.SpeechHandler(), demo_speech, AudioReader, [sound(), sound()]
    return handler, {"model": model, "read_threads": 0}, reader, call


def test_a_handler_reads_with_the_threads_of_its_settings(handler_and_call, monkeypatch):
    handler, settings, reader, call = handler_and_call
    both = threading.Barrier(2, timeout=SECONDS)
    read = reader.__call__

    def meeting(self, row, headers) -> Unread:
        request = read(self, row, headers)

        def meet():
            both.wait()
            return request.read()

        return Unread(meet, request.values)

    monkeypatch.setattr(reader, "__call__", meeting)
    monkeypatch.setenv("REELSCRIBE_READ_THREADS", "2")
    context = FakeContext(settings)
    handler.handle(None, context)
    assert [answer.get("error") for answer in parsed(handler.handle(call, context))] == [None, None]
    assert context.statuses == {}


@pytest.mark.parametrize(
    ("yaml", "variable", "threads"),
    [(None, None, 2), (None, "", 2), (5, None, 5), (0, None, 0), (5, "0", 0), (None, "16", 16)],
)
def test_the_number_of_threads_is_that_of_the_environment_then_of_the_yaml(monkeypatch, yaml, variable, threads):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.delenv("REELSCRIBE_READ_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("REELSCRIBE_READ_THREADS", variable)
    assert ModelSettings("name", read_threads=yaml).threads_that_read() == threads


def test_one_core_has_one_thread_that_reads(monkeypatch):
    monkeypatch.delenv("REELSCRIBE_READ_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3})
    assert ModelSettings("name").threads_that_read() == 1


@pytest.mark.parametrize("variable", ["two", "-1", "1.5", "٣"])
def test_a_variable_that_is_no_number_of_threads_is_refused(monkeypatch, variable):
    monkeypatch.setenv("REELSCRIBE_READ_THREADS", variable)
    with pytest.raises(StartupError, match="REELSCRIBE_READ_THREADS: expected a whole number of 0 or more"):
        ModelSettings("name").threads_that_read()
