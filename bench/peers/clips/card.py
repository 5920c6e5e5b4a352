"""A video-language model as its model card runs it: the processor reads and scales the video, `generate` answers.

    python -m peers.clips.card --weights demo/models/clips --prompt "What happens?" --batch 8 a.mp4 b.mp4

As a program, it describes files in one process, without a server, one after the other or in batches. This needs
torchvision, which transformers' video processors are written with, and a library that they read files with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForImageTextToText, AutoProcessor

from lib.command import command_parser
from peers.outcome import Recorder

NEW_TOKENS = 256
"""The limit of clip.yaml."""


@dataclass(frozen=True)
class SampledFrames:
    """Frames of a video that have been read and chosen before."""

    frames: NDArray[np.uint8]
    """(N, H, W, 3) RGB."""
    times: Sequence[float]
    """Presentation time of each of them in seconds."""


class CardModel:
    """A loaded model with its processor, on one thread of the CPU."""

    def __init__(self, weights: str, prompt: str) -> None:
        torch.set_num_threads(1)
        self._processor = AutoProcessor.from_pretrained(weights)
        self._processor.tokenizer.padding_side = "left"
        family: Any = AutoModelForImageTextToText
        self._model = family.from_pretrained(weights).eval()
        self._prompt = prompt

    def describe_files(self, paths: Sequence[str]) -> list[str]:
        """Return what happens in each of these files, which run through the model together."""
        return self._describe(paths, {"padding": True})

    def describe(self, clips: Sequence[SampledFrames]) -> list[str]:
        """Return what happens in each of these clips, which run through the model together."""
        # The processor knows no times, but numbers of frames and their rate.
        metadata = [
            {"fps": 1000.0, "total_num_frames": 10**6, "frames_indices": [round(1000 * time) for time in clip.times]}
            for clip in clips
        ]
        videos = [torch.from_numpy(clip.frames).permute(0, 3, 1, 2) for clip in clips]
        return self._describe(videos, {"padding": True, "do_sample_frames": False, "video_metadata": metadata})

    def _describe(self, videos: Sequence[Any], options: dict[str, Any]) -> list[str]:
        question = {"type": "text", "text": self._prompt}
        inputs = self._processor.apply_chat_template(
            [[{"role": "user", "content": [{"type": "video", "video": video}, question]}] for video in videos],
            tokenize=True,
            add_generation_prompt=True,
            return_dict=True,
            return_tensors="pt",
            processor_kwargs=options,
        )
        with torch.inference_mode():
            tokens = self._model.generate(**inputs, max_new_tokens=NEW_TOKENS)
        answers = tokens[:, inputs["input_ids"].shape[1] :]
        return [text.strip() for text in self._processor.batch_decode(answers, skip_special_tokens=True)]


def main() -> None:
    """Describe the sources and print the outcome."""
    parser = command_parser(__doc__)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--batch", type=int, required=True, help="files that run through the model at once")
    parser.add_argument("sources", nargs="+")
    options = parser.parse_args()
    model = CardModel(options.weights, options.prompt)
    model.describe_files(options.sources[:1])  # servers have done so, too: what comes first takes longer
    recorder = Recorder()
    texts = list[str]()
    for at in range(0, len(options.sources), options.batch):
        answers = model.describe_files(options.sources[at : at + options.batch])
        recorder.answered(len(answers))
        texts += answers
    recorder.print_outcome(texts)


if __name__ == "__main__":
    main()
