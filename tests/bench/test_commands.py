"""What all commands share: how they are started, ended, and how they refuse mistakes."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from reelscribe.server.instance import Instance

ROOT = Path(__file__).parents[2]

RUN = """
import contextlib, io, json, runpy, sys
ends = []
for command, *words in json.load(sys.stdin):
    sys.argv, out = [command, *words], io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            runpy.run_path(command, run_name="__main__")
    except SystemExit as end:
        ends.append((end.code or 0, out.getvalue()))
    else:
        raise AssertionError(f"{command} did not exit")
json.dump(ends, sys.stdout)
"""
"""A program that runs commands one after the other, and writes the status and the output of each. One process imports
torch once, which takes most of their time."""


def commands() -> list[Path]:
    """The programs that `scripts/bench` runs, as it lists them."""
    done = subprocess.run([ROOT / "scripts" / "bench", "?"], capture_output=True, text=True)
    return [ROOT / "bench" / f"{line.split()[0]}.py" for line in done.stderr.splitlines()[1:]]


def python(*words: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python where it finds what `scripts/bench` lets commands find."""
    folders = ["bench", "handlers", "demo"]
    path = os.pathsep.join([*(str(ROOT / folder) for folder in folders), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *map(str, words)], input=stdin, env=environment, capture_output=True, text=True
    )


def ends_of(lines: Sequence[Sequence[object]]) -> list[tuple[int, str]]:
    """Run commands, each with its words, and return their statuses with what they write."""
    done = python("-c", RUN, stdin=json.dumps([list(map(str, line)) for line in lines]))
    assert done.returncode == 0, done.stderr[-3000:]
    return [tuple(end) for end in json.loads(done.stdout)]


def test_a_name_that_is_none_is_refused_with_the_names_of_all_commands(run_bench):
    done = run_bench("captoning")
    assert done.returncode == 2
    assert "expected the name of a benchmark, got captoning" in done.stderr
    assert {"models/captioning", "defaults/resize"} <= set(done.stderr.split())


def test_a_mistake_ends_a_command_with_status_2(run_bench):
    done = run_bench("wire", "--json", "no/such/folder/a.json")
    assert done.returncode == 2
    assert "expected a file in a folder that exists, got no/such" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_cannot_work_is_refused_before_anything_is_measured():
    mistakes = {
        ("describing", "--ways", "card-1"): "card-1: expected --peer-python, which this way needs",
        ("describing", "--peer-python", "/usr/bin/false"): "expected a Python with the packages that --help lists",
        ("gpu", "--device", "foo"): "expected cuda, cuda:NUMBER or cpu, got foo",
        ("gpu", "--device", "cuda:1000"): "cuda:1000: expected a GPU that torch sees, found",
    }
    ends = ends_of([(ROOT / "bench" / "models" / f"{name}.py", *words) for name, *words in mistakes])
    for (status, output), message in zip(ends, mistakes.values(), strict=True):
        assert (status, message in output, "Traceback" in output) == (2, True, False), output


def test_the_help_lists_every_command_with_its_question(run_bench):
    done = run_bench("--help")
    assert done.returncode == 0
    listed = dict(re.findall(r"^(\w+/\w+) +(\S.*\?)$", done.stdout, re.M))
    assert [ROOT / "bench" / f"{name}.py" for name in listed] == commands()
    assert listed["library/start"] == "How long does a run take to its first request?"


def test_every_command_starts():
    programs = commands()
    assert len(programs) >= 15
    ends = ends_of([(program, "--help") for program in programs])
    assert [status for status, output in ends if output.startswith("usage: ")] == [0] * len(programs)


def test_no_two_commands_have_one_name():
    names = [program.stem for program in commands()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["defaults/resize", "resize"])
def test_a_command_is_started_by_its_name_with_and_without_its_folder(run_bench, name):
    done = run_bench(name, "--help")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "usage: " in done.stdout


@pytest.mark.parametrize("module", ["lib.report", "lib.delivery", "peers.outcome"])
def test_the_examples_of_how_figures_are_computed_are_right(module):
    done = python(
        "-c", f"import doctest, sys, {module}; failed, n = doctest.testmod({module}); sys.exit(failed or not n)"
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_benchmark_that_is_terminated_stops_its_server():
    command = [ROOT / "scripts" / "bench", "operations", "--latency", "--seconds", "600"]
    with tempfile.TemporaryDirectory() as folder:
        with subprocess.Popen(command, env={**os.environ, "TMPDIR": folder}, stdout=subprocess.DEVNULL) as bench:
            server = []
            while not server:
                assert bench.poll() is None
                server = [process for path in Path(folder).glob("*/instance") for process in Instance(path).processes()]
                time.sleep(0.05)
            bench.send_signal(signal.SIGTERM)
            assert bench.wait() == 130
        assert not any(process.is_running() for process in server)
        assert list(Path(folder).iterdir()) == []
