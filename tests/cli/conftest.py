"""What the tests of commands share."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from reelscribe.cli import runs


@pytest.fixture
def started(monkeypatch) -> dict[str, Any]:
    """What the last run was started with: `run`, `cues`, and what each track was given, as `captions` and the like."""
    last = {}

    def opened(track: partial) -> Iterator[partial]:
        yield track
        for choice in track.args:  # a track that is chosen when the server is asked
            if isinstance(choice, partial):
                yield from opened(choice)

    def run_command(run, cues, tracks):
        made = {each.func.__name__.removeprefix("open_"): each.args for track in tracks for each in opened(track)}
        last.update(run=run, cues=cues, **made)

    monkeypatch.setattr(runs, "run_command", run_command)
    return last
