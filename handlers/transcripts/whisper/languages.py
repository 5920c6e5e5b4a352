"""The language of a window: the only one that may be spoken, or else the most probable of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from reelscribe.contract.fields import round_confidence
from transcripts.whisper.engine_interface import WindowBatch


class SpokenLanguage(NamedTuple):
    """The language of a window."""

    code: str
    """Its code."""
    probability: float | None
    """Its probability (0 to 1) among the languages that may be spoken; None if there is no other."""


def spoken_languages(
    batch: WindowBatch, known: Sequence[str], allowed: Sequence[Sequence[str]]
) -> list[SpokenLanguage]:
    """Return the language of each window, as openai/whisper detects it (decoding.py), but among given ones.

    Args:
        batch: B encoded windows.
        known: Codes of the model's languages.
        allowed: For each window, the codes of the languages that may be spoken, at least one.
    """
    if all(len(codes) == 1 for codes in allowed):  # saves a step of the decoder
        return [SpokenLanguage(code, None) for (code,) in allowed]
    columns = {code: column for column, code in enumerate(known)}
    rows = zip(batch.language_logits(), allowed, strict=True)
    return [_most_probable(codes, logits[[columns[code] for code in codes]]) for logits, codes in rows]


def _most_probable(codes: Sequence[str], logits: Tensor) -> SpokenLanguage:
    if len(codes) == 1:
        return SpokenLanguage(codes[0], None)
    probability, row = logits.softmax(0).max(0)
    return SpokenLanguage(codes[int(row)], round_confidence(float(probability)))
