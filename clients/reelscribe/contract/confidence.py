"""Confidences: how probable a model finds its own answer, as handlers send them and clients read them."""

from __future__ import annotations

import math
import sys
from typing import Any

DECIMALS = 4
"""Decimals of probabilities and of log-probabilities. Devices, and batches of other sizes, do not agree on more."""

_LARGEST = sys.float_info.max


def round_confidence(value: float) -> float | None:
    """Round a probability or a log-probability for JSON.

    Args:
        value: The probability or log-probability.

    Returns:
        The value with DECIMALS decimals; None if it is no finite number, for which JSON has no name.
    """
    return round(value, DECIMALS) + 0.0 if math.isfinite(value) else None  # + 0.0 makes -0.0 a plain 0


def read_confidence(name: str, value: Any) -> float | None:
    """Read a probability (0 to 1) or a log-probability (at most 0) from parsed JSON.

    Args:
        name: What it is called; names of log-probabilities end in "logprob".
        value: A number, or None where it is not known.

    Raises:
        TypeError: It is neither, or out of its range.
    """
    if value is None:
        return None
    lowest, highest = (-_LARGEST, 0) if name.endswith("logprob") else (0, 1)
    # NaN fails every comparison.
    if (type(value) not in (float, int) and not isinstance(value, float)) or not lowest <= value <= highest:
        raise TypeError(f"{name}: expected a number of at most {highest}, or null")
    return float(value)
