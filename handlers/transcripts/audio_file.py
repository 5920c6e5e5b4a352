"""A WAV, FLAC or Ogg (Vorbis, Opus) file becomes mono sound at a model's rate.

libsndfile decodes it: native code that reads strangers' bytes, so only these formats are let through to it, what a
header claims is checked before anything is decoded, and files are read block by block, whatever they claim.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from reelscribe.errors import LimitExceeded, SpeechError, UnsupportedFormat, WireError
from reelscribe.speech import SampleArray
from transcripts.chunks import Samples

MAX_CHANNELS = 8
MIN_RATE, MAX_RATE = 4_000, 192_000
"""Samples a second."""

LOUDEST = 2.0
"""Decoders of lossy formats overshoot full scale, 1, by less than this; 16-bit values in floats are far beyond it."""

_FORMATS = {"WAV", "WAVEX", "FLAC", "OGG"}
_CODECS = {"PCM_U8", "PCM_S8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW", "VORBIS", "OPUS"}
_UNKNOWN_LENGTH = 2**63 - 1
RIFF_UNKNOWN = 0x7FFF0000
"""Programs that write to a pipe claim the largest size that they can think of."""
_BLOCK = 2**18
QUALITY = "HQ"
"""Of soxr, here and in the client: what it changes is less than 16 bits can tell."""


def is_sound_file(body: bytes | bytearray) -> bool:
    """Whether `body` starts as a WAV, FLAC or Ogg file does."""
    return body.startswith((b"fLaC", b"OggS")) or (body[:4] == b"RIFF" and body[8:12] == b"WAVE")


def read_sound_file(body: bytes | bytearray, sample_rate: int, max_seconds: float) -> SampleArray:
    """The sound of a file, (N,) int16 at `sample_rate`; channels are averaged.

    Raises WireError for a damaged file, UnsupportedFormat for a codec that is not read, LimitExceeded for too much of
    it, SpeechError for one without sound.
    """
    _check_size(body)
    with _libsndfile(), soundfile.SoundFile(io.BytesIO(body)) as file:
        _check_header(file, max_seconds)
        blocks = list(_resampled(_mono_blocks(file), file.samplerate, sample_rate))
        check_length(sum(map(len, blocks)))
        return _to_int16(blocks)


def resampled(samples: Samples, rate: int, wanted: int) -> Samples:
    """`samples` of `rate` a second at the `wanted` rate."""
    result: Samples = samples if rate == wanted else soxr.resample(samples, rate, wanted, quality=QUALITY)
    return result


def check_rate(rate: int) -> None:
    """Raises SpeechError for a rate that no sound of speech has."""
    if not MIN_RATE <= rate <= MAX_RATE:
        raise SpeechError(f"sample_rate: expected {MIN_RATE} to {MAX_RATE} samples a second, got {rate}")


def check_length(samples: int) -> None:
    """Raises SpeechError for sound of no length at the model's rate."""
    if not samples:
        raise SpeechError("sound: expected at least one sample at the model's rate, got none")


def check_levels(samples: NDArray[np.float32]) -> None:
    """Raises SpeechError for NaN, for infinite values, and for what cannot be meant as -1 to 1."""
    loudest = float(np.abs(samples).max(initial=0))  # NaN if there is one
    if not np.isfinite(loudest):
        raise SpeechError("sound: expected numbers, got NaN or infinity among them; see what made it")
    if loudest > LOUDEST:
        raise SpeechError(
            f"sound: floats are from -1 to 1, got {loudest:.6g}; divide by full scale, 32768 for 16 bits, or send int16"
        )


def _check_size(body: bytes | bytearray) -> None:
    """Raises WireError for a WAV file whose end is missing: libsndfile reads what is there."""
    size = int.from_bytes(body[4:8], "little") + 8
    if body.startswith(b"RIFF") and len(body) < size < RIFF_UNKNOWN:
        raise WireError(
            f"sound: expected a whole WAV file, got a damaged one: {len(body)} of the {size} bytes that its header says"
        )


def _check_header(file: soundfile.SoundFile, max_seconds: float) -> None:
    if file.format not in _FORMATS or file.subtype not in _CODECS:
        raise UnsupportedFormat(
            f"sound: expected PCM, float, mu-law, A-law, FLAC, Vorbis or Opus, got {file.subtype} in {file.format};"
            " convert it to FLAC"
        )
    check_rate(file.samplerate)
    if not 1 <= file.channels <= MAX_CHANNELS:
        raise LimitExceeded(f"sound: at most {MAX_CHANNELS} channels, got {file.channels}; mix it down to one")
    if file.frames == _UNKNOWN_LENGTH:
        raise UnsupportedFormat("sound: expected a file that says how long it is, got FLAC from a pipe; save it again")
    if file.frames > max_seconds * file.samplerate:  # libsndfile reads no more than that
        raise LimitExceeded(
            f"sound: files of at most {max_seconds:g} seconds, got {file.frames / file.samplerate:.0f}; use"
            " `reelscribe transcribe`"
        )


def _mono_blocks(file: soundfile.SoundFile) -> Iterator[Samples]:
    while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
        check_levels(block)
        yield block.mean(axis=1)


def _resampled(blocks: Iterator[Samples], rate: int, wanted: int) -> Iterator[Samples]:
    if rate == wanted:
        yield from blocks
        return
    stream = soxr.ResampleStream(rate, wanted, 1, dtype="float32", quality=QUALITY)
    for block in blocks:
        yield stream.resample_chunk(block)
    yield stream.resample_chunk(np.zeros(0, np.float32), last=True)


def _to_int16(blocks: list[Samples]) -> SampleArray:
    """As the client sends it: rounded, and clipped at full scale."""
    return np.concatenate([np.clip(np.rint(block * 32768), -32768, 32767).astype(np.int16) for block in blocks])


@contextmanager
def _libsndfile() -> Iterator[None]:
    """Whatever libsndfile makes of a damaged file becomes an error of that file's request alone."""
    try:
        yield
    except soundfile.SoundFileError as error:
        reason = str(error).partition("\n")[0][:100]
        raise WireError(f"sound: expected a whole WAV, FLAC or Ogg file, got a damaged one: {reason}") from None
