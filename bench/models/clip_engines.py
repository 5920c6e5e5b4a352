"""How fast is a video-language model of real size on vLLM, compared with our handler on TorchServe?

    scripts/bench clip_engines --vllm FOLDER [--rounds 3] [--clips 8] [--json FILE]

The model has the sizes of Qwen3-VL-2B and random weights in bfloat16, on one thread of the CPU. Our command describes
the same H.264 files of 4 s and one clip each, in 8 frames of 16,384 pixels, with TOKENS tokens for each clip. `ours` is
with our handler, `ours-vllm` with the vLLM of `scripts/peers vllm`, which keeps nothing from one request for the next.
Each round runs both, each client in a process of its own, and only the server of a way runs. The weights are written
into a folder for temporary files, 4.3 GB, and both servers need 16 GB of memory together.

clips/s, steady, CPU s: as for `scripts/bench describing`. The last column is the ratio of clips/s, round by round.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from transformers import Qwen3VLConfig

from lib.command import add_json_option, command_parser, run_command
from lib.report import Report, publish
from lib.ways import Way, Work, columns, measure
from models.describing import CLIP_SECONDS, DIFFERENT, serve_on_vllm
from peers.services import Service
from reelscribe.archive import build as archive
from servers.torchserve import CLIPS, CONFIG, HANDLERS, serve
from synthetic.random_models import qwen3_vl_config, save_qwen3_vl
from synthetic.video_files import FRAMES_PER_SECOND, write_event_library

TOKENS = 8
FRAME_PIXELS = 16_384


def save_weights(folder: Path) -> None:
    """Save random weights, with the tokenizer and the processor of the demo model: vLLM needs a tokenizer that keeps
    the marks of a video apart from words.
    """
    own, config = Qwen3VLConfig.from_pretrained(CLIPS), qwen3_vl_config("full")
    for name in ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"):
        setattr(config, name, getattr(own, name))
    save_qwen3_vl(config, folder, torch.device("cpu"))
    for path in CLIPS.glob("*.json*"):
        if path.name not in ("config.json", "model.safetensors"):
            shutil.copy(path, folder)
    shutil.copy(CLIPS / "chat_template.jinja", folder)


@contextmanager
def serve_handler(weights: Path, directory: Path) -> Iterator[Service]:
    """Serve our handler with short answers."""
    handlers = directory / "handlers"
    shutil.copytree(HANDLERS, handlers)
    settings = (handlers / "clip.yaml").read_text()
    (handlers / "clip.yaml").write_text(settings.replace("max_new_tokens: 256", f"max_new_tokens: {TOKENS}"))
    archive.build("clips", "clip", str(weights), directory / "store", dtype="bfloat16", handlers=handlers)
    with serve(directory, "clips", CONFIG) as serving:
        yield Service.ours(serving)


def main() -> None:
    """Print the table."""
    parser = command_parser(__doc__)
    parser.add_argument("--vllm", type=Path, required=True, metavar="FOLDER", help="folder of scripts/peers vllm")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clips", type=int, default=8)
    add_json_option(parser)
    options = parser.parse_args()
    asked = ("--clip-seconds", str(CLIP_SECONDS), "--frame-pixels", str(FRAME_PIXELS))
    ways = {
        "ours": Way("ours", "peers.clips.our_client", asked),
        "ours-vllm": Way("vllm", "peers.clips.our_client", ("--openai", "--max-tokens", str(TOKENS), *asked)),
    }
    headings = columns("clips")
    table = Report("Qwen3-VL-2B's sizes, random weights", ("way", *headings.values(), "server MB", "ours to it"))
    with tempfile.TemporaryDirectory() as folder:
        directory, weights = Path(folder), Path(folder) / "weights"
        save_weights(weights)
        different, frames = min(options.clips, DIFFERENT), CLIP_SECONDS * FRAMES_PER_SECOND
        sources, _ = write_event_library(
            directory / "clips", 640, 360, clips=options.clips, different=different, frames=frames
        )
        servers = {
            "ours": partial(serve_handler, weights),
            "vllm": partial(serve_on_vllm, options.vllm.absolute(), weights, options=("--dtype", "bfloat16")),
        }
        measured = measure(directory, ways, servers, Work(sources, options.clips, per=100), options.rounds)
    for name, each in measured.items():
        ratio = measured["ours"].spread("per_second").over(each.spread("per_second"))
        table.add(name, *(each.spread(column) for column in headings), f"{each.peak.server:.0f}", ratio)
    publish([table], options.json)


if __name__ == "__main__":
    run_command(main)
