"""The architecture of the demo captioner: an untrained BLIP-2 of one million parameters, and its processor."""

from __future__ import annotations

import json
import math

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    Blip2Processor,
    Blip2QFormerConfig,
    Blip2VisionConfig,
    GPT2Tokenizer,
    OPTConfig,
)
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil

from synthetic.scenes import all_captions

IMAGE_SIZE = 224
PATCH = 28
"""Height and width of a patch, in pixels."""
GRID = IMAGE_SIZE // PATCH
"""Patches in each row and column."""
WIDTH = 96
HEADS = 3
QUERIES = 8
"""Query tokens of the Q-Former."""


def build_processor() -> Blip2Processor:
    """Return BLIP-2's own processor with a byte-level BPE vocabulary learned from all captions of scenes."""
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        [*all_captions(), "a photo of a shape", "Question: what is shown? Answer:"],
        vocab_size=380,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
        show_progress=False,
    )
    model = json.loads(bpe.to_str())["model"]
    tokenizer = GPT2Tokenizer(
        vocab=model["vocab"],
        merges=[tuple(pair) for pair in model["merges"]],  # type: ignore[misc]  # annotated as strings, read as pairs
        unk_token="</s>",
        bos_token="</s>",
        eos_token="</s>",
        pad_token="<pad>",
        add_bos_token=True,
        padding_side="left",
        model_max_length=96,
    )
    images = BlipImageProcessorPil(size={"height": IMAGE_SIZE, "width": IMAGE_SIZE})
    # Without num_query_tokens the captions of prompted requests are garbage, and no error is raised.
    return Blip2Processor(images, tokenizer, num_query_tokens=QUERIES)


def build_model(processor: Blip2Processor) -> Blip2ForConditionalGeneration:
    """Return the untrained model.

    Position embeddings, patch filters and queries get initial values that let the first training step tell apart
    positions, contents and queries.
    """
    model = Blip2ForConditionalGeneration(_config(processor))
    with torch.no_grad():
        # transformers initialises the queries with zeros. All of them would get the same gradients and stay equal.
        torch.nn.init.normal_(model.query_tokens, std=0.5)
        embeddings = model.vision_model.embeddings
        embeddings.position_embedding[0, 1:] = _grid_positions()
        embeddings.patch_embedding.weight.copy_(_patch_filters())
    return model


def _config(processor: Blip2Processor) -> Blip2Config:
    tokenizer = processor.tokenizer
    vision = Blip2VisionConfig(
        hidden_size=WIDTH,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=HEADS,
        image_size=IMAGE_SIZE,
        patch_size=PATCH,
        initializer_range=0.1,
    )
    qformer = Blip2QFormerConfig(
        vocab_size=8,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        intermediate_size=2 * WIDTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.1,
        max_position_embeddings=8,
        cross_attention_frequency=1,
        encoder_hidden_size=WIDTH,
    )
    text = OPTConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        word_embed_proj_dim=WIDTH,
        num_hidden_layers=2,
        ffn_dim=2 * WIDTH,
        num_attention_heads=HEADS,
        max_position_embeddings=128,
        dropout=0.0,
        init_std=0.06,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return Blip2Config(
        vision_config=vision,
        qformer_config=qformer,
        text_config=text,
        num_query_tokens=QUERIES,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_text_hidden_size=WIDTH,
        initializer_range=0.1,
    )


def _grid_positions() -> torch.Tensor:
    """Initial position embeddings, (GRID * GRID, WIDTH): sines and cosines of row and column."""
    frequency = 1 / (50 ** (torch.arange(WIDTH // 4) / (WIDTH // 4)))
    y, x = torch.meshgrid(torch.arange(GRID).float(), torch.arange(GRID).float(), indexing="ij")
    waves = [wave(axis.reshape(-1, 1) * frequency) for axis in (y, x) for wave in (torch.sin, torch.cos)]
    return 0.4 * torch.cat(waves, dim=1)


def _patch_filters() -> torch.Tensor:
    """Initial patch filters, (WIDTH, 3, PATCH, PATCH): low-frequency cosines times opponent colours find edges."""
    n = torch.arange(PATCH).float()
    cosines = torch.stack([torch.cos(math.pi * (n + 0.5) * u / PATCH) * math.sqrt(2 / PATCH) for u in range(PATCH)])
    cosines[0] *= math.sqrt(0.5)
    lowest_first = sorted(((u, v) for u in range(PATCH) for v in range(PATCH)), key=lambda uv: (sum(uv), uv))
    opponents = torch.nn.functional.normalize(torch.tensor([[1.0, 1, 1], [1, -1, 0], [1, 1, -2]]), dim=1)
    return torch.stack(
        [
            colour[:, None, None] * torch.outer(cosines[u], cosines[v]) * ((1 if u + v == 0 else 3) / PATCH)
            for colour in opponents
            for u, v in lowest_first[: WIDTH // 3]
        ]
    )
