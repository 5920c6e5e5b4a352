"""What handlers report to TorchServe."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import caption_handler
import speech_handler
from captions import frame_requests
from captions.captioner import Captioner
from reelscribe import wire
from runtime.metrics import COUNTER_NAMES, Counters, MetricsReporter, metric_name
from support.fake_context import FakeContext, parsed

METRICS = Path(__file__).parents[3] / "clients" / "reelscribe" / "server" / "torchserve_metrics.yaml"


class FakeMetrics:
    """TorchServe's, with these names declared; keeps what is reported to it."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.reported: dict[tuple[str, ...], float] = {}

    def cache_keys(self) -> list[str]:
        return [f"counter:{name}" for name in self.names]

    def get_metric(self, metric_name: str) -> "FakeMetric":
        assert metric_name in self.names
        return FakeMetric(self, metric_name)


class FakeMetric:
    def __init__(self, metrics: FakeMetrics, name: str) -> None:
        self.metrics, self.name = metrics, name

    def add_or_update(self, value: float, dimension_values: list[str]) -> None:
        key = (self.name, *dimension_values)
        self.metrics.reported[key] = self.metrics.reported.get(key, 0) + value


ALL = tuple(map(metric_name, COUNTER_NAMES))
WORKER = str(os.getpid())


def test_counters_are_reported_once_with_model_version_worker_gpu_and_type_of_error():
    counters, metrics = Counters(), FakeMetrics(*ALL)
    reporter = MetricsReporter(counters, metrics, "captioner", "2.0", "77 cuda:2+cuda:3")
    counters.add("frames", 3)
    counters.add("errors", error="WireError")
    reporter.report()
    reporter.report()
    assert metrics.reported == {
        ("reelscribe_frames_total", "captioner", "2.0", "77", "2+3"): 3,
        ("reelscribe_errors_total", "captioner", "2.0", "77", "2+3", "WireError"): 1,
    }


def test_metrics_that_the_server_does_not_declare_are_named_once_and_left_out(caplog):
    counters, metrics = Counters(), FakeMetrics("reelscribe_frames_total")
    reporter = MetricsReporter(counters, metrics, "captioner", "1.0", "77 cpu")
    counters.add("frames")
    counters.add("tokens", 5)
    reporter.report()
    assert metrics.reported == {("reelscribe_frames_total", "captioner", "1.0", "77", "cpu"): 1}
    assert "reelscribe_tokens_total" in caplog.text
    assert "reelscribe_frames_total" not in caplog.text
    assert "leave it out of config.properties" in caplog.text


def test_metrics_yaml_declares_all_counters_with_their_dimensions():
    declared = yaml.safe_load(METRICS.read_text())["model_metrics"]["counter"]
    assert sorted(metric["name"] for metric in declared) == sorted(ALL)
    for metric in declared:
        more = ["ErrorType"] if metric["name"] == "reelscribe_errors_total" else []
        assert metric["dimensions"] == ["ModelName", "ModelVersion", "Worker", "GPU", *more]


def test_a_captioner_counts_frames_and_the_tokens_of_their_captions(demo_model):
    handler, context = caption_handler.CaptionHandler(), FakeContext({"model": demo_model})
    context.metrics = FakeMetrics(*ALL)
    handler.handle(None, context)
    body = b"".join(wire.pack(np.zeros((3, 50, 50, 3), np.uint8)))
    ((caption, *_),) = parsed(handler.handle([{"body": body}], context))
    handler.handle([{"body": b"noise"}], context)
    reported = {name: value for (name, _, _, *_), value in context.metrics.reported.items()}
    assert reported["reelscribe_frames_total"] == reported["reelscribe_device_items_total"] == 3
    assert reported["reelscribe_requests_total"] == 2
    assert reported["reelscribe_device_batches_total"] == reported["reelscribe_errors_total"] == 1
    assert reported["reelscribe_tokens_total"] >= 3 * len(caption["text"].split())
    assert reported["reelscribe_device_seconds_total"] > 0
    assert reported["reelscribe_preprocess_seconds_total"] > 0


def test_a_speech_model_counts_seconds_of_audio(demo_speech):
    handler, context = speech_handler.SpeechHandler(), FakeContext({"model": demo_speech})
    context.metrics = FakeMetrics(*ALL)
    handler.handle(None, context)
    tone = np.sin(np.arange(24_000) / 20).astype(np.float32)
    handler.handle([{"body": b"".join(wire.pack({"chunks": [tone, tone[:8000]]}))}], context)
    assert context.metrics.reported["reelscribe_audio_seconds_total", "captioner", "1.0", WORKER, "cpu"] == 2.0
    assert context.metrics.reported["reelscribe_device_items_total", "captioner", "1.0", WORKER, "cpu"] == 2
    assert context.metrics.reported["reelscribe_tokens_total", "captioner", "1.0", WORKER, "cpu"] > 0


def test_a_call_that_fails_counts_as_an_error_of_each_of_its_requests(demo_model, monkeypatch):
    def lost(*_):
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    handler, context = caption_handler.CaptionHandler(), FakeContext({"model": demo_model})
    context.metrics = FakeMetrics(*ALL)
    handler.handle(None, context)
    monkeypatch.setattr(Captioner, "decode", lost)
    frame = {"body": b"".join(wire.pack(np.zeros((50, 50, 3), np.uint8)))}
    with pytest.raises(torch.AcceleratorError):
        handler.handle([frame, frame], context)
    assert (
        context.metrics.reported["reelscribe_errors_total", "captioner", "1.0", WORKER, "cpu", "AcceleratorError"] == 2
    )


def test_requests_that_fail_by_themselves_count_as_errors(demo_model, monkeypatch):
    def fail(_):
        raise MemoryError

    handler, context = caption_handler.CaptionHandler(), FakeContext({"model": demo_model})
    context.metrics = FakeMetrics(*ALL)
    handler.handle(None, context)
    monkeypatch.setattr(frame_requests, "is_still", fail)
    assert len(handler.handle([{"body": b""}, {"body": b""}], context)) == 2
    assert context.statuses == {0: 500, 1: 500}
    assert context.metrics.reported["reelscribe_errors_total", "captioner", "1.0", WORKER, "cpu", "RequestFailed"] == 2


def test_a_worker_answers_without_declared_metrics(demo_model):
    handler, context = caption_handler.CaptionHandler(), FakeContext({"model": demo_model})
    handler.handle(None, context)
    (answer,) = parsed(handler.handle([{"body": b"".join(wire.pack(np.zeros((50, 50, 3), np.uint8)))}], context))
    assert answer["text"] == "a plain black background"
