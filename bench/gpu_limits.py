"""What a model's work must cost on a device at least: operations and bytes from its configuration, ceilings measured.

A multiplication of m x k by k x n is 2 m k n operations; biases, norms, softmax and activation functions are not
counted, nor Fourier transforms, nor are bytes of activations, which perfect kernels would keep on the chip. So bytes
are those of the weights, once for each pass over them, and of the keys and values that each new token looks at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

HALF, SINGLE = 2, 4
"""Bytes of a number."""

FREQUENCIES = 201
"""Of Whisper's spectrograms, before they are summed up to mels."""


@dataclass(frozen=True)
class Work:
    """A pass, or several of the same kind, over one part of a model, for a whole batch."""

    name: str
    operations: float
    bytes: float
    how: str
    """The arithmetic of the operations."""


@dataclass(frozen=True)
class Ceilings:
    """What the device does at best."""

    operations: float
    """Of a multiplication of large matrices, a second."""
    bytes: float
    """Read and written by a copy, a second."""

    def seconds(self, work: Sequence[Work]) -> float:
        """The least that the parts take, one after the other, each held up by one or the other."""
        return sum(max(part.operations / self.operations, part.bytes / self.bytes) for part in work)


def synchronize(device: torch.device) -> None:
    """Wait until all that it was told to do is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """What it takes until the device is done."""
    synchronize(device)
    began = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - began


def measure_ceilings(device: torch.device, dtype: torch.dtype, side: int, copied: int, times: int = 11) -> Ceilings:
    """By multiplying matrices of `side` x `side` and copying so many bytes."""
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
    """Captions of `new_tokens` tokens, in half precision but for the Q-Former, which transformers keeps in single."""
    vision, qformer, text = config.vision_config, config.qformer_config, config.text_config
    patches = (vision.image_size // vision.patch_size) ** 2
    seen, d, layers = patches + 1, vision.hidden_size, vision.num_hidden_layers
    weights, pixels = 4 * d * d + 2 * d * vision.intermediate_size, 3 * vision.patch_size**2
    encode = Work(
        "vision",
        batch * (layers * (2 * seen * weights + 4 * seen**2 * d) + 2 * patches * pixels * d),
        HALF * (layers * weights + pixels * d),
        f"{layers} layers x (2 x {seen} x {weights:,} weights + 4 x {seen}^2 x {d})"
        f" + 2 x {patches} patches x {pixels} x {d}",
    )
    asked, q, layers = config.num_query_tokens, qformer.hidden_size, qformer.num_hidden_layers
    crossed = -(-layers // qformer.cross_attention_frequency)
    weights, across = 4 * q * q + 2 * q * qformer.intermediate_size, 2 * q * d
    projection = q * text.hidden_size
    query = Work(
        "Q-Former",
        batch
        * (
            layers * (2 * asked * weights + 4 * asked**2 * q)
            + crossed * (2 * asked * 2 * q * q + 2 * seen * across + 4 * asked * seen * q)
            + 2 * asked * projection
        ),
        SINGLE * (layers * weights + crossed * (2 * q * q + across)) + HALF * projection,
        f"{layers} layers x (2 x {asked} x {weights:,} + 4 x {asked}^2 x {q}) + {crossed} looks at the picture x"
        f" (2 x {asked} x {2 * q * q:,} + 2 x {seen} x {across:,} + 4 x {asked} x {seen} x {q})"
        f" + 2 x {asked} x {projection:,}",
    )
    w, layers = text.hidden_size, text.num_hidden_layers
    weights, head = 4 * w * w + 2 * w * text.ffn_dim, w * text.vocab_size
    return [encode, query, *_decoder(batch, new_tokens, asked + 1, w, layers, weights, head)]


def _decoder(batch: int, new_tokens: int, prompt: int, width: int, layers: int, weights: int, head: int) -> list[Work]:
    """A prompt, which gives the first token, and the further tokens of a decoder without cross-attention."""
    read = Work(
        "prompt",
        batch * (layers * (2 * prompt * weights + 4 * prompt**2 * width) + 2 * head),
        HALF * (layers * weights + head),
        f"{layers} layers x (2 x {prompt} x {weights:,} + 4 x {prompt}^2 x {width}) + 2 x {head:,}",
    )
    steps = new_tokens - 1
    # The first of them looks at the prompt and itself.
    looked_at = sum(prompt + k for k in range(1, new_tokens))
    write = Work(
        f"{steps} more tokens",
        batch * (steps * (layers * 2 * weights + 2 * head) + layers * 4 * looked_at * width),
        HALF * (steps * (layers * weights + head) + batch * layers * 2 * looked_at * width),
        f"{steps} x ({layers} layers x 2 x {weights:,} + 2 x {head:,}) + {layers} layers x 4 x {looked_at} x {width}",
    )
    return [read, write]


def whisper_work(config: Any, batch: int, new_tokens: int, prompt: int) -> list[Work]:
    """Windows of which `new_tokens` tokens are written after so many of the prompt, in half precision.

    As the handler does it: the first look tells the language and whether somebody speaks, and what decoder layers keep
    of the sound is computed for it and again for the prompt.
    """
    d, layers, heard = config.d_model, config.encoder_layers, config.max_source_positions
    mels, weights = config.num_mel_bins, 4 * d * d + 2 * d * config.encoder_ffn_dim
    filters = mels * FREQUENCIES
    spectrogram = Work(
        "spectrogram", batch * 2 * 2 * heard * filters, SINGLE * filters, f"2 x {2 * heard} x {mels} x {FREQUENCIES}"
    )
    encode = Work(
        "encoder",
        batch
        * (layers * (2 * heard * weights + 4 * heard**2 * d) + 2 * 2 * heard * 3 * mels * d + 2 * heard * 3 * d * d),
        HALF * (layers * weights + 3 * mels * d + 3 * d * d),
        f"{layers} layers x (2 x {heard} x {weights:,} weights + 4 x {heard}^2 x {d})"
        f" + 2 x {2 * heard} x 3 x {mels} x {d} + 2 x {heard} x 3 x {d}^2",
    )
    layers, kept = config.decoder_layers, 2 * d * d
    weights, head = 6 * d * d + 2 * d * config.decoder_ffn_dim, d * config.vocab_size

    def after_sound(name: str, tokens: int) -> Work:
        per_layer = 2 * heard * kept + tokens * (2 * weights + 4 * heard * d + 4 * tokens * d)
        return Work(
            name,
            batch * (layers * per_layer + tokens * 2 * head),
            HALF * (layers * (weights + kept) + head),
            f"{layers} layers x (2 x {heard} x {kept:,} + {tokens} x (2 x {weights:,} + 4 x {heard} x {d}"
            f" + 4 x {tokens} x {d})) + {tokens} x 2 x {head:,}",
        )

    steps, looked_at = new_tokens - 1, sum(prompt + k for k in range(1, new_tokens))
    write = Work(
        f"{steps} more tokens",
        batch * (steps * (layers * (2 * weights + 4 * heard * d) + 2 * head) + layers * 4 * looked_at * d),
        HALF * (steps * (layers * weights + head) + batch * layers * 2 * (steps * heard + looked_at) * d),
        f"{steps} x ({layers} layers x (2 x {weights:,} + 4 x {heard} x {d}) + 2 x {head:,})"
        f" + {layers} layers x 4 x {looked_at} x {d}",
    )
    return [spectrogram, encode, after_sound("first look", 1), after_sound("prompt", prompt), write]
