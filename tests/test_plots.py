"""Plots of the benchmarks' figures."""

import json

import pytest
from PIL import Image

from collect import collect
from plots import draw, tables
from report import Report, Spread, publish


@pytest.fixture
def results(tmp_path):
    """As scripts/bench writes them, from a run of each benchmark."""
    speed, growth, sizes = Spread((90.0, 100.0, 120.0)), Spread((1.0, 1.0, 1.0)), Spread((400.0, 410.0, 420.0))
    captioning = Report("Captioning; CPU and bytes for 1,000 frames", ("size", "way", "frames/s"))
    captioning.add("480x270", "blog-prebatch", speed)
    captioning.add("480x270", "ours-fast", speed)
    scaling = Report("Devices of 100 frames/s each", ("", "between answers", "of one"))
    scaling.add("1 server, 1 device", speed, growth)
    scaling.add("2 servers, 2 each", speed, growth)
    memory = Report("32 images of float32", ("layout", "format", "seconds", "sender MB", "receiver MB", "of (a)"))
    memory.add("8x4", "(c) reelscribe.wire", growth, sizes, sizes, growth)
    publish([captioning, scaling, memory], tmp_path / "one.json")
    file = tmp_path / "plotted" / "all.json"
    file.parent.mkdir()
    file.write_text(json.dumps(collect(tmp_path)))
    return file


def test_each_table_has_its_plot(results, tmp_path):
    files = list(draw(tables(results), tmp_path / "plots"))
    assert [file.name for file in files] == ["captioning.png", "scaling.png", "memory.png"]
    for file in files:
        with Image.open(file) as image:
            assert len(image.convert("RGB").getcolors(100_000)) > 10  # lines on a ground, and their edges


def test_results_of_one_machine_are_collected_and_of_two_are_not(tmp_path):
    publish([], tmp_path / "a.json")
    result = json.loads((tmp_path / "a.json").read_text())
    next_day = {**result, "machine": {**result["machine"], "date": "1999-12-31"}}
    (tmp_path / "b.json").write_text(json.dumps(next_day))
    assert len(collect(tmp_path)["results"]) == 2
    (tmp_path / "c.json").write_text(json.dumps({**result, "machine": {**result["machine"], "cores": "many"}}))
    with pytest.raises(SystemExit, match="expected results of one machine"):
        collect(tmp_path)


def test_a_benchmark_that_was_not_run_is_named(tmp_path):
    with pytest.raises(KeyError, match="expected a table 'Captioning;', found Other"):
        list(draw({"Other": []}, tmp_path))
