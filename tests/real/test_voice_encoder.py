"""The GE2E voice encoder with its published weights tells two readers apart, and knows each of them again."""

import json
import zipfile
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from reelscribe.archive.build import build
from reelscribe.contract.speech import TranscriptionOptions
from reelscribe.contract.voices import SpeakerBounds
from reelscribe.results.speakers import SpeakerTimes, TimedVoices
from reelscribe.run.tracks.speakers import turns_of
from servers.torchserve import HANDLERS
from speakers.speaker_model import SpeakerModel, SpeakerSettings
from support.audio import RATE
from transcripts.speech_model import Chunk

TALKS = Path(__file__).parents[2] / "demo" / "talks"


def samples_of(path: Path) -> np.ndarray:
    """The audio of a recording, (N,) float32."""
    resampler = av.AudioResampler("flt", "mono", RATE)
    with av.open(str(path)) as file:
        return np.concatenate(
            [part.to_ndarray()[0] for frame in file.decode(audio=0) for part in resampler.resample(frame)]
        )


def sentences(folder: Path, count: int, words: int) -> np.ndarray:
    """The first recordings of a folder whose texts have so many words, one after the other."""
    texts = json.loads((folder / "texts.json").read_text())
    long = [name for name, text in sorted(texts.items()) if len(text.split()) >= words]
    return np.concatenate([samples_of(folder / name) for name in long[:count]])


def test_the_published_file_of_weights_is_packed(part, tmp_path):
    build("speakers", "speaker", str(part("ge2e")), tmp_path, bundle=True, handlers=HANDLERS)
    with zipfile.ZipFile(tmp_path / "speakers.mar") as archive:
        assert archive.read("weights/pretrained.pt") == (part("ge2e") / "pretrained.pt").read_bytes()


@pytest.mark.parametrize("bounds", [SpeakerBounds(), SpeakerBounds(2, 2)])
def test_two_readers_are_told_apart(part, bounds):
    one, other = sentences(part("voices"), 2, 4), sentences(part("announcements"), 4, 6)
    pause = np.zeros(RATE, np.float32)
    spoken = [one, pause, other, pause, one]
    edges = np.cumsum([0, *map(len, spoken)]) / RATE
    model = SpeakerModel(SpeakerSettings(str(part("ge2e"))), torch.device("cpu"))
    (voices,) = model.voices([[Chunk(np.concatenate(spoken), TranscriptionOptions())]])
    turns = turns_of([TimedVoices(0.0, edges[-1], voices)], bounds)
    for start, end, speaker in ((edges[0], edges[1], 1), (edges[2], edges[3], 2), (edges[4], edges[5], 1)):
        own = [min(turn.end, end) - max(turn.start, start) for turn in turns if turn.speaker == f"speaker {speaker}"]
        assert sum(max(0, each) for each in own) > 0.8 * (end - start)


@pytest.mark.parametrize("name", ["two.ogg", "three.ogg"])
def test_voices_of_the_demo_talks_are_told_apart(part, name):
    lines = [json.loads(line) for line in (TALKS / "truth.jsonl").read_text().splitlines()]
    truth = [turn for turn in lines if turn["source"] == name]
    samples = samples_of(TALKS / name)
    model = SpeakerModel(SpeakerSettings(str(part("ge2e"))), torch.device("cpu"))
    (voices,) = model.voices([[Chunk(samples, TranscriptionOptions())]])
    turns = turns_of([TimedVoices(0.0, len(samples) / RATE, voices)], SpeakerBounds())
    found = SpeakerTimes(turns)
    alone = [
        turn
        for turn in truth
        if sum(turn["start"] < other["end"] and other["start"] < turn["end"] for other in truth) == 1
    ]
    pairs = {(turn["speaker"], found.speaker(turn["start"], turn["end"])) for turn in alone}
    speakers = {speaker for speaker, _ in pairs}
    assert len(pairs) == len(speakers) == len({turn.speaker for turn in turns})
