"""Media: what differs between frames, clips, chunks of audio and shots. A track is given one.

A medium defines four things, in a file of its own. A subclass of `Options` has options, and what follows from them. A
subclass of `Medium` has the command with which a decode process reads a source; the operation with which a model
answers its items; and how answers become saved results and, at the end, a verdict on the source. A subclass of `Track`
only puts them together for programs. All else is the same for all media, and in `track.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from reelscribe.client.operations import Operation
from reelscribe.contract.descriptions import ModelDescription
from reelscribe.contract.fields import check_options
from reelscribe.contract.outcomes import SourceError, Utterance
from reelscribe.contract.source import Section, Source
from reelscribe.decode_pool.commands import ReadCommand, request_bytes
from reelscribe.decode_pool.pool import STALL_SECONDS, DecodePool
from reelscribe.errors import ReelscribeError, RequestRefused, UsageError
from reelscribe.reporting.formatting import count
from reelscribe.reporting.units import UNITS, Counts
from reelscribe.results.batches import SavedBatch
from reelscribe.results.jobs import Job, SavedSource
from reelscribe.results.records import Kind, Model
from reelscribe.run.store import Store
from reelscribe.thumbnails.store import ThumbnailTask


@dataclass(frozen=True)
class FollowUp:
    """What is asked about the items of a batch once they are answered, while their slot is still held."""

    asked: Mapping[int, Any]
    """What is asked, by the numbers of the items that it is about; may be empty."""
    merge: Callable[[Any, Any], Any] = lambda _, second: second
    """Returns the answer to an item from its answer so far and the second one, or the RequestRefused in its place."""
    medium: Medium | None = None
    """The medium with the options of the question, which joins the first requests of sources that have these; None for
    the options of the source."""
    of_second_model: Callable[[], Operation[Any, Any]] | None = None
    """Returns the operation that the second model of the track is asked for; None if the first is asked again."""


@dataclass(frozen=True, kw_only=True)
class Options(ABC):
    """The options of a track. The methods take the description of its model; None if it has none."""

    medium: ClassVar[type[Medium]]
    """The medium that these are the options of."""
    per_source: ClassVar[frozenset[str]] = frozenset()
    """Names of those that a list may choose for a single source, which are those of the command."""

    stall_seconds: float = STALL_SECONDS
    """Seconds without a heartbeat after which a decode process is killed."""
    retry_failed: bool = False
    """True if sources that ended with an error in an earlier run are tried again."""

    def __post_init__(self) -> None:
        check_options(self)

    def for_source(self, values: Mapping[str, Any]) -> Self:  # noqa: ARG002 - few media have such options
        """Return the options with those of one source in their place.

        Args:
            values: A value for some of `per_source`, as it came in a list: a text for each, or parsed JSON.

        Raises:
            UsageError: A value has another type, or is out of range.
        """
        return self

    @property
    def request_key(self) -> Hashable:
        """What must be equal in the options of sources so that their items may be in one request."""
        return None

    @property
    def second_model(self) -> str | None:
        """Name of another model on the same servers that is asked about answers; None if there is none."""
        return None

    @property
    @abstractmethod
    def workers(self) -> int | None:
        """Number of decode processes; None to decide it by the cores; 0 if no media are read."""

    @property
    def needs_transcript(self) -> bool:
        """True if results depend on what is said in a source."""
        return False

    @property
    def needs_shots(self) -> bool:
        """True if results depend on the shots that another track finds."""
        return False

    @property
    def needs(self) -> set[Kind]:
        """The kinds of annotations of other tracks that results depend on, where the run makes them."""
        needs: dict[Kind, bool] = {"transcript": self.needs_transcript, "shots": self.needs_shots}
        return {kind for kind, is_needed in needs.items() if is_needed}

    @property
    def made_anew_with(self) -> set[Kind]:
        """The kinds of annotations of other tracks with which results are made anew, such as when a source is retried.

        What has been made of a part of them would otherwise stay, as only the settings of a source make another job.
        """
        return set()

    def reads_little(self, size: int) -> bool:  # noqa: ARG002 - most media are read to their ends
        """Return whether little of a source of this size is read, so that ranges of it are fetched, and not all of it.

        Args:
            size: Its size in bytes.
        """
        return False

    def check_needs(self, kinds: Collection[Kind]) -> None:
        """Raise UsageError if the run lacks a track without which this one has nothing to go on.

        Args:
            kinds: Those of `needs` that the run makes.
        """
        if self.needs_shots and "shots" not in kinds:
            raise UsageError("shots of a model: expected a track that finds them in the same run, got none")
        if self.needs_transcript and "transcript" not in kinds:
            raise UsageError("prompt: {transcript} needs a transcript; use `reelscribe annotate`, or leave it out")

    @abstractmethod
    def settings(self, description: Any) -> dict[str, Any]:
        """Return everything except the weights that decides the results, as JSON. It is part of the key of a job.

        Raises:
            UsageError: An option is out of range, or the model does not support it.
        """

    def item_bytes(self, description: Any) -> int:  # noqa: ARG002 - few items have no size
        """Return the size of the largest item, in bytes."""
        return 1

    def batch_size(self, description: Any) -> int:  # noqa: ARG002 - few items have no size
        """Return the largest number of items in one request, regardless of its size in bytes."""
        return 1

    def slot_bytes(self, description: Any) -> int:
        """Return the size of a slot of shared memory, which holds the frames or samples of a request, in bytes."""
        return request_bytes(self.item_bytes(description), self.batch_size(description))

    def pool(self, workers: int, description: Any, requests_in_flight: int) -> DecodePool:
        """Create the decode pool for a model.

        Args:
            workers: Number of its processes.
            description: The model. Its largest item determines the size of a slot.
            requests_in_flight: Largest number of requests in flight. The pool has a slot for each, besides those that
                are being filled.
        """
        slot_bytes = self.slot_bytes(description)
        return DecodePool(workers, slot_bytes, requests_in_flight, stall_seconds=self.stall_seconds)


class Medium(ABC):
    """One kind of annotations, with the options and the model of a track."""

    kind: ClassVar[Kind]
    """The kind of annotations."""
    counts: ClassVar[Counts]
    """Unit in which progress is counted."""
    item: ClassVar[str | None] = None
    """Name of an item of a request, in the singular; None if there are no requests."""
    extras: ClassVar[frozenset[str]] = frozenset()
    """Names of the settings that, when they are on, only add something to results."""
    keeps_thumbnails: ClassVar[bool] = False
    """True if decode processes can keep thumbnails of the frames that they decode."""
    description_type: ClassVar[type[ModelDescription] | None] = None
    """The description of the model; None if none is needed."""
    detector: ClassVar[Model] = Model("", "")
    """Name and version of the code that makes the results, if no model is needed."""

    def __init__(self, options: Any, description: Any, second: Any = None) -> None:
        """Take the options, and the descriptions of the model and of `Options.second_model`; None if not needed."""
        self.options, self.description, self.second = options, description, second

    def for_source(self, values: Mapping[str, Any]) -> Self:
        """Return the medium with the options of one source in place of its own; see `Options.for_source`."""
        return type(self)(self.options.for_source(values), self.description, self.second)

    def settings(self) -> dict[str, Any]:
        """Return what decides the results besides the weights of the model; see `Options.settings`."""
        settings: dict[str, Any] = self.options.settings(self.description)
        return settings

    @property
    def model(self) -> Model:
        """Name and revision of the model, or else of the code that makes the results."""
        return Model(self.description.name, self.description.revision) if self.description else self.detector

    @classmethod
    def needs_audio(cls) -> bool:
        """Return whether recordings without pictures are sources, too."""
        return not UNITS[cls.counts].pictures

    @property
    def choice(self) -> str:
        """Name of the part of a source that is taken."""
        return self.kind

    @property
    def items_per_count(self) -> float:
        """Number of frames, clips or samples in one of what `counts` names."""
        return 1.0

    def likely_items(self, seconds: float, frames_per_second: float) -> float | None:  # noqa: ARG002 - nobody can tell
        """Return how many items a source of this duration and frame rate likely has; None if nobody can tell."""
        return None

    def read(
        self,
        source: Source,
        shots: Sequence[Section] | None,
        thumbnails: ThumbnailTask | None,
        utterances: Sequence[Utterance],
    ) -> ReadCommand[Any, Any]:
        """Return the command with which a decode process reads a source.

        Args:
            source: The source.
            shots: Its shots, in order; None if they are not known.
            thumbnails: Which thumbnails to keep; None for none.
            utterances: Everything that is said in it, in the order of time, if `Options.needs_transcript`.
        """
        raise NotImplementedError

    def operation(self) -> Operation[Any, Any] | None:
        """Return the operation with which the model answers the items of batches; None if it needs no model."""
        return None

    def follow_ups(self, items: Any, answers: Sequence[Any]) -> Iterable[FollowUp]:  # noqa: ARG002 - few ask again
        """Return what is asked once the items of a batch are answered, one after the other.

        Args:
            items: The items.
            answers: The answer to each so far, which the next follow-up finds as the last one has left it.
        """
        return ()

    def results(self, batch: Any, answers: Sequence[Any]) -> SavedBatch:
        """Return the results of a decoded batch, as the ledger keeps them.

        Args:
            batch: The batch.
            answers: The answer to each of its items, or the RequestRefused because of which it has none.
        """
        raise NotImplementedError

    async def concluded(self, job: Job, store: Store) -> SavedSource | None:  # noqa: ARG002 - few need all batches
        """Return what is known about an opened source once all that it has is saved, if that tells more about it.

        Args:
            job: The job.
            store: The place of its saved batches.
        """
        return None

    @abstractmethod
    def verdict(self, job: Job, failures: dict[str, int]) -> SourceError | None:
        """Return the error that a job ends with after its last request; None if it has all results.

        Args:
            job: The job.
            failures: The number of failed frames, clips or chunks by reason.
        """


def incomplete(job: Job, items: str) -> SourceError:
    """Return the error of a job for which a decode process has skipped frames or samples.

    Args:
        job: The job.
        items: "frames" or "samples".
    """
    left = ", ".join(f"{span.first} to {span.stop}" for span in job.missing)
    return SourceError(
        "MediaError", f"incomplete: nothing is known of the {items} {left}; try again with --retry-failed"
    )


def unanswered(
    failures: Mapping[str, int], item: str, lacks: str, error: type[ReelscribeError] = RequestRefused
) -> SourceError | None:
    """Return the error of a job with items that have no answer; None if there are none.

    Args:
        failures: Why items have none, and how many for each reason.
        item: Name of an item, such as "clip".
        lacks: Name of the missing answer, such as "description".
        error: Class of the error.
    """
    if not failures:
        return None
    number, reason = sum(failures.values()), next(iter(failures))
    noun, _, of = item.partition(" ")
    items = f"{count(number, noun)}{of and f' {of}'} {'has' if number == 1 else 'have'}"
    return SourceError(error.__name__, f"{items} no {lacks}: {reason}")
