"""What `reelscribe archive` makes, as TorchServe serves it."""

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from demo_server import serve
from e2e.conftest import CONFIG, ROOT, Running, post
from reelscribe.archive import build as archive


@pytest.fixture(scope="module")
def weights(tmp_path_factory, demo_model) -> Path:
    """A directory of weights that is gone before anything is served."""
    return shutil.copytree(demo_model, tmp_path_factory.mktemp("gone") / "weights")


@pytest.fixture(scope="module")
def revision(demo_model) -> str:
    return f"sha256:{hashlib.sha256(Path(demo_model, 'model.safetensors').read_bytes()).hexdigest()[:16]}"


@pytest.fixture(scope="module")
def bundled(tmp_path_factory, weights) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("bundled")
    options = {"bundle": True, "version": "2.0", "handlers": ROOT / "handlers"}
    archive.build("bundled", "caption", str(weights), directory / "store", **options)
    shutil.rmtree(weights)
    with serve(directory, "bundled", CONFIG) as serving:
        yield Running(serving.instance, serving.model)


async def test_bundled_weights_are_served_when_their_directory_is_gone(bundled, weights):
    assert not weights.exists()
    photo = (ROOT / "demo" / "stills" / "photo.jpg").read_bytes()
    answer = await post(replace(bundled, model="bundled/2.0"), photo)
    assert answer == (200, "a large purple circle above a small white star")


async def test_bundled_weights_say_where_they_came_from_and_are_the_same_revision_as_there(bundled, weights, revision):
    async with bundled.client() as client:
        description = await client.describe()
    assert (description.name, description.revision) == (str(weights), revision)
