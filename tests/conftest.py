"""What many tests share: the demo media and the demo model."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# No test may ask a hub for anything.
os.environ["HF_HUB_OFFLINE"] = "1"

# The machine may be busy; hypothesis would call that a failure.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def media() -> Path:
    return ROOT / "demo" / "media"


@pytest.fixture(scope="session")
def demo_model() -> str:
    return str(ROOT / "demo" / "models" / "captioner")


@pytest.fixture(scope="session")
def demo_speech() -> str:
    return str(ROOT / "demo" / "models" / "speech")
