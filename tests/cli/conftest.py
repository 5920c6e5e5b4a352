"""Fixtures for the tests of commands."""

from collections.abc import Iterator
from typing import Any

import pytest

from reelscribe._track_specs import PictureSpec, TrackSpec
from reelscribe.cli import run_commands
from reelscribe.run.tracks.captions import CaptionOptions
from reelscribe.run.tracks.clips import ClipOptions
from reelscribe.run.tracks.shots import LearnedShotOptions, ShotOptions
from reelscribe.run.tracks.speakers import SpeakerOptions
from reelscribe.run.tracks.summaries import SummaryOptions
from reelscribe.run.tracks.transcripts import SpeechOptions


@pytest.fixture
def started(monkeypatch) -> dict[str, Any]:
    """The arguments of the last run, and the specification of each track by its kind of options."""
    last = {}

    def opened(track: TrackSpec) -> Iterator[TrackSpec]:
        if isinstance(track, PictureSpec):  # a track that is chosen when the server is asked
            yield from (track.captions, track.clips)
        else:
            yield track

    def run_command(run, cluster, subtitles, cues, tracks, thumbnails=0):
        last.update(
            run=run,
            subtitles=subtitles,
            cues=cues,
            thumbnails=thumbnails,
            **{NAMES[type(each.options)]: each for track in tracks for each in opened(track)},
        )

    monkeypatch.setattr(run_commands, "run_command", run_command)
    return last


NAMES = {
    CaptionOptions: "captions",
    ClipOptions: "clips",
    SpeechOptions: "transcripts",
    ShotOptions: "shots",
    LearnedShotOptions: "shots",
    SpeakerOptions: "speakers",
    SummaryOptions: "summaries",
}
