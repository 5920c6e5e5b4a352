"""Cuts are found where they are hard to find, in videos with which no threshold was chosen."""

import pytest

from support.shots import cuts_of
from synthetic.shot_scenes import KINDS, scene_of, write_scene

VIDEOS = 1
"""Videos of each kind; `scripts/bench defaults/cuts` looks at more."""


@pytest.fixture(scope="module")
def counts(tmp_path_factory) -> dict[str, tuple[int, int, int]]:
    """For each kind of the held-out set, how many cuts there are, were found, and were found where none is."""
    path, counts = tmp_path_factory.mktemp("shots") / "scene.mp4", {}
    for kind in KINDS:
        cuts = right = false = 0
        for number in range(VIDEOS):
            scene, rate = scene_of(kind, "held-out", number)
            write_scene(path, scene, rate)
            found = {*cuts_of(path)}
            cuts, right = cuts + len(scene.cuts), right + len(found & {*scene.cuts})
            false += len(found - {*scene.cuts})
        counts[kind] = (cuts, right, false)
    return counts


def test_of_all_kinds_nearly_all_cuts_are_found_and_nearly_nothing_else(counts):
    cuts, right, false = map(sum, zip(*counts.values(), strict=True))
    assert right / cuts >= 0.97, counts
    assert right / (right + false) >= 0.97, counts


@pytest.mark.parametrize("kind", ["plain", "fast things", "flashes", "grain"])
def test_of_plain_kinds_all_cuts_are_found_and_nothing_else(counts, kind):
    cuts, right, false = counts[kind]
    assert (right, false) == (cuts, 0)
