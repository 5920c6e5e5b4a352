"""Archives of whisper-tiny.en, from `reelscribe archive` to the transcripts of a worker and of a real TorchServe."""

import asyncio
import io
import json
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
import yaml
from typer.testing import CliRunner

import speech_handler
from reelscribe import wire
from reelscribe.cli import app
from servers.torchserve import ROOT
from support.fake_context import FakeContext, parsed
from support.real_speech import MOST_WRONG, SAMPLE_RATE, Sentence, wrong_words
from support.servers import RunningServer, serve

ENGINES = ("torch", "ctranslate2")


@pytest.fixture(scope="module")
def store(checkpoint, tmp_path_factory) -> Path:
    """A model store with an archive for each engine."""
    store = tmp_path_factory.mktemp("served") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        for engine in ENGINES:
            words = ["archive", engine, "--handler", "speech", "--weights", checkpoint, "--engine", engine]
            result = CliRunner().invoke(app, [*words, "--model-store", str(store)], catch_exceptions=False)
            assert result.exit_code == 0, result.output
    return store


def saved(sentence: Sentence) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, sentence.samples, SAMPLE_RATE, format="FLAC")
    return file.getvalue()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_worker_that_loads_the_archive_transcribes_the_sentences(engine, store, sentences, tmp_path):
    with zipfile.ZipFile(store / f"{engine}.mar") as archive:
        archive.extractall(tmp_path)
    settings = yaml.safe_load((tmp_path / "model-config.yaml").read_text())["handler"]
    if engine == "ctranslate2":
        settings["converted"] = str(tmp_path / settings["converted"])  # the handler of the checkout loads it
    context = FakeContext(settings)
    speech_handler.handle(None, context)
    chunks = [(sentence.samples * 32767).astype("int16") for sentence in sentences]
    body = b"".join(wire.pack({"chunks": chunks, "sample_rate": SAMPLE_RATE}))
    (answer,) = parsed(speech_handler.handle([{"body": body}], context))
    assert {transcript["language"] for transcript in answer} == {"en"}
    assert wrong_words([transcript["text"] for transcript in answer], sentences) <= MOST_WRONG


@pytest.fixture(scope="module")
def server(store) -> Iterator[RunningServer]:
    """A TorchServe with both archives."""
    with serve(store.parent, "torch") as running:
        yield running


@pytest.mark.parametrize("engine", ENGINES)
async def test_torchserve_transcribes_the_sentences(engine, server, sentences):
    answers = [await server.with_model(engine).post(saved(sentence)) for sentence in sentences]
    assert {status for status, _ in answers} == {200}
    assert wrong_words([json.loads(text)["text"] for _, text in answers], sentences) <= MOST_WRONG


def long_recording(sentences: list[Sentence], seed: int) -> Sentence:
    """A minute of sentences with pauses."""
    rng = random.Random(seed)
    spoken = [rng.choice(sentences) for _ in range(12)]
    pauses = [np.zeros(round(rng.uniform(0.2, 1.2) * SAMPLE_RATE), np.float32) for _ in spoken]
    samples = [part for sentence, pause in zip(spoken, pauses, strict=True) for part in (sentence.samples, pause)]
    return Sentence(" ".join(sentence.text for sentence in spoken), np.concatenate(samples))


async def test_recordings_that_are_read_at_once_have_the_words_of_each_alone(server, sentences):
    recordings = [long_recording(sentences, seed) for seed in range(8)]
    joining = server.with_model("ctranslate2")
    alone = [await joining.post(saved(one)) for one in recordings]
    together = await asyncio.gather(*(joining.post(saved(one)) for one in recordings))
    assert {status for status, _ in [*alone, *together]} == {200}
    wrong = [wrong_words([json.loads(text)["text"] for _, text in some], recordings) for some in (alone, together)]
    words = sum(len(one.text.split()) for one in recordings)
    assert abs(wrong[0] - wrong[1]) <= 0.001 * words
    assert wrong[0] <= 0.06 * words
