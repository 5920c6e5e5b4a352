"""A track as the driver of a run plans with it: what it takes from sources, and which earlier results it keeps.

A node makes one of each of its tracks, with the settings of the model that it has found. It can be sent to a driver on
another machine, which has no connection to the model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from reelscribe.contract.outcomes import SourceError
from reelscribe.results.records import Kind
from reelscribe.run.tracks.medium import Medium


@dataclass(frozen=True)
class PlannedTrack:
    """A track, as far as the driver of a run knows it."""

    medium: Medium
    """The medium with its options and the description of the model."""
    settings_text: str
    """The JSON of the model with its settings, under which the ledger keeps its jobs."""
    extras: frozenset[str]
    """Names of the settings that, when they are on, only add something to results."""
    workers: int
    """Number of its decode processes."""
    retry_failed: bool
    """True if sources are tried again that ended with an error in an earlier run."""

    @property
    def kind(self) -> Kind:
        """The kind of annotations that it makes."""
        return self.medium.kind

    @property
    def costs_key(self) -> str:
        """Key in the state of a run for everything that the costs of sources depend on."""
        digest = hashlib.sha256(self.settings_text.encode()).hexdigest()[:16]
        return f"{self.medium.counts}, {digest}, {self.workers} processes"

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The model with its settings, as JSON."""
        return dict(json.loads(self.settings_text))

    def keeps(self, settings: Mapping[str, Any], error_type: str | None) -> bool:
        """Return whether the run keeps a result with other settings that a record shows.

        It keeps what has all that its own result would have, and more. With `retry_failed`, it keeps all that did not
        fail.

        Args:
            settings: The model with its settings of that result, as JSON.
            error_type: Type of the error that it ended with; None if it ended well.
        """
        if error_type is not None and not SourceError(error_type, "").is_missing_stream:
            return False
        if self.retry_failed:
            return True
        has_extras = all(settings.get(name) or not self.settings.get(name) for name in self.extras)
        return has_extras and not self.differences(settings)

    def differences(self, settings: Mapping[str, Any]) -> list[str]:
        """Return the names of the settings that make another result of what has these settings, not only add to it.

        Args:
            settings: The model with its settings of another result, as JSON.
        """
        ours, theirs = self._without_extras(self.settings), self._without_extras(settings)
        return sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))

    def retries(self, error_type: str | None) -> bool:
        """Return whether a job is tried again that an earlier run has ended with an error of this type, or None."""
        return self.retry_failed and error_type is not None and not SourceError(error_type, "").is_missing_stream

    def _without_extras(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in settings.items() if name not in self.extras}
