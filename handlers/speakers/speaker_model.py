"""A speaker model: it finds the voices in chunks of audio, and makes an embedding of each part of what is spoken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from reelscribe.contract.descriptions import SpeakerModelDescription
from reelscribe.contract.voices import ChunkVoices
from reelscribe.errors import PromptError, StartupError
from runtime.metrics import Counters
from runtime.model_settings import ModelSettings, check_folder, digest_of
from runtime.state_dict import load_weights, weights_file
from speakers.diarizer import Diarizer
from speakers.voice_activity import Stretch, Window, alone, speech_in, windows_of
from speakers.voice_encoder import HOP, SAMPLE_RATE, MelPowers, VoiceEncoder
from transcripts.speech_model import MIN_CHUNK_SECONDS, Chunk, Samples, round_seconds

LEVEL_DB = -30.0
"""Level to which each window is brought, in dB of full scale: that of the audio that the encoder was trained with."""

_WINDOWS_AT_ONCE = 256  # whose memory does not depend on how much is spoken


@dataclass(frozen=True)
class SpeakerSettings(ModelSettings):
    """Settings under `handler:` in the YAML of a speaker model."""

    device_batches: ClassVar[tuple[int, int]] = (8, 64)

    dtype: str = "float32"
    """Name of a torch dtype. A model this small gains little by another one."""
    max_chunks: int = 64
    """The most chunks of one request."""
    chunk_seconds: float = 30.0
    """Longest chunk in seconds, at least 2."""
    window_seconds: float = 1.6
    """Length of the audio of which an embedding is made, in seconds: 0.2 to 10. It is that of the training."""
    step_seconds: float = 0.4
    """Length of the parts of speech that each have an embedding, in seconds: 0.1 to 10."""
    diarizer: str | None = None
    """Hub name, or a directory, of a Nemotron diarization model, which finds who speaks in a chunk, also where several
    speak at once. None finds speech by its loudness, and tells speakers apart by embeddings alone."""
    diarizer_revision: str | None = None
    """Its commit, branch or tag on the hub."""

    def of_diarizer(self) -> ModelSettings | None:
        """Return the settings of the diarization model, if there is one."""
        return ModelSettings(self.diarizer, self.diarizer_revision, self.dtype) if self.diarizer else None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.diarizer is not None:
            check_folder("diarizer", self.diarizer)
        if self.stages != 1:
            raise StartupError("YAML, handler, stages: expected 1 for a speaker model, which runs on one GPU, got 2")
        ranges = {"chunk_seconds": (MIN_CHUNK_SECONDS, 600), "window_seconds": (0.2, 10), "step_seconds": (0.1, 10)}
        for name, (least, most) in ranges.items():
            if type(value := getattr(self, name)) not in (int, float) or not least <= value <= most:
                raise StartupError(f"YAML, handler, {name}: expected {least:g} to {most:g} seconds, got {value!r}")


class _Voice(NamedTuple):
    """What has one embedding: a part of what is spoken, or all that a speaker says in a chunk."""

    speaker: int | None
    """Number of the speaker in the chunk, from 0; None if speakers are not told apart."""
    parts: Sequence[tuple[int, int]]
    """First frame of each part, and the frame after its last one."""
    windows: Sequence[Window]
    """The windows whose embeddings are averaged, at least one."""


class SpeakerModel:
    """A loaded network, on one device. It has what `transcripts.audio_requests` asks of a model, without options."""

    sample_rate = SAMPLE_RATE
    languages: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ("transcribe",)  # the default of requests that name none
    word_times = False
    beams = 1
    aligns = False
    detects_among = False

    def __init__(self, settings: SpeakerSettings, device: torch.device, counters: Counters | None = None) -> None:
        """Load the weights, and listen to noise.

        Args:
            settings: Which weights.
            device: Where to load them.
            counters: Counts seconds of audio.

        Raises:
            StartupError: There is not one file of weights, it is damaged, or it is not of such a network.
        """
        self.settings, self._device = settings, device
        self._counters = counters or Counters()
        self._file = weights_file(Path(settings.pretrained))
        self._dtype = settings.torch_dtype(device)
        self._mel_powers = MelPowers(device)
        diarizer = settings.of_diarizer()
        self._diarizer = Diarizer(diarizer, device) if diarizer else None
        try:
            self.network = VoiceEncoder(load_weights(self._file)).to(device, self._dtype)
            # A model that cannot listen must not load, and no request should wait for lazy initialisation.
            noise = np.random.default_rng(0).normal(0, 0.1, 2 * SAMPLE_RATE).astype(np.float32)
            self._embeddings(self._inputs(noise, windows_of(0, 2 * SAMPLE_RATE // HOP, *self._frames)))
        except (LookupError, TypeError, ValueError, RuntimeError, FloatingPointError) as error:
            why = " ".join(str(error).split())
            raise StartupError(f"{self._file}: expected the weights of a GE2E encoder, got others ({why})") from None

    def check_previous_text(self, text: str) -> None:  # noqa: ARG002 - no text is accepted
        """Raise PromptError: nothing in this model reads a text."""
        raise PromptError("initial_prompt, hotwords: expected none, as speaker models read no text; leave them out")

    def voices(self, slices: Sequence[Sequence[Chunk]]) -> list[ChunkVoices]:
        """Find the voices in chunks.

        Args:
            slices: The chunks of one device batch, in slices of those of requests.

        Returns:
            The voices of each chunk, in order.

        Raises:
            FloatingPointError: The dtype has too small a range for what the model computes.
        """
        chunks = [chunk.samples for part in slices for chunk in part]
        self._counters.add("audio_seconds", sum(map(len, chunks)) / SAMPLE_RATE)
        voices = [*map(self._voices, chunks)]
        windows = [[window for voice in each for window in voice.windows] for each in voices]
        inputs = [self._inputs(samples, each) for samples, each in zip(chunks, windows, strict=True) if each]
        embeddings = iter(self._embeddings(torch.cat(inputs)) if inputs else ())
        return [_answer(each, embeddings) for each in voices]

    def stretches(self, samples: Samples) -> list[Stretch]:
        """Return where somebody speaks in a chunk, and with a diarizer who.

        Args:
            samples: (N,) values from -1 to 1 at SAMPLE_RATE.
        """
        return self._diarizer(samples) if self._diarizer else speech_in(samples)

    def description(self, response_seconds: float) -> SpeakerModelDescription:
        """Describe the model to clients.

        Args:
            response_seconds: TorchServe's timeout for a call, in seconds.
        """
        return SpeakerModelDescription(
            name=self.settings.model,
            revision=digest_of([self._file]),
            generation={
                "window_seconds": self.settings.window_seconds,
                "step_seconds": self.settings.step_seconds,
                **({"diarizer": [self.settings.diarizer, self._diarizer.revision]} if self._diarizer else {}),
            },
            embedding_size=self.network.size,
            sample_rate=SAMPLE_RATE,
            chunk_seconds=self.settings.chunk_seconds,
            dtype=str(self._dtype).removeprefix("torch."),
            device_batch=self.settings.items_at_once(self._device),
            max_chunks=self.settings.max_chunks,
            response_seconds=response_seconds,
        )

    @property
    def _frames(self) -> tuple[int, int]:
        """Number of frames of a window, and of a part."""
        settings = self.settings
        return round(settings.window_seconds * SAMPLE_RATE / HOP), round(settings.step_seconds * SAMPLE_RATE / HOP)

    def _voices(self, samples: Samples) -> list[_Voice]:
        """Return what gets an embedding of what is spoken in a chunk."""
        frames = len(samples) // HOP  # a diarizer may have one more
        found = self.stretches(samples)
        stretches = [each._replace(stop=min(each.stop, frames)) for each in found if each.start < frames]
        if stretches and stretches[0].speaker is None:
            return [_Voice(None, [window[:2]], [window]) for each in stretches for window in self._windows(each)]
        voices: list[_Voice] = []
        for speaker in sorted({each.speaker for each in stretches if each.speaker is not None}):
            own = [each for each in stretches if each.speaker == speaker]
            windows = [window for each in alone(own, stretches) or own for window in self._windows(each)]
            voices.append(_Voice(len(voices), [each[:2] for each in own], windows))
        return voices

    def _windows(self, stretch: Stretch) -> list[Window]:
        return windows_of(stretch.start, stretch.stop, *self._frames)

    def _inputs(self, samples: Samples, windows: Sequence[Window]) -> Tensor:
        """Return the spectrograms of windows of a chunk, (B, T, 40), all at the same level.

        A window that is shorter than T is repeated, as silence would count as part of the voice.
        """
        powers, length = self._mel_powers(samples), self._frames[0]
        inputs = powers.new_empty(len(windows), length, powers.shape[1])
        for out, (_, _, first, end) in zip(inputs, windows, strict=True):
            power = float(np.square(samples[first * HOP : end * HOP], dtype=np.float64).mean())
            out[:] = powers[first + torch.arange(length, device=powers.device) % (end - first)]
            out *= 10 ** (LEVEL_DB / 10) / max(power, 1e-12)
        return inputs.to(self._dtype)

    def _embeddings(self, inputs: Tensor) -> np.ndarray:
        """Return (B, size) float16 of (B, T, 40). Raises FloatingPointError for NaN."""
        with torch.inference_mode():
            parts = [self.network(part).float().cpu() for part in inputs.split(_WINDOWS_AT_ONCE)]
        embeddings = torch.cat(parts)
        if not embeddings.isfinite().all():
            raise FloatingPointError(f"embeddings: expected finite numbers, got NaN, in {self._dtype}")
        return embeddings.numpy().astype(np.float16)


def _answer(voices: Sequence[_Voice], embeddings: Iterator[np.ndarray]) -> ChunkVoices:
    """Return the answer for a chunk.

    Args:
        voices: Those of the chunk.
        embeddings: The embedding of each window of theirs, and then those of further chunks, which are left.
    """
    means = []
    for voice in voices:
        mean = np.mean([*islice(embeddings, len(voice.windows))], axis=0, dtype=np.float32)
        means.append((mean / np.linalg.norm(mean)).astype("<f2"))
    parts = sorted((*part, k) for k, voice in enumerate(voices) for part in voice.parts)
    return ChunkVoices(
        tuple((_seconds(start), _seconds(stop)) for start, stop, _ in parts),
        b"".join(means[k].tobytes() for _, _, k in parts),
        tuple(k for _, _, k in parts) if voices and voices[0].speaker is not None else None,
    )


def _seconds(frame: int) -> float:
    return round_seconds(frame * HOP / SAMPLE_RATE)
