"""Archives that `reelscribe archive` makes, as TorchServe serves them."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from reelscribe.client.endpoint import Server
from reelscribe.client.models import SpeechClient
from servers.torchserve import ROOT
from support.servers import RunningServer, caption_texts


@pytest.fixture(scope="module")
def revision(demo_model) -> str:
    return f"sha256:{hashlib.sha256(Path(demo_model, 'model.safetensors').read_bytes()).hexdigest()[:16]}"


@pytest.fixture(scope="module")
def bundled(server) -> RunningServer:
    return server.with_model("bundled/2.0")


async def test_bundled_weights_are_served_when_their_directory_is_gone(bundled, gone_weights):
    assert not gone_weights.exists()
    photo = (ROOT / "demo" / "stills" / "photo.jpg").read_bytes()
    status, answer = await bundled.post(photo)
    assert (status, caption_texts(answer)) == (200, "a large purple circle above a small white star")


async def test_bundled_weights_are_described_by_their_origin_and_revision(bundled, gone_weights, revision):
    async with bundled.client() as client:
        description = await client.describe()
    assert (description.name, description.revision) == (str(gone_weights), revision)


async def test_converted_weights_are_served_and_their_engine_is_part_of_the_identity(server, gone_weights):
    body = (ROOT / "demo" / "media" / "phrases.ogg").read_bytes()
    answers, descriptions = [], []
    for model in ("converted/2.0", "speech"):
        running = server.with_model(model)
        status, answer = await running.post(body)
        assert status == 200
        answers.append(json.loads(answer)["text"])
        async with SpeechClient([Server(server.url, server.token)], model) as client:
            descriptions.append(await client.describe())
    assert answers[0] == answers[1] != ""
    converted, usual = descriptions
    assert (converted.name, converted.engine, converted.dtype) == (str(gone_weights), "ctranslate2", "float32")
    assert (usual.engine, usual.dtype) == ("torch", "float32")
    assert converted.revision.startswith("sha256:")
    assert replace(converted, name=usual.name, revision=usual.revision).identity != usual.identity
