"""Captions, descriptions and transcripts of one file or of arrays in memory, for programs. Nothing is saved."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import chain, compress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from reelscribe._files import file_stat
from reelscribe._tasks import cancel_all
from reelscribe.client.models import CaptionClient, ClipClient, SpeechClient
from reelscribe.contract.chunking import Chunker
from reelscribe.contract.frames import FrameArray, FrameCaption, frame_batch
from reelscribe.contract.outcomes import Caption, ClipFailure, DescribedClip, Failure, Silence, SpeechFailure, Utterance
from reelscribe.contract.scaling import fit
from reelscribe.contract.source import Source, Span
from reelscribe.contract.speech import ChunkTranscript, SampleArray, to_int16
from reelscribe.decode.audio import SilenceDetector
from reelscribe.decode_pool.audio import OpenedAudio
from reelscribe.decode_pool.clips import OpenedClips
from reelscribe.decode_pool.commands import DecodedBatch
from reelscribe.decode_pool.frames import OpenedVideo, damage
from reelscribe.decode_pool.slots import items_per_request, request_bytes
from reelscribe.errors import MediaError, RequestRefused, UsageError
from reelscribe.results.batches import (
    UNDECODABLE,
    AudioTimeline,
    FrameTimeline,
    SavedAudioBatch,
    SavedBatch,
    TimedTranscript,
    audio_results,
    clip_results,
)
from reelscribe.run.tracks.captions import CaptionOptions, CaptionTrack
from reelscribe.run.tracks.clips import ClipOptions, ClipTrack
from reelscribe.run.tracks.track import Track
from reelscribe.run.tracks.transcripts import SpeechOptions, TranscriptTrack, chunk_samples


async def caption_file(
    client: CaptionClient, path: str, options: CaptionOptions | None = None
) -> AsyncGenerator[Caption | Failure, None]:
    """Caption the chosen frames of one video file.

    Args:
        client: The open client of the captioner.
        path: The video file.
        options: Which frames to caption, and how; by default one frame a second. `decode_workers` is always 1.

    Yields:
        The result of each chosen frame, in the order of the frames, as soon as it is known.

    Raises:
        MediaError: The file cannot be read, or is damaged or cut short. It is raised after the last result.
        ServerError: No server can be used.
        UsageError: The model does not support the options.
    """
    track = CaptionTrack(client, replace(options or CaptionOptions(), decode_workers=1))
    opened: OpenedVideo | None = None
    timeline = FrameTimeline()
    undecodable = 0
    async with track, aclosing(_decode_and_send(track, path)) as items:
        async for item in items:
            if isinstance(item, OpenedVideo):
                opened = item
                continue
            undecodable += sum(failure.error == UNDECODABLE for failure in item.failures)
            for result in timeline.add(item):
                yield result
    if opened and (reason := damage(opened.why_incomplete, undecodable, opened.chosen)):
        raise MediaError(f"{path}: {reason}")


async def transcribe_file(
    client: SpeechClient, path: str, options: SpeechOptions | None = None
) -> AsyncGenerator[Utterance | Silence | SpeechFailure, None]:
    """Transcribe the audio of one media file.

    Args:
        client: The open client of the speech model.
        path: The video or audio file.
        options: Language, task, and where audio is cut; by default the language is detected. `audio_workers` is
            always 1.

    Yields:
        The results in the order of time, as soon as they are known. Times are presentation times in seconds.

    Raises:
        MediaError: The file cannot be read, or is damaged or cut short. It is raised after the last result.
        ServerError: No server can be used.
        UsageError: The model does not support the options.
    """
    track = TranscriptTrack(client, replace(options or SpeechOptions(), audio_workers=1))
    opened: OpenedAudio | None = None
    timeline = AudioTimeline()
    async with track, aclosing(_decode_and_send(track, path)) as items:
        async for item in items:
            if isinstance(item, OpenedAudio):
                opened = item
                continue
            for result in timeline.add(item):
                yield result
    for result in timeline.end():
        yield result
    if opened and opened.why_incomplete:
        raise MediaError(f"{path}: {opened.why_incomplete}")


async def describe_file(
    client: ClipClient, path: str, options: ClipOptions | None = None
) -> AsyncGenerator[DescribedClip | ClipFailure, None]:
    """Describe the clips of one video file.

    Args:
        client: The open client of the clip model.
        path: The video file.
        options: Where the clips are, and what the model is asked; by default a clip for each shot. `decode_workers` is
            always 1.

    Yields:
        The result of each clip, in the order of the clips, as soon as it is known.

    Raises:
        MediaError: The file cannot be read, or is damaged or cut short. It is raised after the last result.
        ServerError: No server can be used.
        UsageError: The model does not support the options, or the prompt has `{transcript}`, which needs a run.
    """
    track = ClipTrack(client, replace(options or ClipOptions(), decode_workers=1))
    track.resolve_dependencies([track])
    opened: OpenedClips | None = None
    async with track, aclosing(_decode_and_send(track, path)) as items:
        async for item in items:
            if isinstance(item, OpenedClips):
                opened = item
                continue
            for result in clip_results([item]):
                yield result
    if opened and opened.why_incomplete:
        raise MediaError(f"{path}: {opened.why_incomplete}")


async def caption_frames(client: CaptionClient, frames: FrameArray) -> list[str | RequestRefused]:
    """Caption frames in memory.

    Args:
        client: The open client of the captioner.
        frames: (N, H, W, 3) uint8 RGB, or a single frame, (H, W, 3). They are scaled to the model's input size before
            they are sent.

    Returns:
        N captions, or one, or in their place the errors of frames that have none.

    Raises:
        ServerError: No server can be used.
        UsageError: The array has another shape or dtype, or is empty.
    """
    frames = frame_batch(frames)
    description = await client.describe()
    size = description.input_size.for_video(frames.shape[2], frames.shape[1])
    batch_size = CaptionOptions().batch_size(description)
    batch_size = items_per_request(request_bytes(size.nbytes, batch_size), size.nbytes, batch_size)
    batches = [
        np.stack([fit(Image.fromarray(frame), size) for frame in frames[first : first + batch_size]])
        for first in range(0, len(frames), batch_size)
    ]
    answers = await asyncio.gather(*map(client.caption, batches))
    captions = [caption for answer in answers for caption in answer]
    return [caption.text if isinstance(caption, FrameCaption) else caption for caption in captions]


async def transcribe_samples(
    client: SpeechClient, samples: NDArray[Any], sample_rate: int, options: SpeechOptions | None = None
) -> list[Utterance | Silence | SpeechFailure]:
    """Transcribe audio in memory.

    Args:
        client: The open client of the speech model.
        samples: (N,) mono, int16, or float32 or float64 from -1 to 1.
        sample_rate: Sample rate of the samples, in Hz. The server resamples them to the model's rate.
        options: Language, task, and where audio is cut; by default the language is detected.

    Returns:
        The results in the order of time. Times are seconds from the first sample.

    Raises:
        ServerError: No server can be used.
        UsageError: The array has another shape or dtype, or the model does not support the options.
    """
    options = options or SpeechOptions()
    description = await client.describe()
    options.check(description)
    chunker = Chunker(chunk_samples(description, sample_rate), sample_rate, options.cutting)
    chunks = [*chunker.push(_int16(samples)), *chunker.flush()]
    silence = SilenceDetector(sample_rate, options.silence_db, vad=options.vad)
    audible = [not silence.is_silent(chunk) for chunk in chunks]
    to_send = list(compress(chunks, audible))
    batch_size = options.batch_size(description, sample_rate)
    answers = await asyncio.gather(
        *(
            client.transcribe(to_send[first : first + batch_size], sample_rate, options.transcription)
            for first in range(0, len(to_send), batch_size)
        )
    )
    return list(audio_results([_with_times(chunks, audible, chain.from_iterable(answers), sample_rate)]))


def _with_times(
    chunks: Sequence[SampleArray],
    audible: Sequence[bool],
    answers: Iterator[ChunkTranscript | RequestRefused],
    sample_rate: int,
) -> SavedAudioBatch:
    """Give each chunk its result and its times; `answers` holds one answer for each audible chunk."""
    transcripts, silences, failures, first = [], [], [], 0
    for chunk, is_audible in zip(chunks, audible, strict=True):
        start, end = round(first / sample_rate, 6), round((first + len(chunk)) / sample_rate, 6)
        first += len(chunk)
        if not is_audible:
            silences.append(Silence(start, end))
        elif isinstance(answer := next(answers), ChunkTranscript):
            transcripts.append(TimedTranscript(start, end, answer))
        else:
            failures.append(SpeechFailure(start, end, str(answer)))
    return SavedAudioBatch(0, first, transcripts=transcripts, silences=silences, failures=failures)


def _int16(samples: NDArray[Any]) -> SampleArray:
    if samples.ndim != 1 or samples.dtype not in (np.int16, np.float32, np.float64):
        raise UsageError(
            f"samples: expected mono (N,) int16, or floats from -1 to 1, got {samples.shape} {samples.dtype}"
        )
    if samples.dtype == np.int16:
        return samples
    return to_int16(samples)


async def _decode_and_send(track: Track, path: str) -> AsyncGenerator[Any, None]:
    """Decode a file and send its batches to the model, several at a time.

    Yields:
        What is known about the file, as soon as it is known, and the results of each batch, in order.
    """
    source = Source(path, stat=await asyncio.to_thread(file_stat, path))
    in_flight: deque[asyncio.Task[SavedBatch]] = deque()
    decoding_failed: MediaError | None = None
    try:
        try:
            async with aclosing(track.read(source, [Span()])) as items:
                async for item in items:
                    if not isinstance(item, DecodedBatch):
                        yield item
                        continue
                    in_flight.append(await track.send(item))
                    while in_flight and in_flight[0].done():
                        yield await in_flight.popleft()
        except MediaError as error:
            decoding_failed = type(error)(f"{path}: {error}")  # raised later: the batches before it have results
        while in_flight:
            yield await in_flight.popleft()
        if decoding_failed:
            raise decoding_failed
    finally:
        await cancel_all(in_flight)
