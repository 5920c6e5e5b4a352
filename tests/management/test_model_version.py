"""A version of a model is read from the description of the management API."""

from reelscribe.management.model_version import ModelVersion
from support.fake_management import FakeVersion


def test_the_gpus_of_a_worker_with_two_stages_are_a_pair_of_those_of_the_archive():
    answer = FakeVersion("m.mar", min_workers=2, max_workers=2, ready=[True, True]).to_json("m", "1")
    del answer["deviceIds"]
    for worker, first in zip(answer["workers"], (0, 2), strict=True):
        worker["gpuUsage"] = f"gpuId::{first} utilization.gpu [%]::0 %"
    for changes, gpus in (
        ({"parallelLevel": 2, "deviceIds": [0, 1, 7, 6]}, [(0, 1), (7, 6)]),
        ({"parallelLevel": 2}, [(0, 1), (2, 3)]),
        ({"parallelLevel": 0, "deviceIds": [0, 2]}, [(0,), (2,)]),
    ):
        version = ModelVersion.from_json({**answer, **changes}, "1")
        assert [version.gpus_of(worker) for worker in version.workers] == gpus
