"""How well are speakers told apart by their voices, and do they keep their names for an hour?

    scripts/bench diarization FOLDER [--conversations 30] [--seconds 90] [--readers held-out] [--json FILE]

FOLDER is one that scripts/real_data has prepared: the weights of the GE2E voice encoder, and recordings. A conversation
is of 2 to 4 readers (lib/conversations.py): people who recorded words in different languages for Tux Paint, the voice
of Asterisk, and the reader of LibriVox; or held-out voices of espeak-ng. The parameters of the handler and of the
clustering were chosen with `--readers tuning`; the figures that count are those of the other half.

The diarization error rate is that of pyannote.metrics, in percent of the time that is spoken, with 0.25 s around each
end of a turn left out: what is missed, what is spoken by nobody, and what is another speaker's. Overlapping speech is
counted, of which one voice is always missed; the column "one at a time" leaves it out. Each conversation is told apart
once without the number of its speakers, and once with it. The last row is an hour of four readers.

The model runs in this process on one thread; audio is cut into chunks as in a run.
"""

from __future__ import annotations

import random
import resource
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soxr
import torch

from lib.command import add_json_option, command_parser, run_command
from lib.conversations import Conversation, Readers, converse, real_readers, trimmed
from lib.local_speech import compute_on_one_thread
from lib.report import Report, publish
from reelscribe.contract.outcomes import Turn
from reelscribe.contract.speech import TranscriptionOptions
from reelscribe.contract.voices import SpeakerBounds
from reelscribe.results.speakers import TimedVoices
from reelscribe.run.tracks.speakers import SpeakerOptions, turns_of
from speakers.speaker_model import SpeakerModel, SpeakerSettings
from synthetic.espeak import speak_reproducibly
from synthetic.phrases import HELD_OUT_VARIANTS, SAMPLE_RATE, WORDS
from transcripts.speech_model import Chunk

COLLAR_SECONDS = 0.25
"""Time on each side of the end of a turn that is not scored."""

PHRASES = 40
"""Number of phrases of each voice of espeak-ng."""

_AT_ONCE = 8


class Told(NamedTuple):
    """A conversation, and who was found to speak in it."""

    truth: Conversation
    turns: Sequence[Turn]


class LocalSpeakers:
    """The handler's model, with audio cut as the client does."""

    def __init__(self, weights: Path) -> None:
        """Load the model."""
        self._model = SpeakerModel(SpeakerSettings(str(weights)), torch.device("cpu"))
        self._description = self._model.description(1, 120)

    def voices(self, conversation: Conversation) -> list[TimedVoices]:
        """Return the voices of a conversation."""
        chunker = SpeakerOptions().task("", self._description).chunker()
        chunks = [*chunker.push(conversation.samples), *chunker.flush()]
        ends = np.cumsum([len(chunk) for chunk in chunks]) / SAMPLE_RATE
        items = [Chunk(chunk.astype(np.float32) / np.float32(32768), TranscriptionOptions()) for chunk in chunks]
        answers = [
            answer
            for at in range(0, len(items), _AT_ONCE)
            for answer in self._model.voices([items[at : at + _AT_ONCE]])
        ]
        starts = [0.0, *ends.tolist()]
        return [TimedVoices(*each) for each in zip(starts, ends.tolist(), answers, strict=False)]


def conversations(readers: Readers, count: int, seconds: float) -> Iterator[Conversation]:
    """Yield conversations of 2, 3 and 4 readers in turn."""
    for seed in range(count):
        some = random.Random(seed).sample(sorted(readers), 2 + seed % 3)  # noqa: S311 - a seed, not secrecy
        yield converse({name: readers[name] for name in some}, seconds, seed)


def espeak_readers() -> Readers:
    """Return phrases of the held-out voices."""
    readers = {}
    for variant in HELD_OUT_VARIANTS:
        rng = random.Random(variant)  # noqa: S311 - a seed, not secrecy
        voice, phrases = f"gmw/en-US+{variant}", []
        for seed in range(PHRASES):
            text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 8)))
            samples, rate, _ = speak_reproducibly(
                text, voice=voice, words_per_minute=140, pitch=50, word_gap=1, seed=seed
            )
            phrases.append(trimmed(soxr.resample(samples.astype(np.float32) / np.float32(32768), rate, SAMPLE_RATE)))
        readers[variant] = phrases
    return readers


def annotation(turns: Sequence[Any]) -> Any:
    """Return turns as pyannote.metrics takes them: tuples of start, end and speaker, or values with these fields."""
    from pyannote.core import Annotation, Segment

    result = Annotation()
    for k, turn in enumerate(turns):
        start, end, speaker = (turn.start, turn.end, turn.speaker) if isinstance(turn, Turn) else turn
        result[Segment(start, end), k] = speaker
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


def main() -> None:
    """Print the table."""
    parser = command_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--conversations", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--readers", choices=("held-out", "tuning"), default="held-out")
    parser.add_argument("--only", choices=("real", "espeak", "hour"), nargs="*", default=["real", "espeak", "hour"])
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
    publish([report], options.json)


if __name__ == "__main__":
    run_command(main)
