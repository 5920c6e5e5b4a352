"""How many cores a process may use, and how the tracks of a run share them among their decode processes."""

import os

import pytest

from reelscribe import _cores
from reelscribe._cores import share_cores, usable_cores

FRAMES, AUDIO = True, False


@pytest.mark.parametrize(
    ("cores", "for_servers", "chosen", "tracks", "processes", "why"),
    [
        (16, 2, [None], [FRAMES], [14], "16 cores, less 2 for the server here"),
        (16, 0, [None], [AUDIO], [16], "16 cores"),
        (64, 17, [None, None], [FRAMES, AUDIO], [37, 9], "64 cores, less 17 for the server here"),
        (16, 2, [4, None], [FRAMES, AUDIO], [4, 10], "16 cores, less 4 as chosen and 2 for the server here"),
        (16, 2, [4, 3], [FRAMES, AUDIO], [4, 3], ""),
        (16, 0, [None, 0], [FRAMES, FRAMES], [16, 0], "16 cores"),
        (2, 0, [None], [FRAMES], [2], "2 cores"),
        (2, 3, [None, None], [FRAMES, AUDIO], [2, 2], "2 cores, less 3 for the server here, at least 2"),
        (1, 0, [None], [FRAMES], [2], "1 core, at least 2"),
    ],
)
def test_what_servers_here_and_the_user_leave_is_shared(cores, for_servers, chosen, tracks, processes, why):
    assert share_cores(cores, for_servers, chosen, tracks) == (processes, why)


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("250000 100000", 3), ("max 100000", 8), ("1600000 100000", 8), (None, 8)],
)
def test_a_container_has_the_cores_of_its_quota(quota, cores, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(_cores, "_QUOTA", tmp_path / "cpu.max")
    if quota is not None:
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert usable_cores() == cores
