"""Synthesises speech with espeak-ng's library, which the package espeakng-loader contains.

The library keeps state between calls, so the samples of the same text differ a little from call to call. `speak`
accepts that. `speak_reproducibly` loads the library again, so that equal arguments give equal samples.
"""

from __future__ import annotations

import _ctypes
import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import espeakng_loader
import numpy as np
from numpy.typing import NDArray

_RETRIEVAL = 1  # AUDIO_OUTPUT_RETRIEVAL: the library passes samples to the callback instead of playing them
_UTF8 = 1  # espeakCHARS_UTF8
_RATE, _PITCH, _WORD_GAP = 1, 3, 7  # espeak_PARAMETER
_LIST_TERMINATED, _WORD = 0, 1  # espeak_EVENT_TYPE
_DEFAULT_PITCH = 50


class _Event(ctypes.Structure):
    """The type espeak_EVENT of speak_lib.h."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_milliseconds", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_char * 8),
    )


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))

_received: list[NDArray[np.int16]] = []
_word_milliseconds: list[int] = []


def _receive(samples: Any, count: int, events: Any) -> int:
    if samples and count > 0:
        _received.append(np.ctypeslib.as_array(samples, (count,)).copy())
    i = 0
    while events[i].type != _LIST_TERMINATED:
        if events[i].type == _WORD:
            _word_milliseconds.append(events[i].audio_milliseconds)
        i += 1
    return 0


_callback = _CALLBACK(_receive)  # a global, because the library calls it as long as the process lives


@cache
def _library() -> tuple[Any, int]:
    library = ctypes.CDLL(espeakng_loader.get_library_path())
    rate = library.espeak_Initialize(_RETRIEVAL, 0, espeakng_loader.get_data_path().encode(), 0)
    if rate <= 0:
        raise RuntimeError(f"espeak-ng: expected espeak_Initialize to return a sample rate, got the error {rate}")
    library.espeak_SetSynthCallback(_callback)
    return library, rate


def _reload(seed: int) -> None:
    """Load the library again, which clears all state of earlier calls; espeak_Terminate alone does not."""
    library, _ = _library()
    library.espeak_Terminate()
    _library.cache_clear()
    _ctypes.dlclose(library._handle)
    _library()[0].espeak_ng_SetRandSeed(ctypes.c_long(seed))


def _check_voice(voice: str) -> None:
    """Raise ValueError for an unknown variant, which espeak-ng itself ignores without an error."""
    _, _, variant = voice.partition("+")
    if variant and not (Path(espeakng_loader.get_data_path()) / "voices" / "!v" / variant).is_file():
        raise ValueError(f"voice: expected a variant that espeak-ng has after the +, got {voice!r}")


def speak(
    text: str,
    *,
    voice: str = "en-us",
    words_per_minute: int = 140,
    pitch: int = _DEFAULT_PITCH,
    word_gap: int = 1,
) -> tuple[NDArray[np.int16], int]:
    """Synthesise a text.

    Args:
        text: What to speak.
        voice: A language or the name of a voice file, with or without a variant: `en-us`, `gmw/en-US+f4`.
        words_per_minute: Speed.
        pitch: From 0 to 100.
        word_gap: Pause after each word, in units of 10 ms.

    Returns:
        Mono samples, (N,) int16, and their sample rate in Hz.

    Raises:
        ValueError: There is no such voice.
    """
    library, rate = _library()
    _check_voice(voice)
    _received.clear()
    _word_milliseconds.clear()
    if library.espeak_SetVoiceByName(voice.encode()) != 0:
        raise ValueError(f"voice: expected a voice that espeak-ng has, got {voice!r}")
    for parameter, value in ((_RATE, words_per_minute), (_PITCH, pitch), (_WORD_GAP, word_gap)):
        library.espeak_SetParameter(parameter, value, 0)
    data = text.encode() + b"\0"
    library.espeak_Synth(data, ctypes.c_size_t(len(data)), 0, 0, 0, _UTF8, None, None)
    library.espeak_Synchronize()
    return np.concatenate(_received), rate


def speak_reproducibly(
    text: str, *, voice: str, words_per_minute: int, pitch: int, word_gap: int, seed: int
) -> tuple[NDArray[np.int16], int, list[float]]:
    """Synthesise a text like `speak`, but with samples that depend on nothing but the arguments.

    Returns:
        Mono samples, (N,) int16, their sample rate in Hz, and when each word begins, in seconds. Sometimes espeak-ng
        does not report the start of a word; then there are fewer starts than words.
    """
    _reload(seed)
    samples, rate = speak(text, voice=voice, words_per_minute=words_per_minute, pitch=pitch, word_gap=word_gap)
    return samples, rate, [milliseconds / 1000 for milliseconds in _word_milliseconds]
