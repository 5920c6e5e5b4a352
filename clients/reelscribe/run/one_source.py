"""One source for programs: captions and transcripts of a file or of arrays in memory. Nothing is saved."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from reelscribe.client.models import CaptionClient, SpeechClient
from reelscribe.contract.annotations import Caption, Failure, Silence, SpeechFailure, Utterance
from reelscribe.contract.chunking import Chunker, is_silent
from reelscribe.contract.frames import FrameArray
from reelscribe.contract.scaling import fit
from reelscribe.contract.source import Span
from reelscribe.contract.speech import ChunkTranscript, SampleArray
from reelscribe.decode_pool.audio_feed import OpenedAudio
from reelscribe.decode_pool.frame_feed import OpenedVideo
from reelscribe.decode_pool.slots import DecodedBatch, items_per_request, request_bytes
from reelscribe.errors import MediaError, RequestRefused, UsageError
from reelscribe.results.batches import (
    UNDECODABLE,
    AudioTimeline,
    FrameTimeline,
    SavedAudioBatch,
    SavedBatch,
    TimedTranscript,
    audio_results,
)
from reelscribe.run.captioning import CaptionTrack, damage
from reelscribe.run.options import CaptionOptions, SpeechOptions
from reelscribe.run.track import Track
from reelscribe.run.transcribing import TranscriptTrack

Opened = TypeVar("Opened", OpenedVideo, OpenedAudio)
Saved = TypeVar("Saved", bound=SavedBatch)


async def caption_file(
    client: CaptionClient, path: str, options: CaptionOptions | None = None
) -> AsyncGenerator[Caption | Failure, None]:
    """Caption the chosen frames of one video file.

    Args:
        client: The captioner on its servers, entered.
        path: The video file.
        options: Which frames and how; by default every frame. One process decodes.

    Yields:
        What came of each chosen frame, in order, as soon as it is known.

    Raises:
        MediaError: The file cannot be read or, after everything that could be captioned, is damaged or cut short.
        ServerError: No server can be used.
        UsageError: The model cannot do what the options ask for.
    """
    track = CaptionTrack(client, replace(options or CaptionOptions(), decode_workers=1))
    opened: list[OpenedVideo] = []
    timeline = FrameTimeline()
    undecodable = 0
    async with track, aclosing(_answers(track, path, opened)) as batches:
        async for batch in batches:
            undecodable += sum(failure.error == UNDECODABLE for failure in batch.failures)
            for result in timeline.add(batch):
                yield result
    if opened and (reason := damage(opened[-1].why_incomplete, undecodable, opened[-1].chosen)):
        raise MediaError(f"{path}: {reason}")


async def transcribe_file(
    client: SpeechClient, path: str, options: SpeechOptions | None = None
) -> AsyncGenerator[Utterance | Silence | SpeechFailure, None]:
    """Transcribe the audio of one media file.

    Args:
        client: The speech model on its servers, entered.
        path: The video or audio file.
        options: Language, task, and where audio is cut; by default the language is detected. One process decodes.

    Yields:
        What came of each stretch of audio, in order, as soon as it is known. Times are seconds of presentation time.

    Raises:
        MediaError: The file cannot be read or, after everything that could be transcribed, is damaged or cut short.
        ServerError: No server can be used.
        UsageError: The model cannot do what the options ask for.
    """
    track = TranscriptTrack(client, replace(options or SpeechOptions(), audio_workers=1))
    opened: list[OpenedAudio] = []
    timeline = AudioTimeline()
    async with track, aclosing(_answers(track, path, opened)) as batches:
        async for batch in batches:
            for result in timeline.add(batch):
                yield result
    for result in timeline.end():
        yield result
    if opened and opened[-1].why_incomplete:
        raise MediaError(f"{path}: {opened[-1].why_incomplete}")


async def caption_frames(client: CaptionClient, frames: FrameArray) -> list[str | RequestRefused]:
    """Caption frames in memory.

    Args:
        client: The captioner on its servers, entered.
        frames: (N, H, W, 3) uint8 RGB. They are scaled to the model's input size before they are sent.

    Returns:
        The caption of each frame, or why it has none.

    Raises:
        ServerError: No server can be used.
        UsageError: The array is not what is expected.
    """
    if frames.ndim != 4 or frames.shape[-1] != 3 or frames.dtype != np.uint8 or not frames.size:
        raise UsageError(f"frames: expected (N, H, W, 3) uint8 RGB, got {frames.shape} {frames.dtype}")
    description = await client.describe()
    size = description.input_size.for_video(frames.shape[2], frames.shape[1])
    most = CaptionOptions().batch_size(description)
    most = items_per_request(request_bytes(size.nbytes, most), size.nbytes, most)
    batches = [
        np.stack([fit(Image.fromarray(frame), size) for frame in frames[at : at + most]])
        for at in range(0, len(frames), most)
    ]
    answers = await asyncio.gather(*map(client.caption, batches))
    return [caption for answer in answers for caption in answer]


async def transcribe_samples(
    client: SpeechClient, samples: NDArray[Any], sample_rate: int, options: SpeechOptions | None = None
) -> list[Utterance | Silence | SpeechFailure]:
    """Transcribe audio in memory.

    Args:
        client: The speech model on its servers, entered.
        samples: (N,) mono, int16, or float32 from -1 to 1.
        sample_rate: Of the samples, in Hz; the server resamples what is not the model's own rate.
        options: Language, task, and where audio is cut; by default the language is detected.

    Returns:
        What came of each stretch of audio, in order. Times are seconds from the first sample.

    Raises:
        ServerError: No server can be used.
        UsageError: The array is not what is expected, or the model cannot do what the options ask for.
    """
    options = options or SpeechOptions()
    description = await client.describe()
    options.check(description)
    whole = _int16(samples)
    chunker = Chunker(int(description.chunk_seconds * sample_rate), sample_rate, options.cutting)
    chunks = [*chunker.push(whole), *chunker.flush()]
    most = options.batch_size(description)
    threshold = options.silence_db
    loud = [threshold is None or not is_silent(chunk, sample_rate, threshold) for chunk in chunks]
    to_send = [chunk for chunk, is_loud in zip(chunks, loud, strict=True) if is_loud]
    answers = await asyncio.gather(
        *(
            client.transcribe(to_send[at : at + most], sample_rate, options.transcription)
            for at in range(0, len(to_send), most)
        )
    )
    transcripts = iter([transcript for answer in answers for transcript in answer])
    transcribed, silences, failures, first = [], [], [], 0
    for chunk, is_loud in zip(chunks, loud, strict=True):
        start, end = round(first / sample_rate, 6), round((first + len(chunk)) / sample_rate, 6)
        first += len(chunk)
        if not is_loud:
            silences.append(Silence(start, end))
        elif isinstance(transcript := next(transcripts), ChunkTranscript):
            transcribed.append(TimedTranscript(start, end, transcript))
        else:
            failures.append(SpeechFailure(start, end, str(transcript)))
    batch = SavedAudioBatch(0, len(whole), transcripts=transcribed, silences=silences, failures=failures)
    return list(audio_results([batch]))


def _int16(samples: NDArray[Any]) -> SampleArray:
    if samples.ndim != 1 or samples.dtype not in (np.int16, np.float32, np.float64):
        raise UsageError(
            f"samples: expected mono (N,) int16, or floats from -1 to 1, got {samples.shape} {samples.dtype}"
        )
    if samples.dtype == np.int16:
        return samples
    whole: SampleArray = np.clip(np.rint(samples * 32768), -32768, 32767).astype(np.int16)
    return whole


async def _answers(
    track: Track[Any, Opened, Any, Any, Saved], path: str, opened: list[Opened]
) -> AsyncGenerator[Saved, None]:
    """Yield what came of each batch of a file, in order; several are in flight at once.

    Args:
        track: Decodes the file and asks the model.
        path: The file.
        opened: Receives what is known of the file, as it becomes known.
    """
    in_flight: deque[asyncio.Task[Saved]] = deque()
    decoding_failed: MediaError | None = None
    try:
        try:
            async with aclosing(track.read(path, [Span()])) as items:
                async for item in items:
                    if not isinstance(item, DecodedBatch):
                        opened.append(item)
                        continue
                    in_flight.append(track.send(item))
                    while in_flight and in_flight[0].done():
                        yield await in_flight.popleft()
        except MediaError as error:
            decoding_failed = type(error)(f"{path}: {error}")  # what was decoded before it is answered all the same
        while in_flight:
            yield await in_flight.popleft()
        if decoding_failed:
            raise decoding_failed
    finally:
        for task in in_flight:
            task.cancel()
        await asyncio.gather(*in_flight, return_exceptions=True)
