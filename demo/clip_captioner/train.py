"""Trains the demo clip model from scratch on drawn clips.

    PYTHONPATH=handlers:demo:clients .venv/bin/python -m clip_captioner.train

As for the demo captioner, auxiliary heads that only training uses learn to predict what is where in each frame, from
the outputs of the vision encoder, and what happens, from the language model's state before it answers. The weight of
their loss decreases during training. The saved model is a running average of the weights.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import get_ema_multi_avg_fn
from transformers import Qwen2Tokenizer, Qwen3VLForConditionalGeneration

from clip_captioner.model import (
    FAMILY,
    JSON_PROMPT,
    PATCHING,
    PROCESSORS,
    PROMPT,
    STILL_PROMPT,
    TEXT_WIDTH,
    WIDTH,
    build_model,
    build_tokenizer,
)
from events import CHANGES, EventClip, random_event_clip
from phrases import WORDS
from reelscribe.contract.clips import Clip
from scenes import BACKGROUNDS, COLOURS, SHAPES, fill_object

BATCH = 24
LEARNING_RATE = 1.5e-3
WARM_UP_STEPS = 200
AVERAGE_DECAY = 0.999
"""Decay of the running average of the weights, per step."""
FRAME_COUNTS = {1: 0.06, 2: 0.02, 4: 0.02, 6: 0.2, 8: 0.5, 10: 0.2}
"""Fraction of batches with each number of frames; one frame is a still."""
FRAME_SIZES = {(160, 96): 0.8, (128, 96): 0.12, (96, 128): 0.08}
"""Fraction of batches with each size of the frames that the model takes, as width and height in pixels."""
DRAWN = {(160, 96): (640, 360), (128, 96): (640, 480), (96, 128): (480, 640)}
"""Size of the frames that are drawn, before they are scaled; some are drawn at half of it."""

IGNORED_LABEL = -100
"""Cross entropy ignores positions with this label; it is torch's default for `ignore_index`."""
COLOUR_NAMES = list(BACKGROUNDS)
CELLS = 4
"""The auxiliary heads also predict a mask of CELLS x CELLS cells for each patch."""


@dataclass
class Batch:
    """B clips with their prompts and frames, and with labels for all P patches of all clips."""

    clips: list[EventClip]
    questions: list[str]
    """The whole prompt of each clip."""
    answers: list[str]
    pixels: Tensor
    """(P, 3 * 2 * 16 * 16) float32: patches, as the model takes them."""
    grid: Tensor
    """(B, 3) int64: patches of each clip in time, in each column and in each row."""
    shape: Tensor
    """(P,) int64: 0 where the patch's centre shows the background, otherwise 1 + the index of the shape."""
    colour: Tensor
    """(P,) int64: index in COLOUR_NAMES of the colour at the patch's centre."""
    mask: Tensor
    """(P, CELLS * CELLS) float32: 1 for the cells of the patch that an object covers."""
    place: Tensor
    """(P, 6) float32: centre (x and y, from -1 to 1 over the frame) and radius of the patch's object in both frames; 0
    on the background.
    """


class ClipBatches(torch.utils.data.IterableDataset[Batch]):
    """An endless sequence of batches of newly drawn clips."""

    def __init__(self, seed: int, tokenizer: Qwen2Tokenizer) -> None:
        self.seed = seed
        self.tokenizer = tokenizer

    def __iter__(self) -> Iterator[Batch]:
        torch.set_num_threads(1)
        rng, noise = random.Random(self.seed), np.random.default_rng(self.seed)
        while True:
            (size,) = rng.choices(list(FRAME_SIZES), list(FRAME_SIZES.values()))
            (count,) = rng.choices(list(FRAME_COUNTS), list(FRAME_COUNTS.values()))
            yield self._batch(size, count, rng, noise)

    def _batch(self, size: tuple[int, int], count: int, rng: random.Random, noise: np.random.Generator) -> Batch:
        width, height = DRAWN[size]
        events = [random_event_clip(rng, width / height) for _ in range(BATCH)]
        questions, answers, pixels, labels = [], [], [], []
        grid = PATCHING.grid(count, *size)
        for event_clip in events:
            moments, seconds = _moments(count, rng)
            clip = Clip(_frames(event_clip, moments, size, rng, noise), seconds)
            pixels.append(PATCHING(clip.frames, torch.device("cpu"), torch.float32))
            questions.append(self._question(clip, prompt := _prompt(clip, rng)))
            answers.append(_answer(event_clip, moments[0], prompt))
            labels += [
                _patch_labels(event_clip, moments[at], moments[min(at + 1, count - 1)], grid)
                for at in range(0, count, 2)
            ]
        columns = [torch.from_numpy(np.concatenate(column)) for column in zip(*labels, strict=True)]
        return Batch(events, questions, answers, torch.cat(pixels), torch.tensor([grid] * BATCH), *columns)

    def _question(self, clip: Clip, prompt: str) -> str:
        kind = "video" if len(clip.frames) > 1 else "image"
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": [{"type": kind}, {"type": "text", "text": prompt}]},
        ]
        text = str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        if kind == "video":
            return text.replace(FAMILY.video_placeholder, FAMILY.video_text(clip))
        return text.replace(FAMILY.still_placeholder, FAMILY.still_text(clip))


def _prompt(clip: Clip, rng: random.Random) -> str:
    """Choose what is asked: mostly the usual question, sometimes with something about the clip before it."""
    if len(clip.frames) == 1:
        return STILL_PROMPT
    prompt = JSON_PROMPT if rng.random() < 0.15 else PROMPT
    if rng.random() < 0.1:
        prompt = f"The clip shows {clip.pts_seconds[0]:.1f} to {clip.pts_seconds[-1]:.1f} seconds of a video. {prompt}"
    if rng.random() < 0.1:
        words = " ".join(rng.choices(WORDS, k=rng.randint(1, 8)))
        prompt = f"These words are said in the clip: {words}. {prompt}"
    return prompt


def _answer(events: EventClip, moment: float, prompt: str) -> str:
    if prompt == STILL_PROMPT:
        return events.still_caption(moment)
    return events.json_caption if prompt.endswith(JSON_PROMPT) else events.caption


def _moments(count: int, rng: random.Random) -> tuple[list[float], list[float]]:
    """Choose which moments of a clip its frames show, as fractions (0 to 1), and their times in seconds."""
    if count == 1:
        return [rng.random()], [rng.uniform(0, 100)]
    if count < 6:  # too few to tell what happens, unless they come at the right moments
        moments = {2: [0.1, 0.9], 4: [0.05, 0.48, 0.52, 0.95]}[count]
    else:
        phase = rng.uniform(0.2, 0.8)
        moments = [min(1.0, max(0.0, (k + phase + rng.uniform(-0.1, 0.1)) / count)) for k in range(count)]
    step = rng.uniform(0.35, 0.65)
    start = rng.choice((0.0, 0.0, rng.uniform(0, 100), rng.uniform(0, 4000)))
    return moments, [start + step * k for k in range(count)]


def _frames(
    clip: EventClip, moments: list[float], size: tuple[int, int], rng: random.Random, noise: np.random.Generator
) -> np.ndarray:
    """Draw frames, (N, height, width, 3) uint8, and degrade some clips as codecs and cameras do."""
    scale = rng.choice((1, 2, 2, 2))
    drawn = tuple(side // scale for side in DRAWN[size])
    shades, quality = rng.random(), rng.randint(30, 90) if rng.random() < 0.3 else 0
    images = []
    for moment in moments:
        image = clip.draw(moment, *drawn, jitter=random.Random(shades)).resize(size, Image.Resampling.BICUBIC)
        if quality:
            jpeg = io.BytesIO()
            image.save(jpeg, "JPEG", quality=quality)
            image = Image.open(jpeg)
        images.append(np.asarray(image))
    pixels = np.stack(images)
    if rng.random() < 0.3:
        contrast, brightness = rng.uniform(0.9, 1.1), rng.uniform(-8, 8)
        levels = np.clip((np.arange(256) - 128) * contrast + 128 + brightness, 0, 255)
        pixels = levels.astype(np.uint8)[pixels]
    if rng.random() < 0.1:
        grain = noise.standard_normal(pixels.shape, dtype=np.float32) * rng.uniform(1, 5)
        pixels = np.clip(pixels + grain, 0, 255).astype(np.uint8)
    return pixels


def _patch_labels(clip: EventClip, at: float, then: float, grid: tuple[int, int, int]) -> tuple[np.ndarray, ...]:
    """The labels shape, colour, mask and place of the patches of two frames, as in `Batch`."""
    _, rows, columns = grid
    canvas = Image.new("L", (columns * CELLS, rows * CELLS), 0)
    before, after = clip.states(at), clip.states(then)
    seen = [b or a for a, b in zip(before, after, strict=True)]
    for i, o in enumerate(seen):
        if o:
            fill_object(ImageDraw.Draw(canvas), o, (columns * CELLS / clip.aspect, rows * CELLS), i + 1)
    painted = np.asarray(canvas)
    cells = _in_groups(painted.reshape(rows, CELLS, columns, CELLS).transpose(0, 2, 1, 3)).reshape(-1, CELLS * CELLS)
    owner = _in_groups(painted[CELLS // 2 :: CELLS, CELLS // 2 :: CELLS]).reshape(-1)
    shape = np.zeros(owner.shape, np.int64)
    colour = np.full(owner.shape, COLOUR_NAMES.index(clip.background), np.int64)
    place = np.zeros((*owner.shape, 6), np.float32)
    for i, o in enumerate(seen):
        if o:
            here = owner == i + 1
            shape[here] = SHAPES.index(o.shape) + 1
            colour[here] = COLOUR_NAMES.index(o.colour)
            states = [s and (s.x / clip.aspect * 2 - 1, s.y * 2 - 1, 4 * s.radius) for s in (before[i], after[i])]
            place[here] = [value for state in states for value in state or (0.0, 0.0, 0.0)]
    return shape, colour, (cells > 0).astype(np.float32), place


def _in_groups(patches: np.ndarray) -> np.ndarray:
    """Order patches, (rows, columns, ...), as the model does: those of a group of 2 x 2 follow each other."""
    rows, columns, *rest = patches.shape
    merge = PATCHING.merge
    groups = patches.reshape(rows // merge, merge, columns // merge, merge, *rest)
    return np.ascontiguousarray(np.moveaxis(groups, 2, 1)).reshape(rows * columns, *rest)


class AuxiliaryHeads(nn.Module):
    """Heads that only training uses: they predict the labels of patches, and what happens in a clip."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_shape = nn.Linear(WIDTH, len(SHAPES) + 1)
        self.patch_colour = nn.Linear(WIDTH, len(COLOUR_NAMES))
        self.patch_place = nn.Linear(WIDTH, 6)
        self.early_mask = nn.Linear(WIDTH, CELLS * CELLS)
        self.events = nn.ModuleDict(
            {
                "change": nn.Linear(TEXT_WIDTH, 2 * len(CHANGES)),
                "shape": nn.Linear(TEXT_WIDTH, 2 * len(SHAPES)),
                "colour": nn.Linear(TEXT_WIDTH, 2 * len(COLOURS)),
            }
        )
        shape_weight = torch.ones(len(SHAPES) + 1)
        shape_weight[0] = 0.15  # most patches show the background
        self.shape_weight = nn.Buffer(shape_weight)

    def patch_loss(self, batch: Batch, early: Tensor, patches: Tensor) -> Tensor:
        """Return the loss of what is predicted from patches after the second and after the last layer, (P, WIDTH)."""
        loss = F.cross_entropy(self.patch_shape(patches), batch.shape, weight=self.shape_weight)
        loss = loss + 0.5 * F.cross_entropy(self.patch_colour(patches), batch.colour)
        mask = self.early_mask(early)
        loss = loss + 2 * F.binary_cross_entropy_with_logits(mask, batch.mask, pos_weight=torch.tensor(3.0))
        on_object = batch.shape > 0
        return loss + 2.5 * F.smooth_l1_loss(self.patch_place(patches[on_object]), batch.place[on_object], beta=0.1)

    def event_loss(self, batch: Batch, states: Tensor) -> Tensor:
        """Return the loss of what is predicted from the language model's states before its answers, (B, TEXT_WIDTH)."""
        labels = {
            "change": [[CHANGES.index(event.change) for event in clip.events] for clip in batch.clips],
            "shape": [[SHAPES.index(event.object.shape) for event in clip.events] for clip in batch.clips],
            "colour": [[list(COLOURS).index(event.object.colour) for event in clip.events] for clip in batch.clips],
        }
        losses = [
            F.cross_entropy(head(states).view(2 * len(states), -1), torch.tensor(labels[name]).flatten())
            for name, head in self.events.items()
        ]
        return torch.stack(losses).sum()


class ModelWithAuxiliaryHeads(nn.Module):
    """The clip model and its auxiliary heads; turns prompts into tokens and computes all losses of a batch."""

    def __init__(self, tokenizer: Qwen2Tokenizer) -> None:
        super().__init__()
        self.model = build_model(tokenizer)
        self.auxiliary = AuxiliaryHeads()
        self.tokenizer = tokenizer
        self.kept: dict[str, Tensor] = {}
        embed = self.model.model.visual.patch_embed
        # On a CPU, the convolution of each patch takes several times as long as the same as a matrix product.
        embed.forward = lambda pixels: F.linear(pixels, embed.proj.weight.flatten(1), embed.proj.bias)
        blocks = self.model.model.visual.blocks
        blocks[1].register_forward_hook(lambda *args: self.kept.update(early=args[-1]))
        blocks[-1].register_forward_hook(lambda *args: self.kept.update(patches=args[-1]))
        self.model.model.language_model.norm.register_forward_hook(lambda *args: self.kept.update(states=args[-1]))

    def tokens(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, list[int]]:
        """Return the tokens of prompts and answers, padded to the longest one.

        Returns:
            Input ids, attention mask and labels, each (B, T) int64, and the number of tokens of each prompt.
        """
        end = self.tokenizer.convert_tokens_to_ids("<|im_end|>")
        heads = self.tokenizer(batch.questions)["input_ids"]
        tails = [[*ids, end] for ids in self.tokenizer(batch.answers)["input_ids"]]
        longest = max(len(head) + len(tail) for head, tail in zip(heads, tails, strict=True))
        ids = torch.full((len(heads), longest), self.model.config.get_text_config().pad_token_id)
        labels = torch.full_like(ids, IGNORED_LABEL)
        for row, (head, tail) in enumerate(zip(heads, tails, strict=True)):
            ids[row, : len(head) + len(tail)] = torch.tensor(head + tail)
            labels[row, len(head) : len(head) + len(tail)] = torch.tensor(tail)
        lengths = [len(head) for head in heads]
        used = torch.tensor([len(head) + len(tail) for head, tail in zip(heads, tails, strict=True)])
        return ids, (torch.arange(longest) < used[:, None]).long(), labels, lengths

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, float]]:
        """Return the caption loss, the auxiliary loss, and figures: among them exact answers with teacher forcing."""
        ids, mask, labels, lengths = self.tokens(batch)
        config = self.model.config
        stills = bool((batch.grid[:, 0] == 1).all()) and bool((ids == config.image_token_id).any())
        names = ("pixel_values", "image_grid_thw") if stills else ("pixel_values_videos", "video_grid_thw")
        output = self.model(
            input_ids=ids,
            attention_mask=mask,
            mm_token_type_ids=(ids == config.image_token_id).int() + 2 * (ids == config.video_token_id).int(),
            **dict(zip(names, (batch.pixels, batch.grid), strict=True)),
        )
        loss = F.cross_entropy(output.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED_LABEL)
        before_answer = self.kept["states"][torch.arange(len(lengths)), torch.tensor(lengths) - 1]
        patches = self.auxiliary.patch_loss(batch, self.kept["early"], self.kept["patches"])
        events = loss.new_zeros(()) if stills else self.auxiliary.event_loss(batch, before_answer)
        with torch.no_grad():
            correct = (output.logits[:, :-1].argmax(-1) == labels[:, 1:]) | (labels[:, 1:] == IGNORED_LABEL)
        figures = {
            "caption": loss.item(),
            "patches": patches.item(),
            "events": events.item(),
            "exact": correct.all(1).float().mean().item(),
        }
        return loss, patches + 0.3 * events, figures


def _optimizer(network: ModelWithAuxiliaryHeads) -> torch.optim.Optimizer:
    # Each patch filter sums up hundreds of inputs. At the common learning rate they would grow so fast that patches
    # differ by their content only, and no longer by their position.
    patch_filters = [network.model.model.visual.patch_embed.proj.weight]
    others = [p for p in network.parameters() if p is not patch_filters[0]]
    groups = [
        {"params": [p for p in others if p.ndim >= 2], "weight_decay": 0.02},
        {"params": [p for p in others if p.ndim < 2], "weight_decay": 0.0},
        {"params": patch_filters, "weight_decay": 0.0, "lr": 0.1 * LEARNING_RATE},
    ]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.98), fused=True)


def _save(model: Qwen3VLForConditionalGeneration, tokenizer: Qwen2Tokenizer, out: Path) -> None:
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    for name, settings in PROCESSORS.items():
        (out / name).write_text(json.dumps(settings, indent=2) + "\n")


def train(steps: int, seed: int, out: Path) -> None:
    """Train for `steps` batches, and save the averaged model to `out` after every 1,000 steps and at the end."""
    torch.manual_seed(seed)
    tokenizer = build_tokenizer()
    network = ModelWithAuxiliaryHeads(tokenizer)
    average = copy.deepcopy(network.model).eval()
    optimizer = _optimizer(network)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda i: min(1, (i + 1) / WARM_UP_STEPS) * (0.5 + 0.5 * math.cos(math.pi * min(1, i / steps))) + 1e-3,
    )
    batches = torch.utils.data.DataLoader(
        ClipBatches(seed + 1, tokenizer), batch_size=None, num_workers=1, prefetch_factor=8
    )
    start, shown = time.monotonic(), dict[str, float]()
    for step, batch in enumerate(batches):
        caption_loss, auxiliary_loss, figures = network(batch)
        loss = caption_loss + max(0.1, 1 - step / (0.9 * steps)) * auxiliary_loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        decay = min(AVERAGE_DECAY, step / (step + 10))
        get_ema_multi_avg_fn(decay)(list(average.parameters()), list(network.model.parameters()), step)
        for name, value in figures.items():
            shown[name] = shown.get(name, 0.0) + (value - shown.get(name, 0.0)) * max(0.01, 1 / (step + 1))
        if step % 100 == 99:
            text = " ".join(f"{name} {value:.4f}" for name, value in shown.items())
            print(f"step {step + 1}/{steps} {time.monotonic() - start:.0f} s {text}", flush=True)
        if step % 1000 == 999 or step + 1 == steps:
            _save(average, tokenizer, out)
        if step + 1 == steps:
            break


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "models" / "clips")
    parser.add_argument("--steps", type=int, default=4_800)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    train(options.steps, options.seed, options.out)


if __name__ == "__main__":
    main()
