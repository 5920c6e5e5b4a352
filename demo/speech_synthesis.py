"""Speech from espeak-ng's library, which the package espeakng-loader brings along.

The library keeps some state from one call to the next, so the same text sounds a little different each time. `speak`
lives with that; `speak_afresh` loads the library anew, and then equal arguments give equal samples.
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

_RETRIEVAL = 1  # AUDIO_OUTPUT_RETRIEVAL: samples go to the callback, not to a loudspeaker
_UTF8 = 1  # espeakCHARS_UTF8
_RATE, _PITCH, _WORD_GAP = 1, 3, 7  # espeak_PARAMETER
_LIST_TERMINATED, _WORD = 0, 1  # espeak_EVENT_TYPE
_DEFAULT_PITCH = 50


class _Event(ctypes.Structure):
    """espeak_EVENT of speak_lib.h."""

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

_heard: list[NDArray[np.int16]] = []
_word_milliseconds: list[int] = []


def _listen(samples: Any, count: int, events: Any) -> int:
    if samples and count > 0:
        _heard.append(np.ctypeslib.as_array(samples, (count,)).copy())
    i = 0
    while events[i].type != _LIST_TERMINATED:
        if events[i].type == _WORD:
            _word_milliseconds.append(events[i].audio_milliseconds)
        i += 1
    return 0


_listener = _CALLBACK(_listen)  # kept: the library calls it as long as the process lives


@cache
def _library() -> tuple[Any, int]:
    library = ctypes.CDLL(espeakng_loader.get_library_path())
    rate = library.espeak_Initialize(_RETRIEVAL, 0, espeakng_loader.get_data_path().encode(), 0)
    if rate <= 0:
        raise RuntimeError(f"espeak-ng cannot be initialised: {rate}")
    library.espeak_SetSynthCallback(_listener)
    return library, rate


def _reload(seed: int) -> None:
    """Forget all that earlier calls left behind; espeak_Terminate alone does not."""
    library, _ = _library()
    library.espeak_Terminate()
    _library.cache_clear()
    _ctypes.dlclose(library._handle)
    _library()[0].espeak_ng_SetRandSeed(ctypes.c_long(seed))


def _check_voice(voice: str) -> None:
    """Espeak-ng takes a variant that it does not have for none at all, without a word."""
    _, _, variant = voice.partition("+")
    if variant and not (Path(espeakng_loader.get_data_path()) / "voices" / "!v" / variant).is_file():
        raise ValueError(f"voice: espeak-ng has no variant called {variant!r}, as {voice!r} asks for")


def speak(
    text: str,
    *,
    voice: str = "en-us",
    words_per_minute: int = 140,
    pitch: int = _DEFAULT_PITCH,
    word_gap: int = 1,
) -> tuple[NDArray[np.int16], int]:
    """Mono samples, (N,) int16, and their sample rate.

    A voice is a language or the name of its file, with or without a variant: `en-us`, `gmw/en-US+f4`. `pitch` is from
    0 to 100, `word_gap` the pause after a word in units of 10 ms. Raises ValueError for a voice that does not exist.
    """
    library, rate = _library()
    _check_voice(voice)
    _heard.clear()
    _word_milliseconds.clear()
    if library.espeak_SetVoiceByName(voice.encode()) != 0:
        raise ValueError(f"voice: espeak-ng has none called {voice!r}")
    for parameter, value in ((_RATE, words_per_minute), (_PITCH, pitch), (_WORD_GAP, word_gap)):
        library.espeak_SetParameter(parameter, value, 0)
    data = text.encode() + b"\0"
    library.espeak_Synth(data, ctypes.c_size_t(len(data)), 0, 0, 0, _UTF8, None, None)
    library.espeak_Synchronize()
    return np.concatenate(_heard), rate


def speak_afresh(
    text: str, *, voice: str, words_per_minute: int, pitch: int, word_gap: int, seed: int
) -> tuple[NDArray[np.int16], int, list[float]]:
    """As `speak`, and when each word begins, in seconds; nothing depends on what was said before."""
    _reload(seed)
    samples, rate = speak(text, voice=voice, words_per_minute=words_per_minute, pitch=pitch, word_gap=word_gap)
    return samples, rate, [milliseconds / 1000 for milliseconds in _word_milliseconds]
