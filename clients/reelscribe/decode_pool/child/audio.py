"""Reads the audio of a source in a decode process, and sends it; `decode_pool/audio.py` is the other side.

The replies to "read_audio" are those of `channel.py`, with::

    {"opened": {"info", "samples", "why_incomplete"}}       again at the end of the file, when `samples` is known
    {"batch": {..., "audible": [[first, stop, presentation time], ...], "silent": [...]}}
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from reelscribe.contract.source import Span
from reelscribe.decode.audio import Audio, AudioChunk, AudioTask
from reelscribe.decode_pool.child.channel import Feed, WorkerChannel, queue_opened
from reelscribe.errors import MediaError, NoAudio

MAX_SILENT_CHUNKS = 1024
"""Largest number of silent chunks in a batch. Without it, nothing would be saved in hours of silence."""


def feed(channel: WorkerChannel, task: Any, spans: list[Any], chunks_per_batch: int) -> float:
    """Execute a `ReadAudio` command.

    Args:
        channel: Connection to the parent.
        task: JSON of the AudioTask.
        spans: JSON of the spans of samples to read, in ascending order.
        chunks_per_batch: Largest number of chunks to transcribe in a batch.

    Returns:
        Seconds of audio that were decoded, including audio before the spans.

    Raises:
        NoAudio: The file has video but no audio.
        MediaError: The file cannot be read, or not to its end. Batches with everything before were sent.
        SourceChanged: The file is not the one with the `file_stat` of the task, or was written to.
    """
    audio_task = AudioTask.from_json(task)
    with Audio(audio_task, channel.heartbeat) as audio:
        if audio.info is None and not audio.has_video:
            raise MediaError("expected audio, or at least pictures, got neither")
        if audio.info is None:
            raise NoAudio("it has no audio")
        queue_opened(channel, audio.file, info=asdict(audio.info), samples=None, why_incomplete=None)
        chunks = _AudioFeed(channel, audio, [Span(**span) for span in spans], audio_task.sample_rate, chunks_per_batch)
        chunks.send_all(chunks.wanted(), chunks.add)
        return audio.read_seconds


class _AudioFeed(Feed):
    """Sends the spans of a source's audio in batches of up to `max_chunks` chunks to transcribe."""

    def __init__(
        self, channel: WorkerChannel, audio: Audio, spans: Sequence[Span], sample_rate: int, max_chunks: int
    ) -> None:
        # There are no spans if a process died after its last batch and another one carries on.
        super().__init__(channel, audio.file, ("audible", "silent"), spans[0].first if spans else 0)
        self._opened, self._audio, self._spans = channel, audio, spans
        self._sample_rate, self._max_chunks = sample_rate, max_chunks
        self._latest_seconds = float("-inf")

    def wanted(self) -> Iterator[AudioChunk]:
        """Yield the parts of chunks that lie in the spans, and queue at the end of the file how long it is.

        Such a part is all of a chunk, unless the spans come from other library versions, with which chunks differed.
        """
        for chunk in self._audio.chunks(self.first):
            for span in self._spans:
                first = max(span.first, chunk.first)
                stop = chunk.stop if span.stop is None else min(span.stop, chunk.stop)
                if first < stop:
                    yield chunk.trim(first, stop, self._sample_rate)
            if self._is_last(chunk):
                return
        assert self._audio.info
        info, samples, incomplete = asdict(self._audio.info), self._audio.samples_read, self._audio.why_incomplete
        queue_opened(self._opened, self._audio.file, info=info, samples=samples, why_incomplete=incomplete)

    def _is_last(self, chunk: AudioChunk) -> bool:
        """Return whether all spans end with this chunk or before it."""
        return not self._spans or (self._spans[-1].stop is not None and self._spans[-1].stop <= chunk.stop)

    def add(self, chunk: AudioChunk) -> None:
        # The stretches of a batch are sorted by time later, so their times must ascend.
        if chunk.first != self.stop or chunk.start_seconds < self._latest_seconds:
            self.end(next_first=chunk.first)
        self._latest_seconds = chunk.start_seconds
        if not chunk.silent:
            self.write(chunk.samples)
        self.lists["silent" if chunk.silent else "audible"].append((chunk.first, chunk.stop, chunk.start_seconds))
        self.stop = chunk.stop
        is_full = len(self.lists["audible"]) == self._max_chunks
        if is_full or len(self.lists["silent"]) == MAX_SILENT_CHUNKS:
            self.end(is_full=is_full)
