"""What the tests of commands share."""

from typing import Any

import pytest

from reelscribe.cli import runs


@pytest.fixture
def started(monkeypatch) -> dict[str, Any]:
    """What the last run was started with: `run`, `cues`, and what each track was given, as `captions` and the like."""
    last = {}

    def run_command(run, cues, tracks):
        made = {track.func.__name__.removeprefix("open_"): track.args for track in tracks}
        last.update(run=run, cues=cues, **made)

    monkeypatch.setattr(runs, "run_command", run_command)
    return last
