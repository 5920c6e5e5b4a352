"""What all tests share: which tests are slow, the demo media and the demo models."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# No test may connect to a model hub.
os.environ["HF_HUB_OFFLINE"] = "1"

# An example that takes long is no failure: the machine may be busy.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

ROOT = Path(__file__).parents[1]

SLOW_FOLDERS = {Path(__file__).parent / name for name in ("bench", "e2e")}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of benchmarks, and all with a real TorchServe, as slow."""
    for item in items:
        if SLOW_FOLDERS.intersection(item.path.parents):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def media() -> Path:
    return ROOT / "demo" / "media"


@pytest.fixture(scope="session")
def demo_model() -> str:
    return str(ROOT / "demo" / "models" / "captioner")


@pytest.fixture(scope="session")
def demo_speech() -> str:
    return str(ROOT / "demo" / "models" / "speech")
