"""Models with the widths, vocabularies and processors of published ones, few layers and random weights, on real photos.

No published captioner can be fetched without a hub. What depends on sizes, dtypes and pictures is compared with
transformers here: the pixel values of its own processors, and the tokens that its whole model generates from them.
Random weights have no favourite token, so both are compared apart: the smallest rounding of a pixel changes a text.
"""

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    AutoModelForImageTextToText,
    BertTokenizer,
    BlipConfig,
    BlipForConditionalGeneration,
    BlipProcessor,
)
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from captions.captioner import Captioner, CaptionSettings
from captions.frame_transform import FrameTransform, concatenate
from clips.describer import ClipSettings, Describer
from clips.families import FAMILIES, ProcessorSettings
from reelscribe.contract.clips import Clip
from reelscribe.contract.frames import InputSize
from reelscribe.contract.scaling import fit
from reelscribe.decode.sampling import Sampling
from runtime.generation import generate
from support.videos import read
from synthetic.random_models import blip2_config, qwen3_vl_config, save_blip2, save_qwen3_vl

CPU = torch.device("cpu")
LAYERS = 2
LIVELY = 0.1
"""Standard deviation of random weights with which texts depend on the picture."""
OPTIONS = {"max_new_tokens": 16, "do_sample": False}
DTYPES = ["float32", "bfloat16"]


def save_blip_base(folder: Path) -> None:
    """As Salesforce/blip-image-captioning-base."""
    torch.manual_seed(0)
    few = {"num_hidden_layers": LAYERS, "initializer_range": LIVELY}
    config = BlipConfig(text_config={**few, "vocab_size": 30_524}, vision_config={**few, "image_size": 384})
    BlipForConditionalGeneration(config).bfloat16().save_pretrained(folder)
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[DEC]"]
    words = names + [f"w{k}" for k in range(30_524 - len(names))]
    images = BlipImageProcessorPil(size={"height": 384, "width": 384})
    BlipProcessor(images, BertTokenizer(vocab={word: k for k, word in enumerate(words)})).save_pretrained(folder)


def save_blip2_opt(folder: Path) -> None:
    """As Salesforce/blip2-opt-2.7b."""
    config = blip2_config("full")
    for part in (config.vision_config, config.qformer_config, config.text_config):
        part.num_hidden_layers = LAYERS
        part.initializer_range = LIVELY
    config.initializer_range = LIVELY
    save_blip2(config, folder, CPU)


def save_qwen3_vl_2b(folder: Path) -> None:
    """As Qwen/Qwen3-VL-2B-Instruct."""
    config = qwen3_vl_config("full")
    config.vision_config.depth, config.vision_config.deepstack_visual_indexes = LAYERS, [0]
    config.text_config.num_hidden_layers = LAYERS
    config.vision_config.initializer_range = config.text_config.initializer_range = LIVELY
    save_qwen3_vl(config, folder, CPU)


CAPTIONERS = {"blip-image-captioning-base": save_blip_base, "blip2-opt-2.7b": save_blip2_opt}


@pytest.fixture(scope="module")
def photos(part) -> list[np.ndarray]:
    """Photos of several sizes, (H, W, 3) uint8 RGB."""
    return [np.asarray(Image.open(path).convert("RGB")) for path in sorted(part("photos").iterdir())]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Callable[[Callable[[Path], None]], str]:
    """The folder of a model that a function has saved."""
    saved: dict[Callable[[Path], None], str] = {}

    def find(save: Callable[[Path], None]) -> str:
        if save not in saved:
            path = tmp_path_factory.mktemp("model")
            save(path)
            saved[save] = str(path)
        return saved[save]

    return find


PROCESSORS = {
    "BLIP": BlipImageProcessorPil(size={"height": 384, "width": 384}),
    "BLIP-2": BlipImageProcessorPil(size={"height": 224, "width": 224}),
    "GIT": CLIPImageProcessorPil(),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_pixel_values_of_photos_are_those_of_the_published_processors(photos, name):
    processor = PROCESSORS[name]
    transform = FrameTransform(processor, CPU, torch.float32)
    std = torch.tensor(processor.image_std).view(1, 3, 1, 1)
    for photo in photos:
        expected = processor(images=[Image.fromarray(photo)], return_tensors="pt")["pixel_values"]
        levels = (transform(photo[None]) - expected).abs() * std * 255
        assert levels.max() <= 1.01
        assert levels.mean() <= 0.05


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CAPTIONERS)
def test_tokens_of_captions_are_those_of_transformers(folder, photos, name, dtype):
    saved = folder(CAPTIONERS[name])
    captioner = Captioner(CaptionSettings(saved, dtype=dtype, generation=OPTIONS), CPU)
    ours = [caption.text for caption in captioner.caption([photo[None] for photo in photos])]
    original = AutoModelForImageTextToText.from_pretrained(saved, dtype=dtype).eval()
    pixels = concatenate([captioner.transform(photo[None]) for photo in photos])
    with torch.inference_mode():
        tokens = original.generate(pixel_values=pixels, **OPTIONS)
    expected = captioner.processor.batch_decode(tokens, skip_special_tokens=True)
    assert ours == [text.strip() for text in expected]
    assert len(set(ours)) == len(photos)


def test_patches_of_photos_are_those_of_the_published_processor(folder, photos):
    saved = folder(save_qwen3_vl_2b)
    family = FAMILIES["qwen3_vl"](
        ProcessorSettings({}, json.loads((Path(saved) / "preprocessor_config.json").read_text()))
    )
    processor = Qwen2VLImageProcessorPil.from_pretrained(saved)
    for photo in photos:
        expected = processor(images=[Image.fromarray(photo)], return_tensors="pt")
        size = family.still_budget.frame_size(1, photo.shape[1], photo.shape[0])
        still = Clip(fit(Image.fromarray(photo), size)[None], [0.0])
        levels = (family.patching(still.frames, CPU, torch.float32) - expected["pixel_values"]).abs() * 127.5
        assert family.grid(still) == tuple(expected["image_grid_thw"][0].tolist())
        assert levels.max() <= 0.01


@pytest.mark.parametrize("dtype", DTYPES)
def test_tokens_of_descriptions_are_those_of_transformers(folder, photos, films, dtype):
    describer = Describer(ClipSettings(folder(save_qwen3_vl_2b), dtype=dtype, generation=OPTIONS), CPU)
    small = describer.budget.factor * 4
    stills = [Clip(fit(Image.fromarray(photo), InputSize(small, small))[None], [0.0]) for photo in photos[:3]]
    clips = []
    for film in films[:3]:
        chosen = [*islice(read(film, InputSize(small, small), Sampling(fps=2.0)), 6)]
        clips.append(Clip(np.stack([frame for _, _, frame in chosen]), [seconds for _, seconds, _ in chosen]))
    inputs = describer.encode([*clips, *stills])
    with torch.inference_mode():
        expected = describer.model.generate(**inputs, **OPTIONS)
    assert generate(describer.model, OPTIONS, inputs)["tokens"] == expected.tolist()
    assert len(set(map(tuple, expected[:, inputs["input_ids"].shape[1] :].tolist()))) == len(inputs["input_ids"])
