"""Tiny random models of the families that the handlers serve, saved as on a hub."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoTokenizer,
    BertTokenizer,
    BlipConfig,
    BlipForConditionalGeneration,
    BlipProcessor,
    GenerationConfig,
    GitConfig,
    GitForCausalLM,
    GitProcessor,
    ParakeetCTCConfig,
    ParakeetEncoderConfig,
    ParakeetFeatureExtractor,
    ParakeetForCTC,
    ParakeetForTDT,
    ParakeetProcessor,
    ParakeetTDTConfig,
    ParakeetTokenizer,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Wav2Vec2Config,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForCTC,
    Wav2Vec2Processor,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
)
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from synthetic import random_speech_models

CPU = torch.device("cpu")
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


def save_whisper(directory: Path, processor: Any, window_seconds: int = 5, mels: int = 16, **settings: Any) -> str:
    """Save a Whisper with the tokenizer of `processor`; `settings` go into its generation_config.json, but for None."""
    torch.manual_seed(3)
    tokenizer = processor.tokenizer
    number = tokenizer.convert_tokens_to_ids
    ids = dict.fromkeys(("eos_token_id", "bos_token_id", "pad_token_id"), tokenizer.eos_token_id)
    ids["decoder_start_token_id"] = number("<|startoftranscript|>")
    size = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2}
    size |= {f"{part}_attention_heads": 2 for part in ("encoder", "decoder")}
    size |= {f"{part}_ffn_dim": 64 for part in ("encoder", "decoder")}
    config = WhisperConfig(
        vocab_size=len(tokenizer),
        num_mel_bins=mels,
        max_source_positions=50 * window_seconds,
        init_std=0.3,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **size,
        **ids,
    )
    model = WhisperForConditionalGeneration(config)
    known = {"no_timestamps_token_id": number("<|notimestamps|>"), "alignment_heads": [[1, 0]], "is_multilingual": True}
    known |= {"lang_to_id": {f"<|{code}|>": number(f"<|{code}|>") for code in ("en", "de")}}
    known |= {"task_to_id": {task: number(f"<|{task}|>") for task in ("transcribe", "translate")}}
    known |= {"suppress_tokens": [], "begin_suppress_tokens": []}
    known = {name: value for name, value in {**known, **ids, **settings}.items() if value is not None}
    model.generation_config = GenerationConfig(**known)
    model.save_pretrained(directory)
    extractor = WhisperFeatureExtractor(feature_size=mels, chunk_length=window_seconds)
    WhisperProcessor(extractor, tokenizer).save_pretrained(directory)
    return str(directory)


LETTERS = {letter: i for i, letter in enumerate(["<pad>", "<s>", "</s>", "<unk>", "|", *"ETAONIHS"])}


def save_wav2vec2(directory: Path, *, masked: bool) -> str:
    """Save a wav2vec2 that takes an attention mask for padding, like the large ones, or one that does not."""
    torch.manual_seed(4)
    convolutions = {"conv_dim": (16, 16), "conv_kernel": (10, 8), "conv_stride": (20, 16)}
    convolutions |= {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}
    kind = {"feat_extract_norm": "layer" if masked else "group", "do_stable_layer_norm": masked}
    config = Wav2Vec2Config(vocab_size=len(LETTERS), pad_token_id=0, **SMALL, **LIVELY, **convolutions, **kind)
    Wav2Vec2ForCTC(config).save_pretrained(directory)
    extractor = Wav2Vec2FeatureExtractor(return_attention_mask=masked)
    vocabulary = directory / "vocab.json"
    vocabulary.write_text(json.dumps(LETTERS))
    Wav2Vec2Processor(extractor, Wav2Vec2CTCTokenizer(str(vocabulary))).save_pretrained(directory)
    return str(directory)


PARAKEET_ENCODER = {**SMALL, **LIVELY, "subsampling_conv_channels": 8, "num_mel_bins": 80}


def save_parakeet(directory: Path) -> str:
    torch.manual_seed(5)
    tokenizer = parakeet_tokenizer("<pad>")
    config = ParakeetCTCConfig(vocab_size=9, pad_token_id=8, encoder_config=ParakeetEncoderConfig(**PARAKEET_ENCODER))
    ParakeetForCTC(config).save_pretrained(directory)
    ParakeetProcessor(ParakeetFeatureExtractor(), tokenizer).save_pretrained(directory)
    return str(directory)


def parakeet_tokenizer(*special: str) -> ParakeetTokenizer:
    pieces = ["<unk>", "▁r", "▁g", "re", "d", "een", "▁", "s", *special]
    backend = Tokenizer(models.Unigram([(piece, -float(i)) for i, piece in enumerate(pieces)], unk_id=0))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return ParakeetTokenizer(
        tokenizer_object=backend, unk_token="<unk>", pad_token="<pad>", extra_special_tokens=[*special[-1:]]
    )


def save_parakeet_tdt(directory: Path) -> str:
    """Save a Parakeet-TDT whose random weights have words, punctuation, and several tokens of the same frame."""
    torch.manual_seed(69)
    tokenizer = parakeet_tokenizer(".", "<pad>", "<blank>")
    encoder = ParakeetEncoderConfig(**PARAKEET_ENCODER)
    config = ParakeetTDTConfig(
        vocab_size=11,
        pad_token_id=9,
        blank_token_id=10,
        decoder_hidden_size=32,
        encoder_config=encoder,
        durations=(0, 1, 2, 3, 4),
    )
    model = ParakeetForTDT(config)
    for part in (model.encoder_projector, model.joint.head):
        torch.nn.init.normal_(part.weight, std=1.0)
    torch.nn.init.normal_(model.decoder.embedding.weight, std=4.0)
    model.joint.head.bias.data[[9, 11]] -= torch.tensor([99.0, 4.0])  # no padding, and some tokens of the same frame
    # Without the last one, `generate` would take the numbers of durations for tokens.
    ids = {"decoder_start_token_id": 10, "pad_token_id": 9, "suppress_tokens": list(range(11, 16))}
    model.generation_config = GenerationConfig(**ids)
    model.save_pretrained(directory)
    ParakeetProcessor(ParakeetFeatureExtractor(), tokenizer, decoder_type="tdt").save_pretrained(directory)
    return str(directory)


def save_canary(directory: Path) -> str:
    random_speech_models.save_canary(random_speech_models.canary_config("tiny", std=0.3), directory, CPU)
    return str(directory)


def save_qwen3_asr(directory: Path) -> str:
    random_speech_models.save_qwen3_asr(random_speech_models.qwen3_asr_config("tiny", std=0.3), directory, CPU)
    return str(directory)


def save_qwen2_5_vl(directory: Path, clip_model: str) -> str:
    """Save a random Qwen2.5-VL with the tokenizer of the demo clip model."""
    torch.manual_seed(3)
    tokens = AutoTokenizer.from_pretrained(clip_model)
    ids = tokens.get_vocab()
    text = {"vocab_size": len(tokens), "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096, **LIVELY}
    text |= {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}}
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64}
    vision |= {"window_size": 56, "fullatt_block_indexes": [1], **LIVELY}
    names = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
    names |= {"vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}
    special = {name: ids[token] for name, token in names.items()}
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, **special)
    model = Qwen2_5_VLForConditionalGeneration(config)
    model.generation_config = GenerationConfig(eos_token_id=ids["<|im_end|>"], pad_token_id=ids["<|endoftext|>"])
    model.save_pretrained(directory)
    tokens.save_pretrained(directory)
    images = {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 3136, "max_pixels": 50_176}
    (directory / "preprocessor_config.json").write_text(json.dumps(images))
    return str(directory)
