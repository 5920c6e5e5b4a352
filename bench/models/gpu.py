"""How fast do BLIP-2, speech models and Qwen3-VL-2B run on a GPU by the handlers' code, and what are its limits?

    scripts/bench gpu [--models blip2 whisper qwen3vl parakeet canary qwen3asr] [--variants bf16 fp16 ...]
                      [--batches 8 16 32 64 128 256 512]
                      [--caption-tokens 16] [--speech-tokens 100] [--clip-tokens 64] [--clip-frames 10]
                      [--clip-size 1920x1080] [--rounds 5] [--json FILE]
    scripts/bench gpu --device cpu --size tiny
    scripts/bench gpu --device cpu --size tiny --check
    scripts/bench gpu --device cpu --models qwen3vl --variants bf16 --batches 1 --rounds 1 \
        --clip-tokens 4 --clip-frames 4 --clip-size 320x192

What an H100 did is in docs/performance.md. The second command runs the same code with tiny models on a CPU; its figures
mean nothing. The third compares the operations and bytes on which the shares below are based with torch's own counter
and with the models' sizes; its exit status is 1 if they differ. The fourth shows within some minutes that the real
architecture of Qwen3-VL-2B loads and answers on a CPU.

The models have the shapes of the real ones and random weights (demo/synthetic/random_models.py), and nothing is
downloaded. They generate exactly as many tokens as the options say, as random weights do not reach an end. Frames have
the model's input size. Audio is noise in windows of 30 s. Each window is decoded once and without timestamps, with
which random weights would fail. Clips are noise, too, of the size that a Qwen3-VL takes of frames of --clip-size.

The models are BLIP-2 opt-2.7b, Whisper large-v3-turbo and Qwen3-VL-2B-Instruct; and, where --models names them,
Parakeet-TDT-0.6b-v3, Canary-1b-v2 and Qwen3-ASR-1.7B, whose work is not counted.

Each variant is a loaded model of its own (BLIP-2: 8 GB; choose --variants for a small GPU). Every round runs all
variants of a batch once:

- bf16: the handlers' default: bfloat16, attention by torch's scaled_dot_product_attention (SDPA).
- fp16: float16.
- eager: bf16 with attention as plain multiplications.
- compiled: bf16 with compiled steps, as archives built with --compile have them (handlers/runtime/compiled_steps.py).
  A Parakeet has none.

The columns that are shares of the time:

- idle: the device did nothing. The busy time is from torch's profiler in one more run, the whole time is the median
  without the profiler.
- of matrix rate: the model's operations, over those of a large matrix multiplication in the same time.
- of bandwidth: the model's bytes, over those of a copy in the same time.
- of both: the time of a device that does each part as fast as the slower of the two limits allows, over the time
  measured.

The last tables show how operations and bytes are counted (lib/gpu/limits.py). Figures are medians and, in brackets,
smallest and largest.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from lib.command import add_json_option, command_parser, run_command
from lib.gpu.limits import Ceilings, Work, measure_ceilings, seconds, whisper_work
from lib.gpu.subjects import (
    PROMPT_TOKENS,
    SPEECH,
    VARIANTS,
    DType,
    Loaded,
    Subject,
    Variant,
    blip2,
    qwen3_vl,
    speech,
    whisper,
)
from lib.report import Report, Spread, publish, save, take_turns
from synthetic.random_models import FULL_SIZES, parameters, whisper_config, whisper_encoder_parameters

WARM_UP = 3
"""Runs before the measured ones."""

COUNTED = 32
"""Items of the batch whose operations are shown."""

MODELS = ["blip2", "whisper", "qwen3vl"]
"""The models that run by default."""

CHECKED = 3
"""Items of the batch whose operations are compared with torch's counter."""

CEILINGS = {"cuda": (8192, 2**30), "cpu": (512, 2**24)}
"""For each kind of device, the side of the matrices and the bytes of the copy that measure its ceilings."""


def busy_seconds(run: Callable[[], object], device: torch.device) -> float:
    """Seconds in which the device is busy; on a CPU, in which torch is. Work within work counts once."""
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
    torch.compiler.reset()  # torch stops compiling after some models, as a process of a handler has one
    with tempfile.TemporaryDirectory() as directory:
        subject.save(Path(directory), device)
        loaded = {name: subject.load(Path(directory), variant, device) for name, variant in variants.items()}
    loaded = {name: each for name, each in loaded.items() if each.compiled == variants[name].compile}
    for items in sorted(batches, reverse=True):  # the caches of the largest one hold those of the others
        runs = {name: each.batch(items) for name, each in loaded.items()}
        for name in [name for name, run in runs.items() if not _fits(variants[name], loaded[name], run)]:
            del runs[name]
            report.add(f"{items}, {name}", "does not fit", *[""] * (len(columns) - 2))
        spreads = take_turns(rounds, {name: partial(seconds, run, device) for name, run in runs.items()})
        for name, spent in spreads.items():
            report.add(
                f"{items}, {name}",
                Spread(tuple(items * subject.per_item / value for value in spent.values)),
                1000 * spent.median,
                f"{1 - min(1, busy_seconds(runs[name], device) / spent.median):.0%}",
                *_shares(subject.work(items), ceilings[variants[name].dtype], spent.median)
                if subject.work
                else [""] * 3,
            )
    return report


def _shares(work: Sequence[Work], ceiling: Ceilings, spent: float) -> list[str]:
    """The last three columns: shares of `spent` seconds."""
    return [
        f"{sum(part.operations for part in work) / ceiling.operations / spent:.1%}",
        f"{sum(part.bytes for part in work) / ceiling.bytes / spent:.1%}",
        f"{ceiling.seconds(work) / spent:.1%}",
    ]


def _fits(variant: Variant, loaded: Loaded, run: Callable[[], object]) -> bool:
    """Warm a batch up and return whether it fits into memory."""
    try:
        for _ in range(WARM_UP):
            run()
    except torch.cuda.OutOfMemoryError:
        if loaded.compiled:
            loaded.generator.compiled_steps.free()
        torch.cuda.empty_cache()
        return False
    # The variant ran with its settings. The type of the whole model is not checked: BLIP-2's Q-Former has another one.
    assert str(next(loaded.generator.parameters()).dtype) == f"torch.{variant.dtype}", variant
    assert loaded.model.config.get_text_config(decoder=True)._attn_implementation == variant.attention, variant
    assert not variant.compile or loaded.generator.compiled_steps.caches, variant
    return True


def check(subjects: Sequence[Subject], device: torch.device) -> Report:
    """Compare the counted operations and bytes with those that torch and the models' real sizes give."""
    report = Report("Checks", ("figure", "expected", "counted"))
    for name, config, published in FULL_SIZES:
        report.add(f"parameters of {name}", f"{published:,}", f"{parameters(config):,}")
    _, encode, *_ = whisper_work(whisper_config("full"), 1, 1, PROMPT_TOKENS)
    weights = whisper_encoder_parameters() * 2
    report.add("bytes of Whisper's encoder over those of its weights", "1.00", f"{encode.bytes / weights:.2f}")
    for subject in subjects:
        if subject.work is None:
            continue
        with tempfile.TemporaryDirectory() as directory:
            subject.save(Path(directory), device)
            # Attention as plain multiplications, which torch counts, instead of one kernel.
            loaded = subject.load(Path(directory), VARIANTS["eager"], device)
        loaded.model.requires_grad_(False)  # otherwise the counter expects gradients
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            loaded.batch(CHECKED)()
        work = subject.work(CHECKED)
        counted = sum(part.operations for part in work)
        report.add(f"operations of {subject.title}", f"{counter.get_total_flops():,}", f"{counted:,.0f}")
    return report


def arithmetic(title: str, work: Sequence[Work], ceiling: Ceilings) -> Report:
    """The table of the operations and bytes of a batch of COUNTED items."""
    columns = ("part", "10^12 operations", "GB", "ms by matrix rate", "ms by bandwidth", "operations of an item")
    report = Report(f"{title}: the work of a batch of {COUNTED}, in half precision", columns)
    for part in work:
        times = (1000 * part.operations / ceiling.operations, 1000 * part.bytes / ceiling.bytes)
        report.add(part.name, part.operations / 1e12, part.bytes / 1e9, *times, part.formula)
    return report


def main() -> int:
    """Print the tables; returns 1 if a check failed."""
    parser = command_parser(__doc__)
    parser.add_argument("--device", type=_device, default="cuda", help="cuda, cuda:NUMBER or cpu")
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--models", nargs="+", choices=[*MODELS, *SPEECH], default=MODELS)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 16, 32, 64, 128, 256, 512])
    parser.add_argument("--caption-tokens", type=int, default=16)
    parser.add_argument("--speech-tokens", type=int, default=100)
    parser.add_argument("--clip-tokens", type=int, default=64)
    parser.add_argument("--clip-frames", type=int, default=10)
    parser.add_argument("--clip-size", type=_size, default=(1920, 1080), metavar="WIDTHxHEIGHT")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="check the counted operations and bytes, measure nothing")
    add_json_option(parser)
    options = parser.parse_args()
    device: torch.device = options.device
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    makers: dict[str, Callable[[], Subject]] = {
        "blip2": lambda: blip2(options.size, options.caption_tokens),
        "whisper": lambda: whisper(options.size, options.speech_tokens),
        "qwen3vl": lambda: qwen3_vl(options.size, options.clip_tokens, options.clip_frames, *options.clip_size),
    }
    makers |= {name: partial(speech, name, options.size, options.speech_tokens) for name in SPEECH}
    subjects = [makers[name]() for name in options.models]
    if options.check:
        table = check(subjects, device)
        publish([table], options.json)
        return int(any(expected != counted for _, expected, counted in table.rows))
    variants = {name: VARIANTS[name] for name in options.variants}
    ceilings = {
        variant.dtype: measure_ceilings(device, getattr(torch, variant.dtype), *CEILINGS[device.type])
        for variant in variants.values()
    }
    first = ceilings[next(iter(variants.values())).dtype]
    tables = [limits(ceilings, device)]
    print(tables[0])
    for subject in subjects:  # a GPU may be lent for minutes only, so what is measured is printed and kept at once
        tables.append(measure(subject, variants, ceilings, device, options.batches, options.rounds))
        print(f"\n{tables[-1]}", flush=True)
        save(tables, options.json)
    works = [arithmetic(subject.title, subject.work(COUNTED), first) for subject in subjects if subject.work]
    print("", *works, sep="\n\n")
    save([*tables, *works], options.json)
    return 0


def _size(word: str) -> tuple[int, int]:
    """Width and height. Raises ArgumentTypeError if the word is no size."""
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", word)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected WIDTHxHEIGHT, such as 1920x1080, got {word}")
    return int(match[1]), int(match[2])


def _device(word: str) -> torch.device:
    """The device of that name. Raises ArgumentTypeError if it is not one that this command can measure."""
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", word)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected cuda, cuda:NUMBER or cpu, got {word}")
    if word != "cpu" and int(match[1] or 0) >= torch.cuda.device_count():
        raise argparse.ArgumentTypeError(
            f"{word}: expected a GPU that torch sees, found {torch.cuda.device_count() or 'none'};"
            " --device cpu --size tiny tries the code"
        )
    return torch.device(word)


def limits(ceilings: Mapping[DType, Ceilings], device: torch.device) -> Report:
    """The table of the highest rates that the device reaches."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    report = Report(f"{name}: ceilings", ("numbers", "10^12 operations/s", "GB/s read and written"))
    for dtype, ceiling in ceilings.items():
        report.add(dtype, ceiling.operations / 1e12, ceiling.bytes / 1e9)
    if device.type == "cpu":
        report.notes.append("On a CPU, this shows that the benchmark runs. Its figures mean nothing for a GPU.")
    return report


if __name__ == "__main__":
    run_command(main)
