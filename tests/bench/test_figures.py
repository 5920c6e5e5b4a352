"""The figures are right: peers caption what ours captions, operations are those that torch counts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "ways",
    [
        ["plain-32", "blog-sync", "blog-stream", "blog-prebatch", "flask"],  # full-size frames
        ["litserve", "ours-network", "ours-fast"],  # frames that our client scaled
    ],
)
def test_ways_that_get_the_same_pixels_give_the_same_captions(tables_of, ways):
    pytest.importorskip("litserve", reason="needs the extra `bench`")
    words = ["--rounds", 1, "--frames", 20, "--sizes", "480x270", "--ways", *ways]
    table, ratios = tables_of("captioning", *words)
    assert [row[1] for row in table["rows"]] == ways
    assert all(row[2]["values"][0] > 0 for row in table["rows"])
    assert [row[table["columns"].index("same captions, %")] for row in table["rows"]] == ["100.0"] * len(ways)
    assert int(table["notes"][0].split(", ")[1].split()[0]) > 1  # or wrong order would not show
    assert [row[1:3] for row in ratios["rows"]] == [[way, "litserve"] for way in ways if way.startswith("ours")]
    equal = {row[table["columns"].index("as full frames, %")] for row in table["rows"]}
    assert len(equal) == 1
    assert 0 < float(*equal) <= 100


def test_ways_to_describe_clips_find_the_truth(tables_of):
    pytest.importorskip("litserve", reason="needs the extra `bench`")
    words = ["--rounds", 1, "--clips", 3, "--sizes", "640x360", "--ways", "ours", "litserve"]
    table, ratios = tables_of("describing", *words)
    assert [row[1] for row in table["rows"]] == ["ours", "litserve"]
    assert all(row[2]["values"][0] > 0 for row in table["rows"])
    assert [row[table["columns"].index("exact, %")] for row in table["rows"]] == ["100.0"] * 2
    assert [row[1] for row in ratios["rows"]] == ["litserve"]


def test_ours_reads_the_wanted_frames_and_ffmpeg_skips_some_of_them(run_bench, tmp_path):
    words = ["--sizes", "96x64", "--groups", 2, "--seconds", 4, "--codecs", "h264", "--json", tmp_path / "tables.json"]
    done = run_bench("library/sparse_sampling", *words)
    assert done.returncode == 0, done.stderr[-3000:]
    (table,) = json.loads((tmp_path / "tables.json").read_text())["tables"]
    wrong = {row[0].partition(": ")[2]: row[4] for row in table["rows"]}
    assert [wrong[way] for way in ("ours, --fps 1", "PyAV, all", "PyAV, seek")] == ["0 of 4"] * 3
    assert all(wrong[f"PyAV, {skip}"] != "0 of 4" for skip in ("noref", "nokey"))


def test_threads_that_read_are_compared_with_none_on_one_server(tables_of):
    words = ["--bodies", "stills", "--joined", 2, "--threads", 0, 2, "--requests", 6, "--rounds", 1]
    (table,) = tables_of("reader_threads", *words)
    assert [row[0] for row in table["rows"]] == ["0", "2"]
    assert all(row[1]["values"][0] > 0 for row in table["rows"])
    assert table["rows"][0][2]["values"] == [1.0]


def test_slices_that_receivers_join_halve_what_is_sent_and_change_no_description(tables_of):
    described, features = tables_of("sliced_sends", "--rounds", 1, "--clips", 2)
    assert [(row[0], row[3]) for row in described["rows"]] == [("whole", "yes"), ("sliced", "yes")]
    for table in (described, features):
        whole, sliced = (float(row[2]) for row in table["rows"])
        assert sliced == pytest.approx(whole / 2, rel=0.01)


def test_operations_and_bytes_are_those_of_torch_and_of_the_models(tables_of):
    words = ["--caption-tokens", 5, "--speech-tokens", 5, "--clip-tokens", 5, "--clip-size", "96x64"]
    (table,) = tables_of("gpu", "--device", "cpu", "--size", "tiny", "--check", *words)
    assert [row[0].split()[0] for row in table["rows"]] == ["parameters"] * 3 + ["bytes"] + ["operations"] * 3
    assert all(expected == counted for _, expected, counted in table["rows"])


def test_every_variant_of_every_model_runs(tables_of):
    words = ["--batches", 2, "--rounds", 1, "--speech-tokens", 4, "--caption-tokens", 4]
    words += ["--clip-tokens", 4, "--clip-frames", 4, "--clip-size", "96x64"]
    limits, blip2, whisper, qwen3_vl, *works = tables_of("gpu", "--device", "cpu", "--size", "tiny", *words)
    variants = ["bf16", "fp16", "eager", "compiled"]
    for table in (blip2, whisper, qwen3_vl):
        assert [row[0] for row in table["rows"]] == [f"2, {name}" for name in variants]
        assert all(row[1]["values"][0] > 0 for row in table["rows"])
        assert all(0 <= int(row[3].removesuffix("%")) <= 100 for row in table["rows"])
    assert [row[0] for row in works[1]["rows"]] == ["spectrogram", "encoder", "language", "prompt", "3 more tokens"]
    assert limits["notes"] == ["On a CPU, this shows that the benchmark runs. Its figures mean nothing for a GPU."]


def test_a_driver_of_nodes_that_sleep_does_all_sources_and_then_finds_them_done(tables_of):
    (table,) = tables_of("driver", "--nodes", 3, "--sources", 100, "--seconds-per-source", 0)
    assert table["title"].endswith("3 nodes that sleep, 100 sources")
    idle, new, done = (dict(zip(table["columns"], row, strict=True)) for row in table["rows"])
    assert all(int(run["sources/s"]) > 0 for run in (idle, new, done))
    assert (int(new["rows/s"]) > 0, int(done["rows/s"])) == (True, 0)


def python(*words: object) -> subprocess.CompletedProcess[str]:
    """Runs Python where it finds the modules of benchmarks."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("bench", "demo"))}
    return subprocess.run([sys.executable, *map(str, words)], env=environment, capture_output=True, text=True)


def collect(folder: Path, file: Path) -> subprocess.CompletedProcess[str]:
    """Joins results as scripts/bench does."""
    return python("-m", "lib.report", folder, file)


SERVE = """
import sys
from pathlib import Path
from peers.captions import servers
servers.pack_handler = lambda *_, **options: None
servers.serve = lambda *_, models: sys.exit(print(models))
with servers.SERVERS[sys.argv[1]](Path()):
    pass
"""
"""A program that starts a server of the blog's handler, but writes the settings of its model instead."""


@pytest.mark.parametrize(("name", "joined"), [("blog", (1, 0)), ("blog, joining", (128, 100))])
def test_the_blogs_handler_is_served_as_the_blog_does_and_with_joined_requests(name, joined):
    done = python("-c", SERVE, name)
    assert done.returncode == 0, done.stderr[-3000:]
    settings = json.loads(done.stdout)["blip2"]["1.0"]
    assert (settings["batchSize"], settings["maxBatchDelay"]) == joined


def test_results_of_one_machine_are_collected_and_of_two_are_not(tmp_path):
    machine = {"date": "2026-11-21", "cores": "2"}
    for name, change in (("a", {}), ("b", {"date": "2026-11-22"})):
        (tmp_path / f"{name}.json").write_text(json.dumps({"machine": machine | change, "command": name, "tables": []}))
    assert collect(tmp_path, tmp_path / "new" / "all.json").returncode == 0
    collected = json.loads((tmp_path / "new" / "all.json").read_text())
    assert collected["machine"] == machine
    assert [result["command"] for result in collected["results"]] == ["a", "b"]
    (tmp_path / "c.json").write_text(json.dumps({"machine": machine | {"cores": "many"}}))
    done = collect(tmp_path, tmp_path / "all.json")
    assert done.returncode == 1
    assert "expected results of one machine" in done.stderr


def test_a_gpu_day_prints_each_step_and_runs_with_tiny_models(run_bench):
    done = run_bench("gpu_day", "--tiny", "--steps", "compiled")
    assert done.returncode == 0, done.stderr[-3000:]
    first, weights, ready, rate = (line.split("min  ")[1] for line in done.stdout.splitlines())
    assert first.endswith("on a CPU, so that figures mean nothing")
    assert weights.endswith("weights")
    assert ready.startswith("caption, workers: 1, compiled: ready after")
    assert float(rate.removeprefix("captions, compiled, 480x270-2: ").removesuffix("/s")) > 0
