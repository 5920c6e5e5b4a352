"""How things are said: durations, times left, times of day, and events as JSON."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

ROUGH = 0.5
"""Uncertainty of a time left, relative to it, from which on it is told as a range of a factor."""


def count(number: float, noun: str) -> str:
    """Return a number and what it counts, such as "1 source" or "1,204 sources", from the singular."""
    return f"{number:,.0f} {noun}{'' if number == 1 else 's'}"


def times(number: int) -> str:
    """Return how often something happened, such as "once" or "3 times"."""
    return "once" if number == 1 else f"{number:,} times"


def describe_duration(seconds: float) -> str:
    """Describe a duration with at most two units, such as "45 s", "3 min 20 s", "2 h 05 min" or "12 d 3 h"."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 9.95 or seconds == int(seconds) else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s" if minutes < 10 else f"{round(seconds / 60)} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 48:
        return f"{hours} h {minutes:02} min"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days} d {hours} h"


def describe_time_left(seconds: float, plus_minus: float) -> str:
    """Describe a time left and its uncertainty, such as "25 ± 4 min", or "about 10 s to 90 s" if it is hardly known."""
    if seconds + plus_minus < 1:
        return "less than 1 s"
    if plus_minus > seconds * ROUGH > 0:
        factor = 1 + plus_minus / seconds
        return f"about {describe_duration(round(seconds / factor))} to {describe_duration(round(seconds * factor))}"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            digits = 1 if unit != "min" and seconds < 10 * length else 0
            spread = max(plus_minus / length, 10.0**-digits)
            return f"{seconds / length:.{digits}f} ± {spread:.{digits}f} {unit}"
    return f"{seconds:.0f} ± {max(plus_minus, 1):.0f} s"


def describe_clock(since_epoch: float) -> str:
    """Describe a time of day, such as "14:03"."""
    return time.strftime("%H:%M", time.localtime(since_epoch))


def json_event(event: str, **values: Any) -> str:
    """Return a line of --json-log: what happened, when, and what belongs to it."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"event": event, "time": now, **values})
