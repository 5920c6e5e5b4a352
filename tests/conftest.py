"""What many tests share: the demo media and the demo model."""

import os
from pathlib import Path

import pytest

# No test may ask a hub for anything.
os.environ["HF_HUB_OFFLINE"] = "1"

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def media() -> Path:
    return ROOT / "demo" / "media"


@pytest.fixture(scope="session")
def demo_model() -> str:
    return str(ROOT / "demo" / "models" / "captioner")
