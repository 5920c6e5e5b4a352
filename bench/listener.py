"""A speech model as TorchServe runs it and files as the client reads them, in one process; and files to read."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import torch

from reelscribe import wire
from reelscribe.contract.annotations import Utterance
from reelscribe.contract.model import SpeechDescription
from reelscribe.contract.speech import ChunkTranscript, SampleArray
from reelscribe.decode.audio import Audio, AudioChunk
from reelscribe.results.batches import SavedAudioBatch, timeline
from reelscribe.run.options import SpeechOptions
from serving import ROOT

sys.path += [str(ROOT / "handlers"), str(ROOT / "demo")]
from speech_settings import SpeechSettings

from phrases import SAMPLE_RATE, random_utterance, recording
from speech_handler import SpeechHandler

MODEL = ROOT / "demo" / "models" / "speech"


class Listener:
    """The handler's model, reached by requests as the client sends them, and the client's way of cutting sound."""

    def __init__(self, model: Path, **settings: Any) -> None:
        """`settings` are those of SpeechSettings."""
        wanted = SpeechSettings(str(model), **settings)
        self._served = SpeechHandler().serve(wanted, torch.device("cpu"), workers=1, response_seconds=120)
        self.description = SpeechDescription.from_json(self._served.description)

    def hear(self, chunks: Sequence[SampleArray], options: SpeechOptions) -> Iterator[ChunkTranscript]:
        """The transcript of each chunk, (N,) int16 at the model's rate."""
        size = options.prebatch(self.description)
        for at in range(0, len(chunks), size):
            sent: Any = {**options.asked.to_json(), "sample_rate": self.description.sample_rate}
            sent["chunks"] = list(chunks[at : at + size])
            body = bytearray().join(wire.pack(sent))
            request = self._served.reader()({"body": body}, {})
            (transcripts,) = self._served.batches.map([request.items])
            assert isinstance(transcripts, list), transcripts
            yield from transcripts

    def transcribe(self, paths: Sequence[Path], options: SpeechOptions) -> list[SavedAudioBatch]:
        """What came of each file; short files share requests."""
        files = [self._chunks(path, options) for path in paths]
        heard = self.hear([chunk.samples for chunks in files for chunk in chunks if not chunk.silent], options)
        return [self._part(chunks, heard) for chunks in files]

    def _chunks(self, path: Path, options: SpeechOptions) -> list[AudioChunk]:
        with Audio(replace(options.task(self.description), path=str(path))) as audio:
            return list(audio.chunks())

    def _part(self, chunks: list[AudioChunk], transcripts: Iterator[ChunkTranscript]) -> SavedAudioBatch:
        def times(chunk: AudioChunk) -> tuple[float, float]:
            return chunk.start_seconds, chunk.start_seconds + len(chunk.samples) / self.description.sample_rate

        heard = [(*times(chunk), next(transcripts)) for chunk in chunks if not chunk.silent]
        silent = [times(chunk) for chunk in chunks if chunk.silent]
        return SavedAudioBatch(chunks[0].first, chunks[-1].stop, heard, silent)


def utterances(part: SavedAudioBatch) -> list[Utterance]:
    """What was said, on the timeline."""
    return [said for said in timeline([part]) if isinstance(said, Utterance)]


@dataclass(frozen=True)
class Spoken:
    """Sound, and the phrases that are spoken in it by voices that training never heard."""

    samples: SampleArray
    """(N,) at SAMPLE_RATE."""
    phrases: list[tuple[float, tuple[str, ...]]]
    """When each begins, in seconds, and its words."""

    @property
    def words(self) -> list[str]:
        """All of them."""
        return [word for _, words in self.phrases for word in words]

    @property
    def seconds(self) -> float:
        """How long it is."""
        return len(self.samples) / SAMPLE_RATE

    def write(self, path: Path, codec: str = "flac", rate: int = SAMPLE_RATE) -> Path:
        """Make a file of it, with samples at `rate`."""
        with av.open(str(path), "w") as container:
            stream = container.add_stream(codec, rate=rate, layout="mono")
            assert isinstance(stream, av.AudioStream)
            for at in range(0, len(self.samples), SAMPLE_RATE):
                second = self.samples[None, at : at + SAMPLE_RATE]
                frame = av.AudioFrame.from_ndarray(second, format="s16", layout="mono")
                frame.sample_rate, frame.pts, frame.time_base = SAMPLE_RATE, at, Fraction(1, SAMPLE_RATE)
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        return path


def short_utterances(seed: int, count: int) -> list[Spoken]:
    """Phrases, each alone."""
    rng = random.Random(seed)  # noqa: S311 - a seed is needed, not secrecy
    said = [random_utterance(rng, held_out=True) for _ in range(count)]
    return [Spoken(utterance.samples, [(0.0, utterance.words)]) for utterance in said]


def long_recordings(seed: int, lengths: Iterable[float]) -> list[Spoken]:
    """Many phrases each, with pauses of 0.2 to 1 s; about as long as `lengths`, in seconds."""
    rng = random.Random(seed)  # noqa: S311 - likewise
    recordings = [recording(rng, seconds, held_out=True) for seconds in lengths]
    return [Spoken(r.samples, [(first / SAMPLE_RATE, words) for first, _, words in r.phrases]) for r in recordings]
