"""What tests of runs over many machines share: small sources, and runs that fail where they hang."""

from pathlib import Path

import numpy as np
import pytest

from support.videos import write_pictures

LEVELS = range(40, 240, 20)


@pytest.fixture(scope="session")
def sources(tmp_path_factory) -> Path:
    """A folder of videos of one frame, each of another grey, which is its name: 40.mkv to 220.mkv."""
    folder = tmp_path_factory.mktemp("sources")
    for level in LEVELS:
        write_pictures(folder / f"{level}.mkv", "libx264", [np.full((16, 16, 3), level, np.uint8)])
    return folder
