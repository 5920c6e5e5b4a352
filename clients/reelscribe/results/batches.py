"""Saved batches: the results of successive frames or samples of a source, as the ledger keeps them.

The ledger keeps the results of a batch as three JSON lists. The third list holds the failures, and the third item of
each failure is its reason: the ledger's SQL counts the failures and finds the batches to retry by these positions.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple

from reelscribe.contract.fields import check_types, read_confidence, read_count, read_list, read_number, read_text
from reelscribe.contract.outcomes import (
    AudioResult,
    Caption,
    ClipFailure,
    ClipResult,
    DescribedClip,
    Failure,
    FrameResult,
    Silence,
    SourceSummary,
    SpeechFailure,
    Translation,
    Utterance,
)
from reelscribe.contract.speech import ChunkTranscript, Word

UNDECODABLE = "it cannot be decoded"
"""The reason that the ledger and the records give for a frame that the decoder could not decode."""

_DECIMALS = 3
"""Decimals of the times of segments, in seconds."""

_TOUCHING_SECONDS = 1e-5  # times are rounded to microseconds, so adjacent chunks may overlap or be a little apart


@dataclass(frozen=True)
class SavedBatch(ABC):
    """A batch in the ledger: the base of frame batches, clip batches, audio batches and summaries."""

    first: int
    """Ordinal of the first chosen frame, or number of the first sample, of the batch."""
    stop: int
    """The number after that of the last frame or sample."""
    anchor: int | None = None
    """Index of the last frame, in this batch or before it, that was sent to the captioner; None for audio."""

    def results_to_json(self) -> str:
        """Return the three lists of results as JSON."""
        # In ASCII: a model's text may hold half a surrogate pair, which SQLite does not accept.
        return json.dumps(self._lists(), separators=(",", ":"))

    @property
    @abstractmethod
    def amount(self) -> float:
        """Number of frames or clips, or of seconds of audio, that did not fail."""

    @property
    def unsent(self) -> float:
        """Part of `amount` that was not sent to a server."""
        return 0.0

    @property
    def failure_reasons(self) -> list[str]:
        """The reason of each failure."""
        return [failure[2] for failure in self._lists()[2]]

    @abstractmethod
    def _lists(self) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """Return the three lists; the third holds the failures."""


class ReusedFrame(NamedTuple):
    """A frame that gets the caption of a nearly equal frame before it."""

    frame_index: int
    pts_seconds: float
    reused_from: int
    """Index of the frame that was sent to the captioner in place of this one."""


@dataclass(frozen=True)
class SavedFrameBatch(SavedBatch):
    """The results of the chosen frames from ordinal `first` to before `stop`; each frame is in one of three lists."""

    captions: Sequence[Caption] = ()
    """Captions that the model wrote for the frame itself."""
    reused: Sequence[ReusedFrame] = ()
    failures: Sequence[Failure] = ()

    @property
    def amount(self) -> float:
        """Number of frames that have a caption."""
        return len(self.captions) + len(self.reused)

    @property
    def unsent(self) -> float:
        """Number of frames that reuse a caption."""
        return len(self.reused)

    def _lists(self) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        captions = [
            (caption.frame_index, caption.pts_seconds, caption.text, caption.avg_logprob) for caption in self.captions
        ]
        failures = [(failure.frame_index, failure.pts_seconds, failure.error) for failure in self.failures]
        return captions, self.reused, failures

    @classmethod
    def from_json(cls, first: int, stop: int, anchor: int | None, results: str) -> SavedFrameBatch:
        """Restore a batch from a row of the ledger.

        Args:
            first: Ordinal of the first chosen frame of the batch.
            stop: The ordinal after that of the last frame.
            anchor: Index of the last frame that was sent to the captioner.
            results: What `results_to_json` returned.
        """
        captions, reused, failures = json.loads(results)
        _check_count(stop - first, captions, reused, failures)
        return cls(
            first,
            stop,
            anchor,
            captions=[_caption(*row) for row in captions],
            reused=[_reused_frame(*row) for row in reused],
            failures=[failure_from_row(*row) for row in failures],
        )


def _caption(frame_index: int, pts_seconds: float, text: str, avg_logprob: float | None) -> Caption:
    return Caption(
        read_count("frame_index", frame_index),
        read_number("pts_seconds", pts_seconds),
        read_text("text", text),
        avg_logprob=read_confidence("avg_logprob", avg_logprob),
    )


def _reused_frame(frame_index: int, pts_seconds: float, reused_from: int) -> ReusedFrame:
    index, source = read_count("frame_index", frame_index), read_count("reused_from", reused_from)
    return ReusedFrame(index, read_number("pts_seconds", pts_seconds), source)


def failure_from_row(frame_index: int, pts_seconds: float, error: str) -> Failure:
    """Return the failure of a frame from its row in the JSON of a batch. Raises TypeError if it is none."""
    index, seconds = read_count("frame_index", frame_index), read_number("pts_seconds", pts_seconds)
    return Failure(index, seconds, read_text("error", error))


def _check_count(expected: int, *results: Sequence[Any]) -> None:
    """Raise ValueError unless a batch has a result for each of its frames or clips."""
    if sum(map(len, results)) != expected:
        raise ValueError(f"a batch of {expected}: expected a result for each, got {sum(map(len, results))}")


class FrameTimeline:
    """Puts the results of successive batches in the order of their frames."""

    def __init__(self) -> None:
        """Begin before the first batch."""
        self._last: Caption | None = None

    def add(self, batch: SavedFrameBatch) -> list[FrameResult]:
        """Return the result of each frame of the next batch. For a reused frame, that is the caption that it reuses."""
        results: list[FrameResult | ReusedFrame] = [*batch.captions, *batch.reused, *batch.failures]
        results.sort(key=attrgetter("frame_index"))
        return [self._result(result) for result in results]

    def _result(self, result: FrameResult | ReusedFrame) -> FrameResult:
        if isinstance(result, Caption):
            self._last = result
        if not isinstance(result, ReusedFrame):
            return result
        if self._last and self._last.frame_index == result.reused_from:
            return replace(
                self._last,
                frame_index=result.frame_index,
                pts_seconds=result.pts_seconds,
                reused_from=result.reused_from,
            )
        error = f"nearly equal to frame {result.reused_from}, which has no caption"
        return Failure(result.frame_index, result.pts_seconds, error)


def frame_results(batches: Iterable[SavedFrameBatch]) -> Iterator[FrameResult]:
    """Yield the result of each frame of successive batches, in the order of the frames."""
    timeline = FrameTimeline()
    return (result for batch in batches for result in timeline.add(batch))


@dataclass(frozen=True)
class SavedClipBatch(SavedBatch):
    """The results of the clips from number `first` to before `stop`; each clip is in one of two lists."""

    described: Sequence[DescribedClip] = ()
    failures: Sequence[ClipFailure] = ()

    @property
    def amount(self) -> float:
        """Number of clips that have a description."""
        return len(self.described)

    @property
    def seconds(self) -> float:
        """Length of all clips together."""
        clips: list[DescribedClip | ClipFailure] = [*self.described, *self.failures]
        return sum(clip.end - clip.start for clip in clips)

    def _lists(self) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        described = [tuple(vars(clip).values()) for clip in self.described]
        failures = [tuple(vars(failure).values()) for failure in self.failures]
        return described, (), failures

    @classmethod
    def from_json(cls, first: int, stop: int, anchor: int | None, results: str) -> SavedClipBatch:
        """Restore a batch from a row of the ledger.

        Args:
            first: Number of the first clip of the batch.
            stop: The number after that of the last clip.
            anchor: Index of the frame after the last clip.
            results: What `results_to_json` returned.
        """
        described, _, failures = json.loads(results)
        _check_count(stop - first, described, failures)
        clips = [DescribedClip(*row) for row in described]
        failed = [ClipFailure(*row) for row in failures]
        for clip in (*clips, *failed):
            check_types(clip)
        for clip in clips:
            read_confidence("avg_logprob", clip.avg_logprob)
        return cls(first, stop, anchor, described=clips, failures=failed)


def clip_results(batches: Iterable[SavedClipBatch]) -> Iterator[ClipResult]:
    """Yield the result of each clip of successive batches, in the order of the clips."""
    for batch in batches:
        results: list[ClipResult] = [*batch.described, *batch.failures]
        yield from sorted(results, key=attrgetter("start", "end"))


class TimedTranscript(NamedTuple):
    """The transcript of a chunk that lies from `start` to `end`, in seconds of presentation time."""

    start: float
    end: float
    transcript: ChunkTranscript
    speaker: str | None = None
    """Name of the speaker whose channel the chunk is of; None if it is of the audio of all."""


@dataclass(frozen=True)
class SavedAudioBatch(SavedBatch):
    """The results of the samples from `first` to before `stop`; each chunk is in one of three lists.

    A chunk with a transcript about which a second question was refused is in two: that of transcripts, and that of
    failures.
    """

    transcripts: Sequence[TimedTranscript] = ()
    silences: Sequence[Silence] = ()
    failures: Sequence[SpeechFailure] = ()

    @property
    def amount(self) -> float:
        """Number of seconds that are transcribed or silent."""
        return self.unsent + sum(chunk.end - chunk.start for chunk in self.transcripts)

    @property
    def unsent(self) -> float:
        """Number of seconds that are silent."""
        return sum(silence.end - silence.start for silence in self.silences)

    def _lists(self) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        transcripts = [_row(chunk, chunk.transcript.to_json()) for chunk in self.transcripts]
        silences = [_row(silence) for silence in self.silences]
        failures = [_row(failure, failure.error) for failure in self.failures]
        return transcripts, silences, failures

    @classmethod
    def from_json(cls, first: int, stop: int, anchor: int | None, results: str) -> SavedAudioBatch:
        """Restore a batch from a row of the ledger.

        Args:
            first: Number of the first sample of the batch.
            stop: The number after that of the last sample.
            anchor: None.
            results: What `results_to_json` returned.
        """
        transcripts, silences, failures = json.loads(results)
        return cls(
            first,
            stop,
            anchor,
            transcripts=[
                TimedTranscript(*_times(start, end), ChunkTranscript.from_json(value), _speaker(*speaker))
                for start, end, value, *speaker in transcripts
            ],
            silences=[Silence(*_times(start, end), _speaker(*speaker)) for start, end, *speaker in silences],
            failures=[
                SpeechFailure(*_times(start, end), read_text("error", error), _speaker(*speaker))
                for start, end, error, *speaker in failures
            ],
        )


def _row(chunk: TimedTranscript | Silence | SpeechFailure, *result: Any) -> tuple[Any, ...]:
    """Return what the ledger keeps of a chunk: its times, what came of it and, if it has one, its speaker."""
    speaker = () if chunk.speaker is None else (chunk.speaker,)
    return chunk.start, chunk.end, *result, *speaker


def _speaker(name: Any = None) -> str | None:
    return None if name is None else read_text("speaker", name)


def _times(start: float, end: float) -> tuple[float, float]:
    return read_number("start", start), read_number("end", end)


class AudioTimeline:
    """Puts the results of successive batches in the order of time.

    Adjacent silences of a speaker become one, unless others speak meanwhile.

    Batches have the chunks of all speakers in the order in which they start. So what begins before a chunk is complete,
    except a silence, which may continue. Once something has to be returned that begins later, it does not any more.
    """

    def __init__(self) -> None:
        """Begin before the first batch."""
        self._complete: list[AudioResult] = []
        """Results that others may have to come before, as the chunks of other speakers overlap."""
        self._silences: dict[str | None, Silence] = {}
        """The silence of each speaker that may continue in the next chunk."""

    def add(self, batch: SavedAudioBatch) -> list[AudioResult]:
        """Return the results that are known with the next batch; `end` returns the others."""
        chunks: list[TimedTranscript | Silence | SpeechFailure]
        # Of a chunk that has both, the failure begins before what is said.
        chunks = [*batch.failures, *batch.transcripts, *batch.silences]
        results: list[AudioResult] = []
        for chunk in sorted(chunks, key=lambda chunk: (chunk.start, chunk.speaker or "", chunk.end)):
            results += self._before(round(chunk.start, _DECIMALS))
            silence = self._silences.pop(chunk.speaker, None)
            if isinstance(chunk, Silence) and silence and abs(chunk.start - silence.end) < _TOUCHING_SECONDS:
                self._silences[chunk.speaker] = replace(silence, end=chunk.end)
                continue
            self._complete += [silence] if silence else []
            if isinstance(chunk, Silence):
                self._silences[chunk.speaker] = chunk
            elif isinstance(chunk, TimedTranscript):
                self._complete += _spoken(Utterance, chunk, chunk.transcript)
                if chunk.transcript.translation:
                    self._complete += _spoken(Translation, chunk, chunk.transcript.translation)
            else:
                self._complete.append(chunk)
            if chunk.speaker is None:  # there is nothing beside it
                results += self._before(math.inf)
        return results

    def end(self) -> list[AudioResult]:
        """Return the results that are left."""
        results = [*self._before(math.inf), *sorted(self._silences.values(), key=attrgetter("start"))]
        self._silences.clear()
        return results

    def _before(self, seconds: float) -> list[AudioResult]:
        """Return the results that are complete and begin before a time, and the silences that begin before them."""
        results = [result for result in self._complete if result.start < seconds]
        if not results:
            return []
        self._complete = [result for result in self._complete if result.start >= seconds]
        last = max(result.start for result in results)
        ended = [speaker for speaker, silence in self._silences.items() if silence.start <= last]
        results += [self._silences.pop(speaker) for speaker in ended]
        return sorted(results, key=attrgetter("start"))


def audio_results(batches: Iterable[SavedAudioBatch]) -> Iterator[AudioResult]:
    """Yield the results of successive batches in the order of time; adjacent silences become one."""
    timeline = AudioTimeline()
    for batch in batches:
        yield from timeline.add(batch)
    yield from timeline.end()


def _spoken(
    kind: type[Utterance | Translation], chunk: TimedTranscript, transcript: ChunkTranscript
) -> Iterator[Utterance | Translation]:
    """Yield the segments of a transcript with presentation times. Times outside the chunk are moved into it.

    Args:
        kind: What they become.
        chunk: The chunk.
        transcript: Its transcript, or the translation.
    """

    def presentation_time(seconds: float) -> float:
        return round(min(chunk.start + max(0.0, seconds), chunk.end), _DECIMALS)

    def timed(word: Word) -> Word:
        start, end = presentation_time(word.start), presentation_time(word.end)
        return replace(word, start=start, end=end, speaker=chunk.speaker)

    return (
        kind(
            presentation_time(segment.start),
            presentation_time(max(segment.start, segment.end)),
            segment.text,
            transcript.language,
            transcript.no_speech_prob,
            None if segment.words is None else tuple(map(timed, segment.words)),
            segment.avg_logprob,
            chunk.speaker,
            transcript.compression_ratio,
            transcript.language_probability,
        )
        for segment in transcript.segments
        if segment.text
    )


@dataclass(frozen=True)
class SavedSummaryBatch(SavedBatch):
    """The summary of a source, or why there is none; neither, if nothing was seen or said in it."""

    summary: SourceSummary | None = None
    failure: str | None = None
    """The reason why there is no summary although there are texts."""

    @property
    def amount(self) -> float:
        """Number of sources that did not fail."""
        return 0.0 if self.failure else 1.0

    @property
    def unsent(self) -> float:
        """Number of sources without any texts."""
        return self.amount if self.summary is None else 0.0

    def _lists(self) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        summaries = [tuple(vars(self.summary).values())] if self.summary else []
        return summaries, (), [(None, None, self.failure)] if self.failure else []

    @classmethod
    def from_json(cls, first: int, stop: int, anchor: int | None, results: str) -> SavedSummaryBatch:
        """Restore a batch from a row of the ledger.

        Args:
            first: 0, as a source has one summary.
            stop: 1.
            anchor: None.
            results: What `results_to_json` returned.
        """
        summaries, _, failures = json.loads(results)
        if len(summaries) + len(failures) > stop - first:
            raise ValueError(f"a batch of {stop - first}: expected a summary or a failure at most, got more")
        return cls(
            first,
            stop,
            anchor,
            summary=_summary(*summaries[0]) if summaries else None,
            failure=read_text("error", failures[0][2]) if failures else None,
        )


def _summary(title: str, text: str, keywords: Sequence[str]) -> SourceSummary:
    words = tuple(read_text("keyword", word) for word in read_list("keywords", keywords))
    return SourceSummary(read_text("title", title), read_text("text", text), words)
