"""Parakeet-TDT-0.6b-v3, Canary-1b-v2 and Qwen3-ASR-1.7B with random weights, saved as on a hub, and tiny models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE, WordLevel
from transformers import (
    AutoModelForSpeechSeq2Seq,
    AutoModelForTDT,
    CanaryConfig,
    CanaryProcessor,
    GenerationConfig,
    ParakeetFeatureExtractor,
    ParakeetProcessor,
    ParakeetTDTConfig,
    ParakeetTokenizer,
    PreTrainedTokenizerFast,
    Qwen3ASRConfig,
    Qwen3ASRFeatureExtractor,
    Qwen3ASRProcessor,
)
from transformers.models.canary.processing_canary import LANGUAGE_CODE_TO_NAME

from synthetic.random_models import WEIGHT_STD, Size, random_model

# fmt: off
CONFORMER: dict[Size, dict[str, Any]] = {
    "full": {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8, "num_mel_bins": 128,
             "scale_input": False},
    "tiny": {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_mel_bins": 16,
             "subsampling_conv_channels": 8, "scale_input": False},
}
PARAKEET_LAYERS: dict[Size, int] = {"full": 24, "tiny": 2}
TRANSDUCER: dict[Size, dict[str, Any]] = {
    "full": {"vocab_size": 8193, "decoder_hidden_size": 640},
    "tiny": {"vocab_size": 64, "decoder_hidden_size": 32},
}
CANARY_LAYERS: dict[Size, int] = {"full": 32, "tiny": 2}
CANARY_DECODER: dict[Size, dict[str, Any]] = {
    "full": {"vocab_size": 16384, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8},
    "tiny": {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
             "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16},
}
QWEN_AUDIO: dict[Size, dict[str, Any]] = {
    "full": {"output_dim": 2048},
    "tiny": {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64,
             "num_mel_bins": 16, "downsample_hidden_size": 8, "output_dim": 48},
}
QWEN_TEXT: dict[Size, dict[str, Any]] = {
    "full": {"vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
             "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 65_536},
    "tiny": {"vocab_size": 280, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 4096},
}
# fmt: on

CANARY_MARKS = (
    *("<unk>", "<|nospeech|>", "<pad>", "<|endoftext|>", "<|startoftranscript|>", "<|pnc|>", "<|nopnc|>"),
    *("<|startofcontext|>", "<|emo:undefined|>", "<|noitn|>", "<|notimestamp|>", "<|nodiarize|>"),
    *(f"<|{code}|>" for code in LANGUAGE_CODE_TO_NAME),
)
"""Special tokens of Canary; the first eight have the IDs that its configuration names."""

CANARY_CHAT = (
    "<|startofcontext|><|startoftranscript|><|emo:undefined|>"
    "{% for part in messages[0].content if part.type == 'text' %}<|{{ part.source_language }}|>"
    "<|{{ part.target_language }}|>{{ '<|pnc|>' if part.punctuation else '<|nopnc|>' }}{% endfor %}"
    "<|noitn|><|notimestamp|><|nodiarize|>"
)
"""A chat template that writes Canary's prompt."""

QWEN_CHAT = (
    "<|im_start|>system\n{% for message in messages if message.role == 'system' %}{{ message.content[0].text }}"
    "{% endfor %}<|im_end|>\n{% for message in messages if message.role == 'user' %}<|im_start|>user\n"
    "<|audio_start|><|audio_pad|><|audio_end|><|im_end|>\n{% endfor %}"
    "{% for message in messages if message.role == 'assistant' %}<|im_start|>assistant\n"
    "{{ message.content[0].text }}{% endfor %}"
)
"""A chat template with the roles of Qwen3-ASR: a context, the audio, and the beginning of the answer."""

QWEN_MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|audio_start|>", "<|audio_end|>", "<|audio_pad|>")


TDT_TOKENS = 94
"""Tokens that the saved Parakeet-TDT has for 30 s: it goes on by its longest duration, 4 frames, after each."""


def parakeet_tdt_config(size: Size) -> ParakeetTDTConfig:
    """The configuration of nvidia/parakeet-tdt-0.6b-v3, or one with the same parts and few weights."""
    biases = {"attention_bias": False, "convolution_bias": False}
    encoder = {**CONFORMER[size], **biases, "num_hidden_layers": PARAKEET_LAYERS[size]}
    blank = TRANSDUCER[size]["vocab_size"] - 1
    return ParakeetTDTConfig(
        **TRANSDUCER[size], blank_token_id=blank, encoder_config={**encoder, "initializer_range": WEIGHT_STD}
    )


def canary_config(size: Size, std: float = WEIGHT_STD) -> CanaryConfig:
    """The configuration of nvidia/canary-1b-v2, or one with the same parts and few weights of this deviation."""
    deviation: dict[str, Any] = {"initializer_range": std}
    return CanaryConfig(
        encoder_config={
            "model_type": "parakeet_encoder",
            **CONFORMER[size],
            **deviation,
            "num_hidden_layers": CANARY_LAYERS[size],
        },
        decoder_config={**CANARY_DECODER[size], **deviation},
        vocab_size=CANARY_DECODER[size]["vocab_size"],
        **deviation,
    )


def qwen3_asr_config(size: Size, std: float = WEIGHT_STD) -> Qwen3ASRConfig:
    """The configuration of Qwen/Qwen3-ASR-1.7B-hf, or one with the same parts and few weights of this deviation."""
    end = QWEN_TEXT[size]["vocab_size"]
    deviation: dict[str, Any] = {"initializer_range": std}
    return Qwen3ASRConfig(
        audio_config={"model_type": "qwen3_asr_encoder", **QWEN_AUDIO[size], **deviation},
        text_config={"model_type": "qwen3", **QWEN_TEXT[size], **deviation, "tie_word_embeddings": True},
        audio_token_id=end - 1,
        eos_token_id=[end - 6, end - 4],
        pad_token_id=end - 4,
        **deviation,
    )


def save_parakeet_tdt(config: Any, folder: Path, device: torch.device) -> None:
    """Save a Parakeet-TDT of this configuration and its processor in bfloat16; `device` draws the weights.

    It has TDT_TOKENS for 30 s.
    """
    model = random_model(AutoModelForTDT, config, device)
    with torch.no_grad():
        model.joint.head.bias[-1] += 100
    model.save_pretrained(folder)
    pieces = ["<unk>", "<s>", "<pad>", *(f"▁w{i}" for i in range(3, config.vocab_size - 1)), "<blank>"]
    backend = Tokenizer(WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="<unk>"))
    backend.decoder = decoders.Metaspace()
    tokenizer = ParakeetTokenizer(tokenizer_object=backend, unk_token="<unk>", pad_token="<pad>")
    extractor = ParakeetFeatureExtractor(feature_size=config.encoder_config.num_mel_bins)
    ParakeetProcessor(extractor, tokenizer, decoder_type="tdt").save_pretrained(folder)


def save_canary(config: Any, folder: Path, device: torch.device) -> None:
    """Save a Canary of this configuration and its processor in bfloat16; `device` draws the weights."""
    random_model(AutoModelForSpeechSeq2Seq, config, device).save_pretrained(folder)
    words = [f"w{i}" for i in range(config.vocab_size - len(CANARY_MARKS))]
    backend = Tokenizer(WordLevel({word: i for i, word in enumerate([*CANARY_MARKS, *words])}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<unk>",
        pad_token="<pad>",
        eos_token="<|endoftext|>",
        extra_special_tokens=[*CANARY_MARKS],
    )
    extractor = ParakeetFeatureExtractor(feature_size=config.encoder_config.num_mel_bins)
    CanaryProcessor(extractor, tokenizer, chat_template=CANARY_CHAT).save_pretrained(folder)
    ids = {"eos_token_id": config.eos_token_id, "pad_token_id": config.pad_token_id}
    GenerationConfig(**ids, decoder_start_token_id=config.decoder_start_token_id).save_pretrained(folder)


def save_qwen3_asr(config: Any, folder: Path, device: torch.device) -> None:
    """Save a Qwen3-ASR of this configuration and its processor in bfloat16; `device` draws the weights."""
    random_model(AutoModelForSpeechSeq2Seq, config, device).save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    fillers = [f"w{i}" for i in range(config.text_config.vocab_size - len(letters) - 1 - len(QWEN_MARKS))]
    names = [*letters, *fillers, "<asr_text>", *QWEN_MARKS]
    backend = Tokenizer(BPE({name: i for i, name in enumerate(names)}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backend.add_tokens(["<asr_text>"])  # no special token, as it remains in the text
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        padding_side="left",
        extra_special_tokens={
            "audio_token": "<|audio_pad|>",
            "audio_bos_token": "<|audio_start|>",
            "audio_eos_token": "<|audio_end|>",
            "start_token": "<|im_start|>",
            "text_end_token": "<|endoftext|>",
        },
    )
    extractor = Qwen3ASRFeatureExtractor(feature_size=config.audio_config.num_mel_bins)
    Qwen3ASRProcessor(extractor, tokenizer, chat_template=QWEN_CHAT).save_pretrained(folder)
    GenerationConfig(eos_token_id=[*config.eos_token_id], pad_token_id=config.pad_token_id).save_pretrained(folder)
