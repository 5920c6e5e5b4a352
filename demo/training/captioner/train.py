"""Trains the demo captioner from scratch on drawn scenes.

    PYTHONPATH=demo .venv/bin/python -m training.captioner.train

The language-model loss alone never leaves a plateau at this model size. Auxiliary heads therefore learn to predict what
is where in the frame, from the outputs of the vision encoder and the Q-Former. The weight of their loss decreases
during training, and they are not saved. The saved model is a running average of the weights, which is more accurate
than the weights after any single step. Training takes about an hour on two CPU cores, one of which draws the scenes.
"""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Blip2ForConditionalGeneration, Blip2Processor

from synthetic.scenes import BACKGROUNDS, RELATIONS, SHAPES, Scene, draw, fill_object, random_scene
from training.captioner.model import GRID, IMAGE_SIZE, QUERIES, WIDTH, build_model, build_processor
from training.loop import IGNORED_LABEL, change_levels, exact_share, optimizer_of, run, train

BATCH = 32
FRAME_SIZES = {(480, 270): 0.5, (640, 360): 0.3, (480, 360): 0.1, (360, 480): 0.1}
"""Fraction of scenes drawn at each size, as width and height in pixels."""
OBJECT_COUNTS = {0: 0.02, 1: 0.28, 2: 0.70}
"""Fraction of scenes with each number of objects. Two objects are the hard case, so there are more of them than in
`scenes.OBJECT_COUNTS`.
"""

BACKGROUND_NAMES = list(BACKGROUNDS)
CELLS = 4
"""The auxiliary heads also predict a mask of CELLS x CELLS cells for each patch."""


@dataclass
class Batch:
    """B scenes with their frames, and with labels for the P = GRID * GRID patches of each frame."""

    scenes: list[Scene]
    frames: Tensor
    """(B, 3, IMAGE_SIZE, IMAGE_SIZE) float32, normalised as the model's processor does it."""
    shape: Tensor
    """(B, P) int64: 0 where the patch's centre shows the background, otherwise 1 + the index of the shape."""
    size: Tensor
    """(B, P) int64: 0 for a small object, 1 for a large one, IGNORED_LABEL on the background."""
    colour: Tensor
    """(B, P) int64: index in BACKGROUND_NAMES of the colour at the patch's centre."""
    mask: Tensor
    """(B, P, CELLS * CELLS) float32: 1 for the cells of the patch that an object covers."""
    centre: Tensor
    """(B, P, 2) float32: x and y of the centre of the patch's object, from -1 to 1 over the frame; 0 on the
    background.
    """


class SceneBatches(torch.utils.data.IterableDataset[Batch]):
    """An endless sequence of batches of newly drawn scenes."""

    def __init__(self, seed: int, processor: Blip2Processor) -> None:
        self.seed = seed
        images = processor.image_processor
        self.mean = np.asarray(images.image_mean, np.float32)
        self.std = np.asarray(images.image_std, np.float32)

    def __iter__(self) -> Iterator[Batch]:
        rng, noise = random.Random(self.seed), np.random.default_rng(self.seed)
        while True:
            counts = rng.choices(list(OBJECT_COUNTS), list(OBJECT_COUNTS.values()), k=BATCH)
            sizes = rng.choices(list(FRAME_SIZES), list(FRAME_SIZES.values()), k=BATCH)
            scenes = [random_scene(rng, w / h, n) for (w, h), n in zip(sizes, counts, strict=True)]
            frames = np.stack([_frame(s, size, rng, noise) for s, size in zip(scenes, sizes, strict=True)])
            labels = [torch.from_numpy(np.stack(column)) for column in zip(*map(_patch_labels, scenes), strict=True)]
            normal = (frames.astype(np.float32) / 255 - self.mean) / self.std
            yield Batch(scenes, torch.from_numpy(normal).permute(0, 3, 1, 2).contiguous(), *labels)


def _frame(scene: Scene, size: tuple[int, int], rng: random.Random, noise: np.random.Generator) -> np.ndarray:
    """Draw a frame, (IMAGE_SIZE, IMAGE_SIZE, 3) uint8, and degrade some frames as codecs and cameras do."""
    image = draw(scene, *size, jitter=rng).resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BICUBIC)
    if rng.random() < 0.3:
        jpeg = io.BytesIO()
        image.save(jpeg, "JPEG", quality=rng.randint(30, 90))
        image = Image.open(jpeg)
    pixels = np.asarray(image)
    return change_levels(pixels, rng, noise, most_grain=6)


def _patch_labels(scene: Scene) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The labels shape, size, colour, mask and centre of one scene, as in `Batch` but without the dimension B."""
    side = GRID * CELLS
    canvas = Image.new("L", (side, side), 0)
    for i, o in enumerate(scene.objects):
        fill_object(ImageDraw.Draw(canvas), o, (side / scene.aspect, side), i + 1)
    painted = np.asarray(canvas)
    cells = painted.reshape(GRID, CELLS, GRID, CELLS).transpose(0, 2, 1, 3).reshape(GRID * GRID, CELLS * CELLS)
    owner = painted[CELLS // 2 :: CELLS, CELLS // 2 :: CELLS].reshape(-1)
    shape = np.zeros(owner.shape, np.int64)
    size = np.full(owner.shape, IGNORED_LABEL, np.int64)
    colour = np.full(owner.shape, BACKGROUND_NAMES.index(scene.background), np.int64)
    centre = np.zeros((*owner.shape, 2), np.float32)
    for i, o in enumerate(scene.objects):
        here = owner == i + 1
        shape[here] = SHAPES.index(o.shape) + 1
        size[here] = int(o.size == "large")
        colour[here] = BACKGROUND_NAMES.index(o.colour)
        centre[here] = _centre(scene, i)
    return shape, size, colour, (cells > 0).astype(np.float32), centre


def _centre(scene: Scene, i: int) -> tuple[float, float]:
    """The x and y of the centre of an object, from -1 to 1 over the frame."""
    o = scene.objects[i]
    return o.x / scene.aspect * 2 - 1, o.y * 2 - 1


class AuxiliaryHeads(nn.Module):
    """Heads that only training uses: they predict the labels of patches, and the objects from the Q-Former's output."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_shape = nn.Linear(WIDTH, len(SHAPES) + 1)
        self.patch_colour = nn.Linear(WIDTH, len(BACKGROUND_NAMES))
        self.patch_size = nn.Linear(WIDTH, 2)
        self.patch_centre = nn.Linear(WIDTH, 2)
        self.early_mask = nn.Linear(WIDTH, CELLS * CELLS)
        self.relation = nn.Linear(WIDTH * QUERIES, len(RELATIONS))
        self.shapes = nn.Linear(WIDTH * QUERIES, 2 * len(SHAPES))
        self.centres = nn.Linear(WIDTH * QUERIES, 4)
        shape_weight = torch.ones(len(SHAPES) + 1)
        shape_weight[0] = 0.15  # most patches show the background
        self.shape_weight = nn.Buffer(shape_weight)

    def forward(self, batch: Batch, early: Tensor, patches: Tensor, queries: Tensor) -> Tensor:
        """Return the sum of all auxiliary losses.

        Args:
            batch: The labels.
            early: Patches after the second layer of the vision encoder, (B, P, WIDTH).
            patches: Patches after the last layer of the vision encoder, (B, P, WIDTH).
            queries: Output of the Q-Former, (B, QUERIES, WIDTH).
        """
        return self._patch_loss(batch, early, patches) + self._query_loss(batch, queries.flatten(1))

    def _patch_loss(self, batch: Batch, early: Tensor, patches: Tensor) -> Tensor:
        size = batch.size.flatten()
        on_object = size != IGNORED_LABEL
        flat = patches.flatten(0, 1)
        loss = F.cross_entropy(self.patch_shape(flat), batch.shape.flatten(), weight=self.shape_weight)
        loss = loss + 0.5 * F.cross_entropy(self.patch_colour(flat), batch.colour.flatten())
        mask = self.early_mask(early)
        loss = loss + 2 * F.binary_cross_entropy_with_logits(mask, batch.mask, pos_weight=torch.tensor(3.0))
        if on_object.any():
            loss = loss + 0.5 * F.cross_entropy(self.patch_size(flat[on_object]), size[on_object])
            centre = batch.centre.flatten(0, 1)[on_object]
            loss = loss + 2.5 * F.smooth_l1_loss(self.patch_centre(flat[on_object]), centre, beta=0.1)
        return loss

    def _query_loss(self, batch: Batch, queries: Tensor) -> Tensor:
        loss = queries.new_zeros(())
        shapes, centres = self.shapes(queries).chunk(2, dim=1), self.centres(queries).chunk(2, dim=1)
        for i in range(2):
            rows = [k for k, scene in enumerate(batch.scenes) if len(scene.objects) > i]
            if rows:
                scenes = [batch.scenes[k] for k in rows]
                shape = torch.tensor([SHAPES.index(s.objects[i].shape) for s in scenes])
                centre = torch.tensor([_centre(s, i) for s in scenes])
                loss = loss + 0.5 * F.cross_entropy(shapes[i][rows], shape)
                loss = loss + 1.5 * F.smooth_l1_loss(centres[i][rows], centre, beta=0.1)
        pairs = [k for k, scene in enumerate(batch.scenes) if scene.relation]
        if pairs:
            relations = torch.tensor([RELATIONS.index(batch.scenes[k].relation) for k in pairs])
            loss = loss + 0.5 * F.cross_entropy(self.relation(queries)[pairs], relations)
        return loss


class ModelWithAuxiliaryHeads(nn.Module):
    """The captioner and its auxiliary heads; turns scenes into tokens and computes all losses of a batch."""

    def __init__(self, processor: Blip2Processor) -> None:
        super().__init__()
        self.model = build_model(processor)
        self.auxiliary = AuxiliaryHeads()
        self.tokenizer = processor.tokenizer
        self.early: Tensor | None = None
        self.model.vision_model.encoder.layers[1].register_forward_hook(self._keep_early)

    def _keep_early(self, _: nn.Module, __: object, output: Tensor | tuple[Tensor, ...]) -> None:
        self.early = output[0] if isinstance(output, tuple) else output

    def tokens(self, scenes: list[Scene]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the tokens of captions, padded to the longest one.

        Each row has QUERIES image tokens, then the beginning of the text, the caption and the end of the text.

        Returns:
            Input ids, attention mask and labels, each (B, T) int64.
        """
        tokenizer = self.tokenizer
        head = [self.model.config.image_token_index] * QUERIES + [tokenizer.bos_token_id]
        tails = [
            [*tokenizer(scene.caption, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
            for scene in scenes
        ]
        longest = max(map(len, tails))
        pads = [longest - len(tail) for tail in tails]
        ids = [head + tail + [tokenizer.pad_token_id] * pad for tail, pad in zip(tails, pads, strict=True)]
        mask = [[1] * (len(head) + len(tail)) + [0] * pad for tail, pad in zip(tails, pads, strict=True)]
        labels = [
            [IGNORED_LABEL] * len(head) + tail + [IGNORED_LABEL] * pad for tail, pad in zip(tails, pads, strict=True)
        ]
        return torch.tensor(ids), torch.tensor(mask), torch.tensor(labels)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, float]]:
        """Return the caption loss, the auxiliary loss, and figures: among them exact captions with teacher forcing."""
        features = self.model.get_image_features(batch.frames)
        assert self.early is not None
        ids, mask, labels = self.tokens(batch.scenes)
        output = self.model(
            pixel_values=None,
            input_ids=ids,
            attention_mask=mask,
            labels=labels,
            mm_encoder_outputs={"image": features},
        )
        patches = features.last_hidden_state[:, 1:]
        auxiliary_loss = self.auxiliary(batch, self.early[:, 1:], patches, features.pooler_output)
        figures = {"caption": output.loss.item(), "auxiliary": auxiliary_loss.item()}
        return output.loss, auxiliary_loss, {**figures, "exact": exact_share(output.logits, labels)}


def train_captioner(steps: int, seed: int, out: Path) -> None:
    """Train for `steps` batches, and save the averaged model to `out` after every 1,000 steps and at the end."""
    torch.manual_seed(seed)
    processor = build_processor()
    network = ModelWithAuxiliaryHeads(processor)

    def save(model: Blip2ForConditionalGeneration) -> None:
        model.save_pretrained(out)
        processor.save_pretrained(out)

    filters = network.model.vision_model.embeddings.patch_embedding.weight
    train(network, optimizer_of(network, filters, 0.05), SceneBatches(seed + 1, processor), steps, save)


if __name__ == "__main__":
    run(train_captioner, __doc__, "captioner", 18_000)
