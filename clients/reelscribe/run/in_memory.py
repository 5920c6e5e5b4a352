"""Captions and transcripts of arrays in memory, for programs. There is no file to decode, and nothing is saved."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import chain, compress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from reelscribe.client.models import CaptionClient, SpeechClient
from reelscribe.contract.chunking import Chunker
from reelscribe.contract.frames import FrameArray, FrameCaption, frame_batch
from reelscribe.contract.outcomes import AudioResult, Silence, SpeechFailure
from reelscribe.contract.scaling import fit
from reelscribe.contract.speech import ChunkTranscript, SampleArray, to_int16
from reelscribe.decode.audio import SilenceDetector
from reelscribe.decode_pool.commands import items_per_request, request_bytes
from reelscribe.errors import RequestRefused, UsageError
from reelscribe.results.batches import SavedAudioBatch, TimedTranscript, audio_results
from reelscribe.run.tracks.audio import chunk_samples
from reelscribe.run.tracks.captions import CaptionOptions
from reelscribe.run.tracks.transcripts import SpeechOptions


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
) -> list[AudioResult]:
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
    if options.align_model is not None:
        raise UsageError("align_model: expected None for samples in memory; write them to a file to align their words")
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
