"""How many words are wrong with a published Whisper and recorded voices, and how fast is it: ours and faster-whisper?

    scripts/bench real_speech FOLDER [--seconds 480] [--kinds clean ...] [--ways ours ...] [--rounds 1] [--seed 0]
                              [--setting NAME=VALUE ...] [--sentences-only] [--curve] [--json FILE]

FOLDER is one that scripts/real_data has prepared: openai/whisper-tiny.en and recordings. All ways run on one thread in
float32, from samples in memory to text.

The first table has the words wrong, in percent, in a recording of `--seconds` of each kind (lib/real_recordings.py):
258 sentences of LibriVox and of announcements, in random order with pauses of 0.2 to 1.2 s. Another column has all of
them together, and the last one the seconds of audio that are transcribed in a CPU second. The second table has single
words of Tux Paint that are found and that become nothing, and the words that are invented for its sounds of animals and
things. Of both, a half was used to choose thresholds, and the other half was not: the halves have columns of their own.
So have announcements of one to three words, of which none was used. With `--curve`, a third table has for each
`no_speech_threshold` the recordings of words that become nothing, and the words that are invented for sounds, with
torch and without fallback.

- ours, ours ctranslate2: cut as the client does, packed, and transcribed by the handler's model with the settings of
  speech.yaml, in batches of 8. `--setting` changes settings of the handler, as in `--setting temperatures=[0.0]`. The
  same with 5 beams.
- sequential: faster-whisper, one window after the other, greedy, without fallback.
- by voices: faster-whisper in batches of 8 windows by its detector of voices, greedy.
- defaults: faster-whisper's own, one window after the other with 5 beams and fallback; defaults by voices: the same
  after its detector has removed what is no speech.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import faster_whisper
import numpy as np
import yaml

from lib.command import add_json_option, command_parser, run_command
from lib.local_speech import LocalSpeech, compute_on_one_thread
from lib.real_recordings import KINDS, announcements, read_samples, read_texts, recording, words_of, wrong_words
from lib.recordings import Recording
from lib.report import Report, Spread, publish
from reelscribe.contract.speech import ChunkTranscript, SampleArray, TranscriptionOptions
from reelscribe.run.tracks.transcripts import SpeechOptions
from transcripts.whisper.ctranslate2_conversion import convert
from transcripts.whisper.transcriber import NO_SPEECH_LOGPROB_WEIGHT

BATCH = 8

CURVE = (0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 1.0, 1.2, 2.0)
"""Values of `no_speech_threshold` in the third table."""

Transcribe = Callable[[Sequence[SampleArray]], list[str]]
"""A function that returns the text of each recording."""


def ours(model: Path, *, beams: int = 1, **settings: Any) -> Transcribe:
    """Cut as the client does, and transcribe with the handler's model; chunks of short recordings share requests."""
    local = LocalSpeech(model, device_batch=BATCH, **settings)
    options = SpeechOptions(TranscriptionOptions(beams=beams))
    return lambda recordings: local.transcribe_recordings(recordings, options)


class Peer:
    """faster-whisper with the model as its package has it."""

    def __init__(self, model: Path) -> None:
        """Load the model."""
        self._model = faster_whisper.WhisperModel(str(model), device="cpu", compute_type="float32", cpu_threads=1)
        self._batched = faster_whisper.BatchedInferencePipeline(self._model)

    def sequential(self, **options: Any) -> Transcribe:
        """One window after the other."""
        return lambda recordings: [self._text(self._model, each, options) for each in recordings]

    def by_voices(self) -> Transcribe:
        """In batches of windows by the detector of voices."""
        greedy = {"beam_size": 1, "temperature": [0.0], "batch_size": BATCH}
        return lambda recordings: [self._text(self._batched, each, greedy) for each in recordings]

    def _text(self, model: Any, samples: SampleArray, options: dict[str, Any]) -> str:
        segments, _ = model.transcribe(samples.astype(np.float32) / 32768, language="en", **options)
        return " ".join(segment.text.strip() for segment in segments)


def ways(folder: Path, converted: Path, settings: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Transcribe]]]:
    """Yield all ways: a name, and a function that loads what it needs."""
    model = folder / "whisper-tiny.en"
    peer = Peer(folder / "whisper-tiny.en-ct2")
    greedy = {"beam_size": 1, "temperature": [0.0], "condition_on_previous_text": False}
    light = {**settings, "engine": "ctranslate2", "converted": str(converted)}
    yield "ours", lambda: ours(model, **settings)
    yield "ours ctranslate2", lambda: ours(model, **light)
    yield "ours, 5 beams", lambda: ours(model, beams=5, **settings)
    yield "ours ctranslate2, 5 beams", lambda: ours(model, beams=5, **light)
    yield "sequential", lambda: peer.sequential(**greedy)
    yield "by voices", peer.by_voices
    yield "defaults", peer.sequential
    yield "defaults by voices", lambda: peer.sequential(vad_filter=True)


def measure_sentences(
    recordings: dict[str, Recording], transcribe: Transcribe, rounds: int
) -> tuple[list[str], Spread]:
    """Return the cells of a way: words wrong in each kind and in all, and the speed of each round."""
    speeds = []
    for _ in range(rounds):
        began = time.process_time()
        texts = [transcribe([one.samples])[0] for one in recordings.values()]
        speeds.append(sum(one.seconds for one in recordings.values()) / (time.process_time() - began))
    wrong = [wrong_words(one.words, words_of(text)) for one, text in zip(recordings.values(), texts, strict=True)]
    cells = [f"{100 * w / len(one.words):.2f}" for w, one in zip(wrong, recordings.values(), strict=True)]
    return [*cells, f"{100 * sum(wrong) / sum(len(one.words) for one in recordings.values()):.2f}"], Spread(
        tuple(speeds)
    )


def measure_short(folder: Path, transcribe: Transcribe) -> list[str]:
    """Return the cells of a way: single words in two halves, short announcements, and sounds in two halves."""
    cells = []
    words = sorted((path, words_of(text)) for path, text in read_texts(folder / "words").items())
    for part in (words[::2], words[1::2], [*announcements(folder, short=True).items()]):
        got = [words_of(text) for text in transcribe([read_samples(path) for path, _ in part])]
        found = sum(expected == heard for (_, expected), heard in zip(part, got, strict=True))
        cells.append(f"{found}, {sum(not heard for heard in got)} of {len(part)}")
    sounds = sorted((folder / "sounds").glob("*.ogg"))
    for half in (sounds[::2], sounds[1::2]):
        counts = [len(words_of(text)) for text in transcribe([read_samples(path) for path in half])]
        cells.append(f"{sum(counts)} in {sum(count > 0 for count in counts)} of {len(half)}")
    return cells


def measure_curve(folder: Path, settings: dict[str, Any]) -> Report:
    """Return the table of thresholds: what each costs in words and in sounds."""
    # At other temperatures, what a threshold drops at once would become more probable.
    without = {"device_batch": BATCH, **settings, "no_speech_threshold": None, "temperatures": (0.0,)}
    local = LocalSpeech(folder / "whisper-tiny.en", **without)
    words, sounds = sorted(read_texts(folder / "words")), sorted((folder / "sounds").glob("*.ogg"))
    spoken = {
        "words lost": words[::2],
        "held out": words[1::2],
        "announcements lost": [*announcements(folder, short=True)],
    }
    silent = {"words invented": sounds[::2], "sounds held out": sounds[1::2]}
    found: dict[str, list[tuple[float, int]]] = {}
    for name, paths in (spoken | silent).items():
        transcripts = local.transcribe_chunks([read_samples(path) for path in paths], SpeechOptions())
        found[name] = [(no_speech_score(each), len(words_of(each.text))) for each in transcripts]
    columns = (f"{name} ({len(part)})" for name, part in found.items())
    report = Report("What each no_speech_threshold drops", ("threshold", *columns))
    for threshold in CURVE:
        lost = [sum(score > threshold or not count for score, count in found[name]) for name in spoken]
        made = [sum(count for score, count in found[name] if score <= threshold) for name in silent]
        report.add(f"{threshold:g}", *lost, *made)
    return report


def no_speech_score(transcript: ChunkTranscript) -> float:
    """Return what `no_speech_threshold` is compared with."""
    assert transcript.no_speech_prob is not None
    assert transcript.avg_logprob is not None
    return transcript.no_speech_prob - NO_SPEECH_LOGPROB_WEIGHT * transcript.avg_logprob


def setting(word: str) -> tuple[str, Any]:
    """Read NAME=VALUE, where the value is YAML."""
    name, equals, value = word.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {word}")
    return name, yaml.safe_load(value)


def main() -> None:
    """Print the tables."""
    parser = command_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--ways", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--setting", nargs="+", type=setting, default=[], metavar="NAME=VALUE")
    parser.add_argument("--sentences-only", action="store_true", help="leave out the second table")
    parser.add_argument("--curve", action="store_true", help="measure the thresholds, too")
    add_json_option(parser)
    options = parser.parse_args()
    compute_on_one_thread()
    recordings = {
        kind: recording(options.folder, kind, options.seconds, options.seed + k) for k, kind in enumerate(options.kinds)
    }
    count = sum(len(one.words) for one in recordings.values())
    spoken = Report(f"Words wrong in %, of {count}", ("way", *recordings, "all", "audio s a CPU s"))
    short = Report(
        "Words found and words that become nothing; words invented for sounds",
        ("way", "words", "held out", "announcements", "sounds", "held out"),
    )
    with tempfile.TemporaryDirectory() as directory:
        converted = Path(directory) / "converted"
        convert(str(options.folder / "whisper-tiny.en"), str(converted), "auto")
        for name, load in ways(options.folder, converted, dict(options.setting)):
            if options.ways and name not in options.ways:
                continue
            transcribe = load()
            if recordings:
                cells, speed = measure_sentences(recordings, transcribe, options.rounds)
                spoken.add(name, *cells, speed)
                print(*spoken.rows[-1], sep="; ", flush=True)
            if not options.sentences_only:
                short.add(name, *measure_short(options.folder, transcribe))
                print(*short.rows[-1], sep="; ", flush=True)
    curve = [measure_curve(options.folder, dict(options.setting))] if options.curve else []
    publish([spoken, *([] if options.sentences_only else [short]), *curve], options.json)


if __name__ == "__main__":
    run_command(main)
