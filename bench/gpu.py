"""How fast BLIP-2 opt-2.7b and Whisper large-v3-turbo run on a GPU through the handlers' code, and what its limits are.

    .venv/bin/python bench/gpu.py [--models blip2 whisper] [--variants bf16 fp16 ...] [--batches 8 16 32 64 128 256 512]
                                  [--caption-tokens 16] [--speech-tokens 100] [--rounds 5] [--json FILE]
    .venv/bin/python bench/gpu.py --device cpu --size tiny

NOTHING WAS MEASURED ON A GPU IN THIS VERSION: there was none. The second command runs the same code with tiny models on
a CPU; its figures say nothing.

The models have random weights and their real shapes (gpu_models.py), and no hub is asked. They write exactly as many
tokens as the options say, as random weights come to no end. Frames are of the model's input size; sound is noise, in
windows of 30 s, each heard once and without timestamps, which random weights do not get right.

Each variant is a loaded model of its own (BLIP-2: 8 GB; choose --variants for a small GPU). Every round runs all
variants of a batch once:

- bf16: as the handlers do it where nothing is set: bfloat16, attention by torch's scaled_dot_product_attention (SDPA).
- fp16: float16.
- eager: bf16 with attention as plain multiplications.
- static: bf16 with a cache of fixed size.
- compiled: the same, with torch.compile for the step that writes a token.
- graphs: the same, with CUDA graphs too (torch.compile's "reduce-overhead").

"idle" is the share of the time in which the device did nothing: what torch's profiler saw of it in one more run is set
against the median without the profiler. The other shares: the model's operations over what a large multiplication of
matrices reaches in this time; its bytes over what a copy reaches; and "of both": the time of a device that does each
part as fast as the slower of the two lets it, over what it took. The last tables show how these are counted
(gpu_limits.py). Figures are medians and, in brackets, smallest and largest.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers
from torch.profiler import ProfilerActivity, profile
from transformers import CompileConfig

from gpu_limits import Ceilings, Work, blip2_work, measure_ceilings, seconds, whisper_work
from gpu_models import TEXT_TOKENS, Size, blip2_config, save_blip2, save_whisper, whisper_config
from report import Report, Spread, add_json_option, publish, take_turns
from serving import ROOT

sys.path.insert(0, str(ROOT / "handlers"))
from speech_chunks import SpeechChunk
from speech_settings import SpeechSettings
from whisper_model import WhisperModel

from caption_handler import Captioner, CaptionSettings
from reelscribe.contract.speech import TranscriptionOptions

DType = Literal["bfloat16", "float16"]

PROMPT_TOKENS = 4
"""Of Whisper: start, language, task, no timestamps."""

WARM_UP = 3
"""Runs before the clock starts."""

COUNTED = 32
"""Items of the batch whose arithmetic is shown."""

CEILINGS = {"cuda": (8192, 2**30), "cpu": (512, 2**24)}
"""By device: side of the matrices, bytes of the copy."""


@dataclass(frozen=True)
class Variant:
    """How a model is run."""

    dtype: DType = "bfloat16"
    attention: Literal["sdpa", "eager"] = "sdpa"
    static: bool = False
    compile_mode: str | None = None

    def set_up(self, model: Any, generator: Any) -> None:
        """Make a loaded model of transformers run so; `generator` is the part of it that writes."""
        model.set_attn_implementation(self.attention)
        config = generator.generation_config
        config.cache_implementation = "static" if self.static else None
        config.disable_compile = self.compile_mode is None
        if self.compile_mode is not None:
            on_gpu = model.device.type == "cuda"
            # A size of its own for each batch; on a CPU, only what compiling does before it makes code.
            config.compile_config = CompileConfig(
                mode=self.compile_mode, dynamic=False, backend="inductor" if on_gpu else "eager"
            )
            config.compile_config._compile_all_devices = not on_gpu


VARIANTS = {
    "bf16": Variant(),
    "fp16": Variant(dtype="float16"),
    "eager": Variant(attention="eager"),
    "static": Variant(static=True),
    "compiled": Variant(static=True, compile_mode="default"),
    "graphs": Variant(static=True, compile_mode="reduce-overhead"),
}


@dataclass(frozen=True)
class Loaded:
    """A model in one variant."""

    model: Any
    """Of transformers."""
    batch: Callable[[int], Callable[[], object]]
    """What runs so many items through it."""


@dataclass(frozen=True)
class Subject:
    """A model that is measured."""

    title: str
    unit: str
    per_item: float
    """Units in an item of a batch."""
    save: Callable[[Path, torch.device], None]
    load: Callable[[Path, Variant, torch.device], Loaded]
    work: Callable[[int], list[Work]]
    """Of a batch of so many items."""


def blip2(size: Size, tokens: int) -> Subject:
    """Captions of so many tokens."""
    generation = {"max_new_tokens": tokens, "min_new_tokens": tokens, "num_beams": 1, "do_sample": False}

    def load(folder: Path, variant: Variant, device: torch.device) -> Loaded:
        captioner = Captioner(CaptionSettings(str(folder), dtype=variant.dtype, generation=generation), device)
        variant.set_up(captioner.model, captioner.model.language_model)
        frame = captioner.transform.frame

        def batch(items: int) -> Callable[[], object]:
            frames = np.random.default_rng(0).integers(0, 256, (items, frame.height, frame.width, 3), np.uint8)
            return lambda: captioner.caption([frames])

        return Loaded(captioner.model, batch)

    return Subject(
        f"BLIP-2 opt-2.7b ({size}), captions of {tokens} tokens",
        "frames/s",
        1,
        lambda folder, device: save_blip2(size, folder, device),
        load,
        lambda items: blip2_work(blip2_config(size), items, tokens),
    )


def whisper(size: Size, tokens: int) -> Subject:
    """Windows in which so many tokens are written."""
    config = whisper_config(size)
    window_seconds = config.max_source_positions / 50
    # Random weights would take nearly all they write for doubtful, and stop or go back at random times.
    settings: dict[str, Any] = {"timestamps": False, "temperatures": (0.0,)}
    settings |= dict.fromkeys(("compression_ratio_threshold", "logprob_threshold", "no_speech_threshold"))
    suppressed = list(range(TEXT_TOKENS[size], config.vocab_size))
    settings["generation"] = {"max_new_tokens": tokens, "suppress_tokens": suppressed}

    def load(folder: Path, variant: Variant, device: torch.device) -> Loaded:
        model = WhisperModel(SpeechSettings(str(folder), dtype=variant.dtype, **settings), device)
        variant.set_up(model.model, model.model)
        samples = np.random.default_rng(0).normal(0, 0.1, round(window_seconds * model.sample_rate)).astype(np.float32)

        def batch(items: int) -> Callable[[], object]:
            chunks = [SpeechChunk(samples, TranscriptionOptions())] * items
            return lambda: model.transcribe(chunks)

        return Loaded(model.model, batch)

    return Subject(
        f"Whisper large-v3-turbo ({size}), {tokens} tokens in {window_seconds:g} s",
        "RTFx",
        window_seconds,
        lambda folder, device: save_whisper(size, folder, device),
        load,
        lambda items: whisper_work(config, items, tokens, PROMPT_TOKENS),
    )


def busy_seconds(run: Callable[[], object], device: torch.device) -> float:
    """For how long the device does something; on a CPU, for how long torch does."""
    on_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
        seconds(run, device)
    kind = "CUDA" if on_gpu else "CPU"
    events = sorted((e.time_range.start, e.time_range.end) for e in profiler.events() if e.device_type.name == kind)
    busy, until = 0.0, 0.0
    for start, end in events:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    return busy / 1e6


def measure(
    subject: Subject,
    variants: Mapping[str, Variant],
    ceilings: Mapping[DType, Ceilings],
    device: torch.device,
    batches: Sequence[int],
    rounds: int,
) -> Report:
    """The table of one model."""
    columns = ("device batch, variant", subject.unit, "ms", "idle", "of matrix rate", "of bandwidth", "of both")
    report = Report(subject.title, columns)
    with tempfile.TemporaryDirectory() as directory:
        subject.save(Path(directory), device)
        loaded = {name: subject.load(Path(directory), variant, device) for name, variant in variants.items()}
    for items in batches:
        torch.compiler.reset()  # so many sizes of one function would not be compiled any more
        runs = {name: each.batch(items) for name, each in loaded.items()}
        for name in [name for name, run in runs.items() if not _fits(run)]:
            del runs[name]
            report.add(f"{items}, {name}", "does not fit", *[""] * (len(columns) - 2))
        spreads = take_turns(rounds, {name: partial(seconds, run, device) for name, run in runs.items()})
        for name, spent in spreads.items():
            work, ceiling = subject.work(items), ceilings[variants[name].dtype]
            report.add(
                f"{items}, {name}",
                Spread(tuple(items * subject.per_item / value for value in spent.values)),
                1000 * spent.median,
                f"{1 - min(1, busy_seconds(runs[name], device) / spent.median):.0%}",
                f"{sum(part.operations for part in work) / ceiling.operations / spent.median:.1%}",
                f"{sum(part.bytes for part in work) / ceiling.bytes / spent.median:.1%}",
                f"{ceiling.seconds(work) / spent.median:.1%}",
            )
    return report


def _fits(run: Callable[[], object]) -> bool:
    """Warms up, too: CUDA graphs are recorded in the second run."""
    try:
        for _ in range(WARM_UP):
            run()
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return False
    return True


def arithmetic(subject: Subject, ceiling: Ceilings, items: int) -> Report:
    """What is counted of a batch."""
    columns = ("part", "10^12 operations", "GB", "ms by matrix rate", "ms by bandwidth", "operations of an item")
    report = Report(f"{subject.title}: the work of a batch of {items}, in half precision", columns)
    for part in subject.work(items):
        times = (1000 * part.operations / ceiling.operations, 1000 * part.bytes / ceiling.bytes)
        report.add(part.name, part.operations / 1e12, part.bytes / 1e9, *times, part.how)
    return report


def main(words: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--models", nargs="+", choices=("blip2", "whisper"), default=["blip2", "whisper"])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 16, 32, 64, 128, 256, 512])
    parser.add_argument("--caption-tokens", type=int, default=16)
    parser.add_argument("--speech-tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    add_json_option(parser)
    options = parser.parse_args(words)
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error(
            "--device cuda: expected a GPU that torch sees, found none; --device cpu --size tiny tries the code"
        )
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    makers = {"blip2": (blip2, options.caption_tokens), "whisper": (whisper, options.speech_tokens)}
    subjects = [make(options.size, tokens) for make, tokens in (makers[name] for name in options.models)]
    variants = {name: VARIANTS[name] for name in options.variants}
    ceilings = {
        variant.dtype: measure_ceilings(device, getattr(torch, variant.dtype), *CEILINGS[device.type])
        for variant in variants.values()
    }
    tables = [limits(ceilings, device)]
    tables += [measure(subject, variants, ceilings, device, options.batches, options.rounds) for subject in subjects]
    first = ceilings[next(iter(variants.values())).dtype]
    tables += [arithmetic(subject, first, COUNTED) for subject in subjects]
    publish(tables, options.json)


def limits(ceilings: Mapping[DType, Ceilings], device: torch.device) -> Report:
    """What the device does at best."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    report = Report(f"{name}: ceilings", ("numbers", "10^12 operations/s", "GB/s read and written"))
    for dtype, ceiling in ceilings.items():
        report.add(dtype, ceiling.operations / 1e12, ceiling.bytes / 1e9)
    if device.type == "cpu":
        report.notes.append("A CPU: this shows that the benchmark runs, and nothing about any GPU.")
    return report


if __name__ == "__main__":
    main()
