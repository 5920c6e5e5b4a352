"""Archives that `reelscribe archive` makes, as TorchServe serves them."""

import hashlib
from pathlib import Path

import pytest

from demo_server import ROOT
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
