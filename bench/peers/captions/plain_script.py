"""Captions files in one process, without a server: decord, processor, `generate`, batch by batch.

python -m peers.captions.plain_script --weights demo/models/captioner --batch 32 a.mp4 b.mp4
"""

from __future__ import annotations

from lib.command import command_parser
from peers.captions.plain_model import PlainCaptioner
from peers.captions.reading import prebatches_of
from peers.outcome import Recorder


def caption(captioner: PlainCaptioner, paths: list[str], batch: int, recorder: Recorder) -> list[str]:
    """Return the captions of all files, `batch` frames at a time."""
    captions = []
    for path in paths:
        for frames in prebatches_of(path, batch):
            captions += captioner.caption([*frames])
            recorder.answered(len(frames))
    return captions


def main() -> None:
    """Caption the sources and print the outcome."""
    parser = command_parser(__doc__)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--batch", type=int, default=32, help="frames that run through the model at once")
    parser.add_argument("sources", nargs="+")
    options = parser.parse_args()
    captioner = PlainCaptioner(options.weights)
    recorder = Recorder()
    recorder.print_outcome(caption(captioner, options.sources, options.batch, recorder))


if __name__ == "__main__":
    main()
