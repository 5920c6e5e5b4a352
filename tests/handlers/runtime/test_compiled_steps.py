"""Compiled steps give the answers of steps that are not, and nothing is compiled once a model has loaded."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from caption_handler import CaptionHandler
from captions.captioner import CaptionSettings
from clip_handler import ClipHandler
from clips.describer import ClipSettings
from reelscribe.contract.clips import Clip
from reelscribe.contract.frames import InputSize
from reelscribe.contract.speech import TranscriptionOptions
from reelscribe.decode.sampling import Sampling
from reelscribe.errors import StartupError
from runtime.compiled_steps import CompiledSteps
from speech_handler import SpeechHandler
from support.alike import assert_alike
from support.audio import noise
from support.tiny_models import save_canary, save_git, save_parakeet_tdt, save_qwen2_5_vl, save_qwen3_asr
from support.videos import read
from synthetic.event_clips import random_event_clip
from transcripts.speech_model import Chunk, SpeechSettings
from worker.handler import LoadedModel

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def other_kernels() -> None:
    """Nothing: the kernels of other tests draw random numbers, which no graph can hold."""


def frames(root: Path) -> np.ndarray:
    return np.stack([each for _, _, each in read(root / "spoken.mp4", InputSize(224, 224), Sampling(every=35))])[:7]


def clips(factor: int) -> list[Clip]:
    """Clips and a still, of several lengths."""
    events = [(random_event_clip(random.Random(seed)), count) for seed, count in enumerate((8, 5, 1, 4, 8))]
    drawn = [
        np.stack([np.asarray(event.draw(k / 8, 5 * factor, 3 * factor)) for k in range(count)])
        for event, count in events
    ]
    return [Clip(each, [k / 2 for k in range(len(each))]) for each in drawn]


def chunks(**options: Any) -> list[Chunk]:
    return [Chunk(noise(length, seed), TranscriptionOptions(**options)) for seed, length in enumerate((1, 2.1, 5, 0.7))]


def load(kind: str, weights: str, *, compiled: bool = True, **settings: Any) -> LoadedModel:
    handler, make = {
        "caption": (CaptionHandler(), CaptionSettings),
        "clip": (ClipHandler(), ClipSettings),
        "speech": (SpeechHandler(), SpeechSettings),
    }[kind]
    settings = {"device_batch": 4, "compile": compiled, **settings}
    model: LoadedModel = handler.load_model(make(weights, **settings), CPU, 60)
    if compiled:
        model.batches.warm_up(model.example)
    return model


@pytest.fixture(params=["blip-2", "qwen3-vl", "qwen2.5-vl", "whisper", "canary", "qwen3-asr"])
def case(request, tmp_path, media, demo_model, clip_model, demo_speech) -> tuple[str, str, Any, dict[str, Any]]:
    """The kind of a handler, weights, items, and settings."""
    few = {"generation": {"max_new_tokens": 12}}
    spoken = {"no_speech_threshold": None, "temperatures": (0.0, 0.5), "compression_ratio_threshold": 1.0}
    return {
        "blip-2": lambda: ("caption", demo_model, frames(media), {}),
        "qwen3-vl": lambda: ("clip", clip_model, clips(32), few),
        "qwen2.5-vl": lambda: ("clip", save_qwen2_5_vl(tmp_path, clip_model), clips(28), few),
        "whisper": lambda: ("speech", demo_speech, chunks(word_times=True), spoken),
        "canary": lambda: ("speech", save_canary(tmp_path), chunks(language="de"), {}),
        "qwen3-asr": lambda: ("speech", save_qwen3_asr(tmp_path), chunks(hotwords="Ny"), {}),
    }[request.param]()


def test_answers_are_those_of_steps_that_are_not_compiled_and_no_request_waits_for_a_compiler(case):
    kind, weights, items, settings = case
    expected = load(kind, weights, compiled=False, **settings).batches.map([items])
    torch.compiler.reset()
    compiled = load(kind, weights, **settings)
    before = counters["stats"]["unique_graphs"]
    requests = [[items], [items[:1], items[1:4], items[4:]], [items[:2]]]
    answers = [[each for answered in compiled.batches.map(request) for each in answered] for request in requests]
    assert_alike(answers, [expected[0], expected[0], expected[0][:2]])
    assert counters["stats"]["unique_graphs"] == before > 0


def test_a_shape_is_that_of_the_next_power_of_two_and_shares_one_memory(demo_model, media):
    compiled = load("caption", demo_model, device_batch=6)
    steps = compiled.batches.steps
    assert [rows for rows, _ in sorted(steps.caches)] == [1, 2, 4, 8]
    addresses = {layer.keys.data_ptr() for cache in steps.caches.values() for layer in cache.layers[:1]}
    compiled.batches.map([frames(media)])
    assert addresses == {steps.caches[8, steps.lengths[0]].layers[0].keys.data_ptr()}


def test_too_little_memory_halves_the_sizes_too(demo_model, media, monkeypatch):
    expected = load("caption", demo_model, compiled=False).batches.map([frames(media)])
    torch.compiler.reset()
    prepare = CompiledSteps.generate

    def generate(self: CompiledSteps, model: Any, inputs: Any, *arguments: Any) -> torch.Tensor:
        if len(inputs["input_ids"]) > 2:
            raise torch.cuda.OutOfMemoryError
        return prepare(self, model, inputs, *arguments)

    monkeypatch.setattr(CompiledSteps, "generate", generate)
    compiled = load("caption", demo_model, device_batch=8)
    assert [rows for rows, _ in sorted(compiled.batches.steps.caches)] == [1, 2]
    assert_alike(compiled.batches.map([frames(media)]), expected)


@pytest.mark.parametrize(
    ("kind", "save", "settings"),
    [
        ("caption", save_git, {}),
        ("speech", save_parakeet_tdt, {}),
        ("caption", None, {"generation": {"num_beams": 2, "max_new_tokens": 8}}),
        ("caption", None, {"generation": {"max_length": 24}}),
        ("caption", None, {"stages": 2}),
        ("caption", None, {"compile": "yes"}),
    ],
)
def test_what_cannot_be_compiled_is_refused_while_it_loads(kind, save, settings, demo_model, tmp_path):
    with pytest.raises(StartupError, match=r"YAML, handler, compile: expected .*; build the archive without --compile"):
        load(kind, save(tmp_path) if save else demo_model, **settings)
