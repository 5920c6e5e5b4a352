"""Summaries: a chat model makes a title, a summary and keywords of what was seen and said in a source.

It is told the texts that the other tracks of the run have made, a line for each, in the order of time. Of a source
that has more of them than the model takes at once, parts are summarised one after the other, and then their summaries,
until one request holds all. No media are read.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, NamedTuple

from reelscribe.client.models import ModelClient
from reelscribe.client.operations import Operation, chatting
from reelscribe.contract.clips import ClipDescription
from reelscribe.contract.descriptions import ChatModelDescription
from reelscribe.contract.outcomes import Segment, SourceError, SourceSummary
from reelscribe.errors import AnswerRefused, RequestRefused, ServerError, UsageError
from reelscribe.reporting.units import Counts
from reelscribe.results.batches import SavedSummaryBatch
from reelscribe.results.jobs import Job
from reelscribe.results.records import Kind
from reelscribe.run.tracks.medium import FollowUp, Medium, Options, incomplete
from reelscribe.run.tracks.prompts import ask_again, read_answer, without_special_tokens
from reelscribe.run.tracks.track import Assignment, Siblings, Track

BYTES_PER_TOKEN = 2
"""Number of bytes of UTF-8 that count as one token of a prompt. English has about 4 for each token, and Chinese,
Japanese and Korean have 2 to 3; only what is mostly digits, or of a rare script, may have fewer."""

TEMPLATE_TOKENS = 64
"""Number of tokens that are left for what the chat template of a model adds."""

LEAST_BYTES = 500
"""Fewest bytes of texts in a request. A model that takes fewer is refused."""

MOST_HALVINGS = 4
"""How often a part of the texts is halved that the server refuses as too long although it should not be."""

SUMMARY_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "summary": {"type": "string"},
        "keywords": {"type": "array", "items": {"type": "string"}, "maxItems": 10},
    },
    "required": ["title", "summary", "keywords"],
    "additionalProperties": False,
}
"""JSON schema of answers. It has only what all servers understand."""

SUMMARY_PROMPT = """\
Each line tells what is seen or said in a video or recording, with its time in seconds, in the order of time.

{lines}

Summarise the whole video or recording as a JSON object with "title", a title of a few words; "summary", a summary of \
three sentences; and "keywords", a list of ten keywords. Use only what the lines tell."""
"""The question to the model, with the lines of texts in place of its field."""

_TEXTS: dict[Kind, str] = {"captions": "seen", "clips": "seen", "transcript": "said"}
"""The kinds of annotations that are texts, with the word for what they tell."""

_QUOTED_BYTES = 300
"""The most bytes of a refused answer, and of the reason, that are quoted to the model."""
_AGAIN_BYTES = 2 * _QUOTED_BYTES + len(ask_again("", "", ""))
"""The most bytes by which the prompt for one more try is longer."""
_TOO_LONG = re.compile(r"context|length|tokens|too (long|large|many)", re.IGNORECASE)
_UNUSABLE = "the answer cannot be used"


class TextLine(NamedTuple):
    """A text with its time, as the model is told it."""

    start: float
    """Presentation time at which it starts, in seconds."""
    end: float
    """Presentation time at which it ends, in seconds."""
    what: str
    """What it tells: "seen", "said" or "summary"."""
    text: str

    def __str__(self) -> str:
        return f"{_seconds(self.start)}-{_seconds(self.end)} s, {self.what}: {self.text}"

    @property
    def nbytes(self) -> int:
        """Size in a prompt, with the end of the line."""
        return len(str(self).encode()) + 1


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}".removesuffix(".0")


def lines_of(texts: Mapping[Kind, Iterable[Segment]]) -> list[TextLine]:
    """Return the lines that tell what is seen and said, in the order of time. Empty texts have none.

    Args:
        texts: The texts of each kind.
    """
    lines = [
        TextLine(each.start, each.end, _TEXTS[kind], text)
        for kind, segments in texts.items()
        for each in segments
        if (text := _on_one_line(each.text))
    ]
    return sorted(lines, key=lambda line: (line.start, line.end, line.what))


def _on_one_line(text: str) -> str:
    """Return a text on one line, without what is not Unicode and what may be taken for special tokens."""
    return without_special_tokens(" ".join(text.encode("utf-8", "replace").decode().split()))


def parts_of(lines: Iterable[TextLine], most_bytes: int) -> list[list[TextLine]]:
    """Divide lines into parts that fit into a request each; a line that is longer becomes several.

    Args:
        lines: The lines, in the order of time.
        most_bytes: Largest size of a part in bytes, at least 100.
    """
    parts, room = list[list[TextLine]](), 0
    for piece in chain.from_iterable(_pieces_of(line, most_bytes) for line in lines):
        if piece.nbytes > room:
            parts.append([])
            room = most_bytes
        parts[-1].append(piece)
        room -= piece.nbytes
    return parts


def _pieces_of(line: TextLine, most_bytes: int) -> Iterator[TextLine]:
    """Yield the line, or several with its time if it has more bytes."""
    room = most_bytes - line._replace(text="").nbytes
    left = line.text
    while piece := shortened(left, room):
        yield line._replace(text=piece)
        left = left[len(piece) :]


def shortened(text: str, most_bytes: int) -> str:
    """Return the beginning of a text that has at most so many bytes of UTF-8, with whole characters."""
    return text.encode("utf-8", "replace")[:most_bytes].decode(errors="ignore")


def most_bytes_of(description: ChatModelDescription) -> int:
    """Return the largest size of the texts in a request, in bytes; it may be negative.

    A prompt with them, also that of one more try after a refused answer, fits into the model together with the longest
    answer, if BYTES_PER_TOKEN bytes or more make a token.
    """
    tokens = description.context_tokens - int(description.generation["max_tokens"]) - TEMPLATE_TOKENS
    return BYTES_PER_TOKEN * tokens - len(SUMMARY_PROMPT) - _AGAIN_BYTES


def prompt_of(lines: Iterable[TextLine]) -> str:
    """Return the question about lines."""
    return SUMMARY_PROMPT.replace("{lines}", "\n".join(map(str, lines)))


def read_summary(answer: str) -> SourceSummary:
    """Read the answer of a model. Raises AnswerRefused if it does not fit SUMMARY_SCHEMA, or says nothing."""
    value = read_answer(answer, SUMMARY_SCHEMA)
    if not value["summary"].strip():
        raise AnswerRefused("its summary is empty")
    return SourceSummary(value["title"], value["summary"], tuple(value["keywords"]))


class SummaryMedium(Medium):
    """The summary of a source, one for each."""

    kind: ClassVar[Kind] = "summary"
    counts: ClassVar[Counts] = "summaries"
    item: ClassVar[str] = "source"
    description_type = ChatModelDescription

    options: SummaryOptions
    description: ChatModelDescription

    @classmethod
    def needs_audio(cls) -> bool:
        """Return False: the other tracks of the run decide what sources are."""
        return False

    @property
    def choice(self) -> str:
        """Name of what is made of a source."""
        return "summaries"

    def likely_items(self, seconds: float, frames_per_second: float) -> float | None:  # noqa: ARG002 - one for each
        """Return the number of summaries of a source."""
        return 1.0

    def operation(self) -> Operation[Sequence[str], ClipDescription]:
        """Return the operation that asks for a summary."""
        return chatting(self.description, SUMMARY_SCHEMA)

    def follow_ups(
        self, items: Sequence[str], answers: Sequence[ClipDescription | RequestRefused]
    ) -> Sequence[FollowUp]:
        """Ask once more for summaries that cannot be used."""
        return [FollowUp(self._retries(items, answers))]

    def _retries(self, items: Sequence[str], answers: Sequence[ClipDescription | RequestRefused]) -> Mapping[int, str]:
        """Return the prompts whose answers do not fit the schema, with the reason why."""
        again = {}
        for k, answer in enumerate(answers):
            if isinstance(answer, RequestRefused):
                continue
            try:
                read_summary(answer.text)
            except AnswerRefused as error:
                quoted = without_special_tokens(answer.text)
                reason = without_special_tokens(str(error))
                again[k] = ask_again(items[k], shortened(quoted, _QUOTED_BYTES), shortened(reason, _QUOTED_BYTES))
        return again

    def verdict(self, job: Job, failures: dict[str, int]) -> SourceError | None:
        """Return an error if the model has made no summary of texts that there are."""
        if job.total is None or job.missing:
            return incomplete(job, "summaries")
        if not failures:
            return None
        reason = next(iter(failures))
        error = AnswerRefused if reason.startswith(_UNUSABLE) else RequestRefused
        return SourceError(error.__name__, f"no summary: {reason}")


@dataclass(frozen=True)
class SummaryOptions(Options):
    """How to ask for summaries. They are made of the texts of all other tracks of the run."""

    medium: ClassVar[type[Medium]] = SummaryMedium

    @property
    def workers(self) -> int:
        """Return 0, as no media are read."""
        return 0

    @property
    def needs(self) -> set[Kind]:
        """The kinds of annotations that are texts."""
        return {*_TEXTS}

    @property
    def made_anew_with(self) -> set[Kind]:
        """The same: the summary of a source whose failed clips are tried again would be one of the others alone."""
        return self.needs

    def check_needs(self, kinds: Collection[Kind]) -> None:
        """Raise UsageError if the run has no other track that makes texts."""
        if not kinds:
            raise UsageError("summary: expected captions, clips or a transcript in the same run, got none of them")

    def settings(self, description: ChatModelDescription) -> dict[str, Any]:
        """Return everything except the weights and the texts that decides the summary, as JSON.

        Raises:
            UsageError: The model takes too few tokens.
        """
        if (most_bytes := most_bytes_of(description)) < LEAST_BYTES:
            lacking = -(-(LEAST_BYTES - most_bytes) // BYTES_PER_TOKEN)
            raise UsageError(
                f"summary: expected a model that takes at least {description.context_tokens + lacking} tokens, got"
                f" {description.name}, which takes {description.context_tokens}; name another one"
            )
        generation = description.generation
        return {
            **description.numerics(),
            "prompt": SUMMARY_PROMPT,
            "json_schema": SUMMARY_SCHEMA,
            "most_bytes": most_bytes,
            "generation": {name: generation[name] for name in ("max_tokens", "temperature", "seed", "served")},
        }


class SummaryTrack(Track):
    """Makes a summary of each source: a `Track` with a chat model, beside others that make texts."""

    options: SummaryOptions

    def __init__(self, client: ModelClient[ChatModelDescription], options: SummaryOptions | None = None) -> None:
        """Create a track.

        Args:
            client: The open client of the chat model.
            options: Whether to try again what has failed.
        """
        super().__init__(options or SummaryOptions(), client)

    async def work(self, assigned: Assignment, job: Job, siblings: Siblings | None = None) -> Job:
        """Wait for the texts of the other tracks, ask for a summary of them, and save it; see `Track.work`."""
        assert siblings, "a summary is made in a run"
        with self._meter.during("depending"):
            texts = await siblings.texts(_TEXTS)
        if job.missing:
            saved = await self._batch(assigned.source.path, lines_of(texts))
            await asyncio.gather(self._store.save_opened(job.id, None, 1), self._store.save_batch(job.id, saved))
            self._meter.made(assigned.source.path, saved.amount, saved.unsent)
        return await self._ended(assigned)

    async def _batch(self, path: str, lines: Sequence[TextLine]) -> SavedSummaryBatch:
        """Return the summary of lines, or why there is none, as the ledger keeps it."""
        self.raise_if_stopping()
        if not lines:
            return SavedSummaryBatch(0, 1)
        self._meter.begun(path)
        try:
            most_bytes = most_bytes_of(self.planned.medium.description)
            return SavedSummaryBatch(0, 1, summary=await self._summarise(lines, most_bytes))
        except RequestRefused as refusal:
            return SavedSummaryBatch(0, 1, failure=str(refusal))
        except AnswerRefused as error:
            return SavedSummaryBatch(0, 1, failure=f"{_UNUSABLE}: {error}")
        except ServerError:
            self.raise_if_stopping()
            raise

    async def _summarise(
        self, lines: Sequence[TextLine], most_bytes: int, halvings: int = MOST_HALVINGS
    ) -> SourceSummary:
        """Return the summary of lines, in steps if they have more than `most_bytes` bytes.

        Raises:
            RequestRefused, AnswerRefused: The model makes no summary of a part of them.
        """
        while len(parts := parts_of(lines, most_bytes)) > 1:
            # Four summaries fit into a request, so each step leaves fewer lines.
            lines = [self._line_of(part, await self._ask(part, halvings), most_bytes // 4) for part in parts]
        return await self._ask(parts[0], halvings)

    def _line_of(self, part: Sequence[TextLine], summary: SourceSummary, most_bytes: int) -> TextLine:
        """Return the line with the summary of a part."""
        line = TextLine(part[0].start, max(line.end for line in part), "summary", "")
        return line._replace(text=shortened(_on_one_line(summary.text), most_bytes - line.nbytes))

    async def _ask(self, part: Sequence[TextLine], halvings: int) -> SourceSummary:
        """Return the summary of a part, with several requests if the server refuses it as too long."""
        self.raise_if_stopping()
        prompt = [prompt_of(part)]
        medium = self.planned.medium
        (answer,) = await self._followed_up(medium, prompt, await (await self._requests(medium).add(prompt)))
        if not isinstance(answer, RequestRefused):
            return read_summary(answer.text)
        half = sum(line.nbytes for line in part) // 2
        if not (halvings and half >= LEAST_BYTES and _is_too_long(answer)):
            raise answer
        return await self._summarise(part, half, halvings - 1)


def _is_too_long(refusal: RequestRefused) -> bool:
    """Return whether a server has refused a text because of its length, as far as its message tells."""
    return refusal.status == 413 or (refusal.status in (400, 422) and bool(_TOO_LONG.search(str(refusal))))
