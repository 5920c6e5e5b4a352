"""How well are speakers told apart by their voices, and do they keep their names for an hour?

    scripts/bench diarization FOLDER [--conversations 30] [--seconds 90] [--readers held-out] [--json FILE]

FOLDER is one that scripts/real_data has prepared: the weights of the GE2E voice encoder, and recordings. A conversation
is of 2 to 4 readers (lib/conversations.py): people who recorded words in different languages for Tux Paint, the voice
of Asterisk, and the reader of LibriVox; or held-out voices of espeak-ng. The parameters of the handler and of the
clustering were chosen with `--readers tuning`; the figures that count are those of the other half.

The diarization error rate is that of pyannote.metrics, in percent of the time that is spoken, with 0.25 s around each
end of a turn left out: what is missed, what is spoken by nobody, and what is another speaker's. Overlapping speech is
counted, of which one voice is always missed; the column "one at a time" leaves it out. Each conversation is told apart
once without the number of its speakers, once with it, and once with the truth in place of a diarizer: who speaks when
in each chunk is given, and embeddings only tell which speakers of two chunks are the same. With mistakes, the first
speaker of every third chunk is told as two. The last row is an hour of four readers.

The second table is about the words of conversations in English, of which the readers are LibriVox's, Asterisk's and
that of Tux Paint, with every other of their recordings, or voices of espeak-ng. whisper-tiny.en transcribes them with
the times of words, and reelscribe gives each its speaker. Of the words that are transcribed rightly, and said while
nobody else speaks, the table has those whose speaker is right, once names are mapped as the error rate maps them. The
error rates of words are those of all transcripts, before and after speakers are known.

The models run in this process on one thread; audio is cut into chunks as in a run.
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jiwer
import numpy as np
import soxr
import torch
from numpy.typing import NDArray

from lib.command import add_json_option, command_parser, run_command
from lib.conversations import Conversation, Readers, Reading, SpokenTurn, converse, real_readers, trimmed
from lib.local_speech import LocalSpeech, compute_on_one_thread, utterances
from lib.real_recordings import words_of, wrong_words
from lib.recordings import Recording
from lib.report import Report, publish
from reelscribe.contract.outcomes import Turn, Utterance
from reelscribe.contract.speech import TranscriptionOptions
from reelscribe.contract.voices import SpeakerBounds
from reelscribe.results.speakers import TimedVoices, with_speakers
from reelscribe.run.tracks.speakers import SpeakerOptions, turns_of
from reelscribe.run.tracks.transcripts import SpeechOptions
from speakers.speaker_model import SpeakerModel, SpeakerSettings
from speakers.voice_activity import Stretch
from synthetic.espeak import speak_reproducibly
from synthetic.phrases import HELD_OUT_VARIANTS, SAMPLE_RATE, TRAINED_VARIANTS, WORDS
from transcripts.speech_model import Chunk
from transcripts.whisper.ctranslate2_conversion import convert

COLLAR_SECONDS = 0.25
"""Time on each side of the end of a turn that is not scored."""

PHRASES = 40
"""Number of phrases of each voice of espeak-ng."""

PARTS = ("real", "espeak", "hour", "words")
"""What is measured."""

_AT_ONCE = 8


class Told(NamedTuple):
    """A conversation, and who was found to speak in it."""

    truth: Conversation
    turns: Sequence[Turn]


class GivenStretches(SpeakerModel):
    """The handler's model, to which the stretches of chunks may be given, as a perfect diarizer would find them."""

    given: Iterator[list[Stretch]] | None = None
    """The stretches of the chunks to come; None for those that the model finds."""

    def stretches(self, samples: NDArray[np.float32]) -> list[Stretch]:
        """Return the given stretches."""
        return super().stretches(samples) if self.given is None else next(self.given)


def stretches_between(start: float, end: float, turns: Sequence[SpokenTurn], *, split: bool) -> list[Stretch]:
    """Return the turns from `start` to before `end`, in seconds, as a diarizer numbers their speakers.

    Args:
        start: Start of a chunk.
        end: Its end.
        turns: Those of the conversation.
        split: Whether the diarizer takes the first speaker for another one from the middle of the chunk on.
    """
    numbers: dict[str, int] = {}
    inside = [turn for turn in turns if turn.start < end and turn.end > start]
    edges = [(max(start, turn.start), min(end, turn.end)) for turn in inside]
    frames = [(round((first - start) * 100), round((last - start) * 100)) for first, last in edges]
    found = [
        Stretch(first, stop, numbers.setdefault(turn.reader, len(numbers)))
        for turn, (first, stop) in zip(inside, frames, strict=True)
        if stop > first
    ]
    middle = (end - start) * 50 if split else (end - start) * 100
    return [
        each._replace(speaker=len(numbers)) if not each.speaker and each.start >= middle else each for each in found
    ]


class LocalSpeakers:
    """The handler's model, with audio cut as the client does."""

    def __init__(self, weights: Path) -> None:
        """Load the model."""
        self._model = GivenStretches(SpeakerSettings(str(weights)), torch.device("cpu"))
        self._description = self._model.description(120)

    def voices(
        self, conversation: Conversation, truth: Sequence[SpokenTurn] = (), *, mistaken: bool = False
    ) -> list[TimedVoices]:
        """Return the voices of a conversation.

        Args:
            conversation: The conversation.
            truth: Its turns, to stand for a diarizer; by default the model finds speech by itself.
            mistaken: Whether that diarizer takes one speaker for two in every third chunk.
        """
        chunker = SpeakerOptions().task("", self._description).chunker()
        chunks = [*chunker.push(conversation.samples), *chunker.flush()]
        ends = np.cumsum([len(chunk) for chunk in chunks]) / SAMPLE_RATE
        items = [Chunk(chunk.astype(np.float32) / np.float32(32768), TranscriptionOptions()) for chunk in chunks]
        starts = [0.0, *ends.tolist()]
        times = zip(starts, ends.tolist(), strict=False)
        given = (stretches_between(*each, truth, split=mistaken and k % 3 == 0) for k, each in enumerate(times))
        self._model.given = given if truth else None
        answers = [
            answer
            for at in range(0, len(items), _AT_ONCE)
            for answer in self._model.voices([items[at : at + _AT_ONCE]])
        ]
        return [TimedVoices(*each) for each in zip(starts, ends.tolist(), answers, strict=False)]


def conversations(readers: Readers, count: int, seconds: float) -> Iterator[Conversation]:
    """Yield conversations of 2, 3 and 4 readers in turn."""
    for seed in range(count):
        some = random.Random(seed).sample(sorted(readers), min(len(readers), 2 + seed % 3))  # noqa: S311 - a seed, not secrecy
        yield converse({name: readers[name] for name in some}, seconds, seed)


def espeak_readers(variants: Sequence[str] = HELD_OUT_VARIANTS) -> Readers:
    """Return phrases of voices."""
    readers = {}
    for variant in variants:
        rng = random.Random(variant)  # noqa: S311 - a seed, not secrecy
        voice, phrases = f"gmw/en-US+{variant}", []
        for seed in range(PHRASES):
            text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 8)))
            samples, rate, _ = speak_reproducibly(
                text, voice=voice, words_per_minute=140, pitch=50, word_gap=1, seed=seed
            )
            spoken = soxr.resample(samples.astype(np.float32) / np.float32(32768), rate, SAMPLE_RATE)
            phrases.append(Reading(trimmed(spoken), text.split()))
        readers[variant] = phrases
    return readers


def annotation(turns: Sequence[Any]) -> Any:
    """Return turns, of a conversation or that were found, as pyannote.metrics takes them."""
    from pyannote.core import Annotation, Segment

    result = Annotation()
    for k, turn in enumerate(turns):
        result[Segment(turn.start, turn.end), k] = turn.speaker if isinstance(turn, Turn) else turn.reader
    return result


def error_rates(told: Sequence[Told], *, skip_overlap: bool = False) -> dict[str, float]:
    """Return the parts of the diarization error rate of all conversations together, and it itself, in percent."""
    from pyannote.metrics.diarization import DiarizationErrorRate

    metric = DiarizationErrorRate(collar=2 * COLLAR_SECONDS, skip_overlap=skip_overlap)  # pyannote's is of both sides
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it guesses the evaluated part from the turns, as it should
        for each in told:
            metric(annotation(each.truth.turns), annotation(each.turns))
    total = metric.accumulated_["total"]
    parts = {name: metric.accumulated_[name] for name in ("missed detection", "false alarm", "confusion")}
    return {name: round(100 * value / total, 1) for name, value in {**parts, "all": sum(parts.values())}.items()}


def right_counts(told: Sequence[Told]) -> str:
    """Return in how many conversations the number of speakers was found."""
    right = [len({turn.reader for turn in truth.turns}) == len({t.speaker for t in turns}) for truth, turns in told]
    return f"{sum(right)} of {len(told)}"


def add_row(report: Report, name: str, told: Sequence[Told], seconds: float) -> None:
    """Add the errors of conversations, and the seconds of audio for each second of computing."""
    rates, alone = error_rates(told), error_rates(told, skip_overlap=True)
    speed = sum(len(each.truth.samples) for each in told) / SAMPLE_RATE / seconds
    report.add(name, *rates.values(), alone["all"], right_counts(told), f"{speed:.0f}")
    print(*report.rows[-1], sep="; ", flush=True)


def measure(local: LocalSpeakers, name: str, readers: Readers, count: int, length: float, report: Report) -> None:
    """Add the rows of conversations of these readers."""
    begun = time.perf_counter()
    heard = [(each, local.voices(each)) for each in conversations(readers, count, length)]
    seconds = time.perf_counter() - begun
    add_row(report, name, [Told(truth, turns_of(voices, SpeakerBounds())) for truth, voices in heard], seconds)
    known = []
    for truth, voices in heard:
        number = len({turn.reader for turn in truth.turns})
        known.append(Told(truth, turns_of(voices, SpeakerBounds(number, number))))
    add_row(report, f"{name}, number given", known, seconds)
    for row, mistaken in (("told apart in chunks", False), ("the same with mistakes", True)):
        begun = time.perf_counter()
        heard = [(truth, local.voices(truth, truth.turns, mistaken=mistaken)) for truth, _ in heard]
        seconds = time.perf_counter() - begun
        given = [Told(truth, turns_of(voices, SpeakerBounds())) for truth, voices in heard]
        add_row(report, f"{name}, {row}", given, seconds)


def measure_hour(local: LocalSpeakers, readers: Readers, report: Report) -> None:
    """Add the row of an hour of four readers, and print how much more memory its clustering took."""
    truth = converse({name: readers[name] for name in sorted(readers)[:4]}, 3600, 0)
    begun = time.perf_counter()
    voices = local.voices(truth)
    seconds = time.perf_counter() - begun
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    turns = turns_of(voices, SpeakerBounds())
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    add_row(report, "an hour", [Told(truth, turns)], seconds)
    print(f"clustering an hour took {more:.0f} MiB more, and {sum(len(v.voices.embeddings) for v in voices)} bytes")


class WordSpeakers:
    """Counts the words of conversations whose speaker is right."""

    def __init__(self) -> None:
        """Begin before the first conversation."""
        self.said = self.right = self.compared = 0
        self.told: list[Told] = []
        self.wrong = [0, 0]
        """Wrong words of the transcripts, before and after speakers are known."""

    def add(self, truth: Conversation, plain: Sequence[Utterance], turns: Sequence[Turn]) -> None:
        """Compare a transcript, with the times of words, with what is said."""
        from pyannote.metrics.diarization import DiarizationErrorRate

        self.told.append(Told(truth, turns))
        told = [*with_speakers(plain, turns)]
        said = [(word, turn) for turn in truth.turns for word in turn.words]
        names = [word.text for word, _ in said]
        self.said += len(said)
        for k, each in enumerate((plain, told)):
            self.wrong[k] += wrong_words(names, [text for utterance in each for text in words_of(utterance.text)])
        readers = DiarizationErrorRate().optimal_mapping(annotation(truth.turns), annotation(turns))
        heard = [
            (text, word.speaker) for utterance in told for word in utterance.words or () for text in words_of(word.text)
        ]
        outcome = jiwer.process_words(" ".join(names), " ".join(text for text, _ in heard))
        equal = [
            (part.ref_start_idx + k, part.hyp_start_idx + k)
            for part in outcome.alignments[0]
            if part.type == "equal"
            for k in range(part.ref_end_idx - part.ref_start_idx)
        ]
        for of_said, of_heard in equal:
            word, turn = said[of_said]
            others = (other for other in truth.turns if other is not turn)
            if not any(word.start < other.end and other.start < word.end for other in others):
                self.compared += 1
                self.right += readers.get(heard[of_heard][1]) == turn.reader


def measure_words(
    local: LocalSpeakers, speech: LocalSpeech, name: str, readers: Readers, count: int, length: float, report: Report
) -> None:
    """Add the row of the words of conversations of these readers."""
    found = {"": WordSpeakers(), ", number given": WordSpeakers()}
    options = SpeechOptions(TranscriptionOptions(word_times=True))
    with tempfile.TemporaryDirectory() as folder:
        for truth in conversations(readers, count, length):
            path = Recording(truth.samples, []).write(Path(folder) / "talk.flac")
            said, voices = utterances(speech.transcribe_files([path], options)[0]), local.voices(truth)
            number = len({turn.reader for turn in truth.turns})
            for words, bounds in zip(found.values(), (SpeakerBounds(), SpeakerBounds(number, number)), strict=True):
                words.add(truth, said, turns_of(voices, bounds))
    for suffix, words in found.items():
        rates = [f"{100 * wrong / words.said:.1f}" for wrong in words.wrong]
        right = f"{100 * words.right / words.compared:.1f}"
        report.add(name + suffix, str(words.said), *rates, str(words.compared), right, right_counts(words.told))
        print(*report.rows[-1], sep="; ", flush=True)


def words_report(local: LocalSpeakers, readers: Readers, options: argparse.Namespace) -> Report:
    """Return the table of words."""
    half = 1 if options.readers == "held-out" else 0
    english = {name: each[half::2] for name, each in readers.items() if each[0].words}
    voices = espeak_readers(HELD_OUT_VARIANTS if half else TRAINED_VARIANTS[::9])
    report = Report(
        f"Words of {options.readers} recordings, of {', '.join(sorted(english))} and espeak-ng",
        (
            "conversations",
            "words",
            "wrong in %",
            "with speakers",
            "right and alone",
            "their speaker right in %",
            "number right",
        ),
    )
    model = options.folder / "whisper-tiny.en"
    with tempfile.TemporaryDirectory() as converted:
        convert(str(model), f"{converted}/model", "auto")
        speech = LocalSpeech(model, engine="ctranslate2", converted=f"{converted}/model", device_batch=_AT_ONCE)
        for name, some in (("real voices", english), ("espeak-ng", voices)):
            measure_words(local, speech, name, some, options.conversations, options.seconds, report)
    return report


def main() -> None:
    """Print the tables."""
    parser = command_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--conversations", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--readers", choices=("held-out", "tuning"), default="held-out")
    parser.add_argument("--only", choices=PARTS, nargs="*", default=PARTS)
    add_json_option(parser)
    options = parser.parse_args()
    compute_on_one_thread()
    local = LocalSpeakers(options.folder / "ge2e")
    readers = real_readers(options.folder)
    names = sorted(readers)[1::2] if options.readers == "held-out" else sorted(readers)[::2]
    report = Report(
        f"Diarization error rates in percent, of {options.readers} readers: {', '.join(names)}",
        ("conversations", "missed", "of nobody", "confused", "all", "one at a time", "number right", "s of audio a s"),
    )
    chosen = {name: readers[name] for name in names}
    if "real" in options.only:
        measure(local, "real voices", chosen, options.conversations, options.seconds, report)
    if "espeak" in options.only:
        measure(local, "espeak-ng", espeak_readers(), options.conversations, options.seconds, report)
    if "hour" in options.only:
        measure_hour(local, chosen, report)
    words = [words_report(local, readers, options)] if "words" in options.only else []
    publish([each for each in (report, *words) if each.rows], options.json)


if __name__ == "__main__":
    run_command(main)
