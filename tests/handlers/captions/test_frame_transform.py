"""Against transformers' own PIL processors, on real decoded frames."""

import av
import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from captions.frame_transform import FrameTransform
from reelscribe.errors import StartupError

PROCESSORS = {
    "blip": BlipImageProcessorPil(size={"height": 224, "width": 224}),
    "larger": BlipImageProcessorPil(size={"height": 384, "width": 384}),
    "git": CLIPImageProcessorPil(),
    "bilinear": BlipImageProcessorPil(size={"height": 224, "width": 160}, resample=Image.Resampling.BILINEAR),
}
CLIPS = ["same-480x270.mp4", "same-1920x1080.mp4", "portrait-odd.webm", "old.avi"]


def frames_of(path) -> np.ndarray:
    with av.open(str(path)) as container:
        return np.stack([f.to_ndarray(format="rgb24") for k, f in enumerate(container.decode(video=0)) if k % 25 == 0])


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("name", PROCESSORS)
def test_pixel_values_are_the_processors(media, name, clip):
    processor, frames = PROCESSORS[name], frames_of(media / clip)
    expected = processor(images=[Image.fromarray(frame) for frame in frames], return_tensors="pt")["pixel_values"]
    ours = FrameTransform(processor, torch.device("cpu"), torch.float32)(frames)
    levels = (ours - expected).abs() * torch.tensor(processor.image_std).view(1, 3, 1, 1) * 255
    assert ours.shape == expected.shape
    # Pillow 13 scales some tall frames down before across; then saturated edges differ, in some 40 of 3 million values.
    assert levels.max() <= (6.01 if clip == "portrait-odd.webm" else 1.01)
    assert levels.mean() <= 0.05


def test_frames_of_the_input_size_are_only_normalised():
    processor = PROCESSORS["blip"]
    frames = np.random.default_rng(0).integers(0, 256, (3, 224, 224, 3), np.uint8)
    expected = processor(images=list(frames), return_tensors="pt")["pixel_values"]
    ours = FrameTransform(processor, torch.device("cpu"), torch.float32)(frames)
    assert torch.allclose(ours, expected, atol=1e-5)


@pytest.mark.parametrize(
    "processor",
    [
        BlipImageProcessorPil(resample=Image.Resampling.LANCZOS),
        CLIPImageProcessorPil(do_center_crop=False),
    ],
)
def test_processors_that_cannot_be_reproduced_are_refused(processor):
    with pytest.raises(StartupError, match="image processor"):
        FrameTransform(processor, torch.device("cpu"), torch.float32)
