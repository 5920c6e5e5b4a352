"""The parts of the folder that scripts/real_data makes. Tests of parts that could not be fetched are skipped."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import soundfile

from real.recordings import TEXTS
from support.real_speech import SAMPLE_RATE, Sentence


@pytest.fixture(scope="session")
def part(pytestconfig) -> Callable[[str], Path]:
    """The folder of a part, by its name."""

    def find(name: str) -> Path:
        folder = pytestconfig.getoption("--real-data").resolve() / name
        if not folder.is_dir():
            pytest.skip(f"{folder} does not exist; scripts/real_data makes it")
        return folder

    return find


@pytest.fixture(scope="session")
def checkpoint(part) -> str:
    """whisper-tiny.en in the format of transformers."""
    return str(part("whisper-tiny.en"))


@pytest.fixture(scope="session")
def published(part) -> str:
    """whisper-tiny.en as CTranslate2 has it, untouched."""
    return str(part("whisper-tiny.en-ct2"))


@pytest.fixture(scope="session")
def sentences(part) -> list[Sentence]:
    """Five sentences that a person reads."""
    folder, found = part("voices"), []
    for name, text in json.loads((folder / TEXTS).read_text()).items():
        samples, rate = soundfile.read(folder / name, dtype="float32")
        assert rate == SAMPLE_RATE
        found.append(Sentence(text, samples))
    return found


@pytest.fixture(scope="session")
def films(part) -> list[Path]:
    """Four films, of which the longest has some thousand frames."""
    return sorted(part("footage").glob("*.mp4"))
