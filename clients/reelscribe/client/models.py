"""Frames in, captions out; sound in, words out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from reelscribe import wire
from reelscribe.client.balancer import ModelClient
from reelscribe.client.endpoint import Server
from reelscribe.contract.frames import FrameArray, InputSize
from reelscribe.contract.model import CaptionerDescription, SpeechDescription
from reelscribe.contract.speech import ChunkTranscript, SampleArray, TranscriptionOptions
from reelscribe.errors import RequestRefused


class CaptionClient(ModelClient[CaptionerDescription]):
    """A captioner on one or several servers. Use it as an async context manager."""

    def __init__(self, servers: Sequence[Server], model: str, **options: Any) -> None:
        """`options` are those of ModelClient."""
        super().__init__(servers, model, CaptionerDescription.from_json, **options)

    async def caption(self, frames: FrameArray) -> list[str | RequestRefused]:
        """For each of (N, H, W, 3) uint8 RGB frames its caption, or why it has none.

        A request that kills workers is split down to single frames. The frames must not change until this returns.
        Raises ServerError if no server can be used, or if a black frame is not answered either.
        """
        size = self._description.input_size.for_video(224, 224) if self._description else InputSize(224, 224)
        black = np.zeros((1, size.height, size.width, 3), np.uint8)
        return await self._ask(frames, _pack_frames, _captions, (black, "a black frame"))


class SpeechClient(ModelClient[SpeechDescription]):
    """A speech model on one or several servers. Use it as an async context manager."""

    def __init__(self, servers: Sequence[Server], model: str, **options: Any) -> None:
        """`options` are those of ModelClient."""
        super().__init__(servers, model, SpeechDescription.from_json, **options)

    async def transcribe(
        self, chunks: Sequence[SampleArray], sample_rate: int, asked: TranscriptionOptions | None = None
    ) -> list[ChunkTranscript | RequestRefused]:
        """For each chunk, (N,) int16 of `sample_rate` samples a second, what was heard in it, or why nothing was.

        A request that kills workers is split down to single chunks. The samples must not change until this returns.
        Raises ServerError if no server can be used, or if a second of silence is not answered either.
        """
        options: dict[str, Any] = {"sample_rate": sample_rate, **(asked.to_json() if asked else {})}

        def pack(chunks: Sequence[SampleArray]) -> list[wire.Segment]:
            request: dict[Any, Any] = {**options, "chunks": list(chunks)}
            return wire.pack(request)

        silence = [np.zeros(sample_rate, np.int16)]
        return await self._ask(chunks, pack, _transcripts, (silence, "a second of silence"))


def _pack_frames(frames: FrameArray) -> list[wire.Segment]:
    return wire.pack({"frames": frames})


def _captions(value: Any, count: int) -> list[str]:
    if not isinstance(value, list) or [type(text) for text in value] != [str] * count:
        raise ValueError(f"expected a list of {count} texts")
    return value


def _transcripts(value: Any, count: int) -> list[ChunkTranscript]:
    if not isinstance(value, list) or len(value) != count:
        raise ValueError(f"expected a list of {count} transcripts")
    return [ChunkTranscript.from_json(transcript) for transcript in value]
