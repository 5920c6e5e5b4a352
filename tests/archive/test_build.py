import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from reelscribe.archive.build import GpuWorkers, build
from reelscribe.archive.handler_files import imported_files
from reelscribe.cli import app
from reelscribe.decode_pool.commands import (
    MAX_CHUNKS_PER_REQUEST,
    MAX_CLIPS_PER_REQUEST,
    MAX_FRAMES_PER_REQUEST,
    MAX_WINDOWS_PER_REQUEST,
)
from reelscribe.errors import OutputError, StartupError, UsageError
from support.fake_hub import BRANCHES, COMMIT, NAME, fake_hub
from support.shot_models import save_transnetv2
from transcripts.speech_model import SpeechSettings

ROOT = Path(__file__).parents[2]
HANDLERS = ROOT / "handlers"
PARAMETERS = 1_012_672
"""Of the demo's captioner."""


@pytest.fixture
def weights(tmp_path, demo_model) -> Path:
    """A copy of the demo's captioner, to be damaged."""
    return shutil.copytree(demo_model, tmp_path / "weights")


@pytest.fixture
def repository(demo_model) -> dict[str, bytes]:
    """The demo's captioner as a hub has it: among other things."""
    files = {path.name: path.read_bytes() for path in Path(demo_model).iterdir()}
    return {**files, "pytorch_model.bin": b"pickle", "code.py": b"print()", "onnx/config.json": b"{}"}


def settings_of(archive: Path) -> dict[str, Any]:
    with zipfile.ZipFile(archive) as mar:
        return yaml.safe_load(mar.read("model-config.yaml"))


def names_in(archive: Path) -> set[str]:
    with zipfile.ZipFile(archive) as mar:
        return set(mar.namelist())


def code_in(archive: Path) -> set[str]:
    return {name for name in names_in(archive) if name.endswith(".py")}


def bundled_in(archive: Path) -> set[str]:
    return {name.removeprefix("weights/") for name in names_in(archive) if name.startswith("weights/")}


def run(monkeypatch, *arguments: str) -> Result:
    """`reelscribe archive` in the root of the project."""
    monkeypatch.chdir(ROOT)
    return CliRunner().invoke(app, ["archive", *arguments], catch_exceptions=False, env={"COLUMNS": "200"})


def archive_from(hub: str, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The same in a process of its own, with a hub at this address; its cache and the model store in `directory`."""
    environment = {**os.environ, "HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "HF_HUB_CACHE": str(directory / "cache")}
    command = [sys.executable, "-m", "reelscribe.cli", "archive", *arguments, "--model-store", str(directory)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_an_archive_holds_the_handler_and_its_settings(tmp_path, demo_model):
    path = build("clips", "caption", demo_model, tmp_path, handlers=HANDLERS)
    assert [p.name for p in tmp_path.iterdir()] == [path.name] == ["clips.mar"]
    assert {"caption_handler.py", *map(str, imported_files(HANDLERS / "caption_handler.py", HANDLERS))} == code_in(path)
    template = yaml.safe_load((HANDLERS / "caption.yaml").read_text())
    template["handler"]["model"] = str(Path(demo_model).resolve())
    assert settings_of(path) == {**template, "parameters": PARAMETERS}


IMPORT_ALL = """
import importlib, sys
from pathlib import Path
folder = sys.argv[1]
sys.path.insert(0, folder)
assert importlib.import_module(sys.argv[2]).handle
for path in Path(folder).rglob("*.py"):
    name = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
    assert Path(importlib.import_module(name).__file__) == path
"""


@pytest.mark.parametrize(
    ("kind", "foreign"),
    [
        ("caption", {"transcripts", "speech_handler.py"}),
        ("speech", {"captions", "caption_handler.py"}),
    ],
)
def test_a_handler_can_be_imported_from_its_archive_alone(tmp_path, demo_model, demo_speech, kind, foreign):
    weights = {"caption": demo_model, "speech": demo_speech}[kind]
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(build("clips", kind, weights, tmp_path, handlers=HANDLERS)) as mar:
        mar.extractall(unpacked)
    assert not [name for name in foreign if (unpacked / name).exists()]
    command = [sys.executable, "-P", "-c", IMPORT_ALL, str(unpacked), f"{kind}_handler"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "clients")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("options", "workers", "devices"),
    [
        (["--gpus", "4"], 4, [0, 1, 2, 3]),
        (["--gpus", "2", "--workers-per-gpu", "auto"], 2, [0, 1]),
        (["--gpus", "2", "--workers-per-gpu", "3"], 6, [0, 1]),
        (["--devices", "3,1", "--workers-per-gpu", "2"], 4, [3, 1]),
    ],
)
def test_workers_are_given_to_gpus(monkeypatch, tmp_path, demo_model, options, workers, devices):
    result = run(monkeypatch, "clips", "--weights", demo_model, "--model-store", str(tmp_path), *options)
    assert result.exit_code == 0
    settings = settings_of(tmp_path / "clips.mar")
    assert (settings["minWorkers"], settings["maxWorkers"], settings["deviceIds"]) == (workers, workers, devices)
    assert (settings["batchSize"], settings["maxBatchDelay"]) == (16, 5)


@pytest.mark.parametrize(
    ("options", "per_gpu"),
    [([], None), (["--gpus", "auto", "--workers-per-gpu", "auto"], None)]
    + [(["--workers-per-gpu", str(count)], count) for count in (1, 2)],
)
def test_an_archive_that_names_no_gpus_says_nothing_of_the_machine(monkeypatch, tmp_path, demo_model, options, per_gpu):
    result = run(monkeypatch, "clips", "--weights", demo_model, "--model-store", str(tmp_path), *options)
    assert result.exit_code == 0
    settings = settings_of(tmp_path / "clips.mar")
    assert not {"minWorkers", "maxWorkers", "deviceIds", "batchSize"} & settings.keys()
    assert settings.get("workersPerGpu") == per_gpu


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (None, "no such file; expected the settings of a handler"),
        ("handler: {", "expected YAML that can be read"),
        ("handler: \ud800", "expected YAML that can be read"),
        ("", "expected settings, and `handler:`"),
        ("minWorkers: 1", "expected settings, and `handler:`"),
        ("handler: caption", "expected settings, and `handler:`"),
    ],
)
def test_settings_of_a_handler_that_cannot_be_used_are_named(tmp_path, demo_model, settings, reason):
    if settings is not None:
        (tmp_path / "caption.yaml").write_bytes(settings.encode(errors="surrogatepass"))
    with pytest.raises(UsageError, match=rf"caption\.yaml: {reason}") as error:
        build("clips", "caption", demo_model, tmp_path / "store", handlers=tmp_path)
    assert "\n" not in str(error.value)


def test_each_gpu_has_a_worker():
    with pytest.raises(UsageError, match="workers per GPU: expected 1 or more, got 0"):
        GpuWorkers((0, 1), 0)


@pytest.mark.parametrize(
    ("options", "workers", "devices"),
    [
        ([], None, None),
        (["--gpus", "4"], 2, [0, 1, 2, 3]),
        (["--devices", "5,7"], 1, [5, 7]),
    ],
)
def test_a_worker_of_two_stages_is_two_processes_with_a_pair_of_gpus(
    monkeypatch, tmp_path, demo_model, options, workers, devices
):
    arguments = ["clips", "--weights", demo_model, "--model-store", str(tmp_path), "--stages", "2", *options]
    assert run(monkeypatch, *arguments).exit_code == 0
    settings = settings_of(tmp_path / "clips.mar")
    assert (settings.get("minWorkers"), settings.get("deviceIds"), settings["batchSize"]) == (workers, devices, 16)
    assert (settings["handler"]["stages"], settings["parallelType"]) == (2, "pp")
    assert settings["torchrun"] == {"nproc-per-node": 2}


def test_a_shot_model_has_one_stage(tmp_path):
    with pytest.raises(UsageError, match="stages: expected 1 for a shot handler"):
        build("two", "shot", save_transnetv2(tmp_path / "shots"), tmp_path, stages=2, handlers=HANDLERS)


@pytest.mark.parametrize(
    ("kind", "sent", "limit"),
    [
        ("caption", MAX_FRAMES_PER_REQUEST, "max_frames"),
        ("speech", MAX_CHUNKS_PER_REQUEST, "max_chunks"),
        ("clip", MAX_CLIPS_PER_REQUEST, "max_clips"),
        ("shot", MAX_WINDOWS_PER_REQUEST, "max_windows"),
    ],
)
def test_requests_are_joined_on_gpus_up_to_what_a_call_takes(
    tmp_path, demo_model, demo_speech, clip_model, kind, sent, limit
):
    shots = Path(save_transnetv2(tmp_path / "shots"))
    weights = {"caption": demo_model, "speech": demo_speech, "clip": clip_model, "shot": str(shots)}[kind]
    settings = settings_of(build("one", kind, weights, tmp_path, gpus=GpuWorkers((0, 1)), handlers=HANDLERS))
    assert (settings["batchSize"] * sent, settings["maxBatchDelay"]) == (settings["handler"][limit], 5)
    on_a_cpu = settings_of(build("cpu", kind, weights, tmp_path, handlers=HANDLERS))
    assert on_a_cpu.get("batchSize") == (8 if kind == "speech" else None)


def test_requests_are_joined_for_two_stages_unless_the_yaml_says_otherwise(tmp_path, demo_model, demo_speech):
    two = settings_of(build("two", "speech", demo_speech, tmp_path, stages=2, handlers=HANDLERS))
    assert two["batchSize"] * MAX_CHUNKS_PER_REQUEST == 4 * SpeechSettings.device_batches[0]
    own = shutil.copytree(HANDLERS, tmp_path / "handlers")
    (own / "caption.yaml").write_text(f"batchSize: 3\n{(HANDLERS / 'caption.yaml').read_text()}")
    assert settings_of(build("own", "caption", demo_model, tmp_path, stages=2, handlers=own))["batchSize"] == 3


def test_a_model_has_one_or_two_stages(tmp_path, demo_model):
    with pytest.raises(UsageError, match="stages: expected 1 or 2, got 3"):
        build("clips", "caption", demo_model, tmp_path, stages=3, handlers=HANDLERS)


@pytest.mark.parametrize(
    ("line", "stages", "reason"),
    [
        ("handler: {stages: 2}", 1, "caption.yaml, handler, stages: expected 1, got 2; use --stages 2"),
        ("handler: {}\ndeviceIds: [0, 1, 2]", 2, r"expected a multiple of 2 GPUs, got \[0, 1, 2\]"),
    ],
)
def test_a_yaml_that_does_not_go_with_the_stages_is_refused(tmp_path, demo_model, line, stages, reason):
    (tmp_path / "caption.yaml").write_text(line)
    with pytest.raises(UsageError, match=reason):
        build("clips", "caption", demo_model, tmp_path / "store", stages=stages, handlers=tmp_path)
    assert not (tmp_path / "store").exists()


def test_two_stages_need_a_model_with_two_halves_and_an_even_number_of_gpus(
    monkeypatch, tmp_path, demo_model, demo_speech
):
    ctc = shutil.copytree(demo_speech, tmp_path / "ctc")
    config = json.loads((ctc / "config.json").read_text())
    (ctc / "config.json").write_text(json.dumps({**config, "architectures": ["Wav2Vec2ForCTC"]}))
    speech = ["--handler", "speech", "--weights", str(ctc)]
    for options, reason in (
        (speech, "--stages 2: expected a WhisperForConditionalGeneration, and"),
        (["--weights", demo_model, "--gpus", "3"], "expected a multiple of 2 GPUs, got [0, 1, 2]"),
    ):
        result = run(monkeypatch, "clips", *options, "--model-store", str(tmp_path / "store"), "--stages", "2")
        assert result.exit_code == 2
        assert reason in result.output
    assert not (tmp_path / "store").exists()


def test_versions_lie_side_by_side_and_each_is_replaced_by_its_next_build(monkeypatch, tmp_path, demo_model):
    for options in (["--gpus", "1"], ["--version", "2.0"], ["--version", "2.0", "--gpus", "2"]):
        assert run(monkeypatch, "c", "--weights", demo_model, "--model-store", str(tmp_path), *options).exit_code == 0
    versions = {}
    for path in tmp_path.iterdir():
        with zipfile.ZipFile(path) as mar:
            model = json.loads(mar.read("MAR-INF/MANIFEST.json"))["model"]
        versions[path.name] = (model["modelName"], model["modelVersion"], settings_of(path)["maxWorkers"])
    assert versions == {"c.mar": ("c", "1.0", 1), "c-2.0.mar": ("c", "2.0", 2)}


def test_a_bundle_holds_weights_and_what_they_need_and_nothing_that_runs(tmp_path, weights):
    for name in ("modeling.py", "pytorch_model.bin", "optimizer.pt", "other.safetensors"):
        (weights / name).write_bytes(b"no part of it")
    (weights / "model.safetensors").rename(weights / "the weights")
    (weights / "model.safetensors").symlink_to("the weights")
    path = build("clips", "caption", str(weights), tmp_path / "store", bundle=True, handlers=HANDLERS)
    needed = {"config.json", "generation_config.json", "processor_config.json", "tokenizer.json"}
    assert bundled_in(path) == {"model.safetensors", "tokenizer_config.json", *needed}
    with zipfile.ZipFile(path) as mar:
        assert mar.read("weights/model.safetensors") == (weights / "the weights").read_bytes()
    handler = settings_of(path)["handler"]
    assert (handler["model"], handler["revision"], handler["weights"]) == (str(weights), None, "weights")


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_bundle_holds_nothing_that_a_link_leads_to_elsewhere(tmp_path, weights, name):
    (weights / name).rename(tmp_path / "elsewhere")
    (weights / name).symlink_to("../elsewhere")
    with pytest.raises(
        UsageError, match=f"{name}: expected only files of its own folder, .* got a link to .*elsewhere"
    ):
        build("clips", "caption", str(weights), tmp_path / "store", bundle=True, handlers=HANDLERS)
    assert not [*(tmp_path / "store").iterdir()]
    assert build("clips", "caption", str(weights), tmp_path / "store", handlers=HANDLERS).is_file()


def test_links_of_the_cache_of_the_hub_are_followed_into_a_bundle(tmp_path, weights):
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "1f", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    weights.rename(blobs)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    path = build("clips", "caption", str(snapshot), tmp_path / "store", bundle=True, handlers=HANDLERS)
    assert "model.safetensors" in bundled_in(path)


@pytest.mark.parametrize(
    ("revision", "commit"), [(None, COMMIT), ("tuned", BRANCHES["tuned"]), (BRANCHES["tuned"], BRANCHES["tuned"])]
)
def test_a_hub_name_is_pinned_to_a_commit_and_a_bundle_holds_that_one(tmp_path, repository, revision, commit):
    options = ["--bundle", *(["--revision", revision] if revision else [])]
    with fake_hub(repository) as hub:
        done = archive_from(hub.url, tmp_path, "clips", "--weights", NAME, *options)
    assert done.returncode == 0, done.stderr
    handler = settings_of(tmp_path / "clips.mar")["handler"]
    assert (handler["model"], handler["revision"], handler["weights"]) == (NAME, commit, "weights")
    others = {"pytorch_model.bin", "code.py", "onnx/config.json", "README.md"}
    assert bundled_in(tmp_path / "clips.mar") == set(repository) - others
    assert {path.name for path in tmp_path.glob("cache/*/snapshots/*/*")} == set(repository) - others


def test_without_the_hub_its_cache_tells_the_commit(tmp_path, repository):
    with fake_hub(repository) as hub:
        first = archive_from(hub.url, tmp_path, "online", "--weights", NAME, "--revision", "tuned")
    second = archive_from(hub.url, tmp_path, "offline", "--weights", NAME, "--revision", "tuned")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    online, offline = (settings_of(tmp_path / f"{name}.mar") for name in ("online", "offline"))
    assert (online.pop("parameters"), offline.pop("parameters")) == (PARAMETERS, None)  # which the hub tells
    assert online == offline
    assert online["handler"]["revision"] == BRANCHES["tuned"]
    assert [path.name for path in tmp_path.glob("cache/*/blobs/*")] != []
    assert not list(tmp_path.glob("cache/*/snapshots/*/*.safetensors"))  # nothing was downloaded but what was looked at


def test_a_whole_commit_needs_neither_hub_nor_cache(tmp_path):
    path = build("blip2", "caption", "Salesforce/blip2-opt-2.7b", tmp_path, revision=COMMIT, handlers=HANDLERS)
    handler = settings_of(path)["handler"]
    assert (handler["model"], handler["revision"], handler["weights"]) == ("Salesforce/blip2-opt-2.7b", COMMIT, None)


def test_a_hub_name_without_network_and_cache_says_what_helps(tmp_path):
    with pytest.raises(UsageError, match=r"neither on the hub nor in its cache.*all 40 digits of a commit as --revis"):
        build("blip2", "caption", "Salesforce/blip2-opt-2.7b", tmp_path, handlers=HANDLERS)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("weights", "options", "reason"),
    [
        (NAME, ["--revision", "none"], "RevisionNotFoundError"),
        (NAME, ["--revision", "f" * 40], "RevisionNotFoundError"),
        ("some/other", [], "RepositoryNotFoundError"),
        (NAME, ["--handler", "speech"], "holds a Blip2ForConditionalGeneration, which is not for --handler speech"),
    ],
)
def test_what_the_hub_does_not_have_is_refused(tmp_path, repository, weights, options, reason):
    with fake_hub(repository) as hub:
        done = archive_from(hub.url, tmp_path, "clips", "--weights", weights, *options)
    assert (done.returncode, reason in done.stderr) == (2, True), done.stderr
    assert not list(tmp_path.glob("*.mar"))


@pytest.mark.parametrize("options", [[], ["--bundle"]])
def test_a_hub_name_without_safetensors_is_refused(tmp_path, repository, options):
    del repository["model.safetensors"]
    with fake_hub(repository) as hub:
        done = archive_from(hub.url, tmp_path, "clips", "--weights", NAME, *options)
    assert done.returncode == 2
    assert done.stderr.startswith(f"reelscribe: weights: {NAME} holds no model.safetensors and no model.safetensors.i")


def cut_short(weights: Path) -> None:
    data = (weights / "model.safetensors").read_bytes()
    (weights / "model.safetensors").write_bytes(data[:-1])


def only_a_pickle(weights: Path) -> None:
    (weights / "model.safetensors").rename(weights / "pytorch_model.bin")


def a_shard_is_missing(weights: Path) -> None:
    (weights / "model.safetensors").rename(weights / "model-00001-of-00002.safetensors")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (weights / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


def an_index_without_a_map(weights: Path) -> None:
    (weights / "model.safetensors").unlink()
    (weights / "model.safetensors.index.json").write_text("{}")


def a_shard_of_another_folder(weights: Path) -> None:
    (weights / "model.safetensors").rename(weights.parent / "model.safetensors")
    (weights / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../model.safetensors"}}))


def a_pipe(weights: Path) -> None:
    (weights / "model.safetensors").unlink()
    os.mkfifo(weights / "model.safetensors")


def no_config(weights: Path) -> None:
    (weights / "config.json").unlink()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut_short, r"model\.safetensors is missing, damaged or cut short"),
        (only_a_pickle, "other formats can run code and are not loaded"),
        (a_shard_is_missing, r"model-00002-of-00002\.safetensors is missing, damaged or cut short"),
        (an_index_without_a_map, r"index\.json is damaged"),
        (a_shard_of_another_folder, r"expected names of files beside it, got '\.\./model\.safetensors'"),
        (a_pipe, "not a regular file"),
        (no_config, r"expected a config\.json of transformers"),
    ],
)
def test_damaged_weights_are_found_before_they_are_served(tmp_path, weights, damage, reason):
    damage(weights)
    with pytest.raises(UsageError, match=reason):
        build("clips", "caption", str(weights), tmp_path / "store", handlers=HANDLERS)
    assert not (tmp_path / "store").exists()


def test_all_shards_of_an_index_are_bundled(tmp_path, weights):
    (weights / "model.safetensors").rename(weights / "model-00001-of-00001.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (weights / "model.safetensors.index.json").write_text(json.dumps(index))
    path = build("clips", "caption", str(weights), tmp_path / "store", bundle=True, handlers=HANDLERS)
    assert {"model-00001-of-00001.safetensors", "model.safetensors.index.json"} <= bundled_in(path)


@pytest.mark.parametrize(
    ("kind", "weights", "reason"),
    [
        ("paint", "a/b", "expected one of caption, speech"),
        ("caption", "./none", "neither"),
        ("caption", ".", "safetensors"),
    ],
)
def test_what_cannot_be_served_is_not_built(tmp_path, monkeypatch, kind, weights, reason):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=reason):
        build("x", kind, weights, tmp_path / "store", handlers=HANDLERS)
    assert not list(tmp_path.glob("store/*"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["../x"], "name: expected"),
        (["a..b"], "name: expected"),
        (["x" * 101], "name: expected"),
        (["x", "--version", "2/0"], "version: expected"),
        (["x", "--version", ""], "version: expected"),
        (["x", "--version", "all"], "no version called all"),
        (["x", "--revision", "main"], "only weights on the hub have any"),
        (["x", "--handler", "speech"], "holds a Blip2ForConditionalGeneration"),
        (["x", "--gpus", "2", "--devices", "0,1"], "expected one of them"),
        (["x", "--devices", "0,0"], "different numbers from 0"),
        (["x", "--devices", "-1"], "different numbers from 0"),
        (["x", "--devices", "0;1"], "got '0;1'"),
        (["x", "--stages", "2", "--workers-per-gpu", "2"], "workers per GPU: expected 1 with 2 stages, got 2"),
        (["x", "--gpus", "0"], "--gpus: expected auto, or a number of 1 or more, got '0'"),
        (["x", "--gpus", "all"], "--gpus: expected auto, or a number of 1 or more, got 'all'"),
        (["x", "--workers-per-gpu", "0"], "--workers-per-gpu: expected auto, or a number of 1 or more, got '0'"),
    ],
)
def test_wrong_options_say_what_is_expected(monkeypatch, tmp_path, demo_model, options, reason):
    result = run(monkeypatch, *options, "--weights", demo_model, "--model-store", str(tmp_path / "store"))
    assert (result.exit_code, reason in result.stderr) == (2, True), result.stderr
    assert not (tmp_path / "store").exists()


def test_a_build_that_fails_leaves_the_archive_that_was_there(tmp_path, demo_model, monkeypatch):
    path = build("clips", "caption", demo_model, tmp_path, handlers=HANDLERS)
    before = path.read_bytes()

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "write", full_disk)
    with pytest.raises(OutputError, match=r"clips\.mar: cannot be written: .*No space left on device"):
        build("clips", "caption", demo_model, tmp_path, bundle=True, handlers=HANDLERS)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before


def test_a_handler_without_all_of_its_files_is_not_packed(tmp_path, demo_model):
    handlers = shutil.copytree(HANDLERS, tmp_path / "handlers")
    (handlers / "worker" / "still_image.py").unlink()
    with pytest.raises(StartupError, match=r"frame_requests\.py: imports worker\.still_image, .* put it back"):
        build("clips", "caption", demo_model, tmp_path / "store", handlers=handlers)
    assert not list((tmp_path / "store").iterdir())


def test_a_folder_of_the_same_name_among_temporary_files_is_left_alone(tmp_path, demo_model, monkeypatch):
    mine = tmp_path / "clips" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("torch-model-archiver deletes this folder")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    build("clips", "caption", demo_model, tmp_path / "store", handlers=HANDLERS)
    assert mine.exists()


def test_converted_weights_are_in_the_archive_and_a_bundle_leaves_out_what_they_replace(
    monkeypatch, tmp_path, demo_speech
):
    arguments = ["words", "--handler", "speech", "--weights", demo_speech, "--model-store", str(tmp_path)]
    result = run(monkeypatch, *arguments, "--engine", "ctranslate2", "--dtype", "int8", "--bundle")
    assert result.exit_code == 0, result.output
    archive = tmp_path / "words.mar"
    settings = settings_of(archive)["handler"]
    assert (settings["engine"], settings["dtype"], settings["converted"]) == ("ctranslate2", "int8", "converted")
    assert {"converted/model.bin", "converted/config.json", "converted/vocabulary.json"} <= names_in(archive)
    assert {"config.json", "generation_config.json", "tokenizer.json"} <= bundled_in(archive)
    assert "model.safetensors" not in bundled_in(archive)
    with zipfile.ZipFile(archive) as mar:  # a byte for most weights, where the others have four
        assert (
            mar.getinfo("converted/model.bin").file_size < 0.5 * Path(demo_speech, "model.safetensors").stat().st_size
        )
    assert [path.name for path in tmp_path.iterdir()] == ["words.mar"]


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("caption", {"engine": "ctranslate2"}, "engine: expected torch for a caption handler, got 'ctranslate2'"),
        ("speech", {"engine": "onnx"}, "engine: expected torch or ctranslate2 for a speech handler, got 'onnx'"),
        ("speech", {"engine": "ctranslate2", "stages": 2}, "engine ctranslate2: expected one stage, got 2"),
        ("speech", {"engine": "ctranslate2", "dtype": "int4"}, "dtype: expected auto or one of .*int8.*, got 'int4'"),
        ("speech", {"dtype": "int8"}, "dtype: expected auto or one of float32, .* with engine torch, got 'int8'"),
    ],
)
def test_an_engine_that_cannot_run_the_model_is_refused(tmp_path, demo_model, demo_speech, kind, options, reason):
    with pytest.raises(UsageError, match=reason):
        build("words", kind, demo_speech if kind == "speech" else demo_model, tmp_path, handlers=HANDLERS, **options)
    assert not list(tmp_path.iterdir())


def test_an_engine_needs_its_package_and_an_architecture_that_it_knows(monkeypatch, tmp_path, demo_speech):
    ctc = shutil.copytree(demo_speech, tmp_path / "ctc")
    config = json.loads((ctc / "config.json").read_text())
    (ctc / "config.json").write_text(json.dumps({**config, "architectures": ["Wav2Vec2ForCTC"]}))
    with pytest.raises(UsageError, match=r"expected a WhisperForConditionalGeneration, and .* holds a Wav2Vec2ForCTC"):
        build("words", "speech", str(ctc), tmp_path, engine="ctranslate2", handlers=HANDLERS)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        UsageError, match=r"expected the package ctranslate2, got none; .*pip install .*\[ctranslate2\]'"
    ):
        build("words", "speech", demo_speech, tmp_path, engine="ctranslate2", handlers=HANDLERS)


def test_compile_is_written_for_what_generates_and_refused_for_all_else(monkeypatch, tmp_path, demo_model, demo_speech):
    arguments = ["compiled", "--weights", demo_model, "--model-store", str(tmp_path), "--compile"]
    assert run(monkeypatch, *arguments).exit_code == 0
    assert settings_of(tmp_path / "compiled.mar")["handler"]["compile"] is True
    plain = build("plain", "caption", demo_model, tmp_path, handlers=HANDLERS)
    assert settings_of(plain)["handler"]["compile"] is False
    cases = [("shot", {}), ("caption", {"stages": 2}), ("speech", {"engine": "ctranslate2"})]
    weights = {"shot": str(save_transnetv2(tmp_path / "shots")), "caption": demo_model, "speech": demo_speech}
    for kind, options in cases:
        with pytest.raises(UsageError, match="--compile: expected a model that generates text, in one stage"):
            build("refused", kind, weights[kind], tmp_path, compiled=True, handlers=HANDLERS, **options)
