"""The architecture of the demo clip model: an untrained Qwen3-VL of about two million parameters, and its tokenizer."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import GenerationConfig, Qwen2Tokenizer, Qwen3VLConfig, Qwen3VLForConditionalGeneration

from clips.describer import ClipSettings
from clips.families import ProcessorSettings, Qwen3VL
from synthetic.event_clips import random_event_clip
from synthetic.phrases import WORDS

WIDTH = 96
"""Width of the vision encoder."""
TEXT_WIDTH = 128
POSITIONS = 16
"""Rows and columns of the learned position embeddings, which the model interpolates to each grid of patches."""

PROMPT, STILL_PROMPT = ClipSettings.prompt, ClipSettings.still_prompt
"""The prompts of the handler, about clips and about single pictures."""
JSON_PROMPT = "Describe this video clip as JSON."

_CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type == 'video' -%}
<|vision_start|><|video_pad|><|vision_end|>
{%- else -%}
{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}
"""

_FRAME_TOKENS = 17
"""Tokens of a frame, at most: frames of 16:9 become 160 x 96 pixels."""

_PROCESSOR = {
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
_TOKEN_PIXELS = 32 * 32
PROCESSORS: dict[str, dict[str, Any]] = {
    "preprocessor_config.json": {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        **_PROCESSOR,
        "size": {"shortest_edge": 4 * _TOKEN_PIXELS, "longest_edge": _FRAME_TOKENS * _TOKEN_PIXELS},
    },
    "video_preprocessor_config.json": {
        "video_processor_type": "Qwen3VLVideoProcessor",
        **_PROCESSOR,
        "size": {"shortest_edge": 4 * _TOKEN_PIXELS, "longest_edge": 768 * _FRAME_TOKENS * _TOKEN_PIXELS},
        "cap_pixels_per_frame": True,
        "max_video_tokens": _FRAME_TOKENS,
        "fps": 2,
        "min_frames": 4,
        "max_frames": 768,
    },
}
"""The settings of Qwen's own processors, by the name of the file in a checkpoint."""

FAMILY = Qwen3VL(ProcessorSettings(*(PROCESSORS[name] for name in sorted(PROCESSORS, reverse=True))))
"""The part of the handler that knows such models."""
PATCHING = FAMILY.patching

_SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)


def build_tokenizer() -> Qwen2Tokenizer:
    """Return Qwen's own tokenizer and special tokens, with a byte-level BPE vocabulary learned from captions."""
    rng = random.Random(0)
    clips = [random_event_clip(rng) for _ in range(2000)]
    texts = [clip.caption for clip in clips] + [clip.json_caption for clip in clips]
    texts += [clip.still_caption(rng.random()) for clip in clips]
    texts += [
        PROMPT,
        JSON_PROMPT,
        STILL_PROMPT,
        "The clip shows 12.5 to 39.0 seconds of a video.",
        "These words are said in the clip:",
    ]
    texts += ["<1.5 seconds>", "user assistant\n", " ".join(WORDS)] * 100
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(texts, vocab_size=500, show_progress=False)
    model = json.loads(bpe.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=model["vocab"],
        merges=[tuple(pair) for pair in model["merges"]],  # type: ignore[misc]  # annotated as strings, read as pairs
        eos_token="<|im_end|>",
        additional_special_tokens=list(_SPECIAL),
        padding_side="left",
        model_max_length=32_768,
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    return tokenizer


def build_model(tokenizer: Qwen2Tokenizer) -> Qwen3VLForConditionalGeneration:
    """Return the untrained model.

    Position embeddings and patch filters get initial values that let the first training step tell apart positions and
    contents.
    """
    model = Qwen3VLForConditionalGeneration(_config(tokenizer))
    with torch.no_grad():
        vision = model.model.visual
        vision.pos_embed.weight.copy_(_grid_positions())
        vision.patch_embed.proj.weight.copy_(_patch_filters())
    ids = _ids(tokenizer)
    model.generation_config = GenerationConfig(
        eos_token_id=[ids["<|im_end|>"], ids["<|endoftext|>"]], pad_token_id=ids["<|endoftext|>"], do_sample=False
    )
    return model


def _config(tokenizer: Qwen2Tokenizer) -> Qwen3VLConfig:
    ids = _ids(tokenizer)
    return Qwen3VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": TEXT_WIDTH,
            "intermediate_size": 320,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 32,
            "max_position_embeddings": 32_768,
            "initializer_range": 0.05,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "mrope_section": [6, 5, 5],
                "mrope_interleaved": True,
            },
            "pad_token_id": ids["<|endoftext|>"],
        },
        vision_config={
            "depth": 3,
            "hidden_size": WIDTH,
            "intermediate_size": 256,
            "num_heads": 3,
            "patch_size": PATCHING.patch,
            "spatial_merge_size": PATCHING.merge,
            "temporal_patch_size": PATCHING.frames,
            "out_hidden_size": TEXT_WIDTH,
            "num_position_embeddings": POSITIONS * POSITIONS,
            "deepstack_visual_indexes": [0, 1],
            "initializer_range": 0.1,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )


def _ids(tokenizer: Qwen2Tokenizer) -> dict[str, int]:
    vocabulary = tokenizer.get_vocab()
    return {token: vocabulary[token] for token in _SPECIAL}


def _grid_positions() -> torch.Tensor:
    """Initial position embeddings, (POSITIONS * POSITIONS, WIDTH): sines and cosines of row and column."""
    frequency = 1 / (50 ** (torch.arange(WIDTH // 4) / (WIDTH // 4)))
    rows = torch.arange(POSITIONS).float() / 2
    y, x = torch.meshgrid(rows, rows, indexing="ij")
    waves = [wave(axis.reshape(-1, 1) * frequency) for axis in (y, x) for wave in (torch.sin, torch.cos)]
    return 0.4 * torch.cat(waves, dim=1)


def _patch_filters() -> torch.Tensor:
    """Initial patch filters, (WIDTH, 3, frames, patch, patch): low-frequency cosines times opponent colours.

    Two thirds of them average the frames of a patch, and the others compare the frames.
    """
    size = PATCHING.patch
    n = torch.arange(size).float()
    cosines = torch.stack([torch.cos(math.pi * (n + 0.5) * u / size) * math.sqrt(2 / size) for u in range(size)])
    cosines[0] *= math.sqrt(0.5)
    lowest_first = sorted(((u, v) for u in range(size) for v in range(size)), key=lambda uv: (sum(uv), uv))
    opponents = torch.nn.functional.normalize(torch.tensor([[1.0, 1, 1], [1, -1, 0], [1, 1, -2]]), dim=1)
    times = {20: torch.tensor([0.5, 0.5]), 12: torch.tensor([0.5, -0.5])}
    return torch.stack(
        [
            time[None, :, None, None]
            * colour[:, None, None, None]
            * torch.outer(cosines[u], cosines[v])
            * ((1 if u + v == 0 else 3) / size)
            for count, time in times.items()
            for colour in opponents
            for u, v in lowest_first[:count]
        ]
    )
