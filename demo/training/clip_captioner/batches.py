"""The batches of the training of the demo clip model: newly drawn clips with prompts, answers and labels of patches."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor
from transformers import Qwen2Tokenizer

from reelscribe.contract.clips import Clip
from synthetic.event_clips import EventClip, random_event_clip
from synthetic.phrases import WORDS
from synthetic.scenes import BACKGROUNDS, SHAPES, fill_object
from training.clip_captioner.model import FAMILY, JSON_PROMPT, PATCHING, PROMPT, STILL_PROMPT
from training.loop import change_levels

BATCH = 24
FRAME_COUNTS = {1: 0.06, 2: 0.02, 4: 0.02, 6: 0.2, 8: 0.5, 10: 0.2}
"""Fraction of batches with each number of frames; one frame is a still."""
FRAME_SIZES = {(160, 96): 0.8, (128, 96): 0.12, (96, 128): 0.08}
"""Fraction of batches with each size of the frames that the model takes, as width and height in pixels."""
DRAWN = {(160, 96): (640, 360), (128, 96): (640, 480), (96, 128): (480, 640)}
"""Size of the frames that are drawn, before they are scaled; some are drawn at half of it."""

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
    return change_levels(pixels, rng, noise, most_grain=5)


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
