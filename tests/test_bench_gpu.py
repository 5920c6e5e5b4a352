"""The GPU benchmark, on a CPU with tiny models: that it runs, and that it counts what torch counts."""

import json

import pytest
import torch
from torch._dynamo.utils import counters
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForImageTextToText, AutoModelForSpeechSeq2Seq, StaticCache
from transformers.generation import utils

import gpu
from gpu_limits import Ceilings, Work, seconds
from gpu_models import blip2_config, whisper_config

CPU = torch.device("cpu")
TOKENS, ITEMS = 5, 3
SUBJECTS = {"blip2": gpu.blip2("tiny", TOKENS), "whisper": gpu.whisper("tiny", TOKENS)}


@pytest.fixture(scope="module", params=list(SUBJECTS))
def saved(request, tmp_path_factory):
    """A model to measure, and its weights."""
    folder = tmp_path_factory.mktemp(request.param)
    SUBJECTS[request.param].save(folder, CPU)
    return SUBJECTS[request.param], folder


def test_the_command_shows_every_variant_of_every_batch(tmp_path, capsys):
    file = tmp_path / "gpu.json"
    words = (
        "--device cpu --size tiny --models whisper --variants bf16 static --batches 1 2 --rounds 1 --speech-tokens 4"
    )
    gpu.main([*words.split(), "--json", str(file)])
    limits, table, arithmetic = json.loads(file.read_text())["tables"]
    assert [row[0] for row in table["rows"]] == ["1, bf16", "1, static", "2, bf16", "2, static"]
    assert [row[0] for row in arithmetic["rows"]] == ["spectrogram", "encoder", "first look", "prompt", "3 more tokens"]
    assert limits["notes"] == ["A CPU: this shows that the benchmark runs, and nothing about any GPU."]
    assert "nothing about any GPU" in capsys.readouterr().out


def test_a_gpu_that_is_not_there_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        gpu.main([])
    assert "expected a GPU that torch sees, found none" in capsys.readouterr().err


def test_operations_are_those_that_torch_counts(saved):
    subject, folder = saved
    # Multiplications that torch's counter knows, instead of one kernel of the CPU.
    loaded = subject.load(folder, gpu.VARIANTS["eager"], CPU)
    loaded.model.requires_grad_(False)  # or the counter looks for gradients
    with FlopCounterMode(display=False) as counter:
        loaded.batch(ITEMS)()
    assert counter.get_total_flops() == sum(part.operations for part in subject.work(ITEMS))


@pytest.mark.parametrize("name", gpu.VARIANTS)
def test_a_variant_runs_as_it_says(saved, name, monkeypatch):
    subject, folder = saved
    caches = []

    class Noted(StaticCache):
        def __init__(self, **given):
            caches.append(given)
            super().__init__(**given)

    monkeypatch.setattr(utils, "StaticCache", Noted)
    loaded, variant = subject.load(folder, gpu.VARIANTS[name], CPU), gpu.VARIANTS[name]
    torch.compiler.reset()
    counters.clear()
    loaded.batch(ITEMS)()
    # Not of the whole model: transformers leaves BLIP-2's Q-Former in float32 beside float16.
    assert str(loaded.model.get_output_embeddings().weight.dtype) == f"torch.{variant.dtype}"
    assert loaded.model.config.get_text_config(decoder=True)._attn_implementation == variant.attention
    assert bool(caches) == variant.static
    assert bool(counters["stats"]["unique_graphs"]) == (variant.compile_mode is not None)


def test_the_full_sizes_are_those_of_the_models():
    with torch.device("meta"):
        blip2 = AutoModelForImageTextToText.from_config(blip2_config("full"))
        whisper = AutoModelForSpeechSeq2Seq.from_config(whisper_config("full"))
    assert (blip2.num_parameters(), whisper.num_parameters()) == (3_744_761_856, 808_878_080)


def test_bytes_are_those_of_the_weights_once_for_each_pass():
    _, encode, *_ = gpu.whisper("full", 1).work(1)
    with torch.device("meta"):
        encoder = AutoModelForSpeechSeq2Seq.from_config(whisper_config("full")).get_encoder()
    assert encode.bytes == pytest.approx(2 * encoder.num_parameters(), rel=0.01)


def test_the_limit_of_each_part_is_the_slower_of_the_two():
    ceilings = Ceilings(operations=100, bytes=10)
    assert ceilings.seconds([Work("matrices", 200, 1, ""), Work("tokens", 1, 30, "")]) == 2 + 3


def test_a_device_that_does_nothing_is_not_busy():
    assert gpu.busy_seconds(lambda: None, CPU) == 0


def test_work_within_work_is_not_busy_twice():
    matrix = torch.randn(300, 300)
    spent = []
    busy = gpu.busy_seconds(lambda: spent.append(seconds(lambda: torch.linalg.multi_dot([matrix] * 4), CPU)), CPU)
    assert 0 < busy <= spent[0]
