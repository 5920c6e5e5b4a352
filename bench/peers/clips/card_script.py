"""Describes files in one process, without a server, as the model card does it: one after the other, or in batches.

python -m peers.clips.card_script --weights demo/models/clips --prompt "What happens?" --batch 8 a.mp4 b.mp4
"""

from __future__ import annotations

from lib.command import command_parser
from peers.clips.card_model import CardModel
from peers.outcome import Recorder


def main() -> None:
    """Describe the sources and print the outcome."""
    parser = command_parser(__doc__)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--batch", type=int, required=True, help="files that run through the model at once")
    parser.add_argument("sources", nargs="+")
    options = parser.parse_args()
    model = CardModel(options.weights, options.prompt)
    recorder = Recorder()
    texts = list[str]()
    for at in range(0, len(options.sources), options.batch):
        answers = model.describe_files(options.sources[at : at + options.batch])
        recorder.answered(len(answers))
        texts += answers
    recorder.print_outcome(texts)


if __name__ == "__main__":
    main()
