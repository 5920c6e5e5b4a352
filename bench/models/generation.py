"""How much of transformers' `generate` is not matrix products, with models of real sizes on a CPU?

    scripts/bench generation [--models opt-125m qwen3-vl] [--rounds 5] [--tokens 20] [--json FILE]

The rest is the most that a generation loop of our own could save. The models have the sizes of checkpoints that people
use, and random weights in float32. They run on one thread:

opt-125m: the language model of a BLIP-2 with the sizes of opt-125m, behind 32 image tokens and one of text.
qwen3-vl: Qwen3-VL-2B with 4 of its 28 layers, behind a prompt of 160 tokens without frames.

Every item gets --tokens tokens, and none ends early. The ways:

dynamic, static: `generate` with these caches, as handlers call it.
products: the linear layers alone, once for the prompt and once for each further token, with as many rows.

Every round runs all ways of a row once, one after the other in one process, in every other round from the last to the
first. Figures are CPU seconds of the process, as medians with, in brackets, smallest and largest. Ratios are those of
rounds: how many times as long as the products a way takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import transformers
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    OPTConfig,
)

from lib.command import add_json_option, command_parser, run_command
from lib.report import Report, Spread, publish
from runtime.generation import generate
from synthetic.random_models import qwen3_vl_config

Ways = dict[str, Callable[[], object]]


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


def multiply(layers: list[nn.Linear], items: int, prompt: int, tokens: int) -> None:
    """Multiply with the weights of linear layers as often as `tokens` tokens behind a prompt need it."""
    with torch.inference_mode():
        for rows in (items * prompt, *[items] * (tokens - 1)):
            for layer in layers:
                layer(torch.ones(rows if layer is not layers[-1] else items, layer.in_features))


def make_ways(model: Any, text: Any, inputs: dict[str, torch.Tensor], prompt: int, tokens: int) -> Ways:
    """The ways to generate with a model, whose linear layers below `text` end with the one of the vocabulary."""
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
    layers = [layer for layer in text.modules() if isinstance(layer, nn.Linear)]
    items = len(next(iter(inputs.values())))
    ways: Ways = {}
    for cache in ("dynamic", "static"):
        ways[cache] = partial(generate, model, {**options, "cache_implementation": cache}, inputs, ends=[2])
    return {**ways, "products": partial(multiply, layers, items, prompt, tokens)}


def opt_rows(tokens: int) -> Iterator[tuple[str, Ways]]:
    """The rows of opt-125m."""
    config = OPTConfig(bos_token_id=2, eos_token_id=2, pad_token_id=1, vocab_size=50304)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for items in (8, 32):
        ids = torch.full((items, 33), 4)
        inputs = {"inputs_embeds": torch.randn(items, 33, config.hidden_size), "input_ids": ids}
        yield f"opt-125m, {items} frames", make_ways(model, model, inputs, 33, tokens)


def qwen_rows(tokens: int) -> Iterator[tuple[str, Ways]]:
    """The rows of a Qwen3-VL-2B."""
    config: Any = qwen3_vl_config("full")
    config.text_config.num_hidden_layers, config.vision_config.depth = 4, 1
    config.vision_config.deepstack_visual_indexes = []
    model: Any = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    model.generation_config.update(eos_token_id=2, pad_token_id=6)
    text = nn.ModuleList([model.model.language_model, model.lm_head])
    for items in (1, 8):
        ids = torch.randint(10, 1000, (items, 160))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        yield f"qwen3-vl, 4 of 28 layers, {items} clips", make_ways(model, text, inputs, 160, tokens)


MODELS = {"opt-125m": opt_rows, "qwen3-vl": qwen_rows}


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
    table = Report("CPU seconds of a device batch", ("model", "way", "CPU s", "times the products"))
    for name in options.models:
        for what, ways in MODELS[name](options.tokens):
            spreads = measure(options.rounds, ways)
            for way, spread in spreads.items():
                table.add(what, way, spread, spread.over(spreads["products"]))
    publish([table], options.json)


if __name__ == "__main__":
    run_command(main)
