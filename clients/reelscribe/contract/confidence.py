"""Confidences: how probable a model finds its own answer, as handlers send them and clients read them."""

from __future__ import annotations

import math
from typing import Any

DECIMALS = 4
"""Decimals of probabilities and of log-probabilities. Devices, and batches of other sizes, do not agree on more."""


def round_confidence(value: float) -> float | None:
    """Round a probability or a log-probability for JSON.

    Args:
        value: The probability or log-probability.

    Returns:
        The value with DECIMALS decimals; None if it is no finite number, for which JSON has no name.
    """
    return round(value, DECIMALS) + 0.0 if math.isfinite(value) else None  # + 0.0 makes -0.0 a plain 0


def read_confidence(name: str, value: Any) -> float | None:
    """Read a probability or a log-probability from parsed JSON.

    Args:
        name: What it is called, for the message.
        value: A number, or None where it is not known.

    Raises:
        TypeError: It is neither.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}: expected a number or null")
    return float(value)
