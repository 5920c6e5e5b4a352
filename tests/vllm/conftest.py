"""The vLLM that `scripts/peers vllm` has installed, and the servers that tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.torchserve import CLIPS
from servers.vllm import CLIPS_OPTIONS, ServedVLLM, serve_vllm


@pytest.fixture(scope="session")
def vllm_folder(pytestconfig) -> Path:
    return pytestconfig.getoption("--vllm").resolve()


@pytest.fixture(scope="module")
def clips(vllm_folder, tmp_path_factory) -> Iterator[ServedVLLM]:
    """The demo clip model."""
    with serve_vllm(vllm_folder, CLIPS, "clips", tmp_path_factory.mktemp("vllm"), *CLIPS_OPTIONS) as server:
        yield server
