"""Are our own generation loops and first layers faster than transformers, on models of real sizes and a CPU?

    scripts/bench generation [--models opt-125m qwen3-vl blip-base] [--rounds 5] [--tokens 20] [--json FILE]

The models have the sizes of checkpoints that people use, and random weights in float32. They run on one thread:

opt-125m: the language model of a BLIP-2 with the sizes of opt-125m, behind 32 image tokens and one of text; and 4 of
    the 39 layers of BLIP-2's vision model.
qwen3-vl: Qwen3-VL-2B with 4 of its 28 layers of text, and its whole vision model. Clips have 4 frames of 320x192.
blip-base: Salesforce/blip-image-captioning-base, for which there is no loop of ours.

Every round runs all ways of a row once, one after the other in one process, in every other round from the last to the
first. Figures are CPU seconds of the process, as medians with, in brackets, smallest and largest. Ratios are those of
rounds: how many times as long as the last way of its row a way takes.

generate: --tokens tokens for each item, none of which ends early. "dynamic" and "static" are transformers' `generate`
    with these caches, and with what records log-probabilities. "ours" is the loop of the handler. The prompt of clips
    has no frames, so that nearly all is the loop.
first layer: frames to patches. "transformers" computes pixel values and convolves them; "product" multiplies levels.
encode: frames to features, likewise. For Qwen3-VL, "attention" joins sequences of equal length in the vision model, and
    "both" is what the handler does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModelForImageTextToText, BlipConfig, BlipForConditionalGeneration, OPTConfig
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil

from captions.caption_writer import CaptionWriter
from captions.frame_transform import FrameTransform
from captions.patch_embeddings import PatchEmbeddings
from clips.greedy_qwen import GreedyQwen
from clips.patches import Patching
from clips.vision_layers import SequenceAttention
from lib.command import add_json_option, command_parser, run_command
from lib.gpu.models import blip2_config, qwen3_vl_config
from lib.report import Report, Spread, publish
from runtime.generation import generate
from runtime.greedy_search import GreedySearch
from runtime.patch_product import PatchProduct

CPU = torch.device("cpu")
Ways = dict[str, Callable[[], object]]
BLIP = {
    "vocab_size": 30524,
    "num_attention_heads": 12,
    "encoder_hidden_size": 768,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
HALF = (0.5, 0.5, 0.5)


def measure(rounds: int, ways: Ways) -> dict[str, Spread]:
    """The CPU seconds of each way in each round, after one to warm up."""
    values: dict[str, list[float]] = {name: [] for name in ways}
    for run in ways.values():
        run()
    for k in range(rounds):
        for name in list(ways) if k % 2 == 0 else reversed(list(ways)):
            start = time.process_time()
            ways[name]()
            values[name].append(time.process_time() - start)
    return {name: Spread(tuple(each)) for name, each in values.items()}


def generation(tokens: int) -> dict[str, Any]:
    """Options with which exactly `tokens` tokens are generated."""
    return {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}


def opt_rows(tokens: int) -> Iterator[tuple[str, Ways]]:
    """The rows of a BLIP-2 with the sizes of opt-125m."""
    config: Any = blip2_config("full")
    config.vision_config.num_hidden_layers = 4
    config.text_config = OPTConfig(bos_token_id=2, eos_token_id=2, pad_token_id=1, vocab_size=50304)
    model: Any = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    options = generation(tokens)
    writers = {name: CaptionWriter(model, {**options, "cache_implementation": name}) for name in ("dynamic", "static")}
    writers["ours"] = CaptionWriter(model, options)
    side = config.vision_config.image_size
    transform = FrameTransform(BlipImageProcessorPil(size={"height": side, "width": side}), CPU, torch.float32)
    vision = model.vision_model
    theirs = vision.embeddings
    layers = {"transformers": (theirs, transform), "product": (PatchEmbeddings(theirs, transform), transform.levels)}

    def embed(way: str, frames: Any) -> object:
        embeddings, prepare = layers[way]
        with torch.inference_mode():
            return embeddings(prepare(frames))

    def encode(way: str, frames: Any) -> object:
        vision.embeddings, prepare = layers[way]
        with torch.inference_mode():
            return vision(prepare(frames))

    for items in (8, 32):
        features = {"features": torch.randn(items, 32, config.text_config.hidden_size)}
        yield f"opt-125m, generate, {items} frames", {name: partial(w, features) for name, w in writers.items()}
        frames = np.random.default_rng(0).integers(0, 256, (items, side, side, 3), np.uint8)
        yield f"BLIP-2, first layer, {items} frames", {way: partial(embed, way, frames) for way in layers}
    yield "BLIP-2, encode, 4 of 39 layers, 8 frames", {way: partial(encode, way, frames[:8]) for way in layers}


def qwen_rows(tokens: int) -> Iterator[tuple[str, Ways]]:
    """The rows of a Qwen3-VL-2B."""
    config: Any = qwen3_vl_config("full")
    config.text_config.num_hidden_layers = 4
    model: Any = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    model.generation_config.update(eos_token_id=5, pad_token_id=6)
    vision, patching, options = model.model.visual, Patching(16, 2, 2, HALF, HALF), generation(tokens)
    greedy, search = GreedyQwen(model), GreedySearch.of(model, options)
    assert search is not None
    convolution = vision.patch_embed
    product = PatchProduct(convolution.proj, *patching.normalisation(CPU))
    attention = {block: (block.attn, SequenceAttention(block.attn)) for block in vision.blocks}

    def write(way: str, ids: Any) -> object:
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if way == "ours":
            return greedy.generate(inputs, search)
        return generate(model, {**options, "cache_implementation": way}, inputs)

    def embed(way: str, clips: Any) -> Any:
        patches = torch.cat([patching(frames, CPU) for frames in clips])
        with torch.inference_mode():
            return product(patches) if way == "product" else convolution(patching.pixel_values(patches))

    def encode(way: str, clips: Any) -> object:
        joined = way in ("attention", "both")
        for block, each in attention.items():
            block.attn = each[joined]
        by_product = way in ("product", "both")
        vision.patch_embed = product if by_product else convolution
        patches = torch.cat([patching(frames, CPU) for frames in clips])
        grid = torch.tensor([patching.grid(4, 320, 192)] * len(clips))
        with torch.inference_mode():
            return vision(patches if by_product else patching.pixel_values(patches), grid_thw=grid)

    for items in (1, 8):
        ids = torch.randint(10, 1000, (items, 160))
        title = f"qwen3-vl, generate, 4 of 28 layers, {items} clips"
        yield title, {way: partial(write, way, ids) for way in ("dynamic", "static", "ours")}
    for items in (1, 4):
        clips = np.random.default_rng(0).integers(0, 256, (items, 4, 192, 320, 3), np.uint8)
        ways = ("transformers", "product")
        yield f"qwen3-vl, first layer, {items} clips", {way: partial(embed, way, clips) for way in ways}
        ways = ("transformers", "product", "attention", "both")
        yield f"qwen3-vl, encode, {items} clips", {way: partial(encode, way, clips) for way in ways}


def blip_rows(tokens: int) -> Iterator[tuple[str, Ways]]:
    """The row of a BLIP."""
    config = BlipConfig(text_config={**BLIP, "bos_token_id": 30522, "sep_token_id": 102})
    config.vision_config.image_size = 384  # type: ignore[union-attr]
    model: Any = BlipForConditionalGeneration(config).eval()

    def caption(way: str, pixels: Any) -> object:
        return generate(model, {**generation(tokens), "cache_implementation": way}, {"pixel_values": pixels})

    pixels = torch.randn(8, 3, 384, 384)
    yield "blip-base, encode and generate, 8 frames", {w: partial(caption, w, pixels) for w in ("static", "dynamic")}


MODELS = {"opt-125m": opt_rows, "qwen3-vl": qwen_rows, "blip-base": blip_rows}


def main() -> None:
    """Print the table."""
    parser = command_parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=20)
    add_json_option(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    table = Report("CPU seconds of a device batch", ("what", "way", "CPU s", "times the last way"))
    for name in options.models:
        for what, ways in MODELS[name](options.tokens):
            spreads = measure(options.rounds, ways)
            *_, last = spreads.values()
            for way, spread in spreads.items():
                table.add(what, way, spread, spread.over(last))
    publish([table], options.json)


if __name__ == "__main__":
    run_command(main)
