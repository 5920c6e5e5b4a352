"""How many words does sound without speech become, and does the guard against them cost words of speech?

    scripts/bench defaults/no_speech [--minutes 10] [--phrases 120] [--thresholds 0 0.4]

The first table has the number of words that the handler makes of each sound of demo/synthetic/non_speech.py, for each
`text_probability_threshold`; 0 drops no text. Every sound has a level of -20 dB, and is cut as the client does.

The second table has single phrases, half of them in voices that training never used: in how many of them every word is
dropped.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
import transformers

from lib.command import command_parser, run_command
from lib.local_speech import LocalSpeech, utterances
from lib.recordings import Recording, short_recordings
from reelscribe.results.batches import SavedAudioBatch
from reelscribe.run.tracks.transcripts import SpeechOptions
from servers.torchserve import SPEECH
from synthetic.non_speech import SOUNDS

SEED = 20_261_124


def words(part: SavedAudioBatch) -> int:
    """Number of words in a transcript."""
    return sum(len(utterance.text.split()) for utterance in utterances(part))


def write(folder: Path, recordings: list[Recording]) -> list[Path]:
    """Write recordings as files."""
    return [one.write(folder / f"{k}.flac") for k, one in enumerate(recordings)]


def measure(options: argparse.Namespace, folder: Path) -> None:
    """Print the tables."""
    folders = [folder / name for name in (*SOUNDS, "phrases")]
    for each in folders:
        each.mkdir()
    without = [
        Recording(make(60 * options.minutes), []).write(each / "sound.flac")
        for make, each in zip(SOUNDS.values(), folders, strict=False)
    ]
    half = options.phrases // 2
    spoken = [*short_recordings(SEED, half, held_out=False), *short_recordings(SEED, options.phrases - half)]
    phrases = write(folders[-1], spoken)
    print(f"words in {options.minutes:g} minutes, and phrases of {len(phrases)} without words")
    print("threshold" + "".join(f"{name:>10}" for name in (*SOUNDS, "phrases")))
    for threshold in options.thresholds:
        local = LocalSpeech(SPEECH, text_probability_threshold=threshold or None)
        made = [words(part) for part in local.transcribe_files(without, SpeechOptions())]
        lost = sum(not words(part) for part in local.transcribe_files(phrases, SpeechOptions()))
        print(f"{threshold:9g}" + "".join(f"{count:10}" for count in (*made, lost)), flush=True)


def main() -> None:
    """Print the tables."""
    parser = command_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--phrases", type=int, default=120)
    parser.add_argument("--thresholds", type=float, nargs="+", default=[0, 0.4])
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        measure(options, Path(name))


if __name__ == "__main__":
    run_command(main)
