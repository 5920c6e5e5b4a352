"""How many words are lost over long recordings, and whether their times drift: all through our own code.

    .venv/bin/python bench/speech_accuracy.py [--other DIR] [--errors 20]
    .venv/bin/python bench/speech_accuracy.py --drift

Random phrases in voices that training never heard are written to files, read and cut by `reelscribe.audio`, heard by
the handler request by request, and put on the timeline by `reelscribe.speech_parts`.

The first table is of short utterances and of long recordings, cut where it is quiet or wherever a window ends: the
share of words that are wrong, and how much more it is than in the short ones, with 95 % bootstrap intervals over files;
and how many of the errors lie next to a cut. `--other` is a second model to compare with; `--errors` shows so many of
those at cuts, where `|` is the cut.

The second is of one recording of half an hour: seconds from when a phrase was spoken to when it begins in the
transcript, by its segment and by its first word. Phrases are found by aligning words. Those of which one of the first
two words is wrong are not, and those that begin within a segment have no time of their own; both are counted.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import jiwer
import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from listener import MODEL, Listener, Spoken, long_recordings, short_utterances, utterances
from reelscribe.contract.chunking import Cutting
from reelscribe.contract.speech import TranscriptionOptions
from reelscribe.results.batches import SavedAudioBatch
from reelscribe.run.options import SpeechOptions

SHORT_SEED, LONG_SEED = 20_261_122, 20_261_123
RECORDING_SECONDS = (60, 300)
CUTS = {"quiet cuts": Cutting(), "fixed cuts": Cutting(search_seconds=0)}
DRAWS = 10_000
FORMATS = (("flac", "flac", 16_000), ("m4a", "aac", 44_100))
"""Of the recording whose times are measured: suffix, codec, sample rate."""
MOST_SECONDS_OFF = 0.3


class Tally(NamedTuple):
    """What is wrong in one file."""

    words: int
    substituted: int
    deleted: int
    inserted: int
    at_cuts: int
    """Of those three, how many touch a cut."""

    @property
    def wrong(self) -> int:
        """Words."""
        return self.substituted + self.deleted + self.inserted


@dataclass(frozen=True)
class Corpus:
    """Files, and what is spoken in them."""

    paths: list[Path]
    spoken: list[Spoken]

    @classmethod
    def written(cls, folder: Path, spoken: list[Spoken]) -> Corpus:
        """All of them as files in a new folder."""
        folder.mkdir()
        return cls([one.write(folder / f"{k}.flac") for k, one in enumerate(spoken)], spoken)


def tally(spoken: Spoken, part: SavedAudioBatch, examples: list[str]) -> Tally:
    """Compare a transcript; what is wrong at cuts is told in `examples`."""
    wanted, heard = spoken.words, [word for said in utterances(part) for word in said.text.split()]
    outcome = jiwer.process_words(" ".join(wanted), " ".join(heard))
    counts = [sum(len(segment.text.split()) for segment in transcript.segments) for *_, transcript in part.heard]
    ends = list(accumulate(counts))
    cuts = {end: stop for end, (_, stop, _) in zip(ends[:-1], part.heard, strict=False)}
    at_cuts = 0
    for chunk in outcome.alignments[0]:
        first, stop = chunk.hyp_start_idx, chunk.hyp_end_idx
        cut = next((cut for cut in cuts if first <= cut <= stop), None)
        if chunk.type == "equal" or cut is None:
            continue
        at_cuts += max(chunk.ref_end_idx - chunk.ref_start_idx, stop - first)
        spoken_here = " ".join(wanted[max(0, chunk.ref_start_idx - 2) : chunk.ref_end_idx + 2])
        heard_here = " ".join([*heard[max(0, first - 2) : cut], "|", *heard[cut : stop + 2]])
        examples.append(f"{cuts[cut]:7.1f} s of {spoken.seconds:.0f}: {spoken_here!r} was heard as {heard_here!r}")
    return Tally(len(wanted), outcome.substitutions, outcome.deletions, outcome.insertions, at_cuts)


def error_rates(tallies: Sequence[Tally], rng: np.random.Generator) -> NDArray[np.float64]:
    """Word error rates in percent: the one measured, and then those of files drawn from these, with replacement."""
    counts = np.array([(one.wrong, one.words) for one in tallies])
    drawn = rng.integers(len(counts), size=(DRAWS, len(counts)))
    wrong, words = np.concatenate([counts.sum(0)[None], counts[drawn].sum(1)]).T
    rates: NDArray[np.float64] = 100 * wrong / words
    return rates


def interval(rates: NDArray[np.float64]) -> str:
    """What was measured, and where 95 % of the draws are."""
    low, high = np.percentile(rates[1:], [2.5, 97.5])
    return f"{rates[0]:.2f} ({low:.2f} to {high:.2f})"


def compare_words(models: Sequence[Path], short: Corpus, long: Corpus, examples_shown: int) -> None:
    """Print the first table."""
    rng = np.random.default_rng(0)
    print(f"{'':50}{'% of words wrong':26}{'more than in short':26} subst. deleted inserted at cuts")
    for model in models:
        listener = Listener(model)
        short_rates = None
        for name, corpus, cutting in (("short", short, Cutting()), *((f"long, {n}", long, c) for n, c in CUTS.items())):
            parts = listener.transcribe(corpus.paths, SpeechOptions(cutting=cutting))
            examples: list[str] = []
            tallies = [tally(*both, examples) for both in zip(corpus.spoken, parts, strict=True)]
            rates = error_rates(tallies, rng)
            more = "" if short_rates is None else interval(rates - short_rates)
            short_rates = rates if short_rates is None else short_rates
            counts = [sum(counts) for counts in zip(*tallies, strict=True)][1:]
            figures = "".join(f"{count:8}" for count in counts)
            print(f"{model.name + ', ' + name:50}{interval(rates):26}{more:26}{figures}", flush=True)
            for example in examples[:examples_shown]:
                print(f"    {example}")


def phrase_starts(spoken: Spoken, part: SavedAudioBatch, word_times: bool) -> tuple[NDArray[np.float64], int, int]:
    """For each phrase that was found when it begins and how much later that is told, (N, 2) seconds.

    The others: how many were heard with another first or second word, and how many begin within a segment.
    """
    heard: list[tuple[str, float | None]] = []
    for said in utterances(part):
        if word_times:
            heard += [(word.text, word.start) for word in said.words or ()]
        else:
            heard += [(word, said.start if k == 0 else None) for k, word in enumerate(said.text.split())]
    outcome = jiwer.process_words(" ".join(spoken.words), " ".join(word for word, _ in heard))
    place = {
        chunk.ref_start_idx + k: chunk.hyp_start_idx + k
        for chunk in outcome.alignments[0]
        if chunk.type == "equal"
        for k in range(chunk.ref_end_idx - chunk.ref_start_idx)
    }
    firsts = accumulate((len(words) for _, words in spoken.phrases), initial=0)
    found, wrong, within = [], 0, 0
    for (start, _), first in zip(spoken.phrases, firsts, strict=False):
        # A word alone may be aligned with its like in another phrase; two in a row hardly are.
        if first not in place or place.get(first + 1) != place[first] + 1:
            wrong += 1
        elif (told := heard[place[first]][1]) is None:
            within += 1
        else:
            found.append((start, told - start))
    return np.array(found), wrong, within


def measure_drift(model: Path, folder: Path, seconds: float) -> None:
    """Print the second table."""
    (spoken,) = long_recordings(LONG_SEED, [seconds])
    listener = Listener(model)
    print(f"{len(spoken.phrases)} phrases in {spoken.seconds:.0f} s; how many seconds late their starts are told")
    print(f"{'file':6}{'start of':10}{'where':14} phrases  median  and without sign: median    95 %     max  over 0.3")
    for suffix, codec, rate in FORMATS:
        path = spoken.write(folder / f"drift.{suffix}", codec, rate)
        (part,) = listener.transcribe([path], SpeechOptions(asked=TranscriptionOptions(word_times=True)))
        for name, word_times in (("segment", False), ("word", True)):
            starts, wrong, within = phrase_starts(spoken, part, word_times)
            at, late = starts.T
            ends = {"first minute": at < 60, "last minute": at >= spoken.seconds - 60, "all": at >= 0}
            for where, there in ends.items():
                print(f"{suffix:6}{name:10}{where:14}{lateness(late[there])}")
            slope = np.polyfit(at, late, 1)[0] * 3600
            print(f"{'':16}{slope:+.3f} s more an hour; {wrong} begin with wrong words, {within} within a segment")


def lateness(late: NDArray[np.float64]) -> str:
    """A row's figures."""
    off = np.abs(late)
    over = int((off > MOST_SECONDS_OFF).sum())
    spread = f"{np.median(off):26.3f}{np.percentile(off, 95):8.3f}{off.max():8.3f}"
    return f"{len(late):8}{np.median(late):8.3f}{spread}{over:10}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--other", type=Path, help="folder of another model, to compare with")
    parser.add_argument("--utterances", type=int, default=300)
    parser.add_argument("--recordings", type=int, default=40)
    parser.add_argument("--errors", type=int, default=0, help="how many of the errors at cuts are shown")
    parser.add_argument("--drift", action="store_true", help="measure times, not words")
    parser.add_argument("--drift-seconds", type=float, default=1800)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.drift:
            measure_drift(options.model, folder, options.drift_seconds)
            return
        short = Corpus.written(folder / "short", short_utterances(SHORT_SEED, options.utterances))
        lengths = np.linspace(*RECORDING_SECONDS, options.recordings)
        long = Corpus.written(folder / "long", long_recordings(LONG_SEED, lengths.tolist()))
        for kind, corpus in (("short", short), ("long", long)):
            words, minutes = (sum(len(one.words) for one in corpus.spoken), sum(s.seconds for s in corpus.spoken) / 60)
            print(f"{kind}: {len(corpus.paths)} files, {minutes:.1f} minutes, {words} words")
        compare_words([options.model, *([options.other] if options.other else [])], short, long, options.errors)


if __name__ == "__main__":
    main()
