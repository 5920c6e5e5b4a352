"""What a start chooses for a machine: GPUs, workers, joined requests, queue, memory and threads of Java."""

import json
import os
import re
from pathlib import Path

import pytest

from reelscribe.archive.model_store import StoredModel
from reelscribe.errors import StartupError
from reelscribe.management.model_version import ModelVersion
from reelscribe.server import sizes
from reelscribe.server.config_properties import Settings, read_properties
from reelscribe.server.sizes import complete_sizes, idle_gpus, visible_gpus

CONFIG = read_properties((Path(__file__).parents[2] / "config.properties").read_text())
CPU = {"PATH": ""}
GIB = 2**30


def emulated(gpus: int) -> dict[str, str]:
    """The environment in which TorchServe sees so many GPUs, whether or not there are any."""
    return {"PATH": "", "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus)))}


def stored(name: str = "blip2", version: str = "1.0", **yaml: object) -> StoredModel:
    return StoredModel(name, version, Path(f"{name}.mar"), {"handler": {"max_frames": 512}, **yaml})


def completed(settings: Settings, models: list[StoredModel], environment: dict[str, str]) -> Settings:
    return complete_sizes(settings, models, environment)[0]


def chosen(model: StoredModel, environment: dict[str, str], **settings: str) -> tuple[int, int]:
    """The workers of a model, and the requests that a call of one takes."""
    entry = json.loads(completed(settings, [model], environment)["models"])[model.name][model.version]
    assert entry["minWorkers"] == entry["maxWorkers"]
    return entry["minWorkers"], entry["batchSize"]


@pytest.fixture(autouse=True)
def large_machine(monkeypatch):
    monkeypatch.setattr(sizes, "_memory", lambda: 512 * GIB)


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_each_gpu_has_a_worker_and_the_queue_holds_two_calls_of_each(gpus):
    settings = completed(CONFIG, [stored()], emulated(gpus))
    assert chosen(stored(), emulated(gpus)) == (gpus, 16)
    assert (settings["number_of_gpu"], settings["job_queue_size"]) == (str(gpus), str(2 * 16 * gpus))


def test_a_machine_without_gpus_has_one_worker_and_joins_nothing():
    assert chosen(stored(), CPU) == (1, 1)
    settings = completed(CONFIG, [stored()], CPU)
    assert (settings["number_of_gpu"], settings["job_queue_size"]) == ("0", "16")


@pytest.mark.parametrize(
    ("handler", "joined"),
    [
        ({"max_frames": 512}, 16),
        ({"max_frames": 500}, 16),
        ({"max_frames": None, "max_clips": 64}, 8),
        ({"max_chunks": 64}, 8),
        ({"max_windows": 64}, 8),
        ({"max_frames": 8}, 1),
        ({}, 1),
    ],
)
def test_a_call_is_as_many_of_our_largest_requests_as_it_takes(handler, joined):
    assert chosen(stored(handler=handler), emulated(2)) == (2, joined)


@pytest.mark.parametrize(
    ("yaml", "settings", "expected"),
    [
        ({"minWorkers": 1, "maxWorkers": 1, "batchSize": 3}, {}, (1, 3)),
        ({"minWorkers": 3}, {}, (3, 16)),  # one alone is both
        ({"maxWorkers": 2}, {}, (2, 16)),
        ({"minWorkers": 3, "maxWorkers": 2}, {}, (4, 16)),  # TorchServe ignores both
        ({"minWorkers": 3}, {"models": '{"blip2": {"1.0": {"minWorkers": 1, "maxWorkers": 1}}}'}, (3, 16)),
        ({}, {"models": '{"blip2": {"1.0": {"maxWorkers": 1}}}', "default_workers_per_model": "3"}, (1, 16)),
        ({}, {"models": '{"blip2": {"1.0": {"minWorkers": 8}}}'}, (8, 16)),
        ({"deviceIds": [2, 3]}, {}, (2, 16)),
        ({"deviceIds": [2, 3], "workersPerGpu": 2}, {}, (4, 16)),
        ({"deviceIds": [0, 1, 3, 2], "handler": {"max_frames": 512, "stages": 2}}, {}, (2, 16)),
        ({"deviceIds": [2, 4]}, {}, (4, 16)),  # there is no GPU 4, so TorchServe ignores the list
        ({"workersPerGpu": 2}, {}, (8, 16)),
        ({"deviceType": "cpu"}, {}, (1, 1)),
        ({}, {"models": '{"blip2": {"1.0": {"batchSize": 128, "minWorkers": 2, "maxWorkers": 2}}}'}, (2, 128)),
        ({}, {"models": '{"blip2": {"0.9": {"batchSize": 64}, "0.10": {"batchSize": 128}}}'}, (4, 128)),
        ({"batchSize": 5}, {"models": '{"blip2": {"1.0": {"batchSize": 128}}}'}, (4, 5)),
        ({}, {"default_workers_per_model": "3"}, (3, 16)),
        ({}, {"number_of_gpu": "2"}, (2, 16)),
    ],
)
def test_what_the_user_wrote_comes_first(yaml, settings, expected):
    assert chosen(stored(**yaml), emulated(4), **settings) == expected


def test_settings_of_the_user_remain():
    own = {"job_queue_size": "7", "number_of_netty_threads": "9", "vmargs": "-Xmx1g -XX:-UsePerfData"}
    own["models"] = '{"blip2": {"1.0": {"responseTimeout": 5}}, "other": {"1.0": {"batchSize": 2}}}'
    settings = completed(own, [stored()], emulated(2))
    assert (settings["job_queue_size"], settings["number_of_netty_threads"]) == ("7", "9")
    assert settings["vmargs"].startswith("-Xmx1g -XX:-UsePerfData -XX:MaxDirectMemorySize=")
    models = json.loads(settings["models"])
    assert (models["blip2"]["1.0"]["responseTimeout"], models["other"]) == (5, {"1.0": {"batchSize": 2}})


def test_two_stages_get_pairs_of_gpus():
    model = stored(handler={"max_frames": 512, "stages": 2})
    assert [chosen(model, emulated(gpus)) for gpus in (2, 3, 8)] == [(1, 16), (1, 16), (4, 16)]
    assert chosen(model, CPU) == (1, 16)
    with pytest.raises(StartupError, match=r"blip2 1\.0: expected two GPUs or more, .* got one"):
        chosen(model, emulated(1))
    with pytest.raises(
        StartupError, match=r"CUDA_VISIBLE_DEVICES: expected the numbers from 0 .*, got 2,3: .*--devices"
    ):
        chosen(model, {"CUDA_VISIBLE_DEVICES": "2,3"})


def test_java_has_room_for_a_full_queue_and_for_what_workers_compute():
    one, eight = (completed(CONFIG, [stored()], emulated(gpus))["vmargs"] for gpus in (1, 8))
    assert one == "-XX:-UsePerfData -Xmx3366m -XX:MaxDirectMemorySize=4366m"
    assert eight == "-XX:-UsePerfData -Xmx5929m -XX:MaxDirectMemorySize=6929m"
    both = completed(CONFIG, [stored(), stored("whisper", handler={"max_chunks": 64})], emulated(8))["vmargs"]
    assert both == "-XX:-UsePerfData -Xmx8371m -XX:MaxDirectMemorySize=8394m"


def test_java_takes_half_of_a_small_machine_and_says_so(monkeypatch):
    monkeypatch.setattr(sizes, "_memory", lambda: 8 * GIB)
    settings, _, warnings = complete_sizes(CONFIG, [stored()], emulated(8))
    heap, direct = map(int, re.findall(r"(\d+)m", settings["vmargs"]))
    assert 4 * 1024 - 2 <= heap + direct <= 4 * 1024
    assert "Java should have 6.1 GB for requests to these models, and gets 4.3, half of the machine's" in warnings[-1]
    own = {"vmargs": "-Xmx6g -XX:MaxDirectMemorySize=7g"}
    settings, _, warnings = complete_sizes(own, [stored()], emulated(8))
    assert (settings["vmargs"], warnings) == (own["vmargs"], [])


@pytest.mark.parametrize("gib", [8, 12])
def test_a_small_machine_whose_requests_fit_is_not_warned(monkeypatch, gib):
    monkeypatch.setattr(sizes, "_memory", lambda: gib * GIB)
    settings, _, warnings = complete_sizes(CONFIG, [stored()], CPU)
    heap, direct = map(int, re.findall(r"(\d+)m", settings["vmargs"]))
    assert gib * 512 - 2 <= heap + direct <= gib * 512
    assert warnings == []


@pytest.mark.parametrize(
    ("given", "rest"),
    [("-Xmx1g", 3584), ("-Xmx2g -Xmx1024m", 3584), ("-XX:MaxDirectMemorySize=1048576k", 3366), ("-Xmx6g", 1024)],
)
def test_java_gets_half_of_the_memory_that_the_user_leaves(monkeypatch, given, rest):
    monkeypatch.setattr(sizes, "_memory", lambda: 8 * GIB)
    arguments = completed({**CONFIG, "vmargs": given}, [stored()], emulated(1))["vmargs"]
    assert arguments.startswith(f"{given} -X")
    assert arguments.endswith((f"-Xmx{rest}m", f"-XX:MaxDirectMemorySize={rest}m"))


def test_a_queue_that_holds_less_than_a_call_of_each_worker_is_said():
    for queue, count in (("16", 1), ("128", 0)):
        settings, _, warnings = complete_sizes({"job_queue_size": queue}, [stored()], emulated(8))
        assert (settings["job_queue_size"], len(warnings)) == (queue, count)
        assert all(line.startswith("job_queue_size=16: expected at least 128") for line in warnings)


def test_an_archive_that_joins_more_than_a_call_takes_is_said():
    """So did those of the versions before."""
    settings, lines, (warning,) = complete_sizes(CONFIG, [stored(batchSize=128)], emulated(8))
    assert warning.startswith("blip2 1.0: its archive joins 128 requests for a call, which takes 16 of our largest")
    assert (settings, lines) == complete_sizes(CONFIG, [stored()], emulated(8))[:2]
    unlimited = stored(batchSize=128, handler={})
    assert chosen(unlimited, emulated(8)) == (8, 128)
    assert complete_sizes(CONFIG, [unlimited], emulated(8))[2] == []


def test_the_memory_of_a_container_counts(monkeypatch, tmp_path):
    monkeypatch.undo()
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(sizes, "_MEMORY_LIMIT", limit)
    for text, expected in (("max\n", False), ("1048576\n", True)):
        limit.write_text(text)
        assert (sizes._memory() == 2**20) is expected


def test_what_was_chosen_is_said_and_why():
    models = [stored(), stored("whisper", handler={"max_chunks": 64})]
    assert complete_sizes(CONFIG, models, emulated(2))[1] == [
        "2 GPUs: blip2 1.0 has 2 workers, and a call takes 16 requests; whisper 1.0 has 2 workers, and a call takes 8"
        " requests",
        "no GPU has a second worker: nvidia-smi does not say how much of their memory is free",
        "room for 64 waiting requests of each model; Java gets -Xmx4342m -XX:MaxDirectMemorySize=5098m and 4 threads",
    ]
    assert complete_sizes(CONFIG, models[:1], CPU)[1][0] == "no GPU: blip2 1.0 has 1 worker, and a call takes 1 request"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"models": "{"}, "models=: expected JSON of settings by model and version, got {"),
        ({"models": "[]"}, "models=: expected JSON of settings by model and version"),
        ({"models": '{"blip2": 3}'}, "models=: expected JSON of settings by model and version"),
        ({"job_queue_size": "many"}, "job_queue_size=: expected a whole number of 0 or more, got 'many'"),
        ({"number_of_gpu": "-1"}, "number_of_gpu=: expected a whole number of 0 or more, got '-1'"),
    ],
)
def test_a_setting_that_torchserve_could_not_read_is_named(settings, reason):
    with pytest.raises(StartupError) as error:
        completed({**CONFIG, **settings}, [stored()], CPU)
    assert str(error.value).startswith(reason)


def smi(folder: Path, script: str) -> dict[str, str]:
    """An environment whose nvidia-smi is this script."""
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def with_memory(folder: Path, *free_mib: object) -> dict[str, str]:
    """The environment in which so many GPUs have so much free memory."""
    answers = "\\n".join(map(str, free_mib))
    return {**emulated(len(free_mib)), **smi(folder, f"printf '{answers}\\n'")}


BLIP2 = {"parameters": 3_744_761_856}
"""9.5 GB for each worker: 7.5 of weights, and 2."""


@pytest.mark.parametrize(
    ("yaml", "free_mib", "workers", "reason"),
    [
        (BLIP2, (81_000, 81_000), 4, "each GPU has a second worker, as it has room: one computes while"),
        (
            BLIP2,
            (81_000, 30_000),
            2,
            "models would take 19.0 GB, more than half of the 31.5 GB that is free on each GPU",
        ),
        (BLIP2, ("[N/A]", "[N/A]"), 2, "nvidia-smi does not say how much of their memory is free"),
        ({}, (81_000, 81_000), 2, "how much memory blip2 1.0 takes is not known, as its archive does not say it"),
        (
            {**BLIP2, "handler": {"dtype": "float32"}},
            (64_000,),
            1,
            "models would take 34.0 GB, more than half of the 67.1 GB",
        ),
        ({**BLIP2, "handler": {"compile": True}}, (81_000,), 1, "is not known, as its steps are compiled; if a GPU"),
        ({**BLIP2, "handler": {"stages": 2}}, (81_000, 81_000), 1, None),
        ({**BLIP2, "workersPerGpu": 1}, (81_000, 81_000), 2, None),
        ({**BLIP2, "workersPerGpu": 3}, (8_000, 8_000), 6, None),
        ({**BLIP2, "minWorkers": 1, "maxWorkers": 1}, (81_000, 81_000), 1, None),
        ({**BLIP2, "deviceType": "cpu"}, (81_000, 81_000), 1, None),
    ],
)
def test_a_gpu_gets_a_second_worker_where_memory_has_room(tmp_path, yaml, free_mib, workers, reason):
    model, environment = stored(**yaml), with_memory(tmp_path, *free_mib)
    assert chosen(model, environment)[0] == workers
    lines = [line for line in complete_sizes({}, [model], environment)[1] if "second worker" in line]
    assert ([reason in line for line in lines] == [True]) if reason else (lines == [])


def test_all_models_must_have_room_and_so_must_the_machine(tmp_path, monkeypatch):
    captioner, environment = stored(**BLIP2), with_memory(tmp_path, 45_000)
    others = [
        stored("whisper", parameters=808_878_080),
        stored("fixed", **BLIP2, minWorkers=1, maxWorkers=1, deviceIds=[0]),
    ]
    entries = [json.loads(completed({}, [captioner, other], environment)["models"]) for other in others]
    assert [entry["blip2"]["1.0"]["minWorkers"] for entry in entries] == [1, 1]
    assert chosen(captioner, environment)[0] == 2
    monkeypatch.setattr(sizes, "_memory", lambda: 32 * GIB)
    assert (
        "19.0 GB, more than half of the 34.4 GB that the machine has"
        in complete_sizes({}, [captioner], environment)[1][1]
    )


def test_a_queue_and_java_have_room_for_second_workers(tmp_path):
    settings = completed(CONFIG, [stored(**BLIP2)], with_memory(tmp_path, *[81_000] * 4))
    one_each = completed(CONFIG, [stored()], emulated(8))
    assert {**settings, "models": "", "number_of_gpu": ""} == {**one_each, "models": "", "number_of_gpu": ""}


def test_the_gpus_of_a_machine_are_those_that_nvidia_smi_lists(tmp_path, caplog):
    assert visible_gpus(smi(tmp_path, "printf '0\\n1\\n2\\n'")) == (0, 1, 2)
    assert visible_gpus({"PATH": str(tmp_path / "nothing")}) == ()
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo Driver/library version mismatch; echo more; exit 9", "Driver/library version mismatch"),
        ("echo No devices were found", "No devices were found"),
        ("echo it failed >&2; exit 6", "it failed"),
        ("exit 6", "status 6"),
    ],
)
def test_an_nvidia_smi_that_fails_is_no_silent_cpu(tmp_path, caplog, script, said):
    assert visible_gpus(smi(tmp_path, script)) == ()
    assert caplog.messages == [f"nvidia-smi lists no GPU, so models run on the CPU: {said}"]


def test_a_gpu_that_is_lost_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(sizes, "SMI_SECONDS", 0.05)
    with pytest.raises(StartupError, match="nvidia-smi: expected an answer within"):
        visible_gpus(smi(tmp_path, "exec sleep 60"))


def test_variables_name_gpus_as_torchserve_can_read_them(tmp_path):
    environment = smi(tmp_path, "printf '0\\n1\\n'")
    for value, numbers in (("2,3", (2, 3)), ("", ()), ("-1", ())):
        assert visible_gpus({**environment, "CUDA_VISIBLE_DEVICES": value}) == numbers
    for value in ("GPU-8a1b", "0, 1", "NoDevFiles"):
        with pytest.raises(StartupError, match="CUDA_VISIBLE_DEVICES: expected numbers of GPUs, separated by commas"):
            visible_gpus({"CUDA_VISIBLE_DEVICES": value})


def running(*gpus: int | None, device_ids: tuple[int, ...] = (), stages: int = 1) -> ModelVersion:
    """A version with a worker for each GPU, of which TorchServe tells only those that are not None."""
    workers = [
        {"id": "9000", "status": "READY", "pid": 1, "gpuUsage": "N/A" if gpu is None else f"gpuId::{gpu} "}
        for gpu in gpus
    ]
    answer = {"modelName": "m", "modelVersion": "1.0", "modelUrl": "m.mar", "minWorkers": 1, "maxWorkers": 1}
    answer |= {"workers": workers, "jobQueueStatus": {"pendingRequests": 0, "remainingCapacity": 16}}
    answer |= {"responseTimeout": 1, "startupTimeout": 1, "batchSize": 1, "maxBatchDelay": 1, "deviceIds": device_ids}
    return ModelVersion.from_json({**answer, "parallelLevel": stages}, "1.0")


@pytest.mark.parametrize(
    ("gpus", "versions", "idle"),
    [
        (0, [running(None)], None),
        (4, [running(1, 2, 3, 0)], None),
        (4, [running(1)], "GPUs 0, 2, 3"),
        (4, [running(1, 2), running(0, 1)], "GPU 3"),
        (4, [running(None, None, device_ids=(0, 1))], "GPUs 2, 3"),
        (3, [running(None, stages=2)], "GPU 2"),
        (2, [], "GPUs 0, 1"),
    ],
)
def test_gpus_on_which_no_worker_runs_are_named(gpus, versions, idle):
    warning = idle_gpus(gpus, versions)
    assert (
        warning is None
        if idle is None
        else f"no model uses {idle}: `reelscribe models scale MODEL {gpus}`" in str(warning)
    )
