"""BLIP-2 by the captioner's own code, compared with transformers: patches, and the tokens of captions."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText, OPTConfig, OPTForCausalLM

from captions.caption_writer import CaptionWriter
from captions.captioner import Captioner, CaptionSettings
from captions.frame_transform import FrameTransform
from captions.greedy_opt import GreedyOpt
from captions.patch_embeddings import PatchEmbeddings
from reelscribe.contract.frames import InputSize
from reelscribe.decode.sampling import Sampling
from support.videos import read

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def captioner(demo_model) -> Captioner:
    return Captioner(CaptionSettings(demo_model), CPU)


@pytest.fixture(scope="module")
def frames(media) -> np.ndarray:
    """Frames whose captions have different lengths."""
    return np.stack([frame for _, _, frame in read(media / "spoken.mp4", InputSize(224, 224), Sampling(every=60))])


@pytest.fixture(scope="module")
def original(demo_model):
    return AutoModelForImageTextToText.from_pretrained(demo_model, dtype=torch.float32).eval()


CHANGING = [{"num_beams": 3}, {"no_repeat_ngram_size": 2}]
"""Options for which captions are not found by greedy search."""

CASES = [(options, "") for options in ({}, {"max_new_tokens": 5}, {"min_new_tokens": 20}, {"eos_token_id": [2, 300]})]
CASES += [({"repetition_penalty": 1.5}, ""), ({"repetition_penalty": 0.9}, "a large")]
CASES += [({"eos_token_id": 361}, ""), ({}, "a large")]  # 361 is the token of the image, so no caption ends
CASES += [(options, "") for options in ({"max_new_tokens": 200}, *CHANGING)]  # 200 are more than the model's positions
CASES += [(CHANGING[0], "a large")]


@pytest.mark.parametrize(("options", "prompt"), CASES, ids=str)
def test_tokens_are_those_of_transformers(captioner, original, frames, options, prompt):
    options = {"max_new_tokens": 24, **options}
    prompts = {}
    if prompt:
        text = captioner.processor(images=list(frames), text=[prompt] * len(frames), return_tensors="pt")
        prompts = {name: text[name] for name in ("input_ids", "attention_mask")}
    written = CaptionWriter(captioner.model, options)({**captioner.encode([frames]), **prompts})
    with torch.inference_mode():
        expected = original.generate(pixel_values=captioner.transform(frames), **prompts, **options)
    assert written["tokens"] == expected.tolist()
    assert len(set(map(tuple, written["tokens"]))) > 1


@pytest.mark.parametrize("options", [*CHANGING, {"do_sample": True}, {"sequence_bias": {(3,): 1.0}}], ids=str)
def test_options_that_change_greedy_search_are_left_to_transformers(original, options):
    model, few = original.language_model, {"max_new_tokens": 5}
    assert GreedyOpt.of(model, {**few, "num_beams": 1, "do_sample": False, "temperature": None}) is not None
    assert GreedyOpt.of(model, {**few, **options}) is None
    assert GreedyOpt.of(model, {"max_length": 30}) is None


SMALL = {"vocab_size": 40, "hidden_size": 24, "ffn_dim": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
UNUSUAL = [{"do_layer_norm_before": False}, {"word_embed_proj_dim": 16}, {"enable_bias": False}]


def random_opt(**settings) -> OPTForCausalLM:
    torch.manual_seed(4)
    return OPTForCausalLM(OPTConfig(**SMALL, init_std=0.5, max_position_embeddings=32, **settings)).eval()


@pytest.mark.parametrize("settings", UNUSUAL, ids=str)
def test_unusual_architectures_are_left_to_transformers(settings):
    assert GreedyOpt.of(random_opt(**settings), {"max_new_tokens": 5}) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_random_opt_generates_the_same_tokens_and_works_as_before(dtype):
    model = random_opt(activation_function="gelu").to(dtype)
    prompts = torch.randn(4, 6, 24, generator=torch.Generator().manual_seed(5)).to(dtype)
    expected = model.generate(inputs_embeds=prompts, max_new_tokens=12, do_sample=False)
    greedy = GreedyOpt.of(model, {"max_new_tokens": 12})
    with torch.inference_mode():
        tokens, averages = greedy.generate(torch.empty(4, 0, dtype=torch.long), prompts)
    assert tokens.tolist() == expected.tolist()
    assert model.generate(inputs_embeds=prompts, max_new_tokens=12, do_sample=False).equal(expected)
    assert averages.max() < 0
    assert greedy.has_room(20)
    assert not greedy.has_room(21)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_patches_are_as_exact_as_those_of_transformers(demo_model, captioner, original, frames, dtype):
    processor = captioner.processor.image_processor
    exact = original.vision_model.embeddings(FrameTransform(processor, CPU, torch.float32)(frames))
    model = AutoModelForImageTextToText.from_pretrained(demo_model, dtype=dtype).eval()
    transform = FrameTransform(processor, CPU, dtype)
    theirs = model.vision_model.embeddings(transform(frames))
    ours = PatchEmbeddings(model.vision_model.embeddings, transform)(transform.levels(frames))
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    errors = [(each.float() - exact).abs().max().item() for each in (ours, theirs)]
    assert errors[0] <= max(1.2 * errors[1], 5e-5), errors
