"""How many words are wrong in long recordings compared with short ones, and do their times drift?

    scripts/bench speech_accuracy [--other FOLDER] [--errors 20]
    scripts/bench speech_accuracy --drift
    scripts/bench speech_accuracy --word-times

Random phrases by voices that training never used are written to files, read and cut as the client does, transcribed by
the handler request by request, and put on the timeline as in records (lib/local_speech.py).

Without --drift, the table compares recordings of one phrase with long ones, cut where it is quiet or wherever a window
ends: the percentage of wrong words, how much higher it is than in the short ones (both with 95 % bootstrap intervals
over files), and how many of the errors are next to a cut. `--other` is a second model to compare with. `--errors`
prints up to this many of the errors at cuts, where `|` is the cut.

With --drift, the table is about one recording of half an hour: how many seconds after it was spoken a phrase begins in
the transcript, by its segment and by its first word. Phrases are found by aligning words. Two kinds of phrases cannot
be measured and are counted instead: those with a mistake in the first two words, and those that begin within a segment.

With --word-times, the table compares the times of all words of the long recordings that are right with the times at
which they are audible: seconds from one to the other without sign, and how many words lie outside their segment or have
no length.
"""

from __future__ import annotations

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

from lib.command import command_parser, run_command
from lib.local_speech import LocalSpeech, utterances
from lib.recordings import Recording, long_recordings, short_recordings
from reelscribe.contract.chunking import Cutting
from reelscribe.contract.speech import TranscriptionOptions
from reelscribe.results.batches import SavedAudioBatch
from reelscribe.run.tracks.transcripts import SpeechOptions
from servers.torchserve import SPEECH

SHORT_SEED, LONG_SEED = 20_261_122, 20_261_123
RECORDING_SECONDS = (60, 300)
CUTS = {"quiet cuts": Cutting(), "fixed cuts": Cutting(search_seconds=0)}
DRAWS = 10_000
FORMATS = (("flac", "flac", 16_000), ("m4a", "aac", 44_100))
"""Formats of the recording of --drift: suffix, codec, sample rate."""
MAX_SECONDS_OFF = 0.3


class Tally(NamedTuple):
    """Errors in one file."""

    words: int
    substituted: int
    deleted: int
    inserted: int
    at_cuts: int
    """How many of these errors touch a cut."""

    @property
    def wrong(self) -> int:
        """Number of errors."""
        return self.substituted + self.deleted + self.inserted


@dataclass(frozen=True)
class Corpus:
    """Files, and the recordings in them."""

    paths: list[Path]
    recordings: list[Recording]

    @classmethod
    def written(cls, folder: Path, recordings: list[Recording]) -> Corpus:
        """Write all recordings as files into a new folder."""
        folder.mkdir()
        return cls([one.write(folder / f"{k}.flac") for k, one in enumerate(recordings)], recordings)


def tally(recording: Recording, part: SavedAudioBatch, examples: list[str]) -> Tally:
    """Count the errors of a transcript; those at cuts are described in `examples`."""
    expected = recording.words
    words = [word for utterance in utterances(part) for word in utterance.text.split()]
    outcome = jiwer.process_words(" ".join(expected), " ".join(words))
    counts = [sum(len(segment.text.split()) for segment in each.transcript.segments) for each in part.transcripts]
    ends = list(accumulate(counts))
    cuts = {end: chunk.end for end, chunk in zip(ends[:-1], part.transcripts, strict=False)}
    at_cuts = 0
    for chunk in outcome.alignments[0]:
        first, stop = chunk.hyp_start_idx, chunk.hyp_end_idx
        cut = next((cut for cut in cuts if first <= cut <= stop), None)
        if chunk.type == "equal" or cut is None:
            continue
        at_cuts += max(chunk.ref_end_idx - chunk.ref_start_idx, stop - first)
        expected_here = " ".join(expected[max(0, chunk.ref_start_idx - 2) : chunk.ref_end_idx + 2])
        words_here = " ".join([*words[max(0, first - 2) : cut], "|", *words[cut : stop + 2]])
        examples.append(
            f"{cuts[cut]:7.1f} s of {recording.seconds:.0f}: {expected_here!r} was transcribed as {words_here!r}"
        )
    return Tally(len(expected), outcome.substitutions, outcome.deletions, outcome.insertions, at_cuts)


def error_rates(tallies: Sequence[Tally], rng: np.random.Generator) -> NDArray[np.float64]:
    """Word error rates in percent: first that of the files, then those of bootstrap samples of the files."""
    counts = np.array([(one.wrong, one.words) for one in tallies])
    drawn = rng.integers(len(counts), size=(DRAWS, len(counts)))
    wrong, words = np.concatenate([counts.sum(0)[None], counts[drawn].sum(1)]).T
    rates: NDArray[np.float64] = 100 * wrong / words
    return rates


def interval(rates: NDArray[np.float64]) -> str:
    """The measured rate, and the interval of 95 % of the bootstrap samples."""
    low, high = np.percentile(rates[1:], [2.5, 97.5])
    return f"{rates[0]:.2f} ({low:.2f} to {high:.2f})"


def compare_words(models: Sequence[Path], short: Corpus, long: Corpus, examples_shown: int) -> None:
    """Print the table of wrong words."""
    rng = np.random.default_rng(0)
    print(f"{'':50}{'% of words wrong':26}{'more than in short':26} subst. deleted inserted at cuts")
    for model in models:
        local = LocalSpeech(model)
        short_rates = None
        for name, corpus, cutting in (("short", short, Cutting()), *((f"long, {n}", long, c) for n, c in CUTS.items())):
            parts = local.transcribe_files(corpus.paths, SpeechOptions(cutting=cutting))
            examples: list[str] = []
            tallies = [tally(*both, examples) for both in zip(corpus.recordings, parts, strict=True)]
            rates = error_rates(tallies, rng)
            more = "" if short_rates is None else interval(rates - short_rates)
            short_rates = rates if short_rates is None else short_rates
            counts = [sum(counts) for counts in zip(*tallies, strict=True)][1:]
            figures = "".join(f"{count:8}" for count in counts)
            print(f"{model.name + ', ' + name:50}{interval(rates):26}{more:26}{figures}", flush=True)
            for example in examples[:examples_shown]:
                print(f"    {example}")


def phrase_starts(
    recording: Recording, part: SavedAudioBatch, word_times: bool
) -> tuple[NDArray[np.float64], int, int]:
    """Find the phrases of a recording in its transcript.

    Returns:
        For each phrase that was found, when it begins and how much later it begins in the transcript, (N, 2) seconds;
        the number of phrases with another first or second word; the number of those that begin within a segment.
    """
    transcript: list[tuple[str, float | None]] = []
    for utterance in utterances(part):
        if word_times:
            transcript += [(word.text, word.start) for word in utterance.words or ()]
        else:
            words = utterance.text.split()
            transcript += [(word, utterance.start if k == 0 else None) for k, word in enumerate(words)]
    outcome = jiwer.process_words(" ".join(recording.words), " ".join(word for word, _ in transcript))
    place = {
        chunk.ref_start_idx + k: chunk.hyp_start_idx + k
        for chunk in outcome.alignments[0]
        if chunk.type == "equal"
        for k in range(chunk.ref_end_idx - chunk.ref_start_idx)
    }
    firsts = accumulate((len(words) for _, words in recording.phrases), initial=0)
    found, wrong, within = [], 0, 0
    for (start, _), first in zip(recording.phrases, firsts, strict=False):
        # A single word may be aligned with the same word of another phrase; two in a row hardly are.
        if first not in place or place.get(first + 1) != place[first] + 1:
            wrong += 1
        elif (transcribed := transcript[place[first]][1]) is None:
            within += 1
        else:
            found.append((start, transcribed - start))
    return np.array(found), wrong, within


def measure_drift(model: Path, folder: Path, seconds: float) -> None:
    """Print the table of --drift."""
    (recording,) = long_recordings(LONG_SEED, [seconds])
    local = LocalSpeech(model)
    print(
        f"{len(recording.phrases)} phrases in {recording.seconds:.0f} s; seconds from their starts to those transcribed"
    )
    print(f"{'file':6}{'start of':10}{'where':14} phrases  median  and without sign: median    95 %     max  over 0.3")
    for suffix, codec, rate in FORMATS:
        path = recording.write(folder / f"drift.{suffix}", codec, rate)
        (part,) = local.transcribe_files([path], SpeechOptions(transcription=TranscriptionOptions(word_times=True)))
        for name, word_times in (("segment", False), ("word", True)):
            starts, wrong, within = phrase_starts(recording, part, word_times)
            at, late = starts.T
            ends = {"first minute": at < 60, "last minute": at >= recording.seconds - 60, "all": at >= 0}
            for where, chosen in ends.items():
                print(f"{suffix:6}{name:10}{where:14}{lateness(late[chosen])}")
            slope = np.polyfit(at, late, 1)[0] * 3600
            print(f"{'':16}{slope:+.3f} s more an hour; {wrong} begin with wrong words, {within} within a segment")


def measure_word_times(model: Path, corpus: Corpus) -> None:
    """Print the table of --word-times."""
    local = LocalSpeech(model)
    print(f"{'':14}{'words':>7} outside no length   starts: median    95 %     max     ends: median    95 %     max")
    for name, cutting in CUTS.items():
        options = SpeechOptions(cutting=cutting, transcription=TranscriptionOptions(word_times=True))
        parts = local.transcribe_files(corpus.paths, options)
        off, outside, empty, count = [], 0, 0, 0
        for recording, part in zip(corpus.recordings, parts, strict=True):
            segments = utterances(part)
            timed = [word for segment in segments for word in segment.words or ()]
            count += len(timed)
            empty += sum(word.end <= word.start for word in timed)
            outside += sum(
                word.start < segment.start or word.end > segment.end
                for segment in segments
                for word in segment.words or ()
            )
            outcome = jiwer.process_words(" ".join(recording.words), " ".join(word.text for word in timed))
            for chunk in outcome.alignments[0]:
                if chunk.type == "equal":
                    spoken = recording.word_spans[chunk.ref_start_idx : chunk.ref_end_idx]
                    found = timed[chunk.hyp_start_idx : chunk.hyp_end_idx]
                    off += [
                        (word.start - start, word.end - end) for word, (start, end) in zip(found, spoken, strict=True)
                    ]
        starts, ends = np.abs(np.array(off)).T
        columns = "".join(
            f"{np.median(each):18.3f}{np.percentile(each, 95):8.3f}{each.max():8.3f}" for each in (starts, ends)
        )
        print(f"{name:14}{count:7}{outside:8}{empty:10}{columns}", flush=True)


def lateness(late: NDArray[np.float64]) -> str:
    """The figures of a row."""
    off = np.abs(late)
    over = int((off > MAX_SECONDS_OFF).sum())
    spread = f"{np.median(off):26.3f}{np.percentile(off, 95):8.3f}{off.max():8.3f}"
    return f"{len(late):8}{np.median(late):8.3f}{spread}{over:10}"


def main() -> None:
    """Print the table."""
    parser = command_parser(__doc__)
    parser.add_argument("--model", type=Path, default=SPEECH)
    parser.add_argument("--other", type=Path, help="folder of a model to compare with")
    parser.add_argument("--utterances", type=int, default=300)
    parser.add_argument("--recordings", type=int, default=40)
    parser.add_argument("--errors", type=int, default=0, help="how many of the errors at cuts to print")
    parser.add_argument("--drift", action="store_true", help="measure times instead of words")
    parser.add_argument("--word-times", action="store_true", help="compare the times of all words with the truth")
    parser.add_argument("--drift-seconds", type=float, default=1800)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.drift:
            measure_drift(options.model, folder, options.drift_seconds)
            return
        lengths = np.linspace(*RECORDING_SECONDS, options.recordings)
        long = Corpus.written(folder / "long", long_recordings(LONG_SEED, lengths.tolist()))
        if options.word_times:
            measure_word_times(options.model, long)
            return
        short = Corpus.written(folder / "short", short_recordings(SHORT_SEED, options.utterances))
        for kind, corpus in (("short", short), ("long", long)):
            words, minutes = (
                sum(len(one.words) for one in corpus.recordings),
                sum(one.seconds for one in corpus.recordings) / 60,
            )
            print(f"{kind}: {len(corpus.paths)} files, {minutes:.1f} minutes, {words} words")
        compare_words([options.model, *([options.other] if options.other else [])], short, long, options.errors)


if __name__ == "__main__":
    run_command(main)
