"""The architecture of the demo speech model: an untrained Whisper of two million parameters, and its processor.

Its window is 10 s long, where OpenAI's models have 30 s.
"""

from __future__ import annotations

import json
import math
import random

import torch
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor, nn
from transformers import (
    AddedToken,
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)
from transformers.models.whisper.modeling_whisper import WhisperAttention
from transformers.models.whisper.tokenization_whisper import LANGUAGES

from synthetic.phrases import MAX_WORDS, SAMPLE_RATE, WORDS

WINDOW_SECONDS = 10
MEL_BINS = 80
MEL_RATE = 100
"""Mel frames per second."""
ENCODER_RATE = 50
"""Encoder positions per second. There is a timestamp token for each position, with the same number."""
ENCODER_POSITIONS = WINDOW_SECONDS * ENCODER_RATE
TEXT_POSITIONS = 448
TIMESTAMPS = 1501
"""Timestamp tokens <|0.00|> to <|30.00|>, as in every Whisper model; this one uses none after <|10.00|>."""

WIDTH = 128
HEADS = 4
ENCODER_LAYERS = 4
DECODER_LAYERS = 3
GUIDED_HEADS = 2
"""Cross-attention heads of each guided layer that training teaches to attend to the right position."""
PREVIOUS_LAYER, CURRENT_LAYER = 0, 1
"""The guided decoder layers: guided heads attend to the audio of the input token and to that of the next token."""


def build_processor() -> WhisperProcessor:
    """Return Whisper's own processor and special tokens, with a byte-level BPE in which every word is one token."""
    bpe = ByteLevelBPETokenizer()
    rng = random.Random(0)
    bpe.train_from_iterator(
        [" " + " ".join(rng.choices(WORDS, k=MAX_WORDS)) for _ in range(2000)], vocab_size=400, show_progress=False
    )
    model = json.loads(bpe.to_str())["model"]
    end = "<|endoftext|>"
    tokenizer = WhisperTokenizer(
        vocab={**model["vocab"], end: len(model["vocab"])},
        merges=[tuple(pair) for pair in model["merges"]],
        unk_token=end,
        bos_token=end,
        eos_token=end,
        pad_token=end,
        model_max_length=TEXT_POSITIONS,
    )
    tasks = ["translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps"]
    special = [f"<|{name}|>" for name in ("startoftranscript", *LANGUAGES, *tasks)]
    tokenizer.add_special_tokens({"extra_special_tokens": special})
    stamps = [f"<|{i / ENCODER_RATE:.2f}|>" for i in range(TIMESTAMPS)]
    tokenizer.add_tokens([AddedToken(stamp, special=False, normalized=False) for stamp in stamps])
    tokenizer.set_prefix_tokens(language="english", task="transcribe", predict_timestamps=False)
    extractor = WhisperFeatureExtractor(feature_size=MEL_BINS, sampling_rate=SAMPLE_RATE, chunk_length=WINDOW_SECONDS)
    return WhisperProcessor(extractor, tokenizer)


def build_model(processor: WhisperProcessor) -> WhisperForConditionalGeneration:
    """Return the untrained model; the initial self-attention of its heads attends to fixed relative positions."""
    tokenizer = processor.tokenizer
    config = WhisperConfig(
        vocab_size=len(tokenizer),
        num_mel_bins=MEL_BINS,
        d_model=WIDTH,
        encoder_layers=ENCODER_LAYERS,
        decoder_layers=DECODER_LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=3 * WIDTH,
        decoder_ffn_dim=2 * WIDTH,
        max_source_positions=ENCODER_POSITIONS,
        max_target_positions=TEXT_POSITIONS,
        tie_word_embeddings=False,
        decoder_start_token_id=tokenizer.convert_tokens_to_ids("<|startoftranscript|>"),
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = WhisperForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _initialise(name, parameter)
        _initialise_positions(model, tokenizer.convert_tokens_to_ids("<|0.00|>"))
    model.generation_config = _generation_config(tokenizer)
    return model


def _generation_config(tokenizer: WhisperTokenizer) -> GenerationConfig:
    number = tokenizer.convert_tokens_to_ids
    return GenerationConfig(
        decoder_start_token_id=number("<|startoftranscript|>"),
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        lang_to_id={f"<|{code}|>": number(f"<|{code}|>") for code in LANGUAGES},
        task_to_id={task: number(f"<|{task}|>") for task in ("transcribe", "translate")},
        is_multilingual=True,
        no_timestamps_token_id=number("<|notimestamps|>"),
        prev_sot_token_id=number("<|startofprev|>"),
        return_timestamps=False,
        # Speech may begin anywhere in a window, so the first timestamp has no limit.
        max_initial_timestamp_index=None,
        # These heads attend to the audio of the token that is being generated, as those of OpenAI's models do.
        alignment_heads=[[CURRENT_LAYER, head] for head in range(GUIDED_HEADS)],
    )


def _initialise(name: str, parameter: Tensor) -> None:
    """Set random initial values of one parameter, scaled by the number of inputs that it sums up."""
    if "layer_norm" in name:
        return
    if parameter.ndim == 1:
        nn.init.zeros_(parameter)
    elif "conv" in name:
        nn.init.normal_(parameter, std=math.sqrt(2 / (parameter.shape[1] * parameter.shape[2])))
    elif "embed_tokens" in name:
        nn.init.normal_(parameter, std=0.7)
    else:
        towards_output = any(part in name for part in ("out_proj", "fc2", "proj_out"))
        nn.init.normal_(parameter, std=(0.5 if towards_output else 1.0) / math.sqrt(parameter.shape[1]))


def _waves(positions: int, slowest: float) -> tuple[Tensor, list[float]]:
    """Return sines and then cosines of each position, (positions, WIDTH), and their frequencies.

    The frequencies are WIDTH // 2 values from 1 to 1 / `slowest`, in radians per position.
    """
    half = WIDTH // 2
    frequencies = torch.exp(-math.log(slowest) * torch.arange(half) / (half - 1))
    angles = torch.arange(positions)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1), frequencies.tolist()


# The relative positions to which the four heads of each encoder layer attend initially, and which of the 64 frequencies
# they use, as a range of indices.
_ENCODER_SHIFTS = ((-3, -1, 1, 3), (-6, -2, 2, 6), (-12, -5, 5, 12), (-24, -12, 12, 24))
_ENCODER_BANDS = ((0, 24), (0, 24), (6, 35), (12, 46))
_DECODER_SHIFTS = (-1, -2, 0)
_DECODER_BAND = (0, 42)


def _initialise_positions(model: WhisperForConditionalGeneration, first_timestamp: int) -> None:
    """Set the initial position embeddings, timestamp embeddings and self-attention."""
    encoder, decoder = model.model.encoder, model.model.decoder
    waves, frequencies = _waves(TIMESTAMPS, slowest=300)
    encoder.embed_positions.weight.copy_(waves[:ENCODER_POSITIONS])
    # The embedding of a timestamp is initially that of its position, so that close times have similar embeddings.
    decoder.embed_tokens.weight[first_timestamp:] = waves
    model.proj_out.weight[first_timestamp:] = waves / math.sqrt(WIDTH)
    for layer, shifts, band in zip(encoder.layers, _ENCODER_SHIFTS, _ENCODER_BANDS, strict=True):
        for head, shift in enumerate(shifts):
            _attend_to(layer.self_attn, head, shift, frequencies, band, sharpness=2.2)
    waves, frequencies = _waves(TEXT_POSITIONS, slowest=100)
    decoder.embed_positions.weight.copy_(waves)
    for layer in decoder.layers:
        for head, shift in enumerate(_DECODER_SHIFTS):
            _attend_to(layer.self_attn, head, shift, frequencies, _DECODER_BAND, sharpness=1.5)


def _attend_to(
    attention: WhisperAttention,
    head: int,
    shift: int,
    frequencies: list[float],
    band: tuple[int, int],
    sharpness: float,
) -> None:
    """Initialise one head so that it attends to the position `shift` after its own.

    Queries rotate the waves by the shift and keys do not, so their product is largest at that relative position.
    """
    size = WIDTH // HEADS
    rows = slice(head * size, (head + 1) * size)
    query, key = attention.q_proj.weight[rows], attention.k_proj.weight[rows]
    query *= 0.3
    key *= 0.3
    amplitude, half = math.sqrt(sharpness), WIDTH // 2
    for j, at in enumerate(torch.linspace(band[0], band[1] - 1, size // 2).round().int().tolist()):
        cosine, sine = amplitude * math.cos(frequencies[at] * shift), amplitude * math.sin(frequencies[at] * shift)
        query[2 * j, at] += cosine
        query[2 * j, half + at] += sine
        query[2 * j + 1, half + at] += cosine
        query[2 * j + 1, at] -= sine
        key[2 * j, at] += amplitude
        key[2 * j + 1, half + at] += amplitude
