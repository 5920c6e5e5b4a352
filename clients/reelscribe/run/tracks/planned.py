"""Tracks as the driver of a run plans with them: what they take from sources, and which earlier results they keep.

A node makes one of each of its tracks, with the description of the model that it has found, for a driver that may be on
another machine and has no connection to the model. A list may choose some options for a single source: `for_source`
returns the tracks with these in place of the run's, so that all that follows from options is the same as in a run with
them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from reelscribe.contract.outcomes import SourceError
from reelscribe.results.records import Kind
from reelscribe.results.schema import settings_text
from reelscribe.run.tracks.medium import Medium, Options


@dataclass(frozen=True)
class PlannedTrack:
    """A track, as far as the driver of a run knows it."""

    medium: Medium
    """The medium with its options and the description of the model."""
    workers: int
    """Number of its decode processes."""
    why_workers: str = ""
    """Why it has so many, in words; empty if the user has chosen all processes of the run."""
    needed: Mapping[Kind, PlannedTrack] = field(default_factory=dict)
    """The tracks of the run that it depends on; `resolved` finds them."""

    @property
    def kind(self) -> Kind:
        """The kind of annotations that it makes."""
        return self.medium.kind

    @property
    def options(self) -> Options:
        """Its options."""
        options: Options = self.medium.options
        return options

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The model with its settings, by which the ledger knows its jobs, as JSON.

        It raises UsageError if an option is out of range, or the model does not support it.
        """
        model = self.medium.model
        settings = {"model": [model.name, model.revision], **self.medium.settings()}
        for kind, track in self.needed.items():
            # A transcript with the times of words, for example, tells better which of them are in a clip.
            extras = {name: track.settings[name] for name in track.extras}
            settings |= {kind: track.without_extras(track.settings), **extras}
        return settings

    @cached_property
    def settings_text(self) -> str:
        """The settings, as the ledger keeps them."""
        return settings_text(self.settings)

    @property
    def extras(self) -> frozenset[str]:
        """Names of the settings that, when they are on, only add something to results."""
        return self.medium.extras.union(*(track.extras for track in self.needed.values()))

    @property
    def speed_key(self) -> str:
        """Key in the state of a run for everything that its speed depends on."""
        digest = hashlib.sha256(self.settings_text.encode()).hexdigest()[:16]
        return f"{self.medium.counts}, {digest}, {self.workers} processes"

    def keeps(self, settings: Mapping[str, Any], error_type: str | None, *, is_needed: bool) -> bool:
        """Return whether the run keeps a result with other settings that a record shows.

        It keeps what has all that its own result would have, and more. With `retry_failed`, it keeps all that did not
        fail and that nothing is made of.

        Args:
            settings: The model with its settings of that result, as JSON.
            error_type: Type of the error that it ended with; None if it ended well.
            is_needed: Whether another track of the run has something to do that depends on it.
        """
        if error_type is not None and not SourceError(error_type, "").is_missing_stream:
            return False
        if self.options.retry_failed and not is_needed:
            return True
        has_extras = all(settings.get(name) or not self.settings.get(name) for name in self.extras)
        return has_extras and not self.differences(settings)

    def differences(self, settings: Mapping[str, Any]) -> list[str]:
        """Return the names of the settings that make another result of what has these settings, not only add to it.

        Args:
            settings: The model with its settings of another result, as JSON.
        """
        ours, theirs = self.without_extras(self.settings), self.without_extras(settings)
        return sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))

    def retries(self, error_type: str | None) -> bool:
        """Return whether a job is tried again that an earlier run has ended with an error of this type, or None."""
        return (
            self.options.retry_failed and error_type is not None and not SourceError(error_type, "").is_missing_stream
        )

    def without_extras(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings without those that only add something to results."""
        return {name: value for name, value in settings.items() if name not in self.extras}


def resolved(tracks: Sequence[PlannedTrack]) -> list[PlannedTrack]:
    """Return the tracks of a run, each with those that it depends on.

    Raises:
        UsageError: A track needs another one, which is not there.
    """
    known: dict[Kind, PlannedTrack] = {}
    # What a track depends on, and so its settings, must be known before those that depend on it.
    for track in sorted(tracks, key=lambda track: len(track.options.needs)):
        needed = {kind: other for kind, other in known.items() if kind in track.options.needs}
        track.options.check_needs(needed)
        known[track.kind] = replace(track, needed=needed)
    return [known[track.kind] for track in tracks]


def options_in(extra: str | None, tracks: Sequence[PlannedTrack]) -> str:
    """Return the options that a list chooses for a source, as far as a run has them.

    Args:
        extra: What the list says of the source besides its name, as a JSON object; None if it says nothing.
        tracks: The tracks of the run.

    Returns:
        The cells that are not empty of the columns that are named like such an option, as a JSON object; an empty text
        if there are none.
    """
    if extra is None:
        return ""
    columns = json.loads(extra)
    names = frozenset().union(*(track.options.per_source for track in tracks))
    chosen = {name: columns[name] for name in sorted(names) if columns.get(name) not in (None, "")}
    return json.dumps(chosen) if chosen else ""


def for_source(tracks: Sequence[PlannedTrack], options: str) -> Sequence[PlannedTrack]:
    """Return the tracks of a run with the options of one source in place of the run's.

    Args:
        tracks: The tracks of the run.
        options: The options of the source, as `options_in` returns them.

    Raises:
        UsageError: An option is out of range, the model does not support it, or the run lacks what it needs.
    """
    if not options:
        return tracks
    values = json.loads(options)
    return resolved([replace(track, medium=track.medium.for_source(values)) for track in tracks])
