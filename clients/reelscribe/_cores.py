"""The CPU cores of this machine, and how the tracks of a run share them among their decode processes.

A server on the same machine keeps the cores that it needs. What is left decodes: pictures take far more of it than
audio, so a track of pictures gets four times as many processes as a track of audio. None gets fewer than two, so that
one process opens a file while another one decodes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

LEAST_PROCESSES = 2
"""Smallest number of decode processes of a track, unless the user chooses another."""

PICTURES_SHARE, AUDIO_SHARE = 4, 1
"""Shares of the cores that a track of pictures gets, and one of audio."""

CORES_OF_JAVA = 1
"""Cores that TorchServe itself needs on its machine, besides those of its workers."""

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""The quota of a container: microseconds of CPU time, or "max", and the period in which it has them."""


def usable_cores() -> int:
    """Return how many cores this process may use: those that it may run on, within the quota of its container."""
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # there is no quota
        quota, period = map(int, _QUOTA.read_text().split())
        cores = min(cores, math.ceil(quota / period))
    return cores


def share_cores(
    cores: int, for_servers: int, chosen: Sequence[int | None], read_pictures: Sequence[bool]
) -> tuple[list[int], str]:
    """Decide how many decode processes each track of a run has on this machine.

    Args:
        cores: Number of cores that the run may use.
        for_servers: Number of these that servers on this machine need.
        chosen: For each track, the number that the user has chosen; None to decide it here.
        read_pictures: For each track, whether it reads pictures, and not audio.

    Returns:
        The number for each track, and the reason in words; an empty text if the user has chosen all.
    """
    taken = sum(number for number in chosen if number is not None)
    shares = [PICTURES_SHARE if pictures else AUDIO_SHARE for pictures in read_pictures]
    total = sum(share for share, number in zip(shares, chosen, strict=True) if number is None)
    if not total:
        return [number or 0 for number in chosen], ""
    left = max(0, cores - for_servers - taken)
    by_share = [left * share // total for share in shares]
    numbers = [
        max(LEAST_PROCESSES, decided) if number is None else number
        for number, decided in zip(chosen, by_share, strict=True)
    ]
    less = [f"{taken} as chosen"] * bool(taken) + [f"{for_servers} for the server here"] * bool(for_servers)
    why = f"{cores} core{'s' * (cores != 1)}" + (f", less {' and '.join(less)}" if less else "")
    return numbers, why + (f", at least {LEAST_PROCESSES}" if sum(numbers) > left + taken else "")
