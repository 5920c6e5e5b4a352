"""For how many CPUs of its nodes a run asks Ray, which is replaced here by what it would answer."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from reelscribe.cluster import ray_cluster
from reelscribe.cluster.ray_cluster import RayCluster

NODE = {"Alive": True, "NodeID": "ab" * 28, "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 16.0}}


class FakeRay:
    """One node of 16 CPUs, of which other programs hold some; it notes for how many an actor asks."""

    def __init__(self, free: Iterator[int]) -> None:
        self._free = free
        self.asked: list[int] = []

    def nodes(self) -> list[dict]:
        return [NODE]

    def available_resources_per_node(self) -> dict[str, dict[str, float]]:
        free = next(self._free)
        return {NODE["NodeID"]: {"CPU": float(free)} if free else {}}

    def remote(self, _actor) -> SimpleNamespace:
        return SimpleNamespace(options=self._options)

    def _options(self, *, num_cpus: int, **_) -> SimpleNamespace:
        self.asked.append(num_cpus)
        return SimpleNamespace(remote=lambda **_: None)


async def asked(monkeypatch, free: list[int], processes: int | None = None) -> list[int]:
    """Return for how many CPUs a run asks if so many are free at each look, a second after the other."""
    ray, clock = FakeRay(iter(free)), iter(range(100))
    for name in ("ray", "state"):
        monkeypatch.setattr(ray_cluster, name, ray)
    monkeypatch.setattr(ray_cluster, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(ray_cluster, "LOOK_SECONDS", 0)
    await anext(RayCluster("auto", processes=processes).nodes())
    return ray.asked


@pytest.mark.parametrize(
    ("free", "cpus"),
    [
        ([16], 16),
        ([0, 4, 16], 16),  # another run has just ended
        ([15] * 11, 15),  # another program stays
        ([0] * 11, 2),  # it waits for these
    ],
)
async def test_a_run_takes_the_cpus_that_others_leave(free, cpus, monkeypatch):
    assert await asked(monkeypatch, free) == [cpus]


@pytest.mark.parametrize(("processes", "cpus"), [(4, 4), (40, 16)])
async def test_a_run_whose_processes_are_chosen_asks_for_as_many_cpus(processes, cpus, monkeypatch):
    assert await asked(monkeypatch, [], processes) == [cpus]
