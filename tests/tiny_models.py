"""Tiny random models of the families that the handler serves, saved as a hub would have them."""

from pathlib import Path

import torch
from transformers import (
    BertTokenizer,
    BlipConfig,
    BlipForConditionalGeneration,
    BlipProcessor,
    GitConfig,
    GitForCausalLM,
    GitProcessor,
)
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[DEC]"]
WORDS += ["a", "large", "small", "red", "green", "blue", "circle", "star"]
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
# Random weights mostly say one word for ever; a wider start lets captions depend on the picture.
LIVELY = {"initializer_range": 0.3}


def tokenizer() -> BertTokenizer:
    return BertTokenizer(vocab={word: i for i, word in enumerate(WORDS)})


def save_blip(directory: Path) -> str:
    torch.manual_seed(1)
    text = {**SMALL, **LIVELY, "vocab_size": len(WORDS), "encoder_hidden_size": 32, "max_position_embeddings": 64}
    text |= {"bos_token_id": 5, "eos_token_id": 3, "sep_token_id": 3, "pad_token_id": 0}
    vision = {**SMALL, **LIVELY, "image_size": 64, "patch_size": 16}
    model = BlipForConditionalGeneration(BlipConfig(text_config=text, vision_config=vision, image_text_hidden_size=32))
    model.save_pretrained(directory)
    BlipProcessor(BlipImageProcessorPil(size={"height": 64, "width": 64}), tokenizer()).save_pretrained(directory)
    return str(directory)


def save_git(directory: Path) -> str:
    torch.manual_seed(2)
    vision = {**SMALL, **LIVELY, "image_size": 64, "patch_size": 16}
    ids = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    config = GitConfig(
        vision_config=vision, vocab_size=len(WORDS), max_position_embeddings=64, **SMALL, **LIVELY, **ids
    )
    GitForCausalLM(config).save_pretrained(directory)
    images = CLIPImageProcessorPil(size={"shortest_edge": 64}, crop_size={"height": 64, "width": 64})
    GitProcessor(images, tokenizer()).save_pretrained(directory)
    return str(directory)
