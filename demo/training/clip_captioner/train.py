"""Trains the demo clip model from scratch on drawn clips.

    PYTHONPATH=handlers:demo:clients .venv/bin/python -m training.clip_captioner.train

As for the demo captioner, auxiliary heads that only training uses learn to predict what is where in each frame, from
the outputs of the vision encoder, and what happens, from the language model's state before it answers. The weight of
their loss decreases during training. The saved model is a running average of the weights.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Qwen2Tokenizer, Qwen3VLForConditionalGeneration

from synthetic.event_clips import CHANGES
from synthetic.scenes import COLOURS, SHAPES
from training.clip_captioner.batches import CELLS, COLOUR_NAMES, Batch, ClipBatches
from training.clip_captioner.model import PROCESSORS, TEXT_WIDTH, WIDTH, build_model, build_tokenizer
from training.loop import IGNORED_LABEL, exact_share, optimizer_of, run, train


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
        figures = {"caption": loss.item(), "patches": patches.item(), "events": events.item()}
        return loss, patches + 0.3 * events, {**figures, "exact": exact_share(output.logits, labels)}


def train_clip_model(steps: int, seed: int, out: Path) -> None:
    """Train for `steps` batches, and save the averaged model to `out` after every 1,000 steps and at the end."""
    torch.manual_seed(seed)
    tokenizer = build_tokenizer()
    network = ModelWithAuxiliaryHeads(tokenizer)

    def save(model: Qwen3VLForConditionalGeneration) -> None:
        model.save_pretrained(out)
        tokenizer.save_pretrained(out)
        for name, settings in PROCESSORS.items():
            (out / name).write_text(json.dumps(settings, indent=2) + "\n")

    filters = network.model.model.visual.patch_embed.proj.weight
    train(network, optimizer_of(network, filters, 0.1), ClipBatches(seed + 1, tokenizer), steps, save)


if __name__ == "__main__":
    run(train_clip_model, __doc__, "clips", 4_800)
