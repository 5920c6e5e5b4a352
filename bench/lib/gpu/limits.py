"""The least time that a model's work takes on a device: its operations and bytes, and the device's measured ceilings.

Operations and bytes are computed from the model's configuration. A multiplication of m x k by k x n is 2 m k n
operations. Biases, norms, softmax, activation functions and Fourier transforms are not counted, and neither are the
bytes of activations, which perfect kernels would keep on the chip. So bytes are those of the weights, once for each
pass over them, and of the keys and values that each new token attends to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

HALF, SINGLE = 2, 4
"""Bytes of a number in half and in single precision."""

FREQUENCIES = 201
"""Frequencies of Whisper's spectrograms, before they are summed up to mel bands."""


@dataclass(frozen=True)
class Work:
    """One or more passes of the same kind over one part of a model, for a whole batch."""

    name: str
    operations: float
    bytes: float
    formula: str
    """The arithmetic of the operations for one item of the batch, to be read."""


@dataclass(frozen=True)
class Ceilings:
    """The highest rates of a device."""

    operations: float
    """Operations per second of a multiplication of large matrices."""
    bytes: float
    """Bytes per second that a copy reads and writes."""

    def seconds(self, work: Sequence[Work]) -> float:
        """The least time of the parts, one after the other; the slower of the two ceilings limits each."""
        return sum(max(part.operations / self.operations, part.bytes / self.bytes) for part in work)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Seconds that `run` takes until the device has done all its work."""
    synchronize(device)
    began = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - began


def measure_ceilings(device: torch.device, dtype: torch.dtype, side: int, copied: int, times: int = 11) -> Ceilings:
    """Measure the ceilings: medians of multiplying matrices of `side` x `side`, and of copying `copied` bytes."""
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    source = torch.zeros(copied, dtype=torch.uint8, device=device)
    target, product = torch.empty_like(source), torch.empty_like(a)
    multiply, copy = lambda: torch.mm(a, b, out=product), lambda: target.copy_(source)
    rates = []
    for run in (multiply, copy):
        seconds(run, device)
        rates.append(median(seconds(run, device) for _ in range(times)))
    return Ceilings(2 * side**3 / rates[0], 2 * copied / rates[1])


def blip2_work(config: Any, batch: int, new_tokens: int) -> list[Work]:
    """The work of captions of `new_tokens` tokens.

    All is in half precision, but the Q-Former, which transformers keeps in single precision.
    """
    vision, qformer, text = config.vision_config, config.qformer_config, config.text_config
    patches = (vision.image_size // vision.patch_size) ** 2
    positions, d, layers = patches + 1, vision.hidden_size, vision.num_hidden_layers
    weights, pixels = 4 * d * d + 2 * d * vision.intermediate_size, 3 * vision.patch_size**2
    encode = Work(
        "vision",
        batch * (layers * (2 * positions * weights + 4 * positions**2 * d) + 2 * patches * pixels * d),
        HALF * (layers * weights + pixels * d),
        f"{layers} layers x (2 x {positions} x {weights:,} weights + 4 x {positions}^2 x {d})"
        f" + 2 x {patches} patches x {pixels} x {d}",
    )
    queries, q, layers = config.num_query_tokens, qformer.hidden_size, qformer.num_hidden_layers
    crossed = -(-layers // qformer.cross_attention_frequency)
    weights, across = 4 * q * q + 2 * q * qformer.intermediate_size, 2 * q * d
    projection = q * text.hidden_size
    query = Work(
        "Q-Former",
        batch
        * (
            layers * (2 * queries * weights + 4 * queries**2 * q)
            + crossed * (2 * queries * 2 * q * q + 2 * positions * across + 4 * queries * positions * q)
            + 2 * queries * projection
        ),
        SINGLE * (layers * weights + crossed * (2 * q * q + across)) + HALF * projection,
        f"{layers} layers x (2 x {queries} x {weights:,} + 4 x {queries}^2 x {q}) + {crossed} cross-attentions x"
        f" (2 x {queries} x {2 * q * q:,} + 2 x {positions} x {across:,} + 4 x {queries} x {positions} x {q})"
        f" + 2 x {queries} x {projection:,}",
    )
    w, layers = text.hidden_size, text.num_hidden_layers
    weights, head = 4 * w * w + 2 * w * text.ffn_dim, w * text.vocab_size
    return [encode, query, *_decoder(batch, new_tokens, queries + 1, w, layers, weights, head)]


def _decoder(batch: int, new_tokens: int, prompt: int, width: int, layers: int, weights: int, head: int) -> list[Work]:
    """The work of a decoder without cross-attention: the prompt, which gives the first token, and the other tokens."""
    prompt_work = Work(
        "prompt",
        batch * (layers * (2 * prompt * weights + 4 * prompt**2 * width) + 2 * head),
        HALF * (layers * weights + head),
        f"{layers} layers x (2 x {prompt} x {weights:,} + 4 x {prompt}^2 x {width}) + 2 x {head:,}",
    )
    steps = new_tokens - 1
    # The first of these tokens attends to the prompt and to itself.
    attended = sum(prompt + k for k in range(1, new_tokens))
    token_work = Work(
        f"{steps} more tokens",
        batch * (steps * (layers * 2 * weights + 2 * head) + layers * 4 * attended * width),
        HALF * (steps * (layers * weights + head) + batch * layers * 2 * attended * width),
        f"{steps} x ({layers} layers x 2 x {weights:,} + 2 x {head:,}) + {layers} layers x 4 x {attended} x {width}",
    )
    return [prompt_work, token_work]


def qwen3_vl_work(config: Any, batch: int, new_tokens: int, prompt: int, grid: tuple[int, int, int]) -> list[Work]:
    """The work of descriptions of `new_tokens` tokens, in half precision.

    Args:
        config: The configuration of a Qwen3-VL.
        batch: Number of clips.
        new_tokens: Tokens of each description.
        prompt: Tokens of the prompt, with those of the frames.
        grid: Number of patches of a clip in time, in each column and in each row.
    """
    vision, text = config.vision_config, config.text_config
    times, patches, d, layers = grid[0], grid[1] * grid[2], vision.hidden_size, vision.depth
    weights, pixels = (
        4 * d * d + 2 * d * vision.intermediate_size,
        3 * vision.temporal_patch_size * vision.patch_size**2,
    )
    merged, mergers = vision.spatial_merge_size**2, 1 + len(vision.deepstack_visual_indexes)
    merger = (merged * d) ** 2 + merged * d * vision.out_hidden_size
    encode = Work(
        "vision",
        batch
        * times
        * patches
        * (layers * (2 * weights + 4 * patches * d) + 2 * pixels * d + mergers * 2 * merger / merged),
        HALF * (layers * weights + pixels * d + mergers * merger),
        f"{times} x {patches} patches x ({layers} layers x (2 x {weights:,} weights + 4 x {patches} x {d})"
        f" + 2 x {pixels} x {d} + {mergers} x 2 x {merger:,} / {merged})",
    )
    queries, keys = text.num_attention_heads * text.head_dim, text.num_key_value_heads * text.head_dim
    w, layers = text.hidden_size, text.num_hidden_layers
    weights = w * (2 * queries + 2 * keys) + 3 * w * text.intermediate_size
    head = w * text.vocab_size
    prompt_work = Work(
        "prompt",
        batch * (layers * (2 * prompt * weights + 4 * prompt**2 * queries) + 2 * head),
        HALF * (layers * weights + head),
        f"{layers} layers x (2 x {prompt} x {weights:,} + 4 x {prompt}^2 x {queries}) + 2 x {head:,}",
    )
    steps, attended = new_tokens - 1, sum(prompt + k for k in range(1, new_tokens))
    token_work = Work(
        f"{steps} more tokens",
        batch * (steps * (layers * 2 * weights + 2 * head) + layers * 4 * attended * queries),
        HALF * (steps * (layers * weights + head) + batch * layers * 2 * attended * keys),
        f"{steps} x ({layers} layers x 2 x {weights:,} + 2 x {head:,}) + {layers} layers x 4 x {attended} x {queries}",
    )
    return [encode, prompt_work, token_work]


def whisper_work(config: Any, batch: int, new_tokens: int, prompt: int) -> list[Work]:
    """The work of windows in which `new_tokens` tokens follow `prompt` tokens of the prompt, in half precision.

    As in the handler, a first step of the decoder detects the language and whether there is speech. The keys and values
    of the audio are computed for this step, and again for the prompt.
    """
    d, layers, positions = config.d_model, config.encoder_layers, config.max_source_positions
    mels, weights = config.num_mel_bins, 4 * d * d + 2 * d * config.encoder_ffn_dim
    filters = mels * FREQUENCIES
    spectrogram = Work(
        "spectrogram",
        batch * 2 * 2 * positions * filters,
        SINGLE * filters,
        f"2 x {2 * positions} x {mels} x {FREQUENCIES}",
    )
    encode = Work(
        "encoder",
        batch
        * (
            layers * (2 * positions * weights + 4 * positions**2 * d)
            + 2 * 2 * positions * 3 * mels * d
            + 2 * positions * 3 * d * d
        ),
        HALF * (layers * weights + 3 * mels * d + 3 * d * d),
        f"{layers} layers x (2 x {positions} x {weights:,} weights + 4 x {positions}^2 x {d})"
        f" + 2 x {2 * positions} x 3 x {mels} x {d} + 2 x {positions} x 3 x {d}^2",
    )
    layers, kept = config.decoder_layers, 2 * d * d
    weights, head = 6 * d * d + 2 * d * config.decoder_ffn_dim, d * config.vocab_size

    def decoder_pass(name: str, tokens: int) -> Work:
        per_layer = 2 * positions * kept + tokens * (2 * weights + 4 * positions * d + 4 * tokens * d)
        return Work(
            name,
            batch * (layers * per_layer + tokens * 2 * head),
            HALF * (layers * (weights + kept) + head),
            f"{layers} layers x (2 x {positions} x {kept:,} + {tokens} x (2 x {weights:,} + 4 x {positions} x {d}"
            f" + 4 x {tokens} x {d})) + {tokens} x 2 x {head:,}",
        )

    steps, attended = new_tokens - 1, sum(prompt + k for k in range(1, new_tokens))
    token_work = Work(
        f"{steps} more tokens",
        batch * (steps * (layers * (2 * weights + 4 * positions * d) + 2 * head) + layers * 4 * attended * d),
        HALF * (steps * (layers * weights + head) + batch * layers * 2 * (steps * positions + attended) * d),
        f"{steps} x ({layers} layers x (2 x {weights:,} + 4 x {positions} x {d}) + 2 x {head:,})"
        f" + {layers} layers x 4 x {attended} x {d}",
    )
    return [spectrogram, encode, decoder_pass("language", 1), decoder_pass("prompt", prompt), token_work]
