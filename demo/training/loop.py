"""The training loop of the demo captioner and of the demo clip model, and its command line."""

from __future__ import annotations

import argparse
import copy
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

LEARNING_RATE = 1.5e-3
WARM_UP_STEPS = 200
AVERAGE_DECAY = 0.999
"""Decay of the running average of the weights, per step."""

IGNORED_LABEL = -100
"""Cross entropy ignores positions with this label; it is torch's default for `ignore_index`."""


def change_levels(pixels: np.ndarray, rng: random.Random, noise: np.random.Generator, most_grain: float) -> np.ndarray:
    """Change contrast and brightness of some pictures, and add grain to some, as cameras do.

    Args:
        pixels: uint8 levels of any shape.
        rng: Chooses what is changed.
        noise: Source of the grain.
        most_grain: Largest standard deviation of the grain, in levels.
    """
    if rng.random() < 0.3:
        contrast, brightness = rng.uniform(0.9, 1.1), rng.uniform(-8, 8)
        levels = np.clip((np.arange(256) - 128) * contrast + 128 + brightness, 0, 255)
        pixels = levels.astype(np.uint8)[pixels]
    if rng.random() < 0.1:
        grain = noise.standard_normal(pixels.shape, dtype=np.float32) * rng.uniform(1, most_grain)
        pixels = np.clip(pixels + grain, 0, 255).astype(np.uint8)
    return pixels


def exact_share(logits: Tensor, labels: Tensor) -> float:
    """Return the fraction of answers of which every token is right with teacher forcing.

    Args:
        logits: (B, T, V).
        labels: (B, T) int64; IGNORED_LABEL where there is no answer.
    """
    with torch.no_grad():
        correct = (logits[:, :-1].argmax(-1) == labels[:, 1:]) | (labels[:, 1:] == IGNORED_LABEL)
    return correct.all(1).float().mean().item()


def optimizer_of(network: nn.Module, patch_filters: Tensor, filter_rate: float) -> torch.optim.Optimizer:
    """Return the optimizer of a network.

    Args:
        network: The model and its auxiliary heads.
        patch_filters: The filters of the vision encoder. Each sums up hundreds of inputs or more. At the common
            learning rate they would grow so fast that patches differ by their content only, and no longer by their
            position.
        filter_rate: Their learning rate, as a fraction of the common one.
    """
    others = [p for p in network.parameters() if p is not patch_filters]
    groups = [
        {"params": [p for p in others if p.ndim >= 2], "weight_decay": 0.02},
        {"params": [p for p in others if p.ndim < 2], "weight_decay": 0.0},
        {"params": [patch_filters], "weight_decay": 0.0, "lr": filter_rate * LEARNING_RATE},
    ]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.98), fused=True)


def train(
    network: Any,
    optimizer: torch.optim.Optimizer,
    dataset: torch.utils.data.IterableDataset[Any],
    steps: int,
    save: Callable[[Any], None],
) -> None:
    """Train a network, and save the running average of its model after every 1,000 steps and at the end.

    Args:
        network: Has a `model`, which is saved. Called with a batch, it returns the loss of the answers, that of the
            auxiliary heads, whose weight decreases during training, and figures to print.
        optimizer: Its optimizer.
        dataset: Endless batches; they are made in a process of its own.
        steps: Number of batches.
        save: Saves a model.
    """
    average = copy.deepcopy(network.model).eval()
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda i: min(1, (i + 1) / WARM_UP_STEPS) * (0.5 + 0.5 * math.cos(math.pi * min(1, i / steps))) + 1e-3,
    )
    batches: Iterable[Any] = torch.utils.data.DataLoader(
        dataset, batch_size=None, num_workers=1, prefetch_factor=min(8, steps)
    )
    start, shown = time.monotonic(), dict[str, float]()
    for step, batch in enumerate(batches):
        answer_loss, auxiliary_loss, figures = network(batch)
        loss = answer_loss + max(0.1, 1 - step / (0.9 * steps)) * auxiliary_loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        decay = min(AVERAGE_DECAY, step / (step + 10))
        get_ema_multi_avg_fn(decay)(list(average.parameters()), list(network.model.parameters()), step)
        _smooth(shown, figures, max(0.01, 1 / (step + 1)))
        if step % 100 == 99:
            text = " ".join(f"{name} {value:.4f}" for name, value in shown.items())
            print(f"step {step + 1}/{steps} {time.monotonic() - start:.0f} s {text}", flush=True)
        if step % 1000 == 999 or step + 1 == steps:
            save(average)
        if step + 1 == steps:
            break


def _smooth(shown: dict[str, float], figures: Mapping[str, float], weight: float) -> None:
    for name, value in figures.items():
        shown[name] = shown.get(name, 0.0) + (value - shown.get(name, 0.0)) * weight


def run(train_model: Callable[[int, int, Path], None], text: str | None, folder: str, steps: int) -> None:
    """Parse the command line of a training, and train.

    Args:
        train_model: Trains with a number of steps and a seed, and saves to a folder.
        text: What the command does.
        folder: The default folder, below `demo/models`.
        steps: The default number of steps.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "models" / folder)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    train_model(options.steps, options.seed, options.out)
