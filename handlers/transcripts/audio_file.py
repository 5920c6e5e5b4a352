"""Reads a WAV, FLAC or Ogg (Vorbis, Opus) file as mono audio at a model's sample rate.

libsndfile decodes the bytes of untrusted clients in native code. Therefore it gets only these formats, the claims of
the header are checked before anything is decoded, and files are read in blocks, whatever length they claim, until the
time for a body is over.

The pages of an Ogg file are checked, too. libogg looks for the next page wherever one does not follow, and computes a
checksum of up to 65 KB for each place that looks like one. A megabyte of such places takes it seconds. So each page
must follow the one before it, and be whole; what programs append, such as a tag, looks like no page. RFC 3533 has the
format.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from reelscribe.contract.speech import SampleArray, to_int16
from reelscribe.errors import LimitExceeded, SpeechError, UnsupportedFormat, WireError
from transcripts.speech_model import Samples
from worker.body_file import BodyFile, check_time

MAX_CHANNELS = 8
MIN_RATE, MAX_RATE = 4_000, 192_000
"""Accepted sample rates, in Hz."""

MAX_SAMPLES = 200_000_000
"""The most samples of all channels together, which are 10 minutes of stereo at 166 kHz. FLAC needs a byte for 15,000
samples, and decoding this many takes 2 s."""

MAX_LEVEL = 2.0
"""Largest accepted absolute value of float samples, where full scale is 1.

Decoders of lossy formats overshoot full scale by less than this; 16-bit values that were only cast to float exceed it
by far.
"""

RESAMPLING_QUALITY = "HQ"
"""Quality setting of soxr, as in the client. Its errors are below the resolution of 16 bits."""

UNKNOWN_RIFF_SIZE = 0x7FFF0000
"""Programs that write a WAV file to a pipe, and do not know its size, claim this size or a larger one."""

_FORMATS = {"WAV", "WAVEX", "FLAC", "OGG"}
_CODECS = {"PCM_U8", "PCM_S8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW", "VORBIS", "OPUS"}
_UNKNOWN_LENGTH = 2**63 - 1
"""The number of samples that libsndfile reports if the header does not have it."""
_BLOCK = 2**18
"""Samples of each channel that are read at once."""


_HEADER_BYTES = 27

_FIRST_PAGE = 2  # a bit of the byte 5 of a page: a stream begins with it; all streams of a recording begin together

_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def is_audio_file(body: bytes | bytearray) -> bool:
    """Return whether the first bytes of `body` are those of a WAV, FLAC or Ogg file."""
    return body.startswith((b"fLaC", b"OggS")) or (body[:4] == b"RIFF" and body[8:12] == b"WAVE")


def open_audio_file(body: bytes | bytearray, max_seconds: float) -> soundfile.SoundFile:
    """Open an audio file without decoding it: its length is known then, and nothing large is in memory.

    Args:
        body: The bytes of the file.
        max_seconds: Limit for the duration that the header claims. `decode` never returns more than that.

    Returns:
        A file of libsndfile, for `decode`.

    Raises:
        WireError: The file is damaged.
        UnsupportedFormat: The codec is not supported, or the header does not say how long the file is.
        LimitExceeded: The file is too long, or has too many channels or samples, or takes too long to read.
        SpeechError: Its sample rate is none of speech.
    """
    _check_riff_size(body)
    if body.startswith(b"OggS"):
        check_pages(body)
    with _libsndfile_errors():
        file = soundfile.SoundFile(BodyFile(body))
    _check_header(file, max_seconds)
    return file


def decode(file: soundfile.SoundFile, sample_rate: int) -> SampleArray:
    """Decode an audio file, average its channels, and resample it. The file is closed then.

    Args:
        file: What `open_audio_file` returned.
        sample_rate: The wanted sample rate, in Hz.

    Returns:
        (N,) int16 at `sample_rate`.

    Raises:
        WireError: The file is damaged.
        LimitExceeded: It takes too long to decode.
        SpeechError: It holds no samples, or values that cannot be audio.
    """
    with _libsndfile_errors(), file:
        blocks = list(_resampled_blocks(_mono_blocks(file), file.samplerate, sample_rate))
        check_length(sum(map(len, blocks)))
        return np.concatenate([to_int16(block) for block in blocks])


def resample(samples: Samples, from_rate: int, to_rate: int) -> Samples:
    """Resample audio between two rates in Hz; at equal rates it returns `samples` itself."""
    if from_rate == to_rate:
        return samples
    result: Samples = soxr.resample(samples, from_rate, to_rate, quality=RESAMPLING_QUALITY)
    return result


def check_rate(rate: int) -> None:
    """Raise SpeechError for a sample rate, in Hz, outside of what recordings of speech have."""
    if not MIN_RATE <= rate <= MAX_RATE:
        raise SpeechError(
            f"sample_rate: expected {MIN_RATE} to {MAX_RATE} samples a second, got"
            f" {'fewer' if rate < MIN_RATE else 'more'}"
        )


def check_length(samples: int) -> None:
    """Raise SpeechError for audio without a single sample at the model's rate."""
    if not samples:
        raise SpeechError("audio: expected at least one sample at the model's rate, got none")


def check_levels(samples: NDArray[np.float32]) -> None:
    """Raise SpeechError for NaN, for infinite values, and for values far beyond -1 to 1."""
    level = float(np.abs(samples).max(initial=0))  # NaN if any sample is
    if not np.isfinite(level):
        raise SpeechError("audio: expected finite numbers, got NaN or infinity; check the program that wrote it")
    if level > MAX_LEVEL:
        raise SpeechError(
            "audio: floats are from -1 to 1, got larger ones; divide by full scale, 32768 for 16 bits, or send int16"
        )


def _check_riff_size(body: bytes | bytearray) -> None:
    """Raise WireError for a WAV file that was cut off, as libsndfile would read what is left of it."""
    size = int.from_bytes(body[4:8], "little") + 8
    if body.startswith(b"RIFF") and len(body) < size < UNKNOWN_RIFF_SIZE:
        raise WireError(
            f"audio: expected a whole WAV file, got a damaged one: {len(body)} bytes, fewer than its header says;"
            " save it again"
        )


def _check_header(file: soundfile.SoundFile, max_seconds: float) -> None:
    if file.format not in _FORMATS or file.subtype not in _CODECS:
        raise UnsupportedFormat(
            f"audio: expected PCM, float, mu-law, A-law, FLAC, Vorbis or Opus, got {file.subtype} in {file.format};"
            " convert it to FLAC"
        )
    check_rate(file.samplerate)
    if not 1 <= file.channels <= MAX_CHANNELS:
        raise LimitExceeded(f"audio: at most {MAX_CHANNELS} channels, got more; mix it down to one")
    if file.frames == _UNKNOWN_LENGTH:
        raise UnsupportedFormat("audio: expected a file that says how long it is, got FLAC from a pipe; save it again")
    if file.frames > max_seconds * file.samplerate:  # libsndfile never reads more than the header claims
        raise LimitExceeded(
            f"audio: files of at most {max_seconds:g} seconds, got a longer one; use `reelscribe transcribe`"
        )
    if file.frames * file.channels > MAX_SAMPLES:
        raise LimitExceeded(f"audio: at most {MAX_SAMPLES:,} samples in all channels, got more; mix it down to one")


def _mono_blocks(file: soundfile.SoundFile) -> Iterator[Samples]:
    while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
        check_time()  # a file that has ended because of it has a last block
        check_levels(block)
        yield block.mean(axis=1)


def _resampled_blocks(blocks: Iterator[Samples], from_rate: int, to_rate: int) -> Iterator[Samples]:
    if from_rate == to_rate:
        yield from blocks
        return
    stream = soxr.ResampleStream(from_rate, to_rate, 1, dtype="float32", quality=RESAMPLING_QUALITY)
    for block in blocks:
        yield stream.resample_chunk(block)
    yield stream.resample_chunk(np.zeros(0, np.float32), last=True)


@contextmanager
def _libsndfile_errors() -> Iterator[None]:
    """Turn whatever libsndfile raises for a damaged file into an error of that file's request alone."""
    try:
        yield
    except soundfile.SoundFileError:  # a message of libsndfile holds the address of an object
        check_time()
        raise WireError("audio: expected a whole WAV, FLAC or Ogg file, got a damaged one; save it again") from None
    check_time()


def check_pages(body: bytes | bytearray) -> None:
    """Check that a body is a row of whole pages of Ogg with one recording, which libsndfile reads to its end.

    Args:
        body: The bytes of the file.

    Raises:
        WireError: The file is cut short, or something else than a page is before its last one.
        UnsupportedFormat: It is a chain of recordings, of which libsndfile would read one.
    """
    view = memoryview(body)
    start, first_pages_end = 0, False
    while body.find(b"OggS", start) >= 0:
        header = view[start : start + _HEADER_BYTES]
        segments = view[start + _HEADER_BYTES : start + _HEADER_BYTES + header[-1]]
        end = start + _HEADER_BYTES + header[-1] + sum(segments)
        if bytes(header[:4]) != b"OggS" or len(header) < _HEADER_BYTES or end > len(view):
            raise WireError("audio: expected a whole Ogg file, got one that is cut short or damaged between its pages")
        if checksum(bytes(header[:22]) + bytes(4) + view[start + 26 : end]) != int.from_bytes(header[22:26], "little"):
            raise WireError("audio: expected a whole Ogg file, got one with a damaged page")
        is_first_page = bool(header[5] & _FIRST_PAGE)
        if is_first_page and first_pages_end:
            raise UnsupportedFormat(
                "audio: expected one recording, got a chain of several in one Ogg file; use `reelscribe transcribe`"
            )
        start, first_pages_end = end, not is_first_page
    # What is left is no page, but may be a tag or zeros that a program has appended.


def checksum(page: bytes) -> int:
    """Compute the checksum of a page: zlib's, but from 0 on, and with the bits of bytes and result in reverse order.

    Args:
        page: The bytes of the page, with 0 in the place of its checksum.

    Returns:
        32 bits.
    """
    reverse = zlib.crc32(page.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{reverse:032b}"[::-1], 2)
