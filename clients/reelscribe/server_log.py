"""What the logs of an instance say of why a model does not load."""

from __future__ import annotations

import re
from pathlib import Path

from reelscribe.instance import Instance

_CANNOT_LOAD = re.compile(r"cannot load: (.*)")
"""What our handlers say in the log before they give up."""
_PYTHON_ERROR = re.compile(r" - ((?:\w+\.)*\w*(?:Error|Exception)\b.*)")


def why_it_cannot_load(instance: Instance) -> str | None:
    """What a handler said last before it gave up; None if none did."""
    return _last(_CANNOT_LOAD, instance.logs / "model_log.log")


def best_explanation(instance: Instance) -> str:
    """Of a server that is not ready, whatever the reason, on one line."""
    for name in ("model_log.log", "ts_log.log"):
        if reason := _last(_PYTHON_ERROR, instance.logs / name):
            return f"{reason} (see {instance.logs / name})"
    console = instance.logs / "console.log"
    lines = console.read_text(errors="replace").split("\n") if console.exists() else []
    return " ".join([line.strip() for line in lines if line.strip()][-3:]) + f" (see {instance.logs})"


def _last(pattern: re.Pattern[str], log: Path) -> str | None:
    found = pattern.findall(log.read_text(errors="replace")) if log.exists() else []
    return found[-1].strip() if found else None
