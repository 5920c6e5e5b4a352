"""Speech from espeak-ng's library, which the package espeakng-loader brings along."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import espeakng_loader
import numpy as np
from numpy.typing import NDArray

_RETRIEVAL = 1  # AUDIO_OUTPUT_RETRIEVAL: samples go to the callback, not to a loudspeaker
_UTF8 = 1  # espeakCHARS_UTF8
_RATE, _WORD_GAP = 1, 7  # espeak_PARAMETER
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)

_heard: list[NDArray[np.int16]] = []


def _listen(samples: Any, count: int, _: Any) -> int:
    if samples and count > 0:
        _heard.append(np.ctypeslib.as_array(samples, (count,)).copy())
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


def speak(text: str, *, voice: str = "en-us", words_per_minute: int = 140) -> tuple[NDArray[np.int16], int]:
    """Mono samples, (N,) int16, and their sample rate."""
    library, rate = _library()
    _heard.clear()
    if library.espeak_SetVoiceByName(voice.encode()) != 0:
        raise ValueError(f"voice: espeak-ng has none called {voice!r}")
    library.espeak_SetParameter(_RATE, words_per_minute, 0)
    library.espeak_SetParameter(_WORD_GAP, 1, 0)
    data = text.encode() + b"\0"
    library.espeak_Synth(data, ctypes.c_size_t(len(data)), 0, 0, 0, _UTF8, None, None)
    library.espeak_Synchronize()
    return np.concatenate(_heard), rate
