"""Makes golden.npz: what transformers' own processors of clip models make of some frames.

    python tests/data/clip_processors/make_golden.py MODEL_FOLDER

They need torchvision, which the project does without, so this runs in an environment of its own, with torch,
torchvision and the version of transformers in requirements.lock. MODEL_FOLDER is that of the demo clip model.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoTokenizer,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)
from transformers.video_utils import VideoMetadata

OUT = Path(__file__).with_name("golden.npz")
QWEN2_5 = {"min_pixels": 3136, "max_pixels": 12_845_056, "cap_pixels_per_frame": True}


def patches(processor, frames):
    """Return the patches and the grid of frames, (N, H, W, 3) uint8."""
    video = torch.from_numpy(frames).permute(0, 3, 1, 2)
    made = processor(videos=[video], do_sample_frames=False, return_tensors="pt")
    return made["pixel_values_videos"].numpy().astype(np.float32), made["video_grid_thw"][0].numpy()


def main():
    """Write golden.npz."""
    model = Path(sys.argv[1])
    settings = json.loads((model / "video_preprocessor_config.json").read_text())
    rng = np.random.default_rng(0)
    processors = {"qwen3_vl": Qwen3VLVideoProcessor(**settings), "qwen2_5_vl": Qwen2VLVideoProcessor(**QWEN2_5)}
    sizes = {"qwen3_vl": (32, 64), "qwen2_5_vl": (56, 56)}
    golden = {}
    for name, processor in processors.items():
        for count in (4, 3):  # frames of the target size; the last of three fills the last patch
            frames = rng.integers(0, 256, (count, *sizes[name], 3), np.uint8)
            values, grid = patches(processor, frames)
            golden |= {f"{name}-{count}-frames": frames, f"{name}-{count}-grid": grid}
            mean, std = (np.repeat(each, values.shape[1] // 3) for each in (processor.image_mean, processor.image_std))
            golden[f"{name}-{count}-levels"] = np.rint((values * std + mean) * 255).astype(np.uint8)
    tokenizer = AutoTokenizer.from_pretrained(model)
    chat = Qwen3VLProcessor(
        Qwen2VLImageProcessor(), tokenizer, processors["qwen3_vl"], chat_template=tokenizer.chat_template
    )
    messages = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "Describe this clip."}]}]
    text = chat.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    frames = golden["qwen3_vl-4-frames"]
    metadata = VideoMetadata(total_num_frames=400, fps=25.0, frames_indices=[50, 63, 75, 88])
    video = torch.from_numpy(frames).permute(0, 3, 1, 2)
    made = chat(text=[text], videos=[video], video_metadata=[metadata], do_sample_frames=False, return_tensors="pt")
    golden["qwen3_vl-times"] = np.asarray([index / 25 for index in metadata.frames_indices])
    golden["qwen3_vl-input_ids"] = made["input_ids"][0].numpy()
    np.savez_compressed(OUT, **golden)
    print(f"{OUT}: {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
