"""BLIP-2 opt-2.7b, Whisper large-v3-turbo and Qwen3-VL-2B with random weights, saved as on a hub, and tiny models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    AddedToken,
    AutoModelForImageTextToText,
    AutoModelForSpeechSeq2Seq,
    Blip2Config,
    Blip2Processor,
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3VLConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperProcessor,
    WhisperTokenizer,
)
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil
from transformers.models.whisper.tokenization_whisper import LANGUAGES

Size = Literal["full", "tiny"]

# fmt: off
VISION: dict[Size, dict[str, Any]] = {
    "full": {"hidden_size": 1408, "intermediate_size": 6144, "num_hidden_layers": 39, "num_attention_heads": 16,
             "image_size": 224, "patch_size": 14},
    "tiny": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
             "image_size": 56, "patch_size": 14},
}
QFORMER: dict[Size, dict[str, Any]] = {
    "full": {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
             "cross_attention_frequency": 2, "vocab_size": 30522, "max_position_embeddings": 512},
    "tiny": {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2,
             "cross_attention_frequency": 2, "vocab_size": 8, "max_position_embeddings": 8},
}
OPT: dict[Size, dict[str, Any]] = {
    "full": {"hidden_size": 2560, "word_embed_proj_dim": 2560, "ffn_dim": 10240, "num_hidden_layers": 32,
             "num_attention_heads": 32, "vocab_size": 50304, "max_position_embeddings": 2048},
    "tiny": {"hidden_size": 40, "word_embed_proj_dim": 40, "ffn_dim": 80, "num_hidden_layers": 2,
             "num_attention_heads": 2, "vocab_size": 104, "max_position_embeddings": 128},
}
BLIP2: dict[Size, dict[str, Any]] = {
    "full": {"num_query_tokens": 32, "image_token_index": 50265, "image_text_hidden_size": 256},
    "tiny": {"num_query_tokens": 8, "image_token_index": 100, "image_text_hidden_size": 32},
}
WHISPER: dict[Size, dict[str, Any]] = {
    "full": {"d_model": 1280, "encoder_layers": 32, "decoder_layers": 4, "num_mel_bins": 128,
             "encoder_attention_heads": 20, "decoder_attention_heads": 20, "encoder_ffn_dim": 5120,
             "decoder_ffn_dim": 5120, "max_source_positions": 1500, "max_target_positions": 448},
    "tiny": {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "num_mel_bins": 16,
             "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 64,
             "decoder_ffn_dim": 96, "max_source_positions": 250, "max_target_positions": 64},
}
QWEN_VISION: dict[Size, dict[str, Any]] = {
    "full": {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "out_hidden_size": 2048,
             "num_position_embeddings": 2304, "deepstack_visual_indexes": [5, 11, 17]},
    "tiny": {"depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 48,
             "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]},
}
QWEN_TEXT: dict[Size, dict[str, Any]] = {
    "full": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,
             "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936, "max_position_embeddings": 262_144},
    "tiny": {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128, "max_position_embeddings": 4096},
}
QWEN_ROPE: dict[Size, list[int]] = {"full": [24, 20, 20], "tiny": [4, 2, 2]}
"""Parts of the rotary embedding for time, height and width."""
# fmt: on
TEXT_TOKENS: dict[Size, int] = {"full": 50257, "tiny": 50}
"""Text tokens of Whisper's vocabulary; special tokens and timestamps follow them."""

TIMESTAMPS = 1501
"""Number of Whisper's timestamp tokens: 0.00 to 30.00 s in steps of 0.02 s."""

QWEN_CHAT = (
    "<|im_start|> user {% for part in messages[0].content %}{% if part.type == 'text' %}{{ part.text }}{% else %}"
    "<|vision_start|><|{{ part.type }}_pad|><|vision_end|>{% endif %}{% endfor %}<|im_end|> <|im_start|> assistant"
)
"""A chat template that writes as many tokens as that of Qwen3-VL."""

WEIGHT_STD = 0.02
"""Standard deviation of the random weights. With zeros, a GPU would need less power and be faster."""


def blip2_config(size: Size) -> Blip2Config:
    """The configuration of Salesforce/blip2-opt-2.7b, or one with the same parts and few weights."""
    return Blip2Config(
        vision_config={**VISION[size], "initializer_range": WEIGHT_STD},
        qformer_config=QFORMER[size],
        text_config={"model_type": "opt", **OPT[size], "bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1},
        initializer_range=WEIGHT_STD,
        **BLIP2[size],
    )


def whisper_config(size: Size) -> WhisperConfig:
    """The configuration of openai/whisper-large-v3-turbo, or one with the same parts and few weights."""
    end = TEXT_TOKENS[size]
    return WhisperConfig(
        vocab_size=end + len(_special_tokens()) + 1 + TIMESTAMPS,
        decoder_start_token_id=end + 1,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        init_std=WEIGHT_STD,
        **WHISPER[size],
    )


def qwen3_vl_config(size: Size) -> Qwen3VLConfig:
    """The configuration of Qwen/Qwen3-VL-2B-Instruct, or one with the same parts and few weights."""
    end = QWEN_TEXT[size]["vocab_size"]
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_interleaved": True, "mrope_section": QWEN_ROPE[size]}
    return Qwen3VLConfig(
        text_config={**QWEN_TEXT[size], "rope_parameters": rope, "initializer_range": WEIGHT_STD},
        vision_config={**QWEN_VISION[size], "initializer_range": WEIGHT_STD},
        tie_word_embeddings=True,
        **{name: end - 1 - k for k, name in enumerate(names)},
    )


def save_qwen3_vl(config: Any, folder: Path, device: torch.device) -> None:
    """Save a Qwen3-VL of this configuration, its processor and tokenizer in bfloat16; `device` draws the weights."""
    random_model(AutoModelForImageTextToText, config, device).save_pretrained(folder)
    marks = ("<|im_start|>", "<|im_end|>", "<|vision_end|>", "<|vision_start|>", "<|video_pad|>", "<|image_pad|>")
    tokenizer = _word_tokenizer(config.text_config.vocab_size - len(marks))
    tokenizer.add_special_tokens({"extra_special_tokens": [*marks]})
    tokenizer.chat_template = QWEN_CHAT
    tokenizer.save_pretrained(folder)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    GenerationConfig(eos_token_id=end, pad_token_id=tokenizer.pad_token_id).save_pretrained(folder)
    for name, kind in (("preprocessor", "image"), ("video_preprocessor", "video")):
        types = {"image": "Qwen2VLImageProcessorFast", "video": "Qwen3VLVideoProcessor"}
        half = [0.5, 0.5, 0.5]
        settings = {f"{kind}_processor_type": types[kind], "image_mean": half, "image_std": half, "patch_size": 16}
        settings["size"] = {"shortest_edge": 4096, "longest_edge": 25_165_824}
        (folder / f"{name}_config.json").write_text(json.dumps(settings))


def save_blip2(config: Any, folder: Path, device: torch.device) -> None:
    """Save a BLIP-2 of this configuration, its processor and tokenizer in bfloat16; `device` draws the weights."""
    random_model(AutoModelForImageTextToText, config, device).save_pretrained(folder)
    side = config.vision_config.image_size
    images, tokenizer = (
        BlipImageProcessorPil(size={"height": side, "width": side}),
        _word_tokenizer(config.image_token_index),
    )
    Blip2Processor(images, tokenizer, num_query_tokens=config.num_query_tokens).save_pretrained(folder)


def save_whisper(config: Any, folder: Path, device: torch.device) -> None:
    """Save a Whisper of this configuration, its processor and tokenizer in bfloat16; `device` draws the weights."""
    random_model(AutoModelForSpeechSeq2Seq, config, device).save_pretrained(folder)
    tokenizer = _whisper_tokenizer(config.eos_token_id)  # the special tokens begin with it
    token_id = tokenizer.convert_tokens_to_ids
    GenerationConfig(
        decoder_start_token_id=config.decoder_start_token_id,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
        lang_to_id={f"<|{code}|>": token_id(f"<|{code}|>") for code in LANGUAGES},
        task_to_id={task: token_id(f"<|{task}|>") for task in ("transcribe", "translate")},
        is_multilingual=True,
        no_timestamps_token_id=token_id("<|notimestamps|>"),
    ).save_pretrained(folder)
    extractor = WhisperFeatureExtractor(
        feature_size=config.num_mel_bins, chunk_length=config.max_source_positions // 50
    )
    WhisperProcessor(extractor, tokenizer).save_pretrained(folder)


def random_model(family: Any, config: Any, device: torch.device) -> Any:
    """Make a model of a family of transformers in bfloat16, whose weights `device` draws."""
    torch.manual_seed(0)
    with device:
        return family.from_config(config, dtype=torch.bfloat16)


def _word_tokenizer(count: int) -> PreTrainedTokenizerFast:
    """A tokenizer with `count` tokens; the processor adds one that stands for an image."""
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    vocabulary = {name: i for i, name in enumerate([*names, *(f"w{i}" for i in range(len(names), count))])}
    backend = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = Whitespace()
    special = {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, padding_side="left", **special)


def _special_tokens() -> list[str]:
    """The special tokens after the end of the text, in Whisper's order."""
    tasks = ("translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps")
    return [f"<|{name}|>" for name in ("startoftranscript", *LANGUAGES, *tasks)]


def _whisper_tokenizer(text_tokens: int) -> WhisperTokenizer:
    end = "<|endoftext|>"
    vocabulary = {**{f"w{i}": i for i in range(text_tokens)}, end: text_tokens}
    names = dict.fromkeys(("unk_token", "bos_token", "eos_token", "pad_token"), end)
    tokenizer = WhisperTokenizer(vocab=vocabulary, merges=[], **names)
    tokenizer.add_special_tokens({"extra_special_tokens": _special_tokens()})
    stamps = [f"<|{i / 50:.2f}|>" for i in range(TIMESTAMPS)]
    tokenizer.add_tokens([AddedToken(stamp, special=False, normalized=False) for stamp in stamps])
    return tokenizer


FULL_SIZES: tuple[tuple[str, Any, int], ...] = (
    ("BLIP-2 opt-2.7b", blip2_config("full"), 3_744_761_856),
    ("Whisper large-v3-turbo", whisper_config("full"), 808_878_080),
    ("Qwen3-VL-2B", qwen3_vl_config("full"), 2_127_532_032),
)
"""Name, configuration and published number of parameters of the real models."""


def parameters(config: Any) -> int:
    """Number of parameters of a model; no memory is allocated for them."""
    return int(_without_memory(config).num_parameters())


def whisper_encoder_parameters() -> int:
    """Number of parameters of the encoder of Whisper large-v3-turbo."""
    return int(_without_memory(whisper_config("full")).get_encoder().num_parameters())


def _without_memory(config: Any) -> Any:
    family: Any = AutoModelForSpeechSeq2Seq if isinstance(config, WhisperConfig) else AutoModelForImageTextToText
    with torch.device("meta"):
        return family.from_config(config)
